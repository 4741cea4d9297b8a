"""SDGMNet: local image descriptors that anyone can train, measure and use."""

from sdgmnet.data.patchset import PatchSet
from sdgmnet.encoders import SDGMNet
from sdgmnet.inference import describe_patches
from sdgmnet.loss.sdgm import SDGMLoss
from sdgmnet.metrics import fpr_at_recall
from sdgmnet.version import __version__

__all__ = ["PatchSet", "SDGMLoss", "SDGMNet", "__version__", "describe_patches", "fpr_at_recall"]

"""Losses on matching pairs of unit descriptors: one per file, all called `loss(anchor, positive, *, progress=1.0)`."""

from sdgmnet.loss.cdf import CDFLoss
from sdgmnet.loss.hardnet import HardNetLoss, HardNetOriginalLoss
from sdgmnet.loss.hynet import HyNetLoss
from sdgmnet.loss.l2net import L2NetLoss
from sdgmnet.loss.modulated import ModulatedLoss
from sdgmnet.loss.registry import LOSSES
from sdgmnet.loss.sdgm import SDGMLoss
from sdgmnet.loss.sosnet import SOSNetLoss
from sdgmnet.loss.tfeat import TFeatLoss

__all__ = [
    "LOSSES",
    "CDFLoss",
    "HardNetLoss",
    "HardNetOriginalLoss",
    "HyNetLoss",
    "L2NetLoss",
    "ModulatedLoss",
    "SDGMLoss",
    "SOSNetLoss",
    "TFeatLoss",
]

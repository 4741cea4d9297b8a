"""Losses on matching pairs of unit descriptors: one a file, all called `loss(anchor, positive, *, progress=1.0)`."""

from torch import nn

from sdgmnet.loss.hardnet import HardNetLoss
from sdgmnet.loss.sdgm import SDGMLoss

LOSSES: dict[str, type[nn.Module]] = {"sdgm": SDGMLoss, "hardnet": HardNetLoss}

__all__ = ["LOSSES", "HardNetLoss", "SDGMLoss"]

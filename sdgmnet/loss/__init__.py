"""Losses on matching pairs of unit descriptors: one a file, all called `loss(anchor, positive, *, progress=1.0)`."""

from collections.abc import Callable

from torch import nn

from sdgmnet.loss.cdf import CDFLoss
from sdgmnet.loss.hardnet import HardNetLoss, HardNetOriginalLoss
from sdgmnet.loss.hynet import HyNetLoss
from sdgmnet.loss.l2net import L2NetLoss
from sdgmnet.loss.modulated import ModulatedLoss, exp_tl_loss, keller_loss, sface_loss
from sdgmnet.loss.sdgm import SDGMLoss
from sdgmnet.loss.sosnet import SOSNetLoss
from sdgmnet.loss.tfeat import TFeatLoss

LOSSES: dict[str, Callable[..., nn.Module]] = {
    "sdgm": SDGMLoss,
    "hardnet": HardNetLoss,  # as the paper's HardNet+FRN
    "hardnet-original": HardNetOriginalLoss,
    "tfeat": TFeatLoss,
    "l2net": L2NetLoss,
    "cdf": CDFLoss,
    "sosnet": SOSNetLoss,
    "hynet": HyNetLoss,
    "keller": keller_loss,
    "exp-tl": exp_tl_loss,
    "sface": sface_loss,
}

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

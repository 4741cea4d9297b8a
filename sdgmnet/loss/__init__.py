"""Losses on matching pairs of unit descriptors: one a file, all called `loss(anchor, positive, *, progress=1.0)`."""

from torch import nn

from sdgmnet.loss.sdgm import SDGMLoss

LOSSES: dict[str, type[nn.Module]] = {"sdgm": SDGMLoss}

__all__ = ["LOSSES", "SDGMLoss"]

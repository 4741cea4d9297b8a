"""Losses on matching pairs of unit descriptors: one a file, all called `loss(anchor, positive, *, progress=1.0)`."""

from sdgmnet.loss.sdgm import SDGMLoss

LOSSES = {"sdgm": SDGMLoss}

__all__ = ["LOSSES", "SDGMLoss"]

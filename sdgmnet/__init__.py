"""SDGMNet: local image descriptors that anyone can train, measure and use."""

from sdgmnet.loss.sdgm import SDGMLoss

__version__ = "0.1.0"
__all__ = ["SDGMLoss"]

"""Global orthogonal regularisation (GOR), which can be added to any loss."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sdgmnet.loss.checks import require_pairs


class WithOrthogonality(nn.Module):
    """Any loss plus `weight` times `global_orthogonality`, with the needs, report and state of that loss."""

    def __init__(self, loss: nn.Module, weight: float) -> None:
        super().__init__()
        self.loss, self.weight = loss, weight
        self.needs: frozenset[str] = frozenset(getattr(loss, "needs", ()))

    def forward(self, anchor: Tensor, positive: Tensor, *, progress: float = 1.0, **encoded: Any) -> Tensor:
        value: Tensor = self.loss(anchor, positive, progress=progress, **encoded)
        return value + self.weight * global_orthogonality(anchor, positive)

    @property
    def report(self) -> Any:
        return getattr(self.loss, "report", None)

    def running(self) -> Mapping[str, float]:
        running: Mapping[str, float] = getattr(self.loss, "running", dict)()
        return running


def global_orthogonality(anchor: Tensor, positive: Tensor) -> Tensor:
    r""":math:`\bar s^2 + \max(0, \overline{s^2} - 1/D)` over cosines s of random non-matching pairs.

    Random directions have mean 0 and second moment 1/D. anchor, positive (N, D) of unit length; the negative of an anchor is
    the positive of the previous row.
    """
    require_pairs(anchor, positive)
    cosines = (anchor * positive.roll(1, dims=0)).sum(dim=1)
    spread = (cosines.square().mean() - 1 / anchor.shape[1]).clamp_min(0)
    return torch.square(cosines.mean()) + spread

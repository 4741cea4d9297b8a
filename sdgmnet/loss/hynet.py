"""HyNet's loss: triplets by a hybrid of distance and inner product, and equal lengths before normalisation."""

from typing import Literal

import torch
from torch import Tensor, nn

from sdgmnet.errors import InputError
from sdgmnet.loss.nearest import nearest_distances
from sdgmnet.loss.needs import Encoded, demand_encoded

Reduction = Literal["sum", "mean"]


class HyNetLoss(nn.Module):
    r"""Hybrid similarity with a margin, and a regularisation of lengths.

    .. math:: L = \sum_i \max(0,\, m + h(d^+_i) - h(d^-_i)) + \gamma \sum_i (\|x_i\| - \|x'_i\|)^2,
              \quad h(d) = d + \alpha d^2 / 2

    so :math:`h = d + \alpha (1 - s)`. Negatives are the nearest of the four comparisons; rows without one count 0.

    Args:
        margin: m.
        alpha: share of the inner product in the hybrid.
        regularisation: :math:`\gamma`, on the lengths of the features before normalisation.
        reduction: "sum" as the published code, or "mean": the whole divided by N, for learning rates that expect means.

    Shape:
        anchor, positive (N, D) of unit length, both `Encoded` -> scalar.
    """

    needs = frozenset({"raw"})

    def __init__(
        self, margin: float = 1.2, alpha: float = 2.0, regularisation: float = 0.1, reduction: Reduction = "sum"
    ) -> None:
        super().__init__()
        if reduction not in ("sum", "mean"):
            raise InputError(f"reduction is sum or mean, not {reduction!r}.")
        self.margin, self.alpha, self.regularisation, self.reduction = margin, alpha, regularisation, reduction

    def forward(
        self,
        anchor: Tensor,
        positive: Tensor,
        *,
        progress: float = 1.0,
        anchor_encoded: Encoded | None = None,
        positive_encoded: Encoded | None = None,
    ) -> Tensor:
        encoded = demand_encoded(self, anchor_encoded, positive_encoded)
        found = nearest_distances(anchor, positive, "all", epsilon=1e-6)
        violation = (self.margin + self.hybrid(found.positive) - self.hybrid(found.negative)).clamp_min(0)
        triplets = torch.where(found.admissible, violation, 0).sum()
        lengths = [torch.linalg.vector_norm(one.raw, dim=1) for one in encoded]
        total = triplets + self.regularisation * (lengths[0] - lengths[1]).square().sum()
        return total if self.reduction == "sum" else total / len(anchor)

    def hybrid(self, distance: Tensor) -> Tensor:
        """h(d): its gradient on the sphere is strong both for near and for far pairs."""
        return distance + self.alpha * distance.square() / 2

"""HyNet's loss: a triplet margin on a hybrid similarity, and a regularisation of feature lengths."""

import math

import torch
from torch import Tensor, nn

from sdgmnet.loss.checks import Encoded, Reduction, require, require_encoded, require_numbers, require_progress
from sdgmnet.loss.mining import nearest_distances


class HyNetLoss(nn.Module):
    r"""HyNet's triplet margin on a hybrid of distance and inner product, with a regularisation of feature lengths.

    .. math:: L = \frac{1}{Z} \sum_i \max(0,\, m + h(d^+_i) - h(d^-_i)) + \gamma \sum_i (\|x_i\| - \|x'_i\|)^2,
              \quad h(d) = d + \alpha d^2 / 2

    so :math:`h = d + \alpha (1 - s)`. Negatives are the nearest of the four comparisons; rows without one count 0.

    Args:
        margin: m.
        alpha: share of the inner product in the hybrid.
        regularisation: :math:`\gamma`, on the lengths of the features before normalisation.
        reduction: "sum" as in the published code, or "mean": the sum divided by N, for learning rates that expect means.
        normalised: True for Z as in HyNet's paper, the hybrid's steepest slope on the sphere (2.736 for :math:`\alpha = 2`),
            so that no gradient exceeds that of an angle; False for Z = 1, as in the published code.

    Shape:
        anchor, positive (N, D) of unit length, both `Encoded` -> scalar.
    """

    needs = frozenset({"raw"})

    def __init__(
        self,
        margin: float = 1.2,
        alpha: float = 2.0,
        regularisation: float = 0.1,
        reduction: Reduction = "sum",
        normalised: bool = False,
    ) -> None:
        super().__init__()
        require_numbers(self, margin=margin, alpha=alpha, regularisation=regularisation)
        require(self, reduction in ("sum", "mean"), "reduction must be sum or mean", reduction)
        require(self, isinstance(normalised, bool), "normalised must be true or false", normalised)
        require(self, alpha >= 0, "alpha must be at least 0", alpha)
        require(self, regularisation >= 0, "regularisation must be at least 0", regularisation)
        self.margin, self.alpha, self.regularisation, self.reduction = margin, alpha, regularisation, reduction
        self.divisor = steepest_slope(alpha) if normalised else 1.0

    def forward(
        self,
        anchor: Tensor,
        positive: Tensor,
        *,
        progress: float = 1.0,
        anchor_encoded: Encoded | None = None,
        positive_encoded: Encoded | None = None,
    ) -> Tensor:
        require_progress(progress)
        encoded = require_encoded(self, anchor_encoded, positive_encoded)
        found = nearest_distances(anchor, positive, "all", epsilon=1e-6)
        violation = (self.margin + self.hybrid(found.positive) - self.hybrid(found.negative)).clamp_min(0)
        triplets = torch.where(found.admissible, violation, 0).sum() / self.divisor
        lengths = [torch.linalg.vector_norm(one.raw, dim=1) for one in encoded]
        total = triplets + self.regularisation * (lengths[0] - lengths[1]).square().sum()
        return total if self.reduction == "sum" else total / len(anchor)

    def hybrid(self, distance: Tensor) -> Tensor:
        """h(d), whose gradient on the sphere is large for both near and far pairs."""
        return distance + self.alpha * distance.square() / 2


def steepest_slope(alpha: float) -> float:
    r"""Z: the greatest :math:`\partial h / \partial\theta = \alpha\sin\theta + \cos(\theta/2)`.

    With :math:`u = \sin(\theta/2)` it is where :math:`2\alpha u^2 + u/2 - \alpha = 0`.
    """
    if alpha == 0:
        return 1.0
    sine = (math.sqrt(0.25 + 8 * alpha**2) - 0.5) / (4 * alpha)
    return math.sqrt(1 - sine**2) * (2 * alpha * sine + 1)

"""L2Net's loss: softmax over relative distances, compactness, and discriminative intermediate feature maps."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sdgmnet.loss.checks import (
    Encoded,
    Reduction,
    require,
    require_encoded,
    require_numbers,
    require_pairs,
    require_progress,
)
from sdgmnet.loss.mining import at_least_float32


class L2NetLoss(nn.Module):
    r"""L2Net's loss E1 + E2 + E3: softmax over relative distances, compactness, intermediate feature maps.

    .. math:: E_1 = -\tfrac12 \sum_i (\log s^c_{ii} + \log s^r_{ii}), \quad
              E_2 = \tfrac12 \sum_{i \ne j} ((r^1_{ij})^2 + (r^2_{ij})^2), \quad
              E_3 = -\tfrac12 \sum_{maps} \sum_i (\log v^c_{ii} + \log v^r_{ii})

    :math:`s^c, s^r` are the softmax over columns and rows of :math:`2 - d_{ij}`, with :math:`d_{ij}` the distance of anchor i
    and positive j; :math:`r^1, r^2` the correlations between the dimensions of the anchors' and of the positives' features
    before normalisation; :math:`v` the softmax of inner products of the feature maps of the first and the last block.

    Args:
        reduction: "sum" as published, or "mean": the sum divided by N, for learning rates that expect means.
        scale: factor of the loss. Inner products of maps grow with their values, which FRN does not bound.

    Shape:
        anchor, positive (N, D) of unit length, both `Encoded` -> scalar.
    """

    needs = frozenset({"raw", "maps"})

    def __init__(self, reduction: Reduction = "sum", scale: float = 1.0) -> None:
        super().__init__()
        require_numbers(self, scale=scale)
        require(self, reduction in ("sum", "mean"), "reduction must be sum or mean", reduction)
        require(self, 0 < scale < math.inf, "scale must be positive", scale)
        self.reduction, self.scale = reduction, scale

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
        require_pairs(anchor, positive)
        encoded = require_encoded(self, anchor_encoded, positive_encoded)
        anchor, positive = at_least_float32(anchor), at_least_float32(positive)
        # From products, small distances would lose their digits.
        distances = torch.cdist(anchor, positive, compute_mode="donot_use_mm_for_euclid_dist")
        relative = negative_log_softmax(2 - distances)
        compact = (correlation_energy(encoded[0].raw) + correlation_energy(encoded[1].raw)) / 2
        # Channels last, as the encoder has its maps in training, so that gradients have the same layout.
        maps = ([at_least_float32(one).movedim(1, -1).flatten(1) for one in side.maps] for side in encoded)
        intermediate = sum(negative_log_softmax(left @ right.T) for left, right in zip(*maps, strict=True))
        total = self.scale * (relative + compact + intermediate)
        return total if self.reduction == "sum" else total / len(anchor)


def negative_log_softmax(scores: Tensor) -> Tensor:
    r"""scores (N, N) -> :math:`-\frac12 \sum_i (\log s^c_{ii} + \log s^r_{ii})`, softmax over columns and over rows."""
    columns, rows = (F.log_softmax(scores, dim=dim).diagonal() for dim in (0, 1))
    return -(columns + rows).sum() / 2


def correlation_energy(raw: Tensor) -> Tensor:
    r"""raw (N, D) -> :math:`\sum_{i \ne j} r_{ij}^2` over the correlations of its columns; a constant column has none.

    In float64: in small batches, correlations near 1 would leave little but rounding errors in the gradient.
    """
    wide = raw.double()
    centred = wide - wide.mean(dim=0)
    unit = F.normalize(centred, dim=0, eps=1e-6)
    correlation = unit.T @ unit
    return (correlation.square().sum() - correlation.diagonal().square().sum()).to(raw.dtype)

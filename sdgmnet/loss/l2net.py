"""L2Net's loss: relative distances by softmax, compact descriptors, discriminative intermediate maps."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sdgmnet.errors import InputError
from sdgmnet.loss.encoded import Encoded, require_encoded
from sdgmnet.loss.mining import at_least_float32, check_pairs

Reduction = Literal["sum", "mean"]


class L2NetLoss(nn.Module):
    r"""The sum of L2Net's three terms, E1 + E2 + E3.

    .. math:: E_1 = -\tfrac12 \sum_i (\log s^c_{ii} + \log s^r_{ii}), \quad
              E_2 = \tfrac12 \sum_{i \ne j} ((r^1_{ij})^2 + (r^2_{ij})^2), \quad
              E_3 = -\tfrac12 \sum_{maps} \sum_i (\log v^c_{ii} + \log v^r_{ii})

    :math:`s^c, s^r` are the softmax over columns and rows of :math:`2 - d_{ij}`, with :math:`d_{ij}` the distance of anchor i
    and positive j; :math:`r^1, r^2` the correlations between the dimensions of the anchors' and of the positives' features
    before normalisation; :math:`v` the softmax of inner products of maps, taken after the first and the last normalisation.

    Args:
        reduction: "sum" as published, or "mean": the whole divided by N, for learning rates that expect means.
        scale: the whole is multiplied by it. Inner products of whole maps grow with their values, which FRN does not bound.

    Shape:
        anchor, positive (N, D) of unit length, both `Encoded` -> scalar.
    """

    needs = frozenset({"raw", "maps"})

    def __init__(self, reduction: Reduction = "sum", scale: float = 1.0) -> None:
        super().__init__()
        if reduction not in ("sum", "mean"):
            raise InputError(f"reduction is sum or mean, not {reduction!r}.")
        if not 0 < scale < math.inf:
            raise InputError(f"L2NetLoss: scale must be positive, not {scale}.")
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
        check_pairs(anchor, positive)
        encoded = require_encoded(self, anchor_encoded, positive_encoded)
        anchor, positive = at_least_float32(anchor), at_least_float32(positive)
        # Written by products, distances of near descriptors would lose their digits.
        distances = torch.cdist(anchor, positive, compute_mode="donot_use_mm_for_euclid_dist")
        relative = negative_log_softmax(2 - distances)
        compact = (correlation_energy(encoded[0].raw) + correlation_energy(encoded[1].raw)) / 2
        # Channels last, as the encoder lays its maps in training: gradients then come back as it has them.
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

    In float64, which costs nothing here: in small batches correlations near 1 leave little but rounding of the gradient.
    """
    wide = raw.double()
    centred = wide - wide.mean(dim=0)
    unit = F.normalize(centred, dim=0, eps=1e-6)
    correlation = unit.T @ unit
    return (correlation.square().sum() - correlation.diagonal().square().sum()).to(raw.dtype)

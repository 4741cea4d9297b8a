"""HardNet's hardest-in-batch triplet loss: as in the paper's HardNet+FRN, and as in HardNet's own code."""

import math
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from sdgmnet.loss.checks import require, require_numbers, require_progress
from sdgmnet.loss.mining import hardest_in_batch, mine, nearest_distances


class HardNetLoss(nn.Module):
    r"""HardNet's triplet margin to the nearest negative in the batch, as in the paper's HardNet+FRN.

    .. math:: L = \frac{1}{Z} \sum_{i:\, m + d^+_i - d^-_i \ge 0} (m + d^+_i - d^-_i),
              \quad d = \sqrt{2 - 2 \cos\theta + \epsilon}

    Negatives are SDGM's: the nearest of the four comparisons beyond `min_negative_angle`. Pairs without one are ignored;
    a collapsed batch is treated as in `SDGMLoss`.

    Args:
        margin: m.
        min_negative_angle: nearer ones are taken for the same point under another id, in radians.
        mean_over: Z counts the active triplets (the published code of the comparison) or all of them (HardNet's own).

    Shape:
        anchor, positive (N, D) of unit length -> scalar.
    """

    def __init__(
        self, margin: float = 1.0, min_negative_angle: float = 0.6, mean_over: Literal["active", "all"] = "active"
    ) -> None:
        super().__init__()
        require_numbers(self, margin=margin, min_negative_angle=min_negative_angle)
        require(self, mean_over in ("active", "all"), "mean_over must be active or all", mean_over)
        radians = 0 <= min_negative_angle < math.pi
        require(self, radians, "min_negative_angle must lie in [0, pi) radians", min_negative_angle)
        self.margin, self.min_negative_angle, self.mean_over = margin, min_negative_angle, mean_over

    def forward(self, anchor: Tensor, positive: Tensor, *, progress: float = 1.0) -> Tensor:
        require_progress(progress)
        triplets = mine(self, partial(hardest_in_batch, anchor, positive), self.min_negative_angle)
        violation = self.margin + distance(triplets.theta_pos) - distance(triplets.theta_neg)
        active = triplets.usable & (violation >= 0)
        counted = active if self.mean_over == "active" else triplets.usable
        return torch.where(active, violation, 0).sum() / counted.sum().clamp_min(1)


class HardNetOriginalLoss(nn.Module):
    r"""HardNet's loss as in its own code: negatives across the two sides only, mean over all rows.

    .. math:: L = \frac{1}{N} \sum_i \max(0,\, m + D_{ii} - \min(\min_{j \ne i} D_{ij}, \min_{j \ne i} D_{ji})),
              \quad D_{ij} = \sqrt{2 - 2 a_i \cdot p_j + 10^{-6}}

    Entries of D below 0.008 are taken for the same patch and ignored; a row without a negative counts 0.

    Args:
        margin: m.

    Shape:
        anchor, positive (N, D) of unit length -> scalar.
    """

    def __init__(self, margin: float = 1.0) -> None:
        super().__init__()
        require_numbers(self, margin=margin)
        self.margin = margin

    def forward(self, anchor: Tensor, positive: Tensor, *, progress: float = 1.0) -> Tensor:
        require_progress(progress)
        found = nearest_distances(anchor, positive, "across", epsilon=1e-6)
        violation = (self.margin + found.positive - found.negative).clamp_min(0)
        return torch.where(found.admissible, violation, 0).mean()


def distance(theta: Tensor, epsilon: float = 1e-5) -> Tensor:
    """Euclidean distance of unit descriptors at angle theta; epsilon keeps its gradient finite at 0."""
    return (4 * torch.sin(theta / 2).square() + epsilon).sqrt()

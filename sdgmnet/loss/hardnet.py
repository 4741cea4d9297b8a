"""The hardest-in-batch triplet loss of HardNet: in the form the paper compares with (HardNet+FRN), and in its own."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from sdgmnet.errors import InputError
from sdgmnet.loss.mining import hardest_in_batch, nearest_distances


class HardNetLoss(nn.Module):
    r"""Triplet margin on Euclidean distances to the nearest negative of the batch, as the paper's HardNet+FRN has it.

    .. math:: L = \frac{1}{Z} \sum_{i:\, m + d^+_i - d^-_i \ge 0} (m + d^+_i - d^-_i),
              \quad d = \sqrt{2 - 2 \cos\theta + \epsilon}

    Negatives are SDGM's: nearest of the four comparisons, beyond `min_negative_angle`. Pairs without one do not count.

    Args:
        margin: m.
        min_negative_angle: nearer ones are taken for the same point under another name, in radians.
        mean_over: Z counts the active triplets (the published code of the comparison) or all of them (HardNet's own).

    Shape:
        anchor, positive (N, D) of unit length -> scalar.
    """

    def __init__(
        self, margin: float = 1.0, min_negative_angle: float = 0.6, mean_over: Literal["active", "all"] = "active"
    ) -> None:
        super().__init__()
        if mean_over not in ("active", "all"):
            raise InputError(f"mean_over is active or all, not {mean_over!r}.")
        if not 0 <= min_negative_angle < math.pi:
            raise InputError(f"HardNetLoss: min_negative_angle is in radians, in [0, pi), not {min_negative_angle}.")
        self.margin, self.min_negative_angle, self.mean_over = margin, min_negative_angle, mean_over

    def forward(self, anchor: Tensor, positive: Tensor, *, progress: float = 1.0) -> Tensor:
        triplets = hardest_in_batch(anchor, positive, self.min_negative_angle)
        violation = self.margin + distance(triplets.theta_pos) - distance(triplets.theta_neg)
        active = triplets.admissible & (violation >= 0)
        counted = active if self.mean_over == "active" else triplets.admissible
        return torch.where(active, violation, 0).sum() / counted.sum().clamp_min(1)


class HardNetOriginalLoss(nn.Module):
    r"""The same as HardNet's own code has it: negatives across the two sides only, and the mean over all rows.

    .. math:: L = \frac{1}{N} \sum_i \max(0,\, m + D_{ii} - \min(\min_{j \ne i} D_{ij}, \min_{j \ne i} D_{ji})),
              \quad D_{ij} = \sqrt{2 - 2 a_i \cdot p_j + 10^{-6}}

    Entries of D below 0.008 are taken for the same patch and left out; a row without any other counts 0.

    Args:
        margin: m.

    Shape:
        anchor, positive (N, D) of unit length -> scalar.
    """

    def __init__(self, margin: float = 1.0) -> None:
        super().__init__()
        self.margin = margin

    def forward(self, anchor: Tensor, positive: Tensor, *, progress: float = 1.0) -> Tensor:
        found = nearest_distances(anchor, positive, "across", epsilon=1e-6)
        violation = (self.margin + found.positive - found.negative).clamp_min(0)
        return torch.where(found.admissible, violation, 0).mean()


def distance(theta: Tensor, epsilon: float = 1e-5) -> Tensor:
    """Euclidean distance of unit descriptors at angle theta; epsilon keeps its gradient finite at 0."""
    return (4 * torch.sin(theta / 2).square() + epsilon).sqrt()

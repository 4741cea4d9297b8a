"""CDFDesc's loss: a soft margin from the distribution of triplets in training."""

import torch
from torch import Tensor

from sdgmnet.loss.checks import require, require_numbers, require_progress
from sdgmnet.loss.mining import nearest_distances
from sdgmnet.loss.statistics import Float64State


class CDFLoss(Float64State):
    r"""CDFDesc's dynamic soft margin: the weight of a triplet is the share of triplets that are easier.

    .. math:: L = \frac{1}{N} \sum_i w_i (d^+_i - d^-_i), \quad w_i = \mathrm{CDF}_t(d^+_i - d^-_i),
              \quad d = \sqrt{2 (1 - s + 10^{-6})}

    The distribution is a running histogram of :math:`d^+ - d^-` over [-2, 2], in which each triplet votes for the two nearest
    bins; it is updated before it is used, and the weights carry no gradient. Negatives are HardNet's. Rows without a negative
    have weight 0 and do not vote.

    Args:
        bins: number of bins; the published code has half its batch of 1024.
        histogram_decay: share of the histogram that each batch keeps.

    Shape:
        anchor, positive (N, D) of unit length -> scalar.
    """

    histogram: Tensor  # (bins,) float64, sums to 1; all 0 before the first batch

    def __init__(self, bins: int = 512, histogram_decay: float = 0.99) -> None:
        super().__init__()
        require_numbers(self, bins=bins, histogram_decay=histogram_decay)
        require(self, bins >= 2, "bins must be at least 2", bins)
        require(self, 0 <= histogram_decay < 1, "histogram_decay must lie in [0, 1)", histogram_decay)
        self.bins, self.histogram_decay = bins, histogram_decay
        self.register_buffer("histogram", torch.zeros(bins, dtype=torch.float64))

    def forward(self, anchor: Tensor, positive: Tensor, *, progress: float = 1.0) -> Tensor:
        require_progress(progress)
        found = nearest_distances(anchor, positive, "across", epsilon=2e-6)
        relative = found.positive - found.negative
        weight = self.weigh(relative.detach(), found.admissible).to(relative.dtype)
        return (weight * relative).mean()

    @torch.no_grad()
    def weigh(self, relative: Tensor, admissible: Tensor) -> Tensor:
        """(N,) d⁺ − d⁻ -> (N,) float64: the running CDF at each, 0 where not admissible."""
        place = ((relative.double() + 2) * (self.bins - 1) / 4).clamp(0, self.bins - 1)
        lower = place.floor().long()
        running, started = self.histogram, bool(self.histogram.any())
        if admissible.any() and (self.training or not started):  # eval mode uses the histogram unchanged
            votes = vote(place, admissible, self.bins)
            running = torch.lerp(votes, running, self.histogram_decay) if started else votes
        if self.training:
            self.histogram.copy_(running)
        cumulative = running.cumsum(0) / running.sum().clamp_min(1e-12)
        return cumulative[lower] * admissible


def vote(place: Tensor, admissible: Tensor, bins: int) -> Tensor:
    """Places (N,) in [0, bins - 1] -> histogram (bins,) that sums to 1; a vote is shared by the two nearest bins."""
    lower, counts = place.floor(), admissible.to(place.dtype)
    upper_share = (place - lower) * counts
    histogram = torch.zeros(bins, dtype=place.dtype, device=place.device)
    histogram.index_add_(0, lower.long(), counts - upper_share)
    histogram.index_add_(0, (lower.long() + 1).clamp_max(bins - 1), upper_share)
    return histogram / counts.sum()

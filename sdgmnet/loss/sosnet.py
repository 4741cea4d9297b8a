"""SOSNet's loss: a quadratic triplet hinge, and second-order similarity of neighbourhoods."""

import torch
from torch import Tensor, nn

from sdgmnet.loss.checks import require, require_numbers, require_progress
from sdgmnet.loss.mining import at_least_float32, block_rows, nearest_distances
from sdgmnet.sphere import l2_distance


class SOSNetLoss(nn.Module):
    r"""SOSNet's quadratic triplet hinge, with second-order similarity as regularisation.

    .. math:: L = \frac{1}{N} \sum_i \max(0,\, t + d^+_i - d^-_i)^2 + \frac{\lambda}{N} \sum_i
              \sqrt{\sum_{j \in C_i} (d(a_i, a_j) - d(p_i, p_j))^2}

    Negatives are the nearest of the four comparisons. :math:`C_i` are the `neighbours` nearest to i among the anchors, and
    those among the positives. Rows without a negative count 0 in the first sum.

    Args:
        margin: t.
        neighbours: number per side; fewer in smaller batches.
        second_order: :math:`\lambda`.

    Shape:
        anchor, positive (N, D) of unit length -> scalar.
    """

    def __init__(self, margin: float = 1.0, neighbours: int = 8, second_order: float = 1.0) -> None:
        super().__init__()
        require_numbers(self, margin=margin, neighbours=neighbours, second_order=second_order)
        require(self, neighbours >= 1, "neighbours must be at least 1", neighbours)
        require(self, second_order >= 0, "second_order must be at least 0", second_order)
        self.margin, self.neighbours, self.second_order = margin, neighbours, second_order

    def forward(self, anchor: Tensor, positive: Tensor, *, progress: float = 1.0) -> Tensor:
        require_progress(progress)
        found = nearest_distances(anchor, positive, "all", epsilon=1e-6)
        violation = (self.margin + found.positive - found.negative).clamp_min(0)
        first_order = torch.where(found.admissible, violation, 0).square().mean()
        return first_order + self.second_order * second_order_similarity(anchor, positive, self.neighbours)


def second_order_similarity(anchor: Tensor, positive: Tensor, neighbours: int) -> Tensor:
    """The second sum: how much the distances to the neighbours differ between both sides. Its gradient is 0 where it is 0."""
    anchor, positive = at_least_float32(anchor), at_least_float32(positive)
    with torch.no_grad():
        block = block_rows(anchor)
        found = [_near(anchor, positive, slice(s, s + block), neighbours) for s in range(0, len(anchor), block)]
        i, j = torch.cat(found).unbind(1)
    of_anchors, of_positives = (l2_distance(x.index_select(0, i), x.index_select(0, j)) for x in (anchor, positive))
    energy = torch.zeros_like(anchor[:, 0]).index_add(0, i, (of_anchors - of_positives).square())
    differs = energy > 0
    return torch.where(differs, torch.where(differs, energy, 1).sqrt(), 0).mean()


def _near(anchor: Tensor, positive: Tensor, rows: slice, neighbours: int) -> Tensor:
    """Pairs (M, 2) of i in the rows and its neighbours j of either side."""
    either = nearest(anchor, neighbours, rows) | nearest(positive, neighbours, rows)
    return either.nonzero() + torch.tensor([rows.start, 0], device=anchor.device)


def nearest(x: Tensor, count: int, rows: slice) -> Tensor:
    """(N, D) of unit length -> (rows, N) bool: whether j is one of the `count` nearest of i, without i itself."""
    cosines = x[rows] @ x.T
    cosines.diagonal(offset=rows.start).fill_(-2)
    chosen = cosines.topk(min(count, len(x) - 1), dim=1).indices
    return torch.zeros_like(cosines, dtype=torch.bool).scatter_(1, chosen, True)

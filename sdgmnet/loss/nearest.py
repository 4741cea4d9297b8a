"""Descriptors -> distances of each pair and of its nearest negative, as the losses before SDGM mine them.

They differ from `mining.hardest_in_batch` in that every comparison is judged alone: one that is too near to be of another
point is left out, and the point's other comparisons stay candidates.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from sdgmnet.loss.mining import at_least_float32, check_pairs, in_full_precision

SAME_PATCH = 0.008  # distance below which HardNet and all after it take two descriptors for those of one patch
_NEVER = -2.0  # below every cosine

Comparisons = Literal["across", "all"]


class NearestDistances(NamedTuple):
    """One row a matching pair, differentiable; where `admissible` is False `negative` means nothing."""

    positive: Tensor  # (N,) Euclidean
    negative: Tensor  # (N,) Euclidean
    admissible: Tensor  # (N,) bool: the row has a negative that is not the same patch


@in_full_precision
def nearest_distances(
    anchor: Tensor, positive: Tensor, comparisons: Comparisons, epsilon: float, same_patch: float = SAME_PATCH
) -> NearestDistances:
    r"""Distances :math:`\sqrt{2 - 2s + \epsilon}` of the pairs, and of the nearest negative of each.

    anchor, positive (N, D) of unit length, row i of both showing point i. "across" compares the anchor of i with the positive
    of j and the positive of i with the anchor of j (HardNet's rows and columns); "all" adds both anchors and both positives.
    Comparisons nearer than `same_patch` do not count. Ties go to the lowest j, then to a-p before p-a, a-a, p-p.
    """
    check_pairs(anchor, positive)
    a, p = at_least_float32(anchor), at_least_float32(positive)
    count = len(a)
    with torch.no_grad():
        cosines = a @ p.T
        four = [cosines, cosines.T, a @ a.T, p @ p.T]
        table = torch.stack(four[:2] if comparisons == "across" else four)  # (2 or 4, N, N)
        table.masked_fill_(2 - 2 * table + epsilon < same_patch**2, _NEVER)
        table.diagonal(dim1=1, dim2=2).fill_(_NEVER)
        highest, j = table.amax(dim=0).max(dim=1)
        i = torch.arange(count, device=a.device)
        which = table[:, i, j].argmax(dim=0)
        left = i + count * ((which == 1) | (which == 3))  # rows of [a; p]
        right = j + count * ((which == 0) | (which == 3))
    both = torch.cat([a, p])
    negative = distance(both.index_select(0, left), both.index_select(0, right), epsilon)
    return NearestDistances(distance(a, p, epsilon), negative, highest > _NEVER)


def distance(a: Tensor, b: Tensor, epsilon: float) -> Tensor:
    r"""Rows (N, D) -> :math:`\sqrt{\|a - b\|^2 + \epsilon}` (N,); epsilon keeps the gradient finite where the rows coincide.

    For unit rows this is :math:`\sqrt{2 - 2s + \epsilon}` with all its digits, however near they are.
    """
    return ((a - b).square().sum(dim=1) + epsilon).sqrt()

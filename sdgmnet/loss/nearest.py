"""Descriptors -> distances of each pair and of its nearest negative, as the losses before SDGM mine them.

They differ from `mining.hardest_in_batch` in that every comparison is judged alone: one that is too near to be of another
point is left out, and the point's other comparisons stay candidates.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from sdgmnet.loss.mining import at_least_float32, check_pairs, in_full_precision, rows_of_a_block

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
    with torch.no_grad():
        block = rows_of_a_block(a)
        parts = [
            _nearest_of_rows(a, p, slice(start, start + block), comparisons, epsilon, same_patch)
            for start in range(0, len(a), block)
        ]
        left, right, admissible = (torch.cat(part) for part in zip(*parts, strict=True))
    both = torch.cat([a, p])
    negative = distance(both.index_select(0, left), both.index_select(0, right), epsilon)
    return NearestDistances(distance(a, p, epsilon), negative, admissible)


def _nearest_of_rows(
    a: Tensor, p: Tensor, rows: slice, comparisons: Comparisons, epsilon: float, same_patch: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Of some rows, so that memory stays linear in N: both ends of the negative as rows of [a; p], and whether there is one."""
    four = [(a[rows], p), (p[rows], a)]
    four += [(a[rows], a), (p[rows], p)] if comparisons == "all" else []
    table = torch.stack([one @ other.T for one, other in four])  # (2 or 4, rows, N)
    table.masked_fill_(2 - 2 * table + epsilon < same_patch**2, _NEVER)
    table.diagonal(offset=rows.start, dim1=1, dim2=2).fill_(_NEVER)
    highest, j = table.amax(dim=0).max(dim=1)
    here = torch.arange(len(j), device=a.device)
    which = table[:, here, j].argmax(dim=0)
    left = here + rows.start + len(a) * ((which == 1) | (which == 3))
    right = j + len(a) * ((which == 0) | (which == 3))
    return left, right, highest > _NEVER


def distance(a: Tensor, b: Tensor, epsilon: float) -> Tensor:
    r"""Rows (N, D) -> :math:`\sqrt{\|a - b\|^2 + \epsilon}` (N,); epsilon keeps the gradient finite where the rows coincide.

    For unit rows this is :math:`\sqrt{2 - 2s + \epsilon}` with all its digits, however near they are.
    """
    return ((a - b).square().sum(dim=1) + epsilon).sqrt()

"""Descriptors -> the nearest negative of each matching pair, as angles (SDGM) or as distances (HardNet and its successors)."""

import functools
import math
import sys
import warnings
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from sdgmnet.distributed import is_rank_zero_process
from sdgmnet.loss.checks import require_labelled, require_pairs
from sdgmnet.sphere import angle

BLOCK_FLOATS = 2**19  # numbers in a block of cosines: a few megabytes, which a CPU's cache holds
CUDA_BLOCK_FLOATS = 2**26
COINCIDING = math.acos(1 - 1e-5)  # radians: the published code's threshold early in training
SAME_PATCH = 0.008  # distance below which HardNet and its successors take two descriptors for the same patch
_PREFERENCE = [1, 2, 0, 3]  # order of ties: a-p, p-a, a-a, p-p, as positions in a 2 x 2 table of sides
_NEVER = -2.0  # below every cosine: marks pairs that cannot be negatives

Comparisons = Literal["across", "all"]
Mined = TypeVar("Mined")


class Triplets(NamedTuple):
    """One row per matching pair. Angles in radians, differentiable; `theta_neg` is undefined where `usable` is False."""

    theta_pos: Tensor  # (R,)
    theta_neg: Tensor  # (R,)
    admissible: Tensor  # (R,) bool: the row has a negative beyond the anti-noise threshold
    fallback: Tensor | None = None  # (R,) bool, of a collapsed batch: the row has a negative that does not coincide

    @property
    def collapsed(self) -> bool:
        """Whether most rows had no admissible negative, so that `theta_neg` is the nearest that does not coincide."""
        return self.fallback is not None

    @property
    def usable(self) -> Tensor:
        """(R,) bool: the row has a negative."""
        return self.admissible if self.fallback is None else self.fallback

    @property
    def theta_rel(self) -> Tensor:
        """θʳ = θ⁺ − θ⁻."""
        return self.theta_pos - self.theta_neg


def in_full_precision(mine: Callable[..., Mined]) -> Callable[..., Mined]:
    """Run in float32 or better inside an autocast region too: mining decides by small differences of cosines."""

    @functools.wraps(mine)
    def call(first: Tensor, *others: Any, **options: Any) -> Mined:
        with torch.autocast(first.device.type, enabled=False):
            return mine(first, *others, **options)

    return call


@in_full_precision
def hardest_in_batch(anchor: Tensor, positive: Tensor, min_negative_angle: float) -> Triplets:
    """Nearest negative of each pair over the four comparisons a-p, p-a, a-a, p-p.

    anchor, positive (N, D), row i of both showing point i. Point j is a candidate for row i when the closest of the four
    comparisons of i with j is more than `min_negative_angle` radians apart: nearer ones are taken for the same point under
    another id. Ties go to the lowest j, then to a-p before p-a, a-a, p-p.
    """
    require_pairs(anchor, positive)
    a, p = at_least_float32(anchor), at_least_float32(positive)
    count = len(a)
    with torch.no_grad():
        highest, j = nearest_points(a, p, math.cos(min_negative_angle))
        sides = torch.stack([a, p], dim=1)  # (N, 2, D)
        four = (sides @ sides[j].mT).flatten(1)  # (N, 4): a-a, a-p, p-a, p-p of i with j
        which = torch.tensor(_PREFERENCE, device=a.device)[four[:, _PREFERENCE].argmax(dim=1)]
        left = torch.arange(count, device=a.device) + count * (which >= 2)  # rows of [a; p]
        right = j + count * (which % 2)
    both = torch.cat([a, p])
    return Triplets(angle(a, p), _angle_of_rows(both, left, right), highest > _NEVER)


def mine(loss: nn.Module, find: Callable[[float], Triplets], min_negative_angle: float) -> Triplets:
    """find(min_negative_angle), for training: a collapsed batch gets the negatives of find(COINCIDING).

    A fresh encoder can place all descriptors within the anti-noise threshold, where no row would ever have a negative and the
    loss would stay at 0. The loss warns of its first such batch.
    """
    triplets = find(min_negative_angle)
    rows = len(triplets.admissible)
    if min_negative_angle <= COINCIDING or 2 * int(triplets.admissible.sum()) >= rows:
        return triplets
    nearest = find(COINCIDING)
    found = int(nearest.admissible.sum())
    _warn_once(loss, rows - int(triplets.admissible.sum()), rows, found, min_negative_angle)
    return Triplets(nearest.theta_pos, nearest.theta_neg, triplets.admissible, fallback=nearest.admissible)


def _warn_once(loss: nn.Module, missing: int, rows: int, found: int, min_negative_angle: float) -> None:
    if getattr(loss, "_warned", False) or not is_rank_zero_process():
        return
    loss._warned = True  # type: ignore[assignment]
    what = (
        "until the descriptors spread, their nearest negative is used."
        if found
        else "nor one that does not coincide with them. Is the encoder's output constant, or is there only one label?"
    )
    warnings.warn(
        f"{type(loss).__name__}: {missing} of {rows} pairs have no negative beyond {min_negative_angle:g} rad; {what}",
        stacklevel=_level_of_the_caller(),
    )


def _level_of_the_caller() -> int:
    """The stacklevel, for the function that calls this, of the first frame outside this package and torch."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("sdgmnet", "torch"):
        frame, level = frame.f_back, level + 1
    return level


def nearest_points(a: Tensor, p: Tensor, cos_threshold: float) -> tuple[Tensor, Tensor]:
    """For every row i the highest four-way cosine below the threshold, (N,), and the point j it belongs to, (N,).

    The four-way maximum is symmetric, so only its upper half is computed, in blocks of rows: a block serves its rows and,
    through its columns, the rows that follow. Memory is linear in N, and a block's maxima are taken in the cache.
    """
    count = len(a)
    highest = a.new_full((count,), _NEVER)
    index = torch.zeros(count, dtype=torch.int64, device=a.device)

    def offer(rows: slice, values: Tensor, points: Tensor) -> None:
        better = values > highest[rows]  # strictly: of equal ones the lowest point came first
        highest[rows] = torch.where(better, values, highest[rows])
        index[rows] = torch.where(better, points, index[rows])

    block = block_rows(a)
    for start in range(0, count, block):
        stop = min(start + block, count)
        size, width = stop - start, count - start
        cosines = torch.cat([a[start:stop], p[start:stop]]) @ torch.cat([a[start:], p[start:]]).T  # (2 size, 2 width)
        nearer_end = torch.maximum(cosines[:size], cosines[size:])
        nearest = torch.maximum(nearer_end[:, :width], nearer_end[:, width:])
        nearest.diagonal().fill_(_NEVER)
        along = nearest.max(dim=1)
        if (along.values >= cos_threshold).any():  # seldom, once descriptors are trained
            nearest.masked_fill_(nearest >= cos_threshold, _NEVER)
            along = nearest.max(dim=1)
        offer(slice(start, stop), along.values, along.indices + start)
        down = nearest[:, size:].max(dim=0)  # empty in the last block
        offer(slice(stop, count), down.values, down.indices + start)
    return highest, index


def block_rows(x: Tensor) -> int:
    """Rows whose four comparisons with all N of x (N, D) are computed at once."""
    return max(8, (CUDA_BLOCK_FLOATS if x.is_cuda else BLOCK_FLOATS) // (4 * len(x)))


@in_full_precision
def hardest_by_label(embeddings: Tensor, labels: Tensor, min_negative_angle: float) -> Triplets:
    """The same for labelled embeddings (M, D), labels (M,): one row for every pair of samples with the same label.

    The candidate of another label is its sample nearest to either end of the row; a label whose candidate lies within
    `min_negative_angle` is ignored. Labels seen once serve as negatives only;
    without a label seen twice there are no rows. Memory grows with rows times M.
    """
    require_labelled(embeddings, labels)
    x = at_least_float32(embeddings)
    with torch.no_grad():
        _, label = torch.unique(labels, return_inverse=True)
        first, second = torch.triu(label[:, None] == label[None, :], diagonal=1).nonzero(as_tuple=True)
    theta_pos = _angle_of_rows(x, first, second)
    if len(first) == 0:
        return Triplets(theta_pos, theta_pos, torch.zeros(0, dtype=torch.bool, device=x.device))
    with torch.no_grad():
        gram = x @ x.T
        similarity = torch.maximum(gram[first], gram[second])  # (R, M): nearest of the two ends to every sample
        label_count = int(label.max()) + 1
        per_label = similarity.new_full((len(first), label_count), _NEVER)
        per_label.scatter_reduce_(1, label.expand(len(first), -1), similarity, reduce="amax")
        per_label.scatter_(1, label[first][:, None], _NEVER)
        per_label.masked_fill_(per_label >= math.cos(min_negative_angle), _NEVER)
        highest, chosen = per_label.max(dim=1)
        similarity.masked_fill_(label[None, :] != chosen[:, None], _NEVER)
        right = similarity.argmax(dim=1)
        left = torch.where(gram[first, right] >= gram[second, right], first, second)
    return Triplets(theta_pos, _angle_of_rows(x, left, right), highest > _NEVER)


def _angle_of_rows(x: Tensor, left: Tensor, right: Tensor) -> Tensor:
    # index_select sums its gradient in a fixed order; plain indexing does not promise that.
    return angle(x.index_select(0, left), x.index_select(0, right))


def at_least_float32(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


class NearestDistances(NamedTuple):
    """One row per matching pair, differentiable; `negative` is undefined where `admissible` is False."""

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
    Comparisons nearer than `same_patch` are ignored. Ties go to the lowest j, then to a-p before p-a, a-a, p-p.
    """
    require_pairs(anchor, positive)
    a, p = at_least_float32(anchor), at_least_float32(positive)
    with torch.no_grad():
        block = block_rows(a)
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
    """For a block of rows: both ends of the negative as rows of [a; p], and whether there is one."""
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

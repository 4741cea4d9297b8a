"""Descriptors of two images -> index pairs: exact nearest neighbours in blocks of a matrix product."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sdgmnet.errors import InputError
from sdgmnet.features.describe import Features
from sdgmnet.native import nearest as native
from sdgmnet.native.nearest import Bests

ROWS, COLUMNS = 1024, 10240  # of a block: 40 MB, which a large cache holds
LONGEST = 1e18  # descriptors of this length and more have no squared distances in float32

Engine = Literal["auto", "plain", "native"]


class Matches(NamedTuple):
    """Pairs in the order of their first keypoints."""

    pairs: np.ndarray  # (M, 2) int64: keypoint of the first image, of the second
    distance: np.ndarray  # (M,) float32, Euclidean
    ratio: np.ndarray  # (M,) float32: distance over that to the second nearest, 1 where there is none


class Neighbours(NamedTuple):
    """By index, -1 where there is none; the lowest of those at the same distance."""

    nearest: np.ndarray  # (N,) int64: of the first's, the nearest among the second's
    second: np.ndarray  # (N,) int64: and the one after it
    back: np.ndarray  # (M,) int64: of the second's, the nearest among the first's


def match(
    first: Features | np.ndarray, second: Features | np.ndarray, *, mutual: bool = True, ratio: float | None = None
) -> Matches:
    """Nearest neighbours of the first image's descriptors among the second's.

    mutual: only pairs that are each other's nearest. ratio: only pairs whose nearest is nearer than `ratio` times the second.

    Descriptors (N, D) are floats or whole numbers, such as uint8; of any length, not only 1.
    """
    a, b = (one.descriptors if isinstance(one, Features) else np.asarray(one) for one in (first, second))
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
        raise InputError(f"descriptors are (N, D) with one D for both images, not {a.shape} and {b.shape}.")
    if ratio is not None and not 0 < ratio <= 1:
        raise InputError(f"ratio lies in (0, 1], not {ratio}.")
    a, b = as_floats(a), as_floats(b)
    found = neighbours(a, b)
    kept = np.flatnonzero(found.nearest >= 0)
    if mutual:
        kept = kept[found.back[found.nearest[kept]] == kept]
    pairs = np.column_stack([kept, found.nearest[kept]])
    distance, to_second = distances(a, b, pairs), distances(a, b, np.column_stack([kept, found.second[kept]]))
    # Rounding may have put two that are all but equally near the wrong way round, and both may be at distance 0.
    share = np.ones_like(distance)
    np.divide(distance, to_second, out=share, where=(to_second > distance) & np.isfinite(to_second))
    result = Matches(pairs, distance, share)
    return result if ratio is None else Matches(*(column[share < ratio] for column in result))


def as_floats(descriptors: np.ndarray) -> np.ndarray:
    """(N, D) float32, finite."""
    if descriptors.dtype.kind not in "fiu":
        raise InputError(f"descriptors are floats or whole numbers, not {descriptors.dtype}.")
    floats = np.ascontiguousarray(descriptors, dtype=np.float32)
    # One number per row tells: it is NaN or infinite where any of the row's is.
    if not (np.einsum("nd,nd->n", floats, floats) < LONGEST**2).all():
        raise InputError("the descriptors hold NaN, infinite or far too large values.")
    return floats


def neighbours(a: np.ndarray, b: np.ndarray, engine: Engine = "auto") -> Neighbours:
    """Of descriptors (N, D) and (M, D) float32, all pairs in one pass over blocks of their products.

    engine: "native" looks at a block once, by our own C++; "plain" is torch; they give the same. "auto" is the former wherever
    it can be had.
    """
    one, other = torch.from_numpy(a), torch.from_numpy(b)
    half_a, half_b = one.square().sum(1) / 2, other.square().sum(1) / 2
    is_native = native.is_available() if engine == "auto" else engine == "native"
    offer: Callable[[Bests, Tensor, Tensor, Tensor, int, int], None] = native.offer if is_native else offer_plainly
    bests = Bests.nothing(len(a), len(b), torch.get_num_threads() if is_native else 1)
    memory = torch.empty(min(ROWS, len(a)) * min(COLUMNS, len(b)))
    for row in range(0, len(a), ROWS):
        rows = one[row : row + ROWS]
        for column in range(0, len(b), COLUMNS):
            columns = other[column : column + COLUMNS]
            products = memory[: len(rows) * len(columns)].view(len(rows), len(columns))
            torch.mm(rows, columns.T, out=products)
            offer(bests, products, half_a[row : row + ROWS], half_b[column : column + COLUMNS], row, column)
    back = best_of_parts(bests.column, bests.column_at)
    return Neighbours(*(found.numpy().astype(np.int64) for found in (bests.best_at, bests.second_at, back)))


def offer_plainly(bests: Bests, products: Tensor, half_a: Tensor, half_b: Tensor, row: int, column: int) -> None:
    """`native.offer` in the operations of torch and numpy, the same to the bit."""
    closeness = products.sub_(half_b).sub_(half_a[:, None])
    rows, columns = slice(row, row + len(half_a)), slice(column, column + len(half_b))
    top = closeness.amax(0)
    top_at = torch.empty(len(half_b), dtype=torch.int32)
    found, where = np.divmod(np.flatnonzero(closeness.eq(top).numpy())[::-1], len(half_b))
    top_at.numpy()[where] = found + row  # of a column's equals, the last that is written is the first row
    better = top > bests.column[0, columns]
    bests.column[0, columns] = torch.where(better, top, bests.column[0, columns])
    bests.column_at[0, columns] = torch.where(better, top_at, bests.column_at[0, columns])
    best, best_at = take_best(closeness)
    second, second_at = take_best(closeness)
    # Those of earlier columns stand first: of equals, they stay.
    values = torch.stack([bests.best[rows], bests.second[rows], best, second], 1)
    places = torch.stack([bests.best_at[rows], bests.second_at[rows], best_at + column, second_at + column], 1)
    values, order = values.sort(dim=1, descending=True, stable=True)
    places = torch.where(values > -torch.inf, places.gather(1, order), -1)
    bests.best[rows], bests.second[rows] = values[:, 0], values[:, 1]
    bests.best_at[rows], bests.second_at[rows] = places[:, 0], places[:, 1]


def take_best(closeness: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of each row and where it is, the first of equals; it is gone from the row then."""
    at = torch.from_numpy(closeness.numpy().argmax(1))[:, None]  # numpy's is the quicker one
    best = closeness.gather(1, at)[:, 0]
    closeness.scatter_(1, at, -torch.inf)
    return best, at[:, 0].int()


def best_of_parts(values: Tensor, places: Tensor) -> Tensor:
    """(parts, M) -> (M,): where the largest value is, at the lowest place of equals."""
    is_best = values == values.max(0).values
    last = torch.iinfo(torch.int32).max
    lowest = torch.where(is_best & (places >= 0), places, last).min(0).values
    return torch.where(lowest < last, lowest, -1)


def distances(a: np.ndarray, b: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Euclidean, (P,) float32, infinite where the second of a pair is -1. From differences: small ones keep their digits."""
    found = np.full(len(pairs), np.inf, dtype=np.float32)
    for start in range(0, len(pairs), ROWS):
        i, j = pairs[start : start + ROWS].T
        difference = a[i] - b[j]
        norms = np.sqrt(np.einsum("nd,nd->n", difference, difference))
        found[start : start + ROWS] = np.where(j >= 0, norms, np.inf)
    return found

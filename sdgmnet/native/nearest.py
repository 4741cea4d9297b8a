"""The exact matcher: nearest neighbours by Euclidean distance, by matrix products and nearest.cpp.

`two_nearest_and_back` is what matching two images needs, in one pass over blocks of products; float32 decides. Where the
processor multiplies matrices in bfloat16, such products rule out most pairs, and the distances of the others are computed.
`nearest` and `count_closer` decide as float64 does, for benchmarks that count ranks. Where there is no library, torch and numpy
do the same in more time.

float32 products decide for float64 where their error cannot matter. Half a squared distance is ``half_a + half_b - a.b``,
with half the squared lengths. Its error in float32 is at most ``(D + 16) 2**-24 (half_a + half_b)``: D for the product, in any
order of summation, the rest for the few additions around it. Closer ones are computed from differences in float64.
"""

from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sdgmnet.errors import InputError
from sdgmnet.native.build import library
from sdgmnet.native.targets import processor_features

ROWS, COLUMNS = 2048, 4096  # of a block of products: 16 or 33 MB; smaller ones start threads too often
# Of the product of two lengths: factors and product are rounded by 2**-8 at most each. The tenth is for the summation.
BFLOAT16_SLACK = 3.1 * 2.0**-8
QUERIES = 64  # of a block of products with a large pool
PAIRS = 8192  # gathered at once
SMALLEST, LARGEST = 1e-30, 1e30  # half squared lengths whose products neither vanish nor overflow in float32
TIE = 1e-12  # of the squared lengths: squared distances that float64 products cannot tell apart


class Neighbours(NamedTuple):
    """Indices, -1 where nothing was found; the lowest of those at the same distance."""

    nearest: np.ndarray  # (N,) int64: row of b nearest to each row of a
    second: np.ndarray  # (N,) int64: second nearest row of b
    back: np.ndarray  # (M,) int64: row of a nearest to each row of b


def plain_rows(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both as contiguous float32, of one width: the kernels read as many numbers per row of both as `a` has."""
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
        raise InputError(f"descriptors must be rows (N, D) and (M, D) of one length D, not {a.shape} and {b.shape}.")
    one, other = (np.ascontiguousarray(rows, dtype=np.float32) for rows in (a, b))
    # torch takes no negative strides, which a reversed array of one row keeps
    one, other = (rows.copy() if min(rows.strides) < 0 else rows for rows in (one, other))
    return one, other


def two_nearest_and_back(a: np.ndarray, b: np.ndarray) -> Neighbours:
    """Nearest neighbours of rows a (N, D) and b (M, D) float32, decided in float32."""
    native, threads = library(), torch.get_num_threads()
    a, b = plain_rows(a, b)
    one, other = torch.from_numpy(a), torch.from_numpy(b)
    half_a, half_b = one.square().sum(1) / 2, other.square().sum(1) / 2
    best = _Best.empty(len(a), len(b), 1 if native is None else threads)
    screens = native is not None and multiplies_bfloat16() and all(_fits(half) for half in (half_a, half_b))
    factors = (one.bfloat16(), other.bfloat16()) if screens else (one, other)
    memory = torch.empty(min(ROWS, len(a)) * min(COLUMNS, len(b)), dtype=factors[0].dtype)
    for row in range(0, len(a), ROWS):
        for column in range(0, len(b), COLUMNS):
            rows, columns = slice(row, row + ROWS), slice(column, column + COLUMNS)
            shape = len(one[rows]), len(other[columns])
            products = torch.mm(factors[0][rows], factors[1][columns].T, out=memory[: shape[0] * shape[1]].view(shape))
            if native is None:
                _offer_plain(best, products, half_a[rows], half_b[columns], row, column)
            else:
                exact = (one[rows], other[columns]) if screens else None
                _offer_native(best, products, half_a[rows], half_b[columns], row, column, exact)
    # Of the threads' nearest rows of a: the nearest, the lowest of equals.
    is_best = (best.column == best.column.max(0).values) & (best.column_at >= 0)
    last = torch.iinfo(torch.int32).max
    lowest = torch.where(is_best, best.column_at, last).min(0).values
    back = torch.where(lowest < last, lowest, -1)
    return Neighbours(*(found.numpy().astype(np.int64) for found in (best.best_at, best.second_at, back)))


@cache
def multiplies_bfloat16() -> bool:
    """Whether torch's product of matrices in bfloat16 is several times as fast here as in float32."""
    return torch.backends.mkldnn.is_available() and bool({"avx512_bf16", "amx_bf16"} & processor_features())


def _fits(half: Tensor) -> bool:
    """Whether products of rows with these half squared lengths neither vanish nor overflow in float32."""
    return len(half) == 0 or bool(SMALLEST < half.max() < LARGEST)


class _Best(NamedTuple):
    """Best so far: closeness, and the index where it is; -1 where nothing was seen. Closeness is minus half the square."""

    best: Tensor  # (N,) float32
    best_at: Tensor  # (N,) int32
    second: Tensor  # (N,) float32
    second_at: Tensor  # (N,) int32
    column: Tensor  # (threads, M) float32: each thread sees other rows
    column_at: Tensor  # (threads, M) int32

    @classmethod
    def empty(cls, rows: int, columns: int, threads: int) -> "_Best":
        values = [torch.full(shape, -torch.inf) for shape in ((rows,), (rows,), (threads, columns))]
        places = [torch.full(one.shape, -1, dtype=torch.int32) for one in values]
        return cls(values[0], places[0], values[1], places[1], values[2], places[2])


def _offer_native(
    best: _Best,
    products: Tensor,
    half_a: Tensor,
    half_b: Tensor,
    row: int,
    column: int,
    exact: tuple[Tensor, Tensor] | None,
) -> None:
    """Offer a block of products (R, C), whose first row and column have these indices. Blocks come row by row.

    exact: the rows (R, D) and (C, D) that products in bfloat16 are of; None for products in float32.
    """
    native: Any = library()
    threads, apart = best.column.shape
    block = (
        products.data_ptr(), *products.shape, half_a.data_ptr(), half_b.data_ptr(), row, column,
        *(one[row:].data_ptr() for one in best[:4]), *(one[:, column:].data_ptr() for one in best[4:]), apart,
    )  # fmt: skip
    if exact is None:
        native.sdgmnet_nearest(*block, threads)
    else:
        a, b = exact
        native.sdgmnet_screen(*block, a.data_ptr(), b.data_ptr(), a.shape[1], BFLOAT16_SLACK, threads)


def _offer_plain(best: _Best, products: Tensor, half_a: Tensor, half_b: Tensor, row: int, column: int) -> None:
    """The same by torch and numpy, equal to the bit."""
    closeness = products.sub_(half_b).sub_(half_a[:, None])
    rows, columns = slice(row, row + len(half_a)), slice(column, column + len(half_b))
    top = closeness.amax(0)
    top_at = torch.empty(len(half_b), dtype=torch.int32)
    found, where = np.divmod(np.flatnonzero(closeness.eq(top).numpy())[::-1], len(half_b))
    top_at.numpy()[where] = found + row  # of a column's equals, the last one written is the first row
    better = top > best.column[0, columns]
    best.column[0, columns] = torch.where(better, top, best.column[0, columns])
    best.column_at[0, columns] = torch.where(better, top_at, best.column_at[0, columns])
    # Those of earlier columns stand first: of equals, they stay.
    values, places = [best.best[rows], best.second[rows]], [best.best_at[rows], best.second_at[rows]]
    for _ in range(2):
        at = torch.from_numpy(closeness.numpy().argmax(1))[:, None]  # the first of equals; numpy's is faster
        values.append(closeness.gather(1, at)[:, 0])
        places.append(at[:, 0].int() + column)
        closeness.scatter_(1, at, -torch.inf)
    sorted_values, order = torch.stack(values, 1).sort(dim=1, descending=True, stable=True)
    sorted_places = torch.where(sorted_values > -torch.inf, torch.stack(places, 1).gather(1, order), -1)
    best.best[rows], best.second[rows] = sorted_values[:, 0], sorted_values[:, 1]
    best.best_at[rows], best.second_at[rows] = sorted_places[:, 0], sorted_places[:, 1]


def nearest(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Index of the row of b (M, D) nearest to each row of a (N, D), the first of equals, and its distance in float64."""
    a, b = plain_rows(a, b)
    at, distance = np.zeros(len(a), dtype=np.int64), np.zeros(len(a))
    rows = _Rows.of(a, b)
    for start in range(0, len(a), ROWS):
        some = slice(start, start + ROWS)
        half = torch.addmm(rows.half_b, rows.a[some], rows.b.T, alpha=-1)  # less half_a, the same along a row
        doubt = rows.slack * (rows.half_a[some] + rows.half_b.max())
        limit = half.amin(1) + 2 * doubt
        possible = np.flatnonzero((half > limit[:, None]).logical_not_().numpy())
        row, column = np.divmod(possible, len(b))
        exact = pair_distances(a[some], b, row, column)
        order = np.lexsort((column, exact, row))
        first = order[np.searchsorted(row, np.arange(len(half)))]
        at[some], distance[some] = column[first], exact[first]
    return at, distance


def count_closer(queries: np.ndarray, others: np.ndarray, near: np.ndarray, ends: list[int]) -> np.ndarray:
    """How many of `others` (M, D) are nearer to each query (N, D) than each of its `near` (N, T) float64, strictly.

    Returns (N, T, parts): counted in parts of `others` that end at the ascending `ends`.
    """
    native: Any = library()
    queries, others = plain_rows(queries, others)
    if near.ndim != 2 or len(near) != len(queries):
        raise InputError(f"near must be ({len(queries)}, T), a row per query, not {near.shape}.")
    if any(one > other for one, other in pairwise([0, *ends, len(others)])):
        raise InputError(f"ends must ascend from 0 to the {len(others)} rows there are, not {ends}.")
    rows = _Rows.of(queries, others)
    if native is None or rows.a.dtype != torch.float32:
        return _count_closer_plain(queries, others, near, ends)
    near, stops = np.ascontiguousarray(near, dtype=np.float64), np.array(ends, dtype=np.int64)
    counts = np.empty((*near.shape, len(stops)), dtype=np.int32)
    for start in range(0, len(queries), QUERIES):
        some = slice(start, start + QUERIES)
        products = rows.a[some] @ rows.b.T
        tensors = (products, rows.a[some], rows.b, rows.half_a[some], rows.half_b)
        native.sdgmnet_closer(
            *(one.data_ptr() for one in tensors), *products.shape, rows.b.shape[1], rows.slack, near[start:].ctypes.data,
            near.shape[1], stops.ctypes.data, len(stops), counts[start:].ctypes.data, torch.get_num_threads(),
        )  # fmt: skip
    return counts


def _count_closer_plain(queries: np.ndarray, others: np.ndarray, near: np.ndarray, ends: list[int]) -> np.ndarray:
    """The same by products in float64."""
    q, b = torch.from_numpy(queries).double(), torch.from_numpy(others).double()
    lengths = q.square().sum(1)
    far = torch.addmm(b.square().sum(1), q, b.T, alpha=-2).add_(lengths[:, None]).numpy()
    limits = near**2 - TIE * (lengths.numpy()[:, None] + near**2)
    counts = np.zeros((*near.shape, len(ends)), dtype=np.int64)
    for column in range(near.shape[1]):
        below = far < limits[:, column : column + 1]
        for part, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
            counts[:, column, part] = np.count_nonzero(below[:, start:end], axis=1)
    return counts


def pair_distances(
    a: np.ndarray, b: np.ndarray, first: np.ndarray, second: np.ndarray, *, float32_differences: bool = False
) -> np.ndarray:
    """Distances (P,) float64 between a[first] and b[second], from differences in float64 or rounded to float32."""
    a, b = plain_rows(a, b)
    first, second = (np.ascontiguousarray(one, dtype=np.int64) for one in (first, second))
    if first.shape != second.shape or first.ndim != 1:
        raise InputError(f"pairs must be two rows of indices of one length, not {first.shape} and {second.shape}.")
    for rows, places in ((a, first), (b, second)):
        if len(places) and not (places.min() >= 0 and places.max() < len(rows)):
            raise IndexError(f"a pair names a row beyond the {len(rows)} there are")
    found = np.empty(len(first))
    native: Any = library()
    if native is not None:
        native.sdgmnet_pair_distances(
            *(one.ctypes.data for one in (a, b, first, second)), len(found), a.shape[1], float32_differences,
            found.ctypes.data, torch.get_num_threads(),
        )  # fmt: skip
        return found
    for start in range(0, len(first), PAIRS):
        part = slice(start, start + PAIRS)
        left, right = (torch.from_numpy(one[at[part]]) for one, at in ((a, first), (b, second)))
        difference = (left - right).double() if float32_differences else left.double() - right
        found[part] = difference.square_().sum(1).sqrt_().numpy()
    return found


class _Rows(NamedTuple):
    """Plain rows a (N, D) and b (M, D), half their squared lengths, and the relative error of half a squared distance."""

    a: Tensor
    b: Tensor
    half_a: Tensor
    half_b: Tensor
    slack: float

    @classmethod
    def of(cls, a: np.ndarray, b: np.ndarray) -> "_Rows":
        """In float32, or in float64 where products could vanish or overflow in float32."""
        rows = [torch.from_numpy(one) for one in (a, b)]
        halves = [torch.linalg.vector_norm(one, dim=1, dtype=torch.float64).square() / 2 for one in rows]
        fits = all(_fits(half) for half in halves)
        dtype, rounding = (torch.float32, 2.0**-24) if fits else (torch.float64, 2.0**-53)
        one, other, half, other_half = (tensor.to(dtype) for tensor in (*rows, *halves))
        return cls(one, other, half, other_half, (rows[1].shape[1] + 16) * rounding)

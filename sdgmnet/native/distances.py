"""Comparisons of distances as double precision has them, at the speed of single precision, by distances.cpp.

Single precision decides where its error cannot matter. Of half a squared distance, ``half_a + half_b - a.b``, it is at most
``(D + 16) 2**-24 (half_a + half_b)`` for D numbers: D for the product, in whatever order it is summed (no product exceeds
``half_a + half_b``), the rest for the few sums around it. Whatever is closer than that is computed in double. Where the
library cannot be built, or products could overflow, double.py does the same by products in double.
"""

from typing import Any, NamedTuple

import numpy as np
import torch

from sdgmnet.native import double
from sdgmnet.native.build import library

LONGEST = 1e30  # half squared lengths beyond it could overflow in products
ROWS = 64  # queries whose products with a large pool are kept at once


def pair_distances(rows: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """(P,) float32 between rows[first] and rows[second]; differences are rounded to float32 first."""
    native: Any = library()
    if native is None:
        return double.pair_distances(rows, first, second)
    rows = np.ascontiguousarray(rows, dtype=np.float32)
    places = [np.ascontiguousarray(one, dtype=np.int64) for one in (first, second)]
    if len(first) and not all(one.min() >= 0 and one.max() < len(rows) for one in places):
        raise IndexError(f"a pair names a row beyond the {len(rows)} there are")
    found = np.empty(len(first), dtype=np.float32)
    native.sdgmnet_pair_distances(
        rows.ctypes.data, rows.shape[1], *(one.ctypes.data for one in places), len(found), found.ctypes.data,
        torch.get_num_threads(),
    )  # fmt: skip
    return found


def distances(queries: np.ndarray, others: np.ndarray) -> np.ndarray:
    """(Q, K) float64 between each query (Q, D) and others of its own (Q, K, D)."""
    native: Any = library()
    if native is None:
        return double.distances(queries, others)
    queries, others = (np.ascontiguousarray(one, dtype=np.float32) for one in (queries, others))
    found = np.empty(others.shape[:2])
    native.sdgmnet_distances(
        queries.ctypes.data, others.ctypes.data, found.size, others.shape[1], others.shape[2], found.ctypes.data
    )
    return found


def first_nearest(descriptors: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Index of the nearest of `others`, the first of equally near ones, and its distance in float64."""
    native: Any = library()
    a, b = Rows.of(descriptors), Rows.of(others)
    if native is None or not (a.are_tame() and b.are_tame()):
        return double.first_nearest(descriptors, others)
    at, apart = np.empty(len(descriptors), dtype=np.int32), np.empty(len(descriptors))
    products = a.rows @ b.rows.T
    native.sdgmnet_first_nearest(
        *_problem(products, a, b), at.ctypes.data, apart.ctypes.data, torch.get_num_threads()
    )  # fmt: skip
    return at, apart


def count_closer(queries: np.ndarray, others: np.ndarray, near: np.ndarray, ends: list[int]) -> np.ndarray:
    """How many of `others` (R, D) are nearer to each query (Q, D) than each of its own `near` (Q, T) float64, strictly.

    (Q, T, parts) by parts of `others`, each from the end before it to the next of `ends`, which ascend.
    """
    native: Any = library()
    a, b = Rows.of(queries), Rows.of(others)
    if native is None or not (a.are_tame() and b.are_tame()):
        return double.count_closer(queries, others, near, ends)
    near, stops = np.ascontiguousarray(near, dtype=np.float64), np.array(ends, dtype=np.int64)
    counts = np.empty((*near.shape, len(stops)), dtype=np.int32)
    for start in range(0, len(queries), ROWS):
        some = Rows(a.rows[start : start + ROWS], a.half[start : start + ROWS])
        products = some.rows @ b.rows.T
        native.sdgmnet_closer(
            *_problem(products, some, b), near[start:].ctypes.data, near.shape[1], stops.ctypes.data, len(stops),
            counts[start:].ctypes.data, torch.get_num_threads(),
        )  # fmt: skip
    return counts


class Rows(NamedTuple):
    """Descriptors (N, D) float32 and half their squared lengths (N,) float32."""

    rows: torch.Tensor
    half: torch.Tensor

    @classmethod
    def of(cls, descriptors: np.ndarray) -> "Rows":
        rows = torch.from_numpy(np.ascontiguousarray(descriptors, dtype=np.float32))
        lengths = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
        return cls(rows, (lengths.square() / 2).float())

    def are_tame(self) -> bool:
        """Whether all are finite, and no product of two of them can overflow."""
        return len(self.half) == 0 or bool(self.half.max() < LONGEST)


def _problem(products: torch.Tensor, a: Rows, b: Rows) -> list[float]:
    pointers = [one.data_ptr() for one in (products, a.rows, b.rows, a.half, b.half)]
    width = a.rows.shape[1]
    return [*pointers, *products.shape, width, (width + 16) * 2.0**-24]

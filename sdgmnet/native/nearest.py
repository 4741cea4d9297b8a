"""A block of products -> the best and second best of its rows, the best of its columns, by nearest.cpp."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sdgmnet.native.build import library


@dataclass(frozen=True)
class Bests:
    """What is best so far: closeness, and the index where it is. The lowest index of equals; -1 where nothing was seen yet."""

    best: Tensor  # (rows,) float32
    best_at: Tensor  # (rows,) int32
    second: Tensor  # (rows,) float32
    second_at: Tensor  # (rows,) int32
    column: Tensor  # (parts, columns) float32: parts of the rows that were looked at apart
    column_at: Tensor  # (parts, columns) int32

    @classmethod
    def nothing(cls, rows: int, columns: int, parts: int) -> "Bests":
        values = [torch.full(shape, -torch.inf) for shape in ((rows,), (rows,), (parts, columns))]
        places = [torch.full(one.shape, -1, dtype=torch.int32) for one in values]
        return cls(values[0], places[0], values[1], places[1], values[2], places[2])


def is_available() -> bool:
    return library() is not None


def offer(bests: Bests, products: Tensor, half_a: Tensor, half_b: Tensor, row: int, column: int) -> None:
    """Offer a block of products, the index of its first row and column. Blocks come row after row.

    products (R, C); half_a (R,), half_b (C,): half the squared lengths; all of them float32 and contiguous.
    """
    native: Any = library()
    place = [one[row:].data_ptr() for one in (bests.best, bests.best_at, bests.second, bests.second_at)]
    place += [one[:, column:].data_ptr() for one in (bests.column, bests.column_at)]
    native.sdgmnet_nearest(
        products.data_ptr(), *products.shape, half_a.data_ptr(), half_b.data_ptr(), row, column, *place,
        bests.column.shape[1], bests.column.shape[0],
    )  # fmt: skip

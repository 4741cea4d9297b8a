"""Descriptors of two pictures -> index pairs: exact nearest neighbours in blocks of a matrix product."""

from typing import NamedTuple

import numpy as np
import torch

from sdgmnet.errors import InputError
from sdgmnet.features.describe import Features

ROWS = 1024  # of a block: memory stays bounded


class Matches(NamedTuple):
    """Pairs in the order of their first keypoints."""

    pairs: np.ndarray  # (M, 2) int64: keypoint of the first picture, of the second
    distance: np.ndarray  # (M,) float32, Euclidean
    ratio: np.ndarray  # (M,) float32: distance over that to the second nearest, 1 where there is none


def match(
    first: Features | np.ndarray, second: Features | np.ndarray, *, mutual: bool = True, ratio: float | None = None
) -> Matches:
    """Nearest neighbours of the first picture's descriptors among the second's.

    mutual: only pairs that are each other's nearest. ratio: only pairs whose nearest is nearer than `ratio` times the second.
    """
    a, b = (one.descriptors if isinstance(one, Features) else np.asarray(one) for one in (first, second))
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
        raise InputError(f"descriptors are (N, D) with one D for both pictures, not {a.shape} and {b.shape}.")
    if ratio is not None and not 0 < ratio <= 1:
        raise InputError(f"ratio lies in (0, 1], not {ratio}.")
    raise NotImplementedError(mutual)

"""Descriptors of two images -> index pairs, by exact nearest neighbours."""

from typing import NamedTuple

import numpy as np

from sdgmnet.errors import InputError
from sdgmnet.features.describe import Features

LONGEST = 1e18  # squared distances of longer descriptors overflow in float32
BLOCK = 1024  # pairs whose distances are computed at once
RATIO = 0.9  # docs/decisions/default-matcher.md


class Matches(NamedTuple):
    """Pairs of keypoints, ordered by the keypoint of the first image."""

    pairs: np.ndarray  # (M, 2) int64: index in the first image, index in the second
    distance: np.ndarray  # (M,) float32, Euclidean
    ratio: np.ndarray  # (M,) float32: distance over that of the second nearest; 1 if there is only one descriptor

    def __repr__(self) -> str:
        if not len(self.pairs):
            return "Matches(no pairs)"
        near, median, far = np.quantile(self.distance, (0, 0.5, 1))
        return (
            f"Matches({len(self.pairs)} pairs, distance {near:.2f} to {far:.2f}, median {median:.2f}, "
            f"median ratio {np.median(self.ratio):.2f})"
        )


def match(
    first: Features | np.ndarray, second: Features | np.ndarray, *, mutual: bool = True, ratio: float | None = RATIO
) -> Matches:
    """Match each descriptor of the first image to its nearest neighbour in the second, by Euclidean distance.

    Args:
        first, second: features of two images, or their descriptors (N, D), floats or integers of any length.
        mutual: keep only mutual nearest neighbours.
        ratio: keep only pairs whose distance is below `ratio` times the distance to the second nearest neighbour; None
            keeps all.
    """
    from sdgmnet.native.nearest import two_nearest_and_back  # loads torch

    a, b = (one.descriptors if isinstance(one, Features) else np.asarray(one) for one in (first, second))
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
        raise InputError(f"descriptors must be (N, D) with the same D for both images, not {a.shape} and {b.shape}.")
    if ratio is not None and not 0 < ratio <= 1:
        raise InputError(f"ratio must be in (0, 1], not {ratio}.")
    a, b = as_floats(a), as_floats(b)
    found = two_nearest_and_back(a, b)
    kept = np.flatnonzero(found.nearest >= 0)
    if mutual:
        kept = kept[found.back[found.nearest[kept]] == kept]
    pairs = np.column_stack([kept, found.nearest[kept]])
    distance, to_second = distances(a, b, pairs), distances(a, b, np.column_stack([kept, found.second[kept]]))
    # Rounding may have exchanged two almost equal distances, and both may be 0.
    share = np.ones_like(distance)
    np.divide(distance, to_second, out=share, where=(to_second > distance) & np.isfinite(to_second))
    result = Matches(pairs, distance, share)
    return result if ratio is None else Matches(*(column[share < ratio] for column in result))


def as_floats(descriptors: np.ndarray) -> np.ndarray:
    """(N, D) float32, finite."""
    if descriptors.dtype.kind not in "fiu":
        raise InputError(f"descriptors must be floats or integers, not {descriptors.dtype}.")
    floats = np.ascontiguousarray(descriptors, dtype=np.float32)
    # The squared length is NaN or infinite where any number of the row is.
    if not (np.einsum("nd,nd->n", floats, floats) < LONGEST**2).all():
        raise InputError("the descriptors contain NaN, infinite or too large values.")
    return floats


def distances(a: np.ndarray, b: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Euclidean distances (P,) float32 of pairs (P, 2), infinite where the second index is -1.

    Computed from differences, so that small distances keep their digits.
    """
    found = np.full(len(pairs), np.inf, dtype=np.float32)
    for start in range(0, len(pairs), BLOCK):
        i, j = pairs[start : start + BLOCK].T
        difference = a[i] - b[j]
        norms = np.sqrt(np.einsum("nd,nd->n", difference, difference))
        found[start : start + BLOCK] = np.where(j >= 0, norms, np.inf)
    return found

"""The measures of matching under a homography, written from their definitions: plain loops, one number at a time."""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

Place = tuple[float, float]
NOWHERE = (math.inf, math.inf)


def place(homography: np.ndarray, x: float, y: float, size: tuple[int, int]) -> Place:
    """Where a point goes; nowhere if it is on the horizon or on its other side, as seen from the image's middle."""

    def depth(u: float, v: float) -> float:
        return float(homography[2][0] * u + homography[2][1] * v + homography[2][2])

    w, middle = depth(x, y), depth((size[0] - 1) / 2, (size[1] - 1) / 2)
    if w == 0 or (w > 0) != (middle > 0):
        return NOWHERE
    return (
        float(homography[0][0] * x + homography[0][1] * y + homography[0][2]) / w,
        float(homography[1][0] * x + homography[1][1] * y + homography[1][2]) / w,
    )


def is_in(point: Place, size: tuple[int, int]) -> bool:
    return 0 <= point[0] <= size[0] - 1 and 0 <= point[1] <= size[1] - 1


def apart(a: Place, b: Sequence[float]) -> float:
    return math.inf if a == NOWHERE else math.hypot(a[0] - b[0], a[1] - b[1])


def nearest(descriptor: np.ndarray, others: np.ndarray) -> int:
    """Index of the nearest, the first of equals."""
    best, at = math.inf, -1
    for index, other in enumerate(others):
        squared = sum((float(p) - float(q)) ** 2 for p, q in zip(descriptor, other, strict=True))
        if squared < best:
            best, at = squared, index
    return at


def mutual_pairs(descriptors: np.ndarray, others: np.ndarray) -> list[tuple[int, int]]:
    pairs = []
    for i in range(len(descriptors)):
        j = nearest(descriptors[i], others)
        if j >= 0 and nearest(others[j], descriptors) == i:
            pairs.append((i, j))
    return pairs


def corner_error(estimate: np.ndarray | None, homography: np.ndarray, size: tuple[int, int]) -> float:
    if estimate is None:
        return math.inf
    total = 0.0
    for x, y in ((0, 0), (size[0] - 1, 0), (size[0] - 1, size[1] - 1), (0, size[1] - 1)):
        ends = []
        for matrix in (estimate, homography):
            w = matrix[2][0] * x + matrix[2][1] * y + matrix[2][2]
            if w == 0:
                return math.inf
            ends.append([(row[0] * x + row[1] * y + row[2]) / w for row in matrix[:2]])
        total += math.dist(*ends)
    return total / 4


def area(errors: Sequence[float], threshold: float) -> float:
    """The share of errors <= t as a function of t, summed from step to step."""
    steps = sorted({0.0, threshold, *(error for error in errors if error < threshold)})
    total = 0.0
    for start, end in pairwise(steps):
        total += (end - start) * sum(error <= start for error in errors) / len(errors)
    return total / threshold

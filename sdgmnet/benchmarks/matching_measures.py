"""Measures of matching two images of a plane under their known homography (3, 3). Pixel centres are at integers.

- Found keypoints: of the keypoints that can be found, the share whose nearest descriptor is at the true location.
- Sampled keypoints: the paper's own protocol (Section IV-B, Fig. 5). 200 random DoG keypoints of the reference image against
  all of the other image, nearest neighbour without ratio test. The paper does not say within how many pixels a match is
  correct, which keypoints are drawn and how often. Here: 1, 3 and 5 pixels, those whose true location is inside the other
  image, ten times.
- Matches, by default mutual nearest neighbours: mean matching accuracy (MMA) and matching score.
- Homography: estimated from these matches, judged by the corners of the reference image (DeTone et al.).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sdgmnet.features.geometry import map_points
from sdgmnet.features.match import match

Size = tuple[int, int]  # width, height

BLOCK = 1024  # rows of a distance matrix computed at once: bounds memory
SAMPLES = 200  # keypoints per draw
SEEDS = range(10)  # one draw each
SAMPLE_THRESHOLDS = (1.0, 3.0, 5.0)  # pixels
SHOWN = 1  # index of the threshold that Fig. 5 draws and ranks pairs by
MMA_THRESHOLDS = tuple(range(1, 11))  # pixels


def true_locations(homography: np.ndarray, xy: np.ndarray, size: Size) -> np.ndarray:
    """As `map_points`, but infinite for points behind the other camera, which the formula maps although nobody sees them.

    A homography has no sign, so "in front" is decided by a point that is: the centre of the image, of `size`, that xy are in.
    """
    mapped, side = map_points(homography, xy)
    centre = homography[2] @ ((size[0] - 1) / 2, (size[1] - 1) / 2, 1.0)
    return np.where((side * centre > 0)[:, None], mapped, np.inf)


def is_inside(xy: np.ndarray, size: Size) -> np.ndarray:
    """Which locations (N, 2) are inside an image, centres of the outermost pixels included: (N,) bool."""
    return np.all((xy >= 0) & (xy <= np.array(size) - 1), axis=1)


class PlanePair(NamedTuple):
    """Keypoints of two images of a plane, strongest first, and where they truly are in the other image."""

    reference: np.ndarray  # (N, 2) keypoints of the reference image
    other: np.ndarray  # (M, 2) keypoints of the other image
    expected: np.ndarray  # (N, 2) true locations of the reference keypoints in the other image
    in_other: np.ndarray  # (N,) bool: expected is inside the other image
    in_reference: np.ndarray  # (M,) bool: the true location of the other keypoint is inside the reference image

    @staticmethod
    def under(
        homography: np.ndarray, reference: np.ndarray, other: np.ndarray, sizes: tuple[Size, Size]
    ) -> "PlanePair":
        """homography maps the reference image, of sizes[0], to the other one, of sizes[1]."""
        expected = true_locations(homography, reference, sizes[0])
        back = true_locations(np.linalg.inv(homography), other, sizes[1])
        return PlanePair(reference, other, expected, is_inside(expected, sizes[1]), is_inside(back, sizes[0]))

    def strongest(self, count: int) -> "PlanePair":
        return PlanePair(*(rows[:count] for rows in self))

    def errors(self, matches: np.ndarray) -> np.ndarray:
        """Distances (P,) in pixels of matches (P, 2), index pairs, from the true locations; may be infinite."""
        return np.linalg.norm(self.expected[matches[:, 0]] - self.other[matches[:, 1]], axis=1)


def count_found(pair: PlanePair, descriptors: np.ndarray, others: np.ndarray, near: float) -> tuple[int, int]:
    """How many reference keypoints can be found, and how many are found: (findable, found).

    Findable: a keypoint of the other image is within `near` pixels of the true location. Found: the keypoint with the nearest
    descriptor is, without ratio test. descriptors (N, D) and others (M, D) belong to the keypoints of the pair.
    """
    if not len(pair.reference) or not len(pair.other):
        return 0, 0
    nearest = match(descriptors, others, mutual=False, ratio=None).pairs[:, 1]
    found = np.linalg.norm(pair.expected - pair.other[nearest], axis=1) <= near
    findable = np.zeros(len(found), dtype=bool)
    for start in range(0, len(found), BLOCK):
        rows = pair.expected[start : start + BLOCK]
        findable[start : start + BLOCK] = np.linalg.norm(rows[:, None] - pair.other[None], axis=2).min(axis=1) <= near
    return int(findable.sum()), int(found.sum())


class Draw(NamedTuple):
    """The first draw, to be shown in Fig. 5."""

    keypoints: np.ndarray  # (n, 2) in the reference image
    nearest: np.ndarray  # (n, 2) in the other image
    correct: np.ndarray  # (n,) bool: within SAMPLE_THRESHOLDS[SHOWN]


class Sampled(NamedTuple):
    drawn: int  # keypoints per draw: SAMPLES, or all visible ones if fewer
    correct: tuple[tuple[int, ...], ...]  # per draw, a count for each of SAMPLE_THRESHOLDS
    shown: Draw

    def mean(self, threshold: int) -> float:
        """Mean count within SAMPLE_THRESHOLDS[threshold] over the draws."""
        return float(np.mean([counts[threshold] for counts in self.correct]))


def sample(pair: PlanePair, descriptors: np.ndarray, others: np.ndarray) -> Sampled:
    """Match random visible reference keypoints, descriptors (N, D), to all keypoints of the other image, others (M, D)."""
    draws = [draw(pair.in_other, seed) for seed in SEEDS]
    used = np.unique(np.concatenate(draws))
    matches = match(descriptors[used], others, mutual=False, ratio=None).pairs
    matches = np.column_stack([used[matches[:, 0]], matches[:, 1]])
    nearest, error = np.full(pair.reference.shape, np.inf), np.full(len(pair.reference), np.inf)
    nearest[matches[:, 0]] = pair.other[matches[:, 1]]
    error[matches[:, 0]] = pair.errors(matches)
    correct = tuple(tuple(int((error[rows] <= near).sum()) for near in SAMPLE_THRESHOLDS) for rows in draws)
    first = draws[0]
    shown = Draw(pair.reference[first], nearest[first], error[first] <= SAMPLE_THRESHOLDS[SHOWN])
    return Sampled(len(first), correct, shown)


def draw(is_visible: np.ndarray, seed: int) -> np.ndarray:
    """Indices of at most SAMPLES visible keypoints, without repetition; they do not depend on the descriptor."""
    return np.random.default_rng(seed).permutation(np.flatnonzero(is_visible))[:SAMPLES]


class Matched(NamedTuple):
    matches: int
    correct: tuple[int, ...]  # within each of MMA_THRESHOLDS
    shared: int  # keypoints in the region that both images show; of the image that has fewer there
    correct_in_shared: int  # matches within `near` whose two keypoints are both in that region

    @property
    def accuracy(self) -> tuple[float, ...]:
        """Share of correct matches at each of MMA_THRESHOLDS; 0 if there are no matches."""
        return tuple(count / self.matches if self.matches else 0.0 for count in self.correct)

    @property
    def score(self) -> float:
        """Matching score: correct matches over keypoints in the shared region."""
        return self.correct_in_shared / self.shared if self.shared else 0.0


def count_matched(pair: PlanePair, matches: np.ndarray, near: float) -> Matched:
    """Judge matches (P, 2), index pairs."""
    error = pair.errors(matches)
    in_shared = pair.in_other[matches[:, 0]] & pair.in_reference[matches[:, 1]]
    return Matched(
        len(matches),
        tuple(int((error <= threshold).sum()) for threshold in MMA_THRESHOLDS),
        int(min(pair.in_other.sum(), pair.in_reference.sum())),
        int(((error <= near) & in_shared).sum()),
    )


def mean_accuracy(scores: Sequence[Matched]) -> list[float]:
    """MMA at each of MMA_THRESHOLDS: the mean over pairs of images."""
    return [float(mean) for mean in np.mean([one.accuracy for one in scores], axis=0)]


def corner_error(estimate: np.ndarray | None, homography: np.ndarray, size: Size) -> float:
    """Mean distance in pixels between the four image corners mapped by the estimate and by the true homography, both (3, 3).

    Infinite if there is no estimate, or if it maps a corner to infinity.
    """
    if estimate is None or not np.isfinite(estimate).all():
        return float("inf")
    right, bottom = size[0] - 1.0, size[1] - 1.0
    corners = np.array([[0, 0], [right, 0], [0, bottom], [right, bottom]])
    if (np.abs(np.column_stack([corners, np.ones(4)]) @ estimate[2]) < 1e-12).any():
        return float("inf")
    return float(np.linalg.norm(map_points(estimate, corners)[0] - map_points(homography, corners)[0], axis=1).mean())


def share_within(errors: Sequence[float], threshold: float) -> float:
    return float(np.mean(np.asarray(errors) <= threshold))


def error_auc(errors: Sequence[float], threshold: float) -> float:
    """Area under `share_within` from 0 to the threshold, divided by the threshold.

    The share is a step function, so an error e adds exactly max(0, 1 - e / threshold) / N. Programs that join the corners of
    the steps by straight lines differ by up to 1 / (2 N).
    """
    return float(np.mean(np.maximum(0.0, 1 - np.asarray(errors) / threshold)))

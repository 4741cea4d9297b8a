"""When a keypoint and one that was reprojected from another view show the same point: MATCHING, DIFFERENT or UNDECIDED.

The rule of Brown, Hua and Winder (2011): two keypoints match when location, scale and orientation agree within near limits.
They are different when one of the three is beyond a far limit. Between the limits they are undecided: neither positives nor
negatives.

Locations are compared in pixels and in units of the keypoint's sigma (a patch is 12 or more sigmas). Matches are near in both,
since 5 px at a sigma of 1.6 px is a quarter of the patch. Different keypoints are far in both, since 10 px at a sigma of 20 px
hardly changes the patch. This is stricter than the published rule on either side.
"""

from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np

from sdgmnet.features.keypoints import Keypoints

MATCHING, UNDECIDED, DIFFERENT, UNKNOWN = 2, 1, 0, -1


@dataclass(frozen=True)
class MatchRule:
    near_pixels: float
    near_sigmas: float
    near_octaves: float
    near_radians: float
    far_pixels: float
    far_sigmas: float
    far_octaves: float
    far_radians: float


PHOTOS = MatchRule(5.0, 1.5, 0.25, np.pi / 8, 10.0, 3.0, 0.5, np.pi / 4)
# Synthetic views compare in sigmas only: near_pixels and far_pixels never decide.
VIEWS = MatchRule(np.inf, 1.5, 0.5, np.pi / 6, 0.0, 4.0, 1.0, np.pi / 3)


class Judged(NamedTuple):
    """N pairs of keypoints, judged; (N,) each."""

    verdict: np.ndarray  # MATCHING, UNDECIDED or DIFFERENT
    pixels: np.ndarray  # distance
    location: np.ndarray  # distance as a share of the near limit
    scale: np.ndarray  # difference of scale as a share of the near limit
    orientation: np.ndarray  # difference of orientation as a share of the near limit

    def select(self, which: np.ndarray) -> "Judged":
        return Judged(*(column[which] for column in self))

    def mean_misfit(self) -> np.ndarray:
        """Root mean square of the three shares: 0 for perfect agreement, 1 where all are at their near limits."""
        return np.sqrt((self.location**2 + self.scale**2 + self.orientation**2) / 3)

    def largest_misfit(self) -> np.ndarray:
        """The largest of the three shares."""
        return np.maximum(np.maximum(self.location, self.scale), self.orientation)


def judge(reprojected: Keypoints, found: Keypoints, rule: MatchRule) -> Judged:
    """Judge pairs of keypoints, row by row. Limits in sigmas are those of the reprojected keypoint."""
    pixels = np.linalg.norm(reprojected.xy - found.xy, axis=1)
    octaves = np.abs(np.log2(reprojected.sigma / found.sigma))
    radians = np.abs((reprojected.angle - found.angle + np.pi) % (2 * np.pi) - np.pi)
    near = np.minimum(rule.near_pixels, rule.near_sigmas * np.maximum(reprojected.sigma, 1e-9))
    far = np.maximum(rule.far_pixels, rule.far_sigmas * reprojected.sigma)
    matching = (pixels <= near) & (octaves <= rule.near_octaves) & (radians <= rule.near_radians)
    different = (pixels > far) | (octaves > rule.far_octaves) | (radians > rule.far_radians)
    verdict = np.where(matching, MATCHING, np.where(different, DIFFERENT, UNDECIDED))
    return Judged(verdict, pixels, pixels / near, octaves / rule.near_octaves, radians / rule.near_radians)


class NearPairs(NamedTuple):
    """Pairs of keypoints that are not different, in the order of their rows."""

    reprojected: np.ndarray  # (P,) rows
    found: np.ndarray  # (P,) rows
    judged: Judged

    def select(self, which: np.ndarray) -> "NearPairs":
        return NearPairs(self.reprojected[which], self.found[which], self.judged.select(which))

    def matching(self) -> "NearPairs":
        return self.select(self.judged.verdict == MATCHING)


def near_pairs(reprojected: Keypoints, found: Keypoints, rule: MatchRule) -> NearPairs:
    """All pairs of a reprojected and a found keypoint that the rule does not call different."""
    reach = np.maximum(rule.far_pixels, rule.far_sigmas * reprojected.sigma) * (1 + 1e-9)
    from scipy.spatial import cKDTree

    around = cKDTree(found.xy).query_ball_point(reprojected.xy, reach, return_sorted=True)
    row = np.repeat(np.arange(len(around)), [len(one) for one in around])
    other = np.fromiter(chain.from_iterable(around), np.int64, len(row))
    pairs = NearPairs(row, other, judge(reprojected.select(row), found.select(other), rule))
    return pairs.select(pairs.judged.verdict != DIFFERENT)


def ambiguous_pairs(keypoints: Keypoints, rule: MatchRule) -> np.ndarray:
    """Pairs (C, 2) of keypoints of one image, the smaller row first, that are not different by the sigma of either."""
    near = near_pairs(keypoints, keypoints, rule)
    pairs = np.sort(np.column_stack([near.reprojected, near.found])[near.reprojected != near.found], axis=1)
    return np.unique(pairs, axis=0)


def best_rows(key: np.ndarray, other: np.ndarray, misfit: np.ndarray) -> np.ndarray:
    """Of each key the row with the least misfit, and of equal ones that with the smallest `other`."""
    order = np.lexsort((other, misfit, key))
    _, start = np.unique(key[order], return_index=True)
    return order[start]

"""Matching of a stereo pair with known disparity: how many matches there are, and how many are correct. Used by the demo."""

from typing import NamedTuple

import numpy as np

from sdgmnet.data.synthetic.demo import StereoPair, true_places
from sdgmnet.descriptors import Descriptor, describe
from sdgmnet.features.describe import Features
from sdgmnet.features.match import match

KEYPOINTS = 2000  # per image, strongest first
NEAR = 3.0  # pixels


class StereoScore(NamedTuple):
    label: str
    xy: tuple[np.ndarray, np.ndarray]  # (M, 2) in each image: mutual nearest neighbours with known disparity
    correct: np.ndarray  # (M,) bool: within `near` of the true location

    @property
    def share(self) -> float:
        return float(self.correct.mean()) if len(self.correct) else 0.0


def score(descriptor: Descriptor, pair: StereoPair, keypoints: int = KEYPOINTS, near: float = NEAR) -> StereoScore:
    first, second = (describe(image, descriptor=descriptor, limit=keypoints) for image in (pair.left, pair.right))
    return score_matches(descriptor.label, first, second, match(first, second, ratio=None).pairs, pair.disparity, near)


def score_matches(
    label: str, first: Features, second: Features, matches: np.ndarray, disparity: np.ndarray, near: float
) -> StereoScore:
    """Which matches (M, 2) are correct; those without known disparity are left out."""
    left, right = first.keypoints.xy[matches[:, 0]], second.keypoints.xy[matches[:, 1]]
    expected = true_places(disparity, left)
    known = np.isfinite(expected).all(axis=1)
    correct = np.linalg.norm(expected[known] - right[known], axis=1) <= near
    return StereoScore(label, (left[known], right[known]), correct)


def table(scores: list[StereoScore]) -> tuple[list[str], list[list[str]]]:
    header = ["descriptor", "matches", "correct", "correct (%)"]
    return header, [
        [one.label, str(len(one.correct)), str(int(one.correct.sum())), f"{100 * one.share:.1f}"] for one in scores
    ]

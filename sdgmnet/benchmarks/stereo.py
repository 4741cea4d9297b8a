"""Matching of a stereo pair whose disparity is known: how many matches there are, and how many are right."""

from typing import NamedTuple

import numpy as np

from sdgmnet.data.synthetic.demo import StereoPair, true_places
from sdgmnet.descriptors import Descriptor, describe
from sdgmnet.features.describe import Features
from sdgmnet.features.match import match

KEYPOINTS = 2000  # an image, strongest first
NEAR = 3.0  # pixels


class StereoScore(NamedTuple):
    label: str
    places: tuple[np.ndarray, np.ndarray]  # (M, 2) in each image: mutual nearest neighbours whose true place is known
    right: np.ndarray  # (M,) bool: within NEAR of it

    @property
    def share(self) -> float:
        return float(self.right.mean()) if len(self.right) else 0.0


def score(contender: Descriptor, pair: StereoPair, keypoints: int = KEYPOINTS, near: float = NEAR) -> StereoScore:
    first, second = (describe(image, descriptor=contender, limit=keypoints) for image in (pair.left, pair.right))
    return judge(contender.label, first, second, match(first, second).pairs, pair.disparity, near)


def judge(
    label: str, first: Features, second: Features, pairs: np.ndarray, disparity: np.ndarray, near: float
) -> StereoScore:
    """Which of the pairs (M, 2) are right, leaving out those of which the disparity says nothing."""
    here, there = first.keypoints.xy[pairs[:, 0]], second.keypoints.xy[pairs[:, 1]]
    wanted = true_places(disparity, here)
    known = np.isfinite(wanted).all(axis=1)
    right = np.linalg.norm(wanted[known] - there[known], axis=1) <= near
    return StereoScore(label, (here[known], there[known]), right)


def table(scores: list[StereoScore]) -> tuple[list[str], list[list[str]]]:
    header = ["descriptor", "matches", "right", "share"]
    return header, [[one.label, str(len(one.right)), str(int(one.right.sum())), f"{one.share:.1%}"] for one in scores]

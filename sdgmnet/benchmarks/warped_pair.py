"""Matching of two images with a known homography: how many matches are verified, and how many are correct. Used by the demo."""

from collections.abc import Sequence
from typing import NamedTuple

import cv2
import numpy as np

from sdgmnet.data.synthetic.demo import WarpedPair
from sdgmnet.descriptors import Descriptor
from sdgmnet.features.describe import describe_image, find_keypoints
from sdgmnet.features.match import RATIO, match
from sdgmnet.features.verify import TOLERANCE, verify
from sdgmnet.report import OnProgress, no_progress, track

KEYPOINTS = 2000  # per image, strongest first
MIN_INLIERS = 15  # of a matched pair: COLMAP's default


class PairScore(NamedTuple):
    label: str
    xy: tuple[np.ndarray, np.ndarray]  # (M, 2) in each image: mutual nearest neighbours that pass the ratio test
    inlier: np.ndarray  # (M,) bool: of the homography found by RANSAC
    correct: np.ndarray  # (M,) bool: within the tolerance of the known homography

    @property
    def is_matched(self) -> bool:
        return int(self.inlier.sum()) >= MIN_INLIERS


def compare(
    descriptors: Sequence[Descriptor],
    pair: WarpedPair,
    ratio: float | None = RATIO,
    on_progress: OnProgress = no_progress,
) -> list[PairScore]:
    """All descriptors on the same keypoints, with the same ratio test and the same verification."""
    grays = [cv2.cvtColor(image, cv2.COLOR_RGB2GRAY) for image in (pair.first, pair.second)]
    keypoints = [find_keypoints(gray, KEYPOINTS) for gray in grays]
    scores = []
    for descriptor in track(descriptors, "matching a hard pair", on_progress):
        first, second = (
            describe_image(gray, found, descriptor=descriptor) for gray, found in zip(grays, keypoints, strict=True)
        )
        matches = match(first, second, ratio=ratio)
        a, b = (one.keypoints.xy[matches.pairs[:, side]] for side, one in enumerate((first, second)))
        inlier = verify(first, second, matches, "homography").inlier
        scores.append(PairScore(descriptor.label, (a, b), inlier, is_correct(pair.homography, a, b)))
    return scores


def is_correct(homography: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Which of the matching locations (M, 2) agree with the known homography: (M,) bool."""
    mapped = np.column_stack([first, np.ones(len(first))]) @ homography.T
    return np.asarray(np.linalg.norm(mapped[:, :2] / mapped[:, 2:] - second, axis=1) <= TOLERANCE["homography"])


def table(scores: Sequence[PairScore]) -> tuple[list[str], list[list[str]]]:
    header = ["descriptor", "matches", "inliers", "correct inliers", "pair matched"]
    return header, [
        [
            one.label,
            str(len(one.inlier)),
            str(int(one.inlier.sum())),
            str(int((one.inlier & one.correct).sum())),
            "yes" if one.is_matched else "no",
        ]
        for one in scores
    ]

"""The image pairs of the demo, matched: one by a known homography, one by a known disparity."""

from collections.abc import Sequence
from typing import NamedTuple

import cv2
import numpy as np

from sdgmnet.data.synthetic.demo import StereoPair, WarpedPair, true_places
from sdgmnet.descriptors import Descriptor, describe
from sdgmnet.features.describe import Features, describe_image, find_keypoints
from sdgmnet.features.geometry import map_points
from sdgmnet.features.match import RATIO, match
from sdgmnet.features.verify import TOLERANCE, verify
from sdgmnet.report import OnProgress, no_progress, track

KEYPOINTS = 2000  # per image, strongest first
MIN_INLIERS = 15  # of a matched pair: COLMAP's default
NEAR = 3.0  # pixels from the true location, of a correct match of the stereo pair


class WarpedScore(NamedTuple):
    label: str
    xy: tuple[np.ndarray, np.ndarray]  # (M, 2) in each image: mutual nearest neighbours that pass the ratio test
    inlier: np.ndarray  # (M,) bool: of the homography found by RANSAC
    correct: np.ndarray  # (M,) bool: within the tolerance of the known homography

    @property
    def is_matched(self) -> bool:
        return int(self.inlier.sum()) >= MIN_INLIERS


def compare_warped(
    descriptors: Sequence[Descriptor],
    pair: WarpedPair,
    ratio: float | None = RATIO,
    on_progress: OnProgress = no_progress,
) -> list[WarpedScore]:
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
        distance = np.linalg.norm(map_points(pair.homography, a)[0] - b, axis=1)
        correct = distance <= TOLERANCE["homography"]
        inlier = verify(first, second, matches, "homography").inlier
        scores.append(WarpedScore(descriptor.label, (a, b), inlier, correct))
    return scores


def warped_table(scores: Sequence[WarpedScore]) -> tuple[list[str], list[list[str]]]:
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


class StereoScore(NamedTuple):
    label: str
    xy: tuple[np.ndarray, np.ndarray]  # (M, 2) in each image: mutual nearest neighbours with known disparity
    correct: np.ndarray  # (M,) bool: within `NEAR` of the true location

    @property
    def share(self) -> float:
        return float(self.correct.mean()) if len(self.correct) else 0.0


def score_stereo(descriptor: Descriptor, pair: StereoPair) -> StereoScore:
    first, second = (describe(image, descriptor=descriptor, limit=KEYPOINTS) for image in (pair.left, pair.right))
    return score_matches(descriptor.label, first, second, match(first, second, ratio=None).pairs, pair.disparity)


def score_matches(
    label: str, first: Features, second: Features, matches: np.ndarray, disparity: np.ndarray
) -> StereoScore:
    """Which matches (M, 2) are correct; those without known disparity are left out."""
    left, right = first.keypoints.xy[matches[:, 0]], second.keypoints.xy[matches[:, 1]]
    expected = true_places(disparity, left)
    known = np.isfinite(expected).all(axis=1)
    correct = np.linalg.norm(expected[known] - right[known], axis=1) <= NEAR
    return StereoScore(label, (left[known], right[known]), correct)


def stereo_table(scores: list[StereoScore]) -> tuple[list[str], list[list[str]]]:
    header = ["descriptor", "matches", "correct", "correct (%)"]
    return header, [
        [one.label, str(len(one.correct)), str(int(one.correct.sum())), f"{100 * one.share:.1f}"] for one in scores
    ]

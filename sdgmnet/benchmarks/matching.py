"""Matching of whole pictures under known homographies: how often the nearest descriptor is the right one."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from sdgmnet.contenders import Contender
from sdgmnet.data.sequences import ImageSequence
from sdgmnet.features.images import read_gray
from sdgmnet.features.keypoints import Keypoints, detect
from sdgmnet.features.patches import cut_patches

DescribeImage = Callable[[np.ndarray, Keypoints], np.ndarray]

KEYPOINTS = 2000  # a picture, strongest first
NEAR = 3.0  # pixels
ROWS = 1024  # of a block of distances: memory stays bounded


class PairScore(NamedTuple):
    sequence: str
    number: int  # of the other picture, from 2
    findable: int  # reference keypoints with a keypoint within NEAR of their true place
    found: int  # of these, whose nearest descriptor is within NEAR of it

    @property
    def score(self) -> float:
        return self.found / self.findable if self.findable else 0.0


def run(
    describe: DescribeImage, sequences: Sequence[ImageSequence], keypoints: int = KEYPOINTS, near: float = NEAR
) -> Iterator[PairScore]:
    """Scores of one describing function, a pair of pictures at a time."""
    for sequence in sequences:
        image = read_gray(sequence.reference)
        reference = detect(image, keypoints)
        descriptors = describe(image, reference)
        for number, (path, homography) in enumerate(zip(sequence.others, sequence.homographies, strict=True), start=2):
            other = read_gray(path)
            found = detect(other, keypoints)
            wanted = through(homography, reference.xy)
            yield PairScore(
                sequence.name, number, *count_found(wanted, found.xy, descriptors, describe(other, found), near)
            )


def count_found(
    wanted: np.ndarray, places: np.ndarray, descriptors: np.ndarray, others: np.ndarray, near: float
) -> tuple[int, int]:
    """Of keypoints wanted (N, 2) at true places: how many have one of `places` (M, 2) there, and how many find it.

    descriptors (N, D) of the wanted ones, others (M, D): the nearest neighbour decides, without ratio test.
    """
    if not len(wanted) or not len(places):
        return 0, 0
    nearest = nearest_descriptors(descriptors, others)
    found = np.linalg.norm(wanted - places[nearest], axis=1) <= near
    findable = np.zeros(len(wanted), dtype=bool)
    for start in range(0, len(wanted), ROWS):
        rows = wanted[start : start + ROWS]
        findable[start : start + ROWS] = np.linalg.norm(rows[:, None] - places[None], axis=2).min(axis=1) <= near
    return int(findable.sum()), int(found.sum())


def nearest_descriptors(descriptors: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Index of the nearest of `others` by Euclidean distance, for each descriptor."""
    a, b = torch.from_numpy(descriptors).float(), torch.from_numpy(others).float()
    half = b.square().sum(1) / 2
    return torch.cat([(half - rows @ b.T).argmin(dim=1) for rows in a.split(ROWS)]).numpy()


def through(homography: np.ndarray, xy: np.ndarray) -> np.ndarray:
    """Places (N, 2) seen through the homography; what goes to infinity goes far away."""
    mapped = np.column_stack([xy, np.ones(len(xy))]) @ homography.T
    return mapped[:, :2] / np.where(np.abs(mapped[:, 2:]) < 1e-12, 1e-12, mapped[:, 2:])


def describe_image(contender: Contender) -> DescribeImage:
    """SIFT has its own way with pictures; whatever describes patches gets those of side 12 sigma."""
    if contender.describe_image is not None:
        return contender.describe_image
    return lambda image, keypoints: contender.describe(cut_patches(image, keypoints))


def table(labels: Sequence[str], results: Sequence[Sequence[PairScore]]) -> tuple[list[str], list[list[str]]]:
    """Score by sequence and their mean, one line a contender."""
    names = list(dict.fromkeys(pair.sequence for pair in results[0]))
    body = []
    for label, pairs in zip(labels, results, strict=True):
        scores = sequence_scores(pairs)
        body.append([label, *(f"{scores[name]:.3f}" for name in names), f"{np.mean(list(scores.values())):.3f}"])
    return ["descriptor", *names, "mean"], body


def sequence_scores(pairs: Sequence[PairScore]) -> dict[str, float]:
    """Mean over the pairs of each sequence."""
    names = dict.fromkeys(pair.sequence for pair in pairs)
    return {name: float(np.mean([pair.score for pair in pairs if pair.sequence == name])) for name in names}

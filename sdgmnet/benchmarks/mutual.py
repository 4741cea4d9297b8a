"""Mutual nearest neighbours under a known homography: mean matching accuracy, matching score, number of matches.

Accuracy of a pair at t pixels: the share of its matches that lie within t of their true place, 0 where there are no matches.
Matching score: correct matches over the keypoints in the part that both images show, of the image that has fewer there.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sdgmnet.benchmarks.geometry import distance

THRESHOLDS = tuple(range(1, 11))  # pixels
PRINTED = (1, 3, 5, 10)


class Mutual(NamedTuple):
    matches: int
    correct: tuple[int, ...]  # within each of THRESHOLDS
    shared: int  # keypoints in the shared part, of the image that has fewer
    correct_in_shared: int  # matches within `near` whose ends both lie in it

    @property
    def accuracy(self) -> tuple[float, ...]:
        return tuple(count / self.matches if self.matches else 0.0 for count in self.correct)

    @property
    def score(self) -> float:
        return self.correct_in_shared / self.shared if self.shared else 0.0


def count_mutual(
    pairs: np.ndarray,
    wanted: np.ndarray,
    places: np.ndarray,
    in_other: np.ndarray,
    in_reference: np.ndarray,
    near: float,
) -> Mutual:
    """Of matches (P, 2) between reference keypoints, whose true places are wanted (N, 2), and those at places (M, 2).

    in_other (N,): reference keypoints whose true place is inside the other image; in_reference (M,): the other way round.
    """
    here, there = pairs.T
    error = distance(wanted[here], places[there])
    return Mutual(
        len(pairs),
        tuple(int((error <= threshold).sum()) for threshold in THRESHOLDS),
        int(min(in_other.sum(), in_reference.sum())),
        int(((error <= near) & in_other[here] & in_reference[there]).sum()),
    )


def mean_accuracy(scores: Sequence[Mutual]) -> list[float]:
    """MMA at each of THRESHOLDS: the mean over pairs."""
    return [float(mean) for mean in np.mean([one.accuracy for one in scores], axis=0)]


def table(
    labels: Sequence[str], results: Sequence[dict[str, list[Mutual]]], near: float
) -> tuple[list[str], list[list[str]]]:
    """A line for each descriptor and kind of sequence."""
    header = [
        "descriptor",
        "sequences",
        "pairs",
        *(f"MMA {threshold} px" for threshold in PRINTED),
        f"MMA {THRESHOLDS[0]}-{THRESHOLDS[-1]} px",
        f"M.S. {near:g} px",
        "matches",
    ]
    body = []
    for label, kinds in zip(labels, results, strict=True):
        for kind, scores in kinds.items():
            accuracy = mean_accuracy(scores)
            numbers = [*(accuracy[THRESHOLDS.index(one)] for one in PRINTED), np.mean(accuracy)]
            numbers.append(np.mean([one.score for one in scores]))
            matches = f"{np.mean([one.matches for one in scores]):.0f}"
            body.append([label, kind, str(len(scores)), *(f"{number:.3f}" for number in numbers), matches])
    return header, body

"""The paper's own matching of raw images (Section IV-B, Fig. 5): a few random keypoints against all of the other image.

The paper draws 200 DoG keypoints of the reference, keeps all of the other image, takes the nearest neighbour without ratio
test and counts the correct ones. It leaves open within how many pixels, from which keypoints and how often is drawn: here 1, 3
and 5 pixels, from those whose true place lies inside the other image, and ten times.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sdgmnet.benchmarks.geometry import distance
from sdgmnet.features.match import match

DRAWN = 200
SEEDS = range(10)
NEAR = (1.0, 3.0, 5.0)  # pixels
SHOWN = 1  # which of these is drawn in images and ranks the pairs
LEAST = 4  # matches that a homography needs


class Shown(NamedTuple):
    """The first draw, for an image of it."""

    keypoints: np.ndarray  # (n, 2) in the reference
    nearest: np.ndarray  # (n, 2) in the other image
    correct: np.ndarray  # (n,) bool: within NEAR[SHOWN]


class Sampled(NamedTuple):
    drawn: int  # keypoints a draw: DRAWN, or all there are
    correct: tuple[tuple[int, ...], ...]  # a row a draw, a count for each of NEAR
    shown: Shown

    def mean(self, which: int) -> float:
        """Correct ones within NEAR[which], over the draws."""
        return float(np.mean([counts[which] for counts in self.correct]))


def sample(
    xy: np.ndarray,
    wanted: np.ndarray,
    is_visible: np.ndarray,
    descriptors: np.ndarray,
    places: np.ndarray,
    others: np.ndarray,
) -> Sampled:
    """Draw among reference keypoints at xy (N, 2) that are visible (N,), and look for them at their true places (N, 2).

    descriptors (N, D) are those of the reference; places (M, 2) and others (M, D) are keypoints and descriptors of the other
    image.
    """
    draws = [draw(is_visible, seed) for seed in SEEDS]
    used = np.unique(np.concatenate(draws))
    pairs = match(descriptors[used], others, mutual=False).pairs
    nearest, error = np.full(xy.shape, np.inf), np.full(len(xy), np.inf)
    nearest[used[pairs[:, 0]]] = places[pairs[:, 1]]
    error[used[pairs[:, 0]]] = distance(wanted[used[pairs[:, 0]]], places[pairs[:, 1]])
    correct = tuple(tuple(int((error[rows] <= near).sum()) for near in NEAR) for rows in draws)
    first = draws[0]
    return Sampled(len(first), correct, Shown(xy[first], nearest[first], error[first] <= NEAR[SHOWN]))


def draw(is_visible: np.ndarray, seed: int) -> np.ndarray:
    """Indices of at most DRAWN of the visible ones, without repetition: the same for every descriptor."""
    return np.random.default_rng(seed).permutation(np.flatnonzero(is_visible))[:DRAWN]


def table(labels: Sequence[str], results: Sequence[Sequence[Sampled]]) -> tuple[list[str], list[list[str]]]:
    """Means over pairs and draws, one line a descriptor; and the pairs in which there are too few for a homography."""
    header = [
        "descriptor",
        *(f"correct, {near:g} px" for near in NEAR),
        f"share, {NEAR[SHOWN]:g} px (%)",
        f"pairs below {LEAST}",
    ]
    body = []
    for label, scores in zip(labels, results, strict=True):
        counts = [f"{np.mean([one.mean(which) for one in scores]):.1f}" for which in range(len(NEAR))]
        share = np.mean([one.mean(SHOWN) / one.drawn if one.drawn else 0.0 for one in scores])
        few = sum(one.mean(SHOWN) < LEAST for one in scores)
        body.append([label, *counts, f"{100 * share:.1f}", f"{few} of {len(scores)}"])
    return header, body


def hardest(sequences: Sequence[str], results: Sequence[Sequence[Sampled]], count: int) -> list[int]:
    """Indices of the pairs to show, hardest first.

    Of each sequence the pair in which the descriptors have the fewest correct ones of the first draw, on average; of these the
    `count` lowest. Pairs in which no descriptor has any are passed over. `results` holds the pairs of one descriptor after
    another, `sequences` the name of each pair's sequence.
    """
    means = [float(np.mean([scores[pair].correct[0][SHOWN] for scores in results])) for pair in range(len(sequences))]
    ranked = sorted((pair for pair, mean in enumerate(means) if mean > 0), key=lambda pair: means[pair])
    first = dict.fromkeys(sequences[pair] for pair in ranked)
    return [next(pair for pair in ranked if sequences[pair] == name) for name in first][:count]

"""The three tasks of HPatches on descriptors: verification, matching, retrieval, with the numbers of the official Python code.

Equal distances keep the order of the official lists. Verification compares float32 distances, as scipy returns them to the
official code; the other tasks compare float64. Only the distances of verification are sorted: the other tasks count how many
are nearer.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from sdgmnet.data.hpatches.files import NOISES, OTHERS, TYPES, counts_and_starts, row_numbers
from sdgmnet.data.hpatches.tasks import Retrieval, Verification
from sdgmnet.errors import InputError
from sdgmnet.metrics import average_precision, average_precision_of_ranks, roc_auc
from sdgmnet.native.nearest import count_closer, nearest, pair_distances

POOLS = (100, 500, 1000, 5000, 10_000, 15_000, 20_000)
IMBALANCE = 0.2  # share of the positives in the imbalanced protocol


class Descriptors(NamedTuple):
    """Of several sequences, sequence after sequence; each has its 16 types, each type its patches."""

    names: tuple[str, ...]
    counts: np.ndarray  # (S,) patches per sequence
    starts: np.ndarray  # (S,) first row of a sequence
    rows: np.ndarray  # (sum of 16 counts, D) float32

    @staticmethod
    def gather(named: Iterable[tuple[str, np.ndarray]], counts: Iterable[int]) -> "Descriptors":
        """From name and (16, N, D) of each sequence, and the N of all."""
        each, starts = counts_and_starts(list(counts))
        names: list[str] = []
        rows = np.empty((0, 0), dtype=np.float32)
        for number, (name, descriptors) in enumerate(named):
            if not len(names):
                rows = np.empty((len(TYPES) * int(each.sum()), descriptors.shape[2]), dtype=np.float32)
            flat = descriptors.reshape(-1, descriptors.shape[2])
            rows[starts[number] : starts[number] + len(flat)] = flat
            names.append(name)
        return Descriptors(tuple(names), each, starts, rows)

    def of(self, sequence: int, kind: int) -> np.ndarray:
        """(N, D) of a sequence and type number."""
        start = self.starts[sequence] + kind * self.counts[sequence]
        return self.rows[start : start + self.counts[sequence]]

    def numbers(self, sequence: np.ndarray, kind: np.ndarray, patch: np.ndarray) -> np.ndarray:
        return row_numbers(self.starts, self.counts, sequence, kind, patch)


class Row(NamedTuple):
    """One number of the benchmark."""

    task: str  # verification, matching or retrieval
    noise: str  # easy, hard or tough
    subset: str  # inter, intra | illum, view, unlabelled, all | length of the list with its five positives, at most
    metric: str  # ap; auc (balanced verification); success (matching: share of nearest neighbours that are correct)
    value: float


class MatchingScore(NamedTuple):
    sequence: str
    noise: str
    ap: float
    success: float


def type_number(noise: int, image: np.ndarray | int) -> np.ndarray:
    """Index into TYPES. Image 0 is the reference whatever the noise."""
    return np.where(np.asarray(image) == 0, 0, noise * OTHERS + np.asarray(image))


def verification(descriptors: Descriptors, task: Verification) -> Iterator[Row]:
    """Average precision of all negatives and a fifth of the positives, and the balanced ROC AUC."""
    for number, noise in enumerate(NOISES):
        positive = noise_distances(descriptors, task.positive, number)
        few = np.sort(positive[: int(len(positive) * IMBALANCE)])
        positive.sort()
        for name, pairs in (("inter", task.inter), ("intra", task.intra)):
            negative = noise_distances(descriptors, pairs, number)
            negative.sort()
            yield Row("verification", noise, name, "ap", sorted_precision(few, negative))
            yield Row("verification", noise, name, "auc", roc_auc(positive, negative))


def sorted_precision(positive: np.ndarray, negative: np.ndarray) -> float:
    """Average precision from ascending distances; equal ones count against the descriptor: the negative comes first."""
    if len(positive) == 0:
        return 0.0
    ranks = np.searchsorted(negative, positive, "right") + np.arange(1, len(positive) + 1)
    return float(average_precision_of_ranks(ranks, len(positive)))


def noise_distances(descriptors: Descriptors, pairs: np.ndarray, noise: int) -> np.ndarray:
    """Distances (P,) float32 of pairs (P, 6): sequence, image, patch of the first and of the second."""
    first, second = (
        descriptors.numbers(pairs[:, k], type_number(noise, pairs[:, k + 1]), pairs[:, k + 2]) for k in (0, 3)
    )
    rows = descriptors.rows
    found = pair_distances(rows, rows, first, second, float32_differences=True).astype(np.float32)
    if np.isnan(found).any():
        raise InputError("distances contain NaN: the descriptors are not finite.")
    return found


def matching(descriptors: Descriptors, sequences: Iterable[int] | None = None) -> Iterator[MatchingScore]:
    """Nearest neighbours of the reference patches in each other image, without ratio test or mutual check.

    sequences: all indices, for a caller that counts them.
    """
    for sequence in range(len(descriptors.names)) if sequences is None else sequences:
        reference = descriptors.of(sequence, 0)
        for number, noise in enumerate(NOISES):
            for image in range(1, OTHERS + 1):
                other = descriptors.of(sequence, int(type_number(number, image)))
                found, distance = nearest(reference, other)
                right = found == np.arange(len(reference))
                ap = average_precision(-distance, right, positives=len(right))
                yield MatchingScore(descriptors.names[sequence], noise, ap, float(right.mean()))


def retrieval(descriptors: Descriptors, task: Retrieval, sequences: Iterable[int] | None = None) -> Iterator[Row]:
    """Five positives among distractors of other sequences: average precision over the first entries of the list."""
    scores = np.zeros((len(NOISES), len(POOLS)))
    places = task.distractors
    pool = descriptors.rows[descriptors.numbers(places[:, 0], np.zeros(len(places), dtype=np.int64), places[:, 1])]
    for sequence in range(len(descriptors.names)) if sequences is None else sequences:
        patches = task.queries[task.queries[:, 0] == sequence, 1]
        query = descriptors.of(sequence, 0)[patches]
        positives = np.stack([descriptors.of(sequence, kind)[patches] for kind in range(1, len(TYPES))], axis=1)
        scores += precision_sums(query, positives, pool[places[:, 0] != sequence])
    for number, noise in enumerate(NOISES):
        for pool_number, size in enumerate(POOLS):
            ap = float(scores[number, pool_number] / max(len(task.queries), 1))
            yield Row("retrieval", noise, str(size), "ap", ap)


def precision_sums(query: np.ndarray, positives: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Sums (noises, pools) over queries (Q, D) with positives (Q, 15, D) and distractors (R, D) in their order.

    The rank of a positive counts the nearer distractors and the nearer positives.
    """
    each = positives.shape[1]
    places = np.arange(len(query) * each)
    near = pair_distances(query, positives.reshape(-1, query.shape[1]), places // each, places).reshape(-1, each)
    closer = count_closer(query, others, near, [min(size - OTHERS, len(others)) for size in POOLS]).cumsum(axis=2)
    closer = closer.reshape(len(query), len(NOISES), OTHERS, len(POOLS))
    order = np.argsort(near.reshape(len(query), len(NOISES), OTHERS), axis=2, kind="stable")
    ranks = np.take_along_axis(closer, order[..., None], axis=2) + np.arange(1, OTHERS + 1)[:, None]
    return average_precision_of_ranks(np.moveaxis(ranks, 2, 3), OTHERS).sum(axis=0)

"""The three tasks of HPatches on descriptors: verification, matching, retrieval, as the official Python code counts.

Equal distances keep the official order, that of the lists. Verification compares distances in float32, as scipy gives
them there to the official code, the other tasks in float64.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import torch

from sdgmnet.data.hpatches import NOISES, OTHERS, TYPES, counts_and_starts, row_numbers
from sdgmnet.data.hpatches_tasks import Retrieval, Verification
from sdgmnet.metrics import average_precision, average_precision_of_ranks, roc_auc

POOLS = (100, 500, 1000, 5000, 10_000, 15_000, 20_000)
IMBALANCE = 0.2  # of the positives count in the imbalanced protocol
ROWS = 8192  # pairs whose descriptors are gathered at once
QUERY_ROWS = 64
TIE = 1e-12  # of the squared lengths: nearer squared distances than the matrix product can tell are equal
BLOCK = 1024  # rows of a matrix of distances

Track = Callable[[Iterable[int]], Iterable[int]]


class Descriptors(NamedTuple):
    """Of several sequences: each has its 16 types after each other, each type its patches."""

    names: tuple[str, ...]
    counts: np.ndarray  # (S,) patches of a sequence
    starts: np.ndarray  # (S,) its first row
    rows: np.ndarray  # (sum of 16 counts, D) float32

    @staticmethod
    def gather(named: Iterable[tuple[str, np.ndarray]], counts: Iterable[int]) -> "Descriptors":
        """From name, (16, N, D) a sequence, and their N."""
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


class VerificationScore(NamedTuple):
    noise: str
    negatives: str  # intra or inter
    ap: float  # imbalanced: all negatives, a fifth of the positives
    auc: float  # balanced


class MatchingScore(NamedTuple):
    sequence: str
    noise: str
    image: int  # 1 to 5
    ap: float
    success: float  # share of patches whose nearest is theirs


class RetrievalScore(NamedTuple):
    noise: str
    pool: int  # entries of the list, the five positives among them; more than there are means all
    ap: float


def type_number(noise: int, image: np.ndarray | int) -> np.ndarray:
    """Image 0 is the reference whatever the noise."""
    return np.where(np.asarray(image) == 0, 0, noise * OTHERS + np.asarray(image))


def verification(descriptors: Descriptors, task: Verification) -> Iterator[VerificationScore]:
    for number, noise in enumerate(NOISES):
        positive = pair_distances(descriptors, task.positive, number)
        for name, pairs in (("inter", task.inter), ("intra", task.intra)):
            negative = pair_distances(descriptors, pairs, number)
            few = positive[: int(len(positive) * IMBALANCE)]
            yield VerificationScore(
                noise,
                name,
                average_precision(*_negatives_first(negative, few)),
                roc_auc(*_negatives_first(negative, positive)),
            )


def _negatives_first(negative: np.ndarray, positive: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scores and labels; equal distances then count against the descriptor."""
    labels = np.zeros(len(negative) + len(positive), dtype=bool)
    labels[len(negative) :] = True
    return -np.concatenate([negative, positive]), labels


def pair_distances(descriptors: Descriptors, pairs: np.ndarray, noise: int) -> np.ndarray:
    """(P,) float64, rounded to float32, of pairs (P, 6) of sequence, image, patch, twice."""
    first, second = (
        torch.from_numpy(descriptors.numbers(pairs[:, k], type_number(noise, pairs[:, k + 1]), pairs[:, k + 2]))
        for k in (0, 3)
    )
    rows, distances = torch.from_numpy(descriptors.rows), torch.empty(len(pairs), dtype=torch.float64)
    for start in range(0, len(pairs), ROWS):
        part = slice(start, start + ROWS)
        difference = rows[first[part]] - rows[second[part]]
        distances[part] = difference.double().square_().sum(1).sqrt_().float()
    return distances.numpy()


def matching(descriptors: Descriptors, track: Track = iter) -> Iterator[MatchingScore]:
    """Each reference patch's nearest in the other image, without ratio test or mutual check."""
    for sequence in track(range(len(descriptors.names))):
        reference = descriptors.of(sequence, 0)
        for number, noise in enumerate(NOISES):
            for image in range(1, OTHERS + 1):
                other = descriptors.of(sequence, int(type_number(number, image)))
                nearest = first_nearest(reference, other)
                right = nearest == np.arange(len(reference))
                distance = np.linalg.norm(reference.astype(np.float64) - other[nearest], axis=1)
                ap = average_precision(-distance, right, positives=len(right))
                yield MatchingScore(descriptors.names[sequence], noise, image, ap, float(right.mean()))


def first_nearest(descriptors: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Index of the nearest of `others`, the first of equally near ones."""
    b = torch.from_numpy(others).double()
    lengths, nearest = b.square().sum(1), []
    for rows in torch.from_numpy(descriptors).split(BLOCK):
        a = rows.double()
        shifted = torch.addmm(lengths, a, b.T, alpha=-2)  # less the own squared length, the same along a row
        smallest, where = shifted.min(dim=1)
        slack = TIE * (a.square().sum(1) + lengths[where])
        same = shifted <= (smallest + slack)[:, None]
        nearest.append(same.to(torch.uint8).argmax(dim=1))
    return torch.cat(nearest).numpy()


def retrieval(descriptors: Descriptors, task: Retrieval, track: Track = iter) -> Iterator[RetrievalScore]:
    """Five positives among distractors of other sequences: average precision over the first entries of the list.

    Ranks are counted, not sorted: before a positive come the nearer distractors and the nearer positives.
    """
    scores = np.zeros((len(NOISES), len(POOLS)))
    for sequence in track(range(len(descriptors.names))):
        asked = task.queries[task.queries[:, 0] == sequence]
        pool = task.distractors[task.distractors[:, 0] != sequence]
        others = descriptors.rows[descriptors.numbers(pool[:, 0], np.zeros(len(pool), dtype=np.int64), pool[:, 1])]
        for start in range(0, len(asked), QUERY_ROWS):
            patches = asked[start : start + QUERY_ROWS, 1]
            query = descriptors.of(sequence, 0)[patches]
            positives = np.stack([descriptors.of(sequence, kind)[patches] for kind in range(1, len(TYPES))], axis=1)
            scores += precision_sums(query, positives, others)
    for number, noise in enumerate(NOISES):
        for pool_number, size in enumerate(POOLS):
            yield RetrievalScore(noise, size, float(scores[number, pool_number] / max(len(task.queries), 1)))


def precision_sums(query: np.ndarray, positives: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Sums (noises, pools) over queries (Q, D) with positives (Q, 15, D) and distractors (R, D) in their order."""
    q, b = torch.from_numpy(query).double(), torch.from_numpy(others).double()
    lengths = q.square().sum(1)
    far = torch.addmm(b.square().sum(1), q, b.T, alpha=-2).add_(lengths[:, None]).numpy()
    near = (positives.astype(np.float64) - query[:, None]) ** 2
    near = near.sum(axis=2)
    closer = closer_by_pool(far, near - TIE * (lengths.numpy()[:, None] + near))
    number = len(NOISES)
    near = near.reshape(len(query), number, OTHERS)
    closer = closer.reshape(len(query), number, OTHERS, len(POOLS))
    order = np.argsort(near, axis=2, kind="stable")
    before = np.take_along_axis(closer, order[..., None], axis=2)
    ranks = before + np.arange(1, OTHERS + 1)[:, None]
    return average_precision_of_ranks(np.moveaxis(ranks, 2, 3), OTHERS).sum(axis=0)


def closer_by_pool(far: np.ndarray, near: np.ndarray) -> np.ndarray:
    """Distractors below each threshold: far (Q, R), near (Q, T) -> counts (Q, T, pools) within each pool's first entries."""
    ends = [min(size - OTHERS, far.shape[1]) for size in POOLS]
    counts = np.zeros((*near.shape, len(POOLS)), dtype=np.int64)
    for column in range(near.shape[1]):
        below = far < near[:, column : column + 1]
        start = 0
        for number, end in enumerate(ends):
            counts[:, column, number] = np.count_nonzero(below[:, start:end], axis=1)
            start = end
    return counts.cumsum(axis=2)

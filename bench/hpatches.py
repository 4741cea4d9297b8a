"""How fast HPatches' three tasks are at full size, beside the official way of computing, timed on a slice."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from bench.speed import in_fresh_process
from sdgmnet.benchmarks.hpatches_tasks import POOLS, Descriptors, matching, retrieval, verification
from sdgmnet.data.hpatches.files import NOISES, OTHERS, TYPES
from sdgmnet.data.hpatches.tasks import DISTRACTORS, IMAGES, PAIRS, QUERIES, Retrieval, Verification

SEQUENCES, PATCHES, NUMBERS = 40, 1350, 128  # split a has so many sequences, of about so many patches
SLICE_PAIRS, SLICE_QUERIES = 20_000, 10
TASKS = ("verification", "matching", "retrieval")


class Size(NamedTuple):
    sequences: int = SEQUENCES
    patches: int = PATCHES
    pairs: int = PAIRS
    queries: int = QUERIES
    distractors: int = DISTRACTORS


FULL = Size()


def synthetic(size: Size = FULL) -> tuple[Descriptors, Verification, Retrieval]:
    """Unit descriptors that resemble their reference less and less, and tasks of the official sizes drawn quickly."""
    random = np.random.default_rng(0)
    rows = np.empty((size.sequences, len(TYPES), size.patches, NUMBERS), dtype=np.float32)
    for sequence in rows:
        sequence[0] = random.standard_normal((size.patches, NUMBERS), dtype=np.float32)
        for kind in range(1, len(TYPES)):
            noise = random.standard_normal((size.patches, NUMBERS), dtype=np.float32)
            sequence[kind] = sequence[0] + (1.0 + 0.5 * ((kind - 1) // OTHERS)) * noise
        sequence /= np.linalg.norm(sequence, axis=2, keepdims=True)
    counts = np.full(size.sequences, size.patches)
    starts = np.arange(size.sequences) * len(TYPES) * size.patches
    descriptors = Descriptors(tuple(map(str, range(size.sequences))), counts, starts, rows.reshape(-1, NUMBERS))
    s, s2 = random.integers(size.sequences, size=(2, size.pairs))
    p, p2, p3 = random.integers(size.patches, size=(3, size.pairs))
    t = random.integers(IMAGES, size=size.pairs)
    t2 = (t + random.integers(1, IMAGES, size=size.pairs)) % IMAGES
    columns = (s, t, p, s, t2, p), (s, t, p, s, t2, p2), (s, t, p, s2, t2, p3)
    positive, intra, inter = (np.column_stack(each).astype(np.int32) for each in columns)
    task = Verification(positive, intra, inter)
    drawn = random.permutation(size.sequences * size.patches)[: size.queries + size.distractors]
    places = np.column_stack([drawn // size.patches, drawn % size.patches]).astype(np.int32)
    return descriptors, task, Retrieval(places[: size.queries], places[size.queries :])


def ours(size: Size = FULL) -> dict[str, Any]:
    """Seconds by task, and the growth of peak memory with the descriptors themselves, in a fresh process."""
    return in_fresh_process(
        "from bench.hpatches import Size, time_tasks",
        "",
        f"seconds = time_tasks(Size{tuple(size)})",
        "seconds",
    )


def time_tasks(size: Size) -> dict[str, float]:
    descriptors, task, asked = synthetic(size)
    return {
        "verification": _seconds(lambda: list(verification(descriptors, task))),
        "matching": _seconds(lambda: list(matching(descriptors))),
        "retrieval": _seconds(lambda: list(retrieval(descriptors, asked))),
    }


def official_way(size: Size = FULL) -> dict[str, float]:
    """Seconds by task for the full size, carried over in proportion from a slice: a Python call a distance, a full sort a
    query, noise and pool, whole curves, distances from scipy where it is installed."""
    descriptors, task, asked = synthetic(size._replace(sequences=4, pairs=SLICE_PAIRS))
    seconds = {
        "verification": _seconds(lambda: _distances(descriptors, task)) * size.pairs / SLICE_PAIRS
        + _seconds(lambda: _curves(size.pairs)) * 4 * len(NOISES),
        "matching": _seconds(lambda: _matches(descriptors)) * size.sequences * len(NOISES) * OTHERS,
    }
    asked = asked._replace(queries=asked.queries[:SLICE_QUERIES])
    seconds["retrieval"] = _seconds(lambda: _lists(descriptors, asked, size.distractors)) * size.queries / SLICE_QUERIES
    return seconds


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _distances(descriptors: Descriptors, task: Verification) -> None:
    """Nine sets of distances: for each pair its descriptors are looked up by name and type, and one function is called."""
    table = {
        name: {kind: descriptors.of(number, place) for place, kind in enumerate(TYPES)}
        for number, name in enumerate(descriptors.names)
    }
    kinds = {letter: ["ref", *(f"{letter}{image}" for image in range(1, OTHERS + 1))] for letter in NOISES.values()}
    distance = euclidean()
    for pairs in task:
        found = {letter: np.empty((len(pairs), 1)) for letter in kinds}
        rows = [(descriptors.names[s], t, p, descriptors.names[s2], t2, p2) for s, t, p, s2, t2, p2 in pairs.tolist()]
        for row, (first, image, patch, second, other_image, other_patch) in enumerate(rows):
            for letter, names in kinds.items():
                a, b = table[first][names[image]][patch], table[second][names[other_image]][other_patch]
                found[letter][row] = distance(a, b)


def _curves(pairs: int) -> None:
    """One curve of a cell with as many of each."""
    random = np.random.default_rng(0)
    precision_over_recall(random.random(2 * pairs), (random.random(2 * pairs) < 0.5).astype(float))


def precision_over_recall(scores: np.ndarray, labels: np.ndarray) -> float:
    """A whole sort and whole curves, as the official function makes them."""
    order = np.argsort(-scores, kind="mergesort")
    scores = scores[order]
    order = order[: np.max(np.where(scores > -np.inf)) + 1]
    labels = labels[order]
    true = np.hstack((0, np.cumsum(labels == 1)))
    false = np.hstack((0, np.cumsum(labels == 0)))
    recall = true / max(float(true[-1]), 1e-10)
    precision = np.maximum(true, 1e-10) / np.maximum(true + false, 1e-10)
    return float(np.trapezoid(precision, recall))


def _matches(descriptors: Descriptors) -> None:
    """One pair of images."""
    distances = distance_matrix(descriptors.of(0, 0), descriptors.of(0, 1))
    nearest, numbers = distances.argmin(axis=1), np.arange(len(distances))
    precision_over_recall(-distances[numbers, nearest], (nearest == numbers).astype(float))


def _lists(descriptors: Descriptors, asked: Retrieval, distractors: int) -> None:
    """Queries against the whole pool: its distances, and a sort for each noise and pool size."""
    pool = descriptors.rows[: min(distractors, len(descriptors.rows))]
    others = np.arange(len(pool)) >= 0
    for sequence, patch in asked.queries:
        query = descriptors.of(int(sequence), 0)[patch : patch + 1]
        far = distance_matrix(query, pool)[0]
        for noise in range(len(NOISES)):
            near = [
                distance_matrix(query, descriptors.of(int(sequence), 1 + noise * OTHERS + image)[patch : patch + 1])[
                    0, 0
                ]
                for image in range(OTHERS)
            ]
            entries = np.hstack((near, far[others]))
            labels = np.hstack((np.ones(OTHERS), np.zeros(len(pool))))
            for size in POOLS:
                precision_over_recall(-entries[:size], labels[:size])


def euclidean() -> Callable[[np.ndarray, np.ndarray], float]:
    """The function that the official code calls for each pair, or numpy's where scipy is not installed."""
    try:
        from scipy.spatial.distance import euclidean as distance
    except ImportError:
        return lambda a, b: float(np.linalg.norm(a - b))
    return distance


def distance_matrix(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    try:
        from scipy.spatial.distance import cdist
    except ImportError:
        return np.stack([np.linalg.norm(b.astype(np.float64) - row, axis=1) for row in a])
    return cdist(a, b)

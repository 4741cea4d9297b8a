"""How fast HPatches' three tasks are at full size, beside the official way of computing, timed on a slice."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from sdgmnet.benchmarks.patch_tasks import POOLS, Descriptors, matching, retrieval, type_number, verification
from sdgmnet.benchmarks.speed import in_fresh_process
from sdgmnet.data.hpatches import NOISES, OTHERS, TYPES
from sdgmnet.data.hpatches_tasks import DISTRACTORS, IMAGES, PAIRS, QUERIES, Retrieval, Verification

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
        "from sdgmnet.benchmarks.hpatches_speed import Size, time_tasks",
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
    query, noise and pool, distances from scipy where it is installed."""
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
    """Nine sets of distances, one call each."""
    for noise in range(len(NOISES)):
        for pairs in task:
            first, second = (
                descriptors.numbers(pairs[:, k], type_number(noise, pairs[:, k + 1]), pairs[:, k + 2]) for k in (0, 3)
            )
            for a, b in zip(first, second, strict=True):
                np.linalg.norm(descriptors.rows[a] - descriptors.rows[b])


def _curves(pairs: int) -> None:
    """One sort of a cell, with its cumulative sums."""
    random = np.random.default_rng(0)
    scores, labels = random.random(2 * pairs), random.random(2 * pairs) < 0.5
    labels = labels[np.argsort(-scores, kind="mergesort")]
    true, false = np.cumsum(labels), np.cumsum(~labels)
    np.trapezoid(true / np.maximum(true + false, 1), true)


def _matches(descriptors: Descriptors) -> None:
    """One pair of images."""
    distance_matrix(descriptors.of(0, 0), descriptors.of(0, 1)).argmin(axis=1)


def _lists(descriptors: Descriptors, asked: Retrieval, distractors: int) -> None:
    """Queries against the whole pool: its distances, and a sort for each noise and pool size."""
    count = min(distractors, len(descriptors.rows))
    pool = descriptors.rows[:count]
    for sequence, patch in asked.queries:
        far = distance_matrix(descriptors.of(int(sequence), 0)[patch : patch + 1], pool)[0]
        for _ in NOISES:
            entries = np.concatenate([far[:OTHERS], far])
            labels = np.zeros(len(entries))
            labels[:OTHERS] = 1
            for size in POOLS:
                found = labels[:size][np.argsort(entries[:size], kind="mergesort")]
                true, false = np.cumsum(found == 1), np.cumsum(found == 0)
                np.trapezoid(true / np.maximum(true + false, 1), true)


def distance_matrix(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    try:
        from scipy.spatial.distance import cdist
    except ImportError:
        return np.stack([np.linalg.norm(b.astype(np.float64) - row, axis=1) for row in a])
    return cdist(a, b)

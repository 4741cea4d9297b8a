"""HPatches' three tasks at full size: ours against the official algorithm, which is timed on a slice."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy.spatial.distance import cdist, euclidean

from bench.command import Row, command, memory_row, seconds_row
from bench.options import Options
from bench.timing import in_fresh_process, seconds_of
from sdgmnet.benchmarks.hpatches_tasks import POOLS, Descriptors, matching, retrieval, verification
from sdgmnet.data.hpatches.files import NOISES, OTHERS, TYPES
from sdgmnet.data.hpatches.tasks import DISTRACTORS, IMAGES, PAIRS, QUERIES, Retrieval, Verification
from sdgmnet.report import OnProgress, track

SEQUENCES, PATCHES, NUMBERS = 40, 1350, 128  # of split a: sequences, patches per image (about), descriptor size
SLICE_PAIRS, SLICE_QUERIES = 20_000, 10


class Size(NamedTuple):
    sequences: int = SEQUENCES
    patches: int = PATCHES
    pairs: int = PAIRS
    queries: int = QUERIES
    distractors: int = DISTRACTORS


FULL = Size()


def synthetic(size: Size = FULL) -> tuple[Descriptors, Verification, Retrieval]:
    """Unit descriptors, less and less like their reference from easy to tough, and random tasks of the official sizes."""
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


def time_tasks(size: Size) -> dict[str, float]:
    descriptors, verification_task, retrieval_task = synthetic(size)
    return {
        "verification": seconds_of(lambda: list(verification(descriptors, verification_task))),
        "matching": seconds_of(lambda: list(matching(descriptors))),
        "retrieval": seconds_of(lambda: list(retrieval(descriptors, retrieval_task))),
    }


def time_official(size: Size = FULL) -> dict[str, float]:
    """Seconds per task at full size, extrapolated from a slice, by the official algorithm.

    It has a Python call per distance, and a full sort and whole curves per query, noise and pool size.
    """
    descriptors, pairs, queries = synthetic(size._replace(sequences=4, pairs=SLICE_PAIRS))
    queries = queries._replace(queries=queries.queries[:SLICE_QUERIES])
    curves = seconds_of(lambda: _curve(size.pairs)) * 4 * len(NOISES)
    return {
        "verification": seconds_of(lambda: _distances(descriptors, pairs)) * size.pairs / SLICE_PAIRS + curves,
        "matching": seconds_of(lambda: _matches(descriptors)) * size.sequences * len(NOISES) * OTHERS,
        "retrieval": seconds_of(lambda: _lists(descriptors, queries, size.distractors)) * size.queries / SLICE_QUERIES,
    }


def measure_hpatches(options: Options, on_progress: OnProgress) -> Iterator[Row]:
    program = "from bench.hpatches import FULL, time_tasks", "", "seconds = time_tasks(FULL)", "seconds"
    rounds = track(range(min(3, options.repeats)), "HPatches", on_progress)
    runs = [in_fresh_process(*program) for _ in rounds]
    official = time_official()
    for task, slow in official.items():
        seconds, what = [run[task] for run in runs], f"HPatches {task}, full size"
        yield seconds_row(what, "ours", seconds, f"1/{slow / np.median(seconds):.0f} of the official algorithm")
        yield [what, "official algorithm, extrapolated", f"{slow:.0f} s", "", ""]
    totals = [sum(run[task] for task in official) for run in runs]
    ratio = f"1/{sum(official.values()) / np.median(totals):.0f} of the official algorithm"
    yield seconds_row("HPatches, three tasks", "ours", totals, ratio)
    megabytes = max(run["megabytes"] for run in runs)
    yield memory_row("HPatches, three tasks", "ours", megabytes, "including 422 MB of descriptors")


def _distances(descriptors: Descriptors, task: Verification) -> None:
    """Per pair and noise: look up both descriptors by name and type, and call a distance function."""
    table = {
        name: {kind: descriptors.of(number, place) for place, kind in enumerate(TYPES)}
        for number, name in enumerate(descriptors.names)
    }
    kinds = {letter: ["ref", *(f"{letter}{image}" for image in range(1, OTHERS + 1))] for letter in NOISES.values()}
    for pairs in task:
        found = {letter: np.empty((len(pairs), 1)) for letter in kinds}
        rows = [(descriptors.names[s], t, p, descriptors.names[s2], t2, p2) for s, t, p, s2, t2, p2 in pairs.tolist()]
        for row, (first, image, patch, second, other_image, other_patch) in enumerate(rows):
            for letter, names in kinds.items():
                a, b = table[first][names[image]][patch], table[second][names[other_image]][other_patch]
                found[letter][row] = euclidean(a, b)


def _curve(pairs: int) -> None:
    """One precision-recall curve with as many positive as negative pairs."""
    random = np.random.default_rng(0)
    precision_over_recall(random.random(2 * pairs), (random.random(2 * pairs) < 0.5).astype(float))


def precision_over_recall(scores: np.ndarray, labels: np.ndarray) -> float:
    """Average precision by a full sort and whole curves, as in the official code."""
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
    distances = cdist(descriptors.of(0, 0), descriptors.of(0, 1))
    nearest, numbers = distances.argmin(axis=1), np.arange(len(distances))
    precision_over_recall(-distances[numbers, nearest], (nearest == numbers).astype(float))


def _lists(descriptors: Descriptors, task: Retrieval, distractors: int) -> None:
    """Distances of each query to the whole pool, and a sort per noise and pool size."""
    pool = descriptors.rows[: min(distractors, len(descriptors.rows))]
    for sequence, patch in task.queries:
        query = descriptors.of(int(sequence), 0)[patch : patch + 1]
        far = cdist(query, pool)[0]
        for noise in range(len(NOISES)):
            kinds = range(1 + noise * OTHERS, 1 + (noise + 1) * OTHERS)
            same = np.stack([descriptors.of(int(sequence), kind)[patch] for kind in kinds])
            near = cdist(query, same)[0]
            entries = np.hstack((near, far))
            labels = np.hstack((np.ones(OTHERS), np.zeros(len(pool))))
            for size in POOLS:
                precision_over_recall(-entries[:size], labels[:size])


hpatches = command("hpatches", measure_hpatches)

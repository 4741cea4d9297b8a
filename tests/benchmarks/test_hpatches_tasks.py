"""HPatches' three tasks against loops written from the protocol: one distance at a time, a full sort per query and pool.

The measures themselves have their loops in `tests/test_metrics.py`.
"""

import itertools

import numpy as np
import pytest

from sdgmnet.benchmarks import hpatches_tasks
from sdgmnet.benchmarks.hpatches_tasks import Descriptors, matching, retrieval, verification
from sdgmnet.data.hpatches.files import TYPES
from sdgmnet.data.hpatches.tasks import Retrieval, Verification
from sdgmnet.metrics import average_precision, roc_auc
from sdgmnet.native import nearest as native

NOISES = {"easy": "e", "hard": "h", "tough": "t"}
Table = dict[str, dict[str, np.ndarray]]
each_table = pytest.mark.parametrize(("kind", "seed"), [*itertools.product(["free", "unit", "ties", "same"], range(3))])


@pytest.fixture(params=["native", "plain"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the compiled comparisons, and without."""
    if request.param == "plain":
        monkeypatch.setattr(native, "library", lambda: None)
    elif native.library() is None:
        pytest.skip("needs the kernels")
    return str(request.param)


def tables(kind: str, seed: int, counts: tuple[int, ...] = (7, 11, 5), size: int = 6) -> Table:
    """Sequence -> type -> descriptors. "ties": small whole numbers, so that many distances are equal."""
    random = np.random.default_rng(seed)
    found: Table = {}
    for number, count in enumerate(counts):
        truth = random.normal(size=(count, size))
        found[f"s{number}"] = {}
        for name in TYPES:
            rows = truth + random.normal(size=(count, size)) * (0.2 if name == "ref" else 0.9)
            if kind == "ties":
                rows = np.rint(rows)
            if kind == "unit":
                rows /= np.linalg.norm(rows, axis=1, keepdims=True)
            if kind == "same":
                rows = np.ones_like(rows)
            found[f"s{number}"][name] = rows.astype(np.float32)
    return found


def gathered(table: Table) -> Descriptors:
    sequences = [(name, np.stack([types[kind] for kind in TYPES])) for name, types in table.items()]
    return Descriptors.gather(sequences, [len(types["ref"]) for types in table.values()])


def slow_distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.sqrt(sum((float(x) - float(y)) ** 2 for x, y in zip(a, b, strict=True))))


def slow_single(a: np.ndarray, b: np.ndarray) -> float:
    """As scipy's euclidean on float32 rows: the difference in float32, and its length rounded to it."""
    return float(np.float32(np.sqrt(sum(float(np.float32(x - y)) ** 2 for x, y in zip(a, b, strict=True)))))


def random_pairs(seed: int, counts: list[int], pairs: int) -> Verification:
    random = np.random.default_rng(seed)

    def rows(same_sequence: bool, same_patch: bool) -> np.ndarray:
        out = []
        for _ in range(pairs):
            s1 = random.integers(len(counts))
            s2 = s1 if same_sequence else random.integers(len(counts))
            p1 = random.integers(counts[s1])
            p2 = p1 if same_patch else random.integers(counts[s2])
            t1, t2 = random.choice(6, 2, replace=False)
            out.append((s1, t1, p1, s2, t2, p2))
        return np.array(out, dtype=np.int32)

    return Verification(rows(True, True), rows(True, False), rows(False, False))


@each_table
def test_verification(kind: str, seed: int) -> None:
    table = tables(kind, seed)
    task = random_pairs(seed, [len(types["ref"]) for types in table.values()], pairs=43)
    found = {(row.noise, row.subset, row.metric): row.value for row in verification(gathered(table), task)}
    names = list(table)
    for noise, letter in NOISES.items():

        def scores(rows: np.ndarray, letter: str = letter) -> list[float]:
            kind_of = lambda t: "ref" if t == 0 else f"{letter}{t}"  # noqa: E731
            return [
                -slow_single(table[names[a]][kind_of(t1)][p1], table[names[b]][kind_of(t2)][p2])
                for a, t1, p1, b, t2, p2 in rows
            ]

        positive = scores(task.positive)
        for negatives in ("intra", "inter"):
            negative = scores(getattr(task, negatives))
            fifth = positive[: int(0.2 * len(positive))]
            ap = average_precision(np.array(negative + fifth), np.repeat([0, 1], [len(negative), len(fifth)]))
            auc = roc_auc(np.sort(np.negative(positive)), np.negative(negative))
            assert found[noise, negatives, "ap"] == pytest.approx(ap, abs=1e-9)
            assert found[noise, negatives, "auc"] == pytest.approx(auc, abs=1e-9)


@each_table
def test_matching(kind: str, seed: int) -> None:
    table = tables(kind, seed, counts=(9, 1, 6))
    found, images = list(matching(gathered(table))), itertools.product(table, NOISES, range(1, 6))
    for score, (sequence, noise, image) in zip(found, images, strict=True):
        assert (score.sequence, score.noise) == (sequence, noise)
        reference, other = table[sequence]["ref"], table[sequence][f"{NOISES[noise]}{image}"]
        labels, scores = [], []
        for k, row in enumerate(reference):
            distances = [slow_distance(row, candidate) for candidate in other]
            nearest = distances.index(min(distances))
            labels.append(int(nearest == k))
            scores.append(-distances[nearest])
        assert score.ap == pytest.approx(average_precision(np.array(scores), np.array(labels), len(labels)), abs=1e-9)
        assert score.success == pytest.approx(sum(labels) / len(labels), abs=1e-12)


@each_table
def test_retrieval(kind: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hpatches_tasks, "POOLS", (5, 6, 9, 15, 40))
    monkeypatch.setattr(native, "QUERIES", 3)
    table = tables(kind, seed)
    random, names = np.random.default_rng(seed), list(table)
    places = [(s, p) for s, name in enumerate(names) for p in range(len(table[name]["ref"]))]
    chosen = random.permutation(len(places))
    task = Retrieval(*(np.array([places[k] for k in part], dtype=np.int32) for part in (chosen[:8], chosen[8:])))
    found = {(row.noise, int(row.subset)): row.value for row in retrieval(gathered(table), task)}
    for noise, letter in NOISES.items():
        for pool in (5, 6, 9, 15, 40):
            values = []
            for sequence, patch in task.queries:
                query = table[names[sequence]]["ref"][patch]
                entries = [slow_distance(query, table[names[sequence]][f"{letter}{k}"][patch]) for k in range(1, 6)]
                entries += [
                    slow_distance(query, table[names[s]]["ref"][p]) for s, p in task.distractors if s != sequence
                ]
                values.append(average_precision(-np.array(entries[:pool]), np.arange(len(entries[:pool])) < 5))
            assert found[noise, pool] == pytest.approx(np.mean(values), abs=1e-9)


def test_no_distractor_at_all_and_no_query() -> None:
    table = tables("free", 0, counts=(4,))
    empty = np.zeros((0, 2), dtype=np.int32)
    alone = Retrieval(np.array([[0, 1]], dtype=np.int32), np.array([[0, 2]], dtype=np.int32))
    assert all(row.value == pytest.approx(1) for row in retrieval(gathered(table), alone))
    assert all(row.value == 0 for row in retrieval(gathered(table), Retrieval(empty, empty)))


def test_verification_distances_are_scipys() -> None:
    euclidean = pytest.importorskip("scipy.spatial.distance").euclidean
    rows = np.round(np.random.default_rng(0).random((60, 128)), 1).astype(np.float32)
    descriptors = Descriptors(("one",), np.array([60]), np.array([0]), np.tile(rows, (16, 1)))
    pairs = np.array([(0, 0, a, 0, 1, b) for a in range(60) for b in range(a)], dtype=np.int32)
    ours = hpatches_tasks.noise_distances(descriptors, pairs, 0)
    assert np.array_equal(ours, [euclidean(rows[a], rows[b]) for _, _, a, _, _, b in pairs])

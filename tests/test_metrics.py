"""FPR@95 against the rules of docs/protocols.md 1.3 written as loops."""

import itertools
import math

import numpy as np
import pytest

from sdgmnet.errors import InputError
from sdgmnet.metrics import (
    FPR_CONVENTIONS,
    average_precision,
    average_precision_of_ranks,
    fpr_at_recall,
    pair_distances,
    pose_auc,
    roc_auc,
    skewness,
)


def hardnet_rule(distances: np.ndarray, labels: np.ndarray, recall: float = 0.95) -> float:
    """Sort; k is the first index with enough positives; negatives ranked before k. Ties stay in the order given."""
    ranked = sorted(range(len(distances)), key=lambda index: distances[index])
    positives, found, false = sum(map(bool, labels)), 0, 0
    for index in ranked:
        if labels[index]:
            found += 1
        if found >= recall * positives:
            return false / (len(labels) - positives)
        if not labels[index]:
            false += 1
    raise AssertionError("recall is never reached")


def exact_rule(distances: np.ndarray, labels: np.ndarray, recall: float = 0.95) -> float:
    """The smallest distance that finds enough positives, and every negative no farther."""
    positive = [d for d, same in zip(distances, labels, strict=True) if same]
    negative = [d for d, same in zip(distances, labels, strict=True) if not same]
    for threshold in sorted(positive):
        if sum(d <= threshold for d in positive) >= recall * len(positive):
            return sum(d <= threshold for d in negative) / len(negative)
    raise AssertionError("recall is never reached")


def overlapping(positives: int, negatives: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Distances without ties, in random order."""
    rng = np.random.default_rng(seed)
    distances = np.concatenate([rng.normal(0.6, 0.3, positives), rng.normal(1.2, 0.3, negatives)])
    labels = np.repeat([1, 0], [positives, negatives])
    order = rng.permutation(len(labels))
    assert len(np.unique(distances)) == len(distances)
    return distances[order], labels[order]


@pytest.mark.parametrize(
    ("positives", "negatives"), [(1, 1), (1, 50), (19, 7), (20, 20), (21, 300), (100, 40), (377, 251)]
)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_without_ties_it_is_the_published_rule(positives: int, negatives: int, seed: int) -> None:
    distances, labels = overlapping(positives, negatives, seed)
    expected = hardnet_rule(distances, labels)
    assert fpr_at_recall(distances, labels) == pytest.approx(expected, abs=1e-12)
    assert fpr_at_recall(distances, labels, convention="exact") == pytest.approx(expected, abs=1e-12)


def test_other_recalls() -> None:
    distances, labels = overlapping(90, 110, seed=3)
    for recall in (0.01, 0.5, 0.8, 0.999, 1.0):
        expected = hardnet_rule(distances, labels, recall)
        assert fpr_at_recall(distances, labels, recall) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("levels", [2, 5, 20])
def test_exact_counts_ties_against(levels: int, seed: int) -> None:
    distances, labels = overlapping(60, 80, seed)
    coarse = np.round(distances * levels / 2)
    assert fpr_at_recall(coarse, labels, convention="exact") == pytest.approx(exact_rule(coarse, labels), abs=1e-12)


@pytest.mark.parametrize("labels", [(1, 1, 0), (1, 0, 0, 0), (1, 1, 1, 0, 0), (1, 1, 1, 1, 0, 0)])
@pytest.mark.parametrize("recall", [0.3, 0.6, 0.95])
def test_ties_are_the_mean_over_every_order(labels: tuple[int, ...], recall: float) -> None:
    """All at one distance, with a few around them: every order of the tied ones is tried."""
    around, around_labels = [0.1, 0.2, 0.9, 0.95], [1, 0, 1, 0]
    results = []
    for order in itertools.permutations(range(len(labels))):
        shuffled = [labels[index] for index in order]
        results.append(hardnet_rule([*around, *[0.5] * len(labels)], [*around_labels, *shuffled], recall))
    measured = fpr_at_recall(np.array([*around, *[0.5] * len(labels)]), np.array([*around_labels, *labels]), recall)
    assert measured == pytest.approx(np.mean(results), abs=1e-12)


@pytest.mark.parametrize("convention", FPR_CONVENTIONS)
def test_does_not_depend_on_the_order_of_the_pairs(convention: str) -> None:
    distances, labels = overlapping(70, 90, seed=6)
    coarse = np.round(distances, 1)
    expected = fpr_at_recall(coarse, labels, convention=convention)
    positives_first, negatives_first = np.argsort(-labels), np.argsort(labels)
    for order in (positives_first, negatives_first, np.random.default_rng(1).permutation(len(labels))):
        assert fpr_at_recall(coarse[order], labels[order], convention=convention) == expected


def test_values_by_hand() -> None:
    """20 positives at 1, 2, ... 20: the 19th is at 19; negatives at 0, 18.5, 19.5 and 30. Then the ends of the scale."""
    assert fpr_at_recall(np.array([*range(1, 21), 0, 18.5, 19.5, 30]), np.array([1] * 20 + [0] * 4)) == 0.5
    labels = np.repeat([True, False], 1000)
    separated = np.concatenate([np.linspace(0, 1, 1000), np.linspace(1.1, 2, 1000)])
    for convention in FPR_CONVENTIONS:
        assert fpr_at_recall(separated, labels, convention=convention) == 0
        assert fpr_at_recall(-separated, labels, convention=convention) == 1
    assert fpr_at_recall(np.zeros(2000), labels) == pytest.approx(0.95, abs=0.002)
    assert fpr_at_recall(np.zeros(2000), labels, convention="exact") == 1


@pytest.mark.parametrize(
    ("distances", "labels", "options", "message"),
    [
        ([0.1, np.nan, 0.3], [1, 0, 1], {}, "NaN"), ([0.1, 0.2], [1, 1], {}, "matching"),
        ([0.1, 0.2], [0, 0], {}, "matching"), ([], [], {}, "matching"), ([0.1, 0.2, 0.3], [1, 0], {}, "3.*2"),
        ([0.1, 0.2], [1, 0], {"convention": "hynet"}, "hynet"), ([0.1, 0.2], [1, 0], {"recall": 0.0}, "recall"),
        ([0.1, 0.2], [1, 0], {"recall": 95}, "recall"),
    ],
)  # fmt: skip
def test_unusable_input_is_refused(distances: list, labels: list, options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        fpr_at_recall(np.array(distances), np.array(labels), **options)


def test_pair_distances_are_those_of_a_loop() -> None:
    rng = np.random.default_rng(8)
    patches = rng.integers(256, size=(30, 4, 4), dtype=np.uint8)
    pairs = np.column_stack([rng.integers(5, 30, (200, 2)), rng.integers(0, 2, 200)])
    described: list[np.ndarray] = []

    def describe(some: np.ndarray) -> np.ndarray:
        described.append(some)
        return some.reshape(len(some), -1).astype(np.float32) / 255

    distances, labels = pair_distances(describe, patches, pairs)
    assert distances.dtype == np.float64
    assert labels.tolist() == [bool(same) for same in pairs[:, 2]]
    for row, (first, second, _) in enumerate(pairs):
        gap = (patches[first].astype(float) - patches[second]) / 255
        assert distances[row] == pytest.approx(math.sqrt((gap * gap).sum()), rel=1e-6)
    needed = {patches[index].tobytes() for index in pairs[:, :2].ravel()}
    seen = [patch.tobytes() for batch in described for patch in batch]
    assert len(seen) == len(set(seen)) and set(seen) == needed  # each patch once, no patch without need


def test_pair_distances_of_more_pairs_and_patches_than_one_block() -> None:
    """Patches are described 8192 at a time, each once."""
    points, sizes = np.arange(40000.0)[:, None] ** 1.5, []
    pairs = np.column_stack([np.arange(0, 40000, 2), np.arange(1, 40000, 2), np.ones(20000, dtype=int)])

    def describe(rows: np.ndarray) -> np.ndarray:
        sizes.append(len(rows))
        return rows

    distances, labels = pair_distances(describe, points, pairs)
    np.testing.assert_array_equal(distances, np.diff(points[:, 0])[::2])
    assert sizes == [8192] * 4 + [40000 - 4 * 8192] and labels.all()
    with pytest.raises(InputError, match="no test pairs"):
        pair_distances(describe, points, pairs[:0])


def area_by_trapezoids(scores: list[float], labels: list[int], positives: int) -> float:
    """HPatches' rule as a loop: precision over recall from (0, 1), a trapezoid per ranked item."""
    ranked = sorted(range(len(scores)), key=lambda index: -scores[index])
    recall, precision, found, area = 0.0, 1.0, 0, 0.0
    for rank, index in enumerate(ranked, start=1):
        found += labels[index]
        area += (found / positives - recall) * (precision + found / rank) / 2
        recall, precision = found / positives, found / rank
    return area


@pytest.mark.parametrize("seed", range(6))
def test_average_precision_is_the_area_by_trapezoids(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores, labels = rng.integers(0, 12, 30).astype(float), rng.integers(0, 2, 30)  # ties keep their order
    for positives in (None, int(labels.sum()), int(labels.sum()) + 5):
        expected = area_by_trapezoids(scores.tolist(), labels.tolist(), positives or int(labels.sum()))
        assert average_precision(scores, labels, positives) == pytest.approx(expected)


def test_average_precision_by_hand() -> None:
    assert average_precision(np.array([3.0, 2.0, 1.0]), np.array([1, 1, 0])) == 1
    assert average_precision(np.array([3.0, 2.0]), np.array([0, 1])) == pytest.approx(0.25)  # (0 + 1/2) / 2
    assert average_precision(np.array([3.0, 2.0]), np.array([0, 0])) == 0
    assert average_precision(np.array([3.0]), np.array([1]), positives=4) == pytest.approx(0.25)
    several = average_precision_of_ranks(np.array([[1, 2], [2, 4]]), 2)
    np.testing.assert_allclose(several, [1, ((0 + 1 / 2) / 2 + (1 / 3 + 2 / 4) / 2) / 2])
    for scores, labels, positives in (([1.0, 2.0], [1], None), ([np.nan, 1.0], [1, 0], None), ([1.0, 2.0], [1, 1], 1)):
        with pytest.raises(InputError):
            average_precision(np.array(scores), np.array(labels), positives)


def test_skewness() -> None:
    values = np.array([0.0, 0.0, 0.0, 4.0])  # mean 1, variance 3, third moment (27 - 3) / 4 = 6
    assert skewness(values) == pytest.approx(6 / 3**1.5)
    assert skewness(-5 * values + 3) == pytest.approx(-6 / 3**1.5)
    assert skewness(np.array([1.0, 2.0, 3.0, 4.0])) == pytest.approx(0, abs=1e-12)


def test_roc_auc_is_the_share_of_pairs_in_order() -> None:
    rng = np.random.default_rng(0)
    positive, negative = np.sort(rng.integers(0, 9, 40)), rng.integers(2, 12, 30)
    share = np.mean([p < n for p in positive for n in negative])
    assert roc_auc(positive, negative) == pytest.approx(share)
    assert roc_auc(positive[:0], negative) == roc_auc(positive, negative[:0]) == 0


def area_by_small_steps(errors: list[float], threshold: float, steps: int = 200_000) -> float:
    """The curve drawn point by point: between sorted errors recall rises along a straight line, and stays after the last."""
    known = [(0.0, 0.0)] + [(e, (i + 1) / len(errors)) for i, e in enumerate(sorted(errors)) if e < threshold]
    total = 0.0
    for step in range(steps):
        x = (step + 0.5) / steps * threshold
        before = max(i for i, (e, _) in enumerate(known) if e <= x)
        (x0, y0) = known[before]
        later = known[before + 1 :]
        total += y0 if not later else y0 + (later[0][1] - y0) * (x - x0) / (later[0][0] - x0)
    return total / steps


@pytest.mark.parametrize(
    "errors", [[1.0], [0.5, 3.0, 4.0, 30.0], [np.inf, 2.0], [6.0, 7.0], [2.0, 2.0, 4.9], [0.0, 0.0, 1.0]]
)
def test_pose_auc_is_the_area_under_the_curve(errors: list[float]) -> None:
    assert pose_auc(np.array(errors), 5.0) == pytest.approx(area_by_small_steps(errors, 5.0, 2000), abs=1e-3)


def test_pose_auc_at_its_ends() -> None:
    assert pose_auc(np.zeros(4), 5.0) == 1
    assert pose_auc(np.array([np.inf, 5.0]), 5.0) == 0  # at the threshold is not below it
    assert pose_auc(np.array([2.5]), 5.0) == pytest.approx(0.75)  # half a triangle, then flat
    for errors, threshold in (([], 5.0), ([np.nan], 5.0), ([0.0], 0.0), ([0.0], np.inf)):
        with pytest.raises(InputError):
            pose_auc(np.array(errors), threshold)

"""bench hpatches: the official algorithm gives the same numbers as ours."""

import numpy as np
import pytest

from bench.hpatches import Size, distance_matrix, euclidean, precision_over_recall, time_tasks
from sdgmnet.metrics import average_precision


def test_the_official_way_counts_as_ours() -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        scores, labels = np.round(random.random(50), 1), random.random(50) < 0.4
        assert precision_over_recall(scores, labels.astype(float)) == pytest.approx(average_precision(scores, labels))


def test_its_distances() -> None:
    a, b = np.random.default_rng(0).random((2, 5, 8)).astype(np.float32)
    assert euclidean()(a[0], b[0]) == pytest.approx(distance_matrix(a, b)[0, 0], rel=1e-5)


def test_all_tasks_are_timed() -> None:
    seconds = time_tasks(Size(sequences=3, patches=20, pairs=50, queries=6, distractors=20))
    assert set(seconds) == {"verification", "matching", "retrieval"}
    assert all(value > 0 for value in seconds.values())

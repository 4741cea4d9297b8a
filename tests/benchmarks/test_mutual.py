import numpy as np
import pytest

from sdgmnet.benchmarks.mutual import Mutual, count_mutual, mean_accuracy, table


def test_by_hand() -> None:
    wanted = np.array([[10.0, 10], [20, 20], [30, 30], [np.inf, np.inf]])
    places = np.array([[10.0, 11], [20, 27], [33, 34], [9, 9]])
    pairs = np.array([[0, 0], [1, 1], [2, 2], [3, 3]])  # off by 1, 7, 5 and infinitely
    inside, there = np.array([True, True, False, False]), np.array([True, True, True, True])
    score = count_mutual(pairs, wanted, places, inside, there, near=6.0)
    assert score == Mutual(4, (1, 1, 1, 1, 2, 2, 3, 3, 3, 3), 2, 1)  # the third is correct but not in the shared part
    assert score.accuracy == tuple(count / 4 for count in score.correct) and score.score == 0.5


def test_no_matches_count_as_0_in_the_mean() -> None:
    nothing = count_mutual(
        np.zeros((0, 2), int), np.zeros((0, 2)), np.zeros((3, 2)), np.zeros(0, bool), np.ones(3, bool), 3
    )
    assert nothing == Mutual(0, (0,) * 10, 0, 0)
    assert nothing.accuracy == (0.0,) * 10 and nothing.score == 0
    perfect = Mutual(5, (5,) * 10, 8, 4)
    assert mean_accuracy([perfect, nothing]) == pytest.approx([0.5] * 10)
    header, body = table(["a"], [{"illumination": [perfect], "all": [perfect, nothing]}], 3.0)
    assert body[0] == ["a", "illumination", "1", *["1.000"] * 5, "0.500", "5"]
    assert body[1] == ["a", "all", "2", *["0.500"] * 5, "0.250", "2"]
    assert len(header) == len(body[0])

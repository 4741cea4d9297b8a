"""Each measure by hand, at its edges, and against loops."""

import math

import numpy as np
import pytest

from sdgmnet.benchmarks import matching_measures as measures
from sdgmnet.benchmarks.matching_measures import PlanePair, corner_error, error_auc, share_within
from tests.benchmarks import loops

IDENTITY = np.eye(3)


def plane_pair(
    reference: np.ndarray, other: np.ndarray, expected: np.ndarray, in_other: list[bool], in_reference: list[bool]
) -> PlanePair:
    return PlanePair(reference, other, expected, np.array(in_other, dtype=bool), np.array(in_reference, dtype=bool))


def test_points_behind_the_camera_are_nowhere() -> None:
    homography = np.array([[1.0, 0, 0], [0, 1, 0], [-0.1, 0, 1]])  # the horizon is at x = 10
    xy = np.array([[0.0, 5], [9, 5], [10, 5], [11, 5]])
    expected = [[0, 5], [90, 50], [np.inf, np.inf], [np.inf, np.inf]]
    for scale in (1, -2, 1e-3):  # a homography has neither scale nor sign
        np.testing.assert_allclose(measures.true_locations(scale * homography, xy, (16, 12)), expected)
    # Seen from an image whose centre is beyond the horizon, the other side is in front.
    found = measures.true_locations(homography, xy, (100, 12))
    np.testing.assert_allclose(found, [*[[np.inf, np.inf]] * 3, [-110, -50]])


def test_a_draw_takes_visible_keypoints_once_each_and_evenly() -> None:
    visible = np.arange(1000) % 2 == 0
    draws = [measures.draw(visible, seed) for seed in range(200)]
    for one in draws:
        assert len(one) == len(set(one)) == 200 and visible[one].all()
    often = np.bincount(np.concatenate(draws), minlength=1000)[visible]  # 80 expected, standard deviation 7
    assert often.min() > 45 and often.max() < 115
    assert (measures.draw(visible, 3) == draws[3]).all() and (draws[0] != draws[1]).any()
    assert sorted(measures.draw(np.array([True, False, True]), 0)) == [0, 2]
    assert len(measures.draw(np.zeros(5, dtype=bool), 0)) == 0


def test_sampled_keypoints_by_hand() -> None:
    xy = np.array([[1.0, 1], [2, 2], [3, 3], [4, 4]])
    other = np.array([[11.0, 11], [12, 14.5], [13, 17], [90, 90]])  # off by 0, 2.5 and 4
    eye = np.eye(4, dtype=np.float32)
    score = measures.sample(plane_pair(xy, other, xy + 10, [True, True, True, False], [True] * 4), eye, eye)
    assert score.drawn == 3 and score.correct == ((1, 2, 3),) * 10 and score.mean(1) == 2
    shown = score.shown
    assert {tuple(row) for row in shown.keypoints[shown.correct]} == {(1, 1), (2, 2)}
    for keypoint, nearest in zip(shown.keypoints, shown.nearest, strict=True):
        assert (nearest == other[int(keypoint[0]) - 1]).all()


def test_corner_error() -> None:
    rng = np.random.default_rng(0)
    spread = np.array([[0.2, 0.2, 20], [0.2, 0.2, 20], [1e-4, 1e-4, 0.1]])
    for _ in range(50):
        estimate, homography = (IDENTITY + rng.normal(0, 1, (3, 3)) * spread for _ in range(2))
        size = int(rng.integers(1, 900)), int(rng.integers(1, 900))
        expected = loops.corner_error(estimate, homography, size)
        assert corner_error(estimate, homography, size) == pytest.approx(expected, rel=1e-9)
        assert corner_error(-3 * estimate, homography, size) == pytest.approx(expected, rel=1e-9)
    shifted = np.array([[1.0, 0, 3], [0, 1, 4], [0, 0, 1]])
    assert corner_error(shifted, IDENTITY, (40, 30)) == pytest.approx(5)


@pytest.mark.parametrize(
    "estimate",
    [None, np.full((3, 3), np.nan), np.array([[1.0, 0, 0], [0, 1, 0], [1, 0, -39]]), np.zeros((3, 3))],
    ids=["none", "nan", "a corner at infinity", "zeros"],
)
def test_failed_homographies_have_infinite_error(estimate: np.ndarray | None) -> None:
    assert corner_error(estimate, IDENTITY, (40, 30)) == math.inf


def test_shares_and_areas_against_loops() -> None:
    rng = np.random.default_rng(1)
    for count in (1, 2, 3, 17):
        errors = [*rng.exponential(3, count), *rng.choice([0.0, 1, 3, 5, 10, math.inf], count)]  # ties and edges
        for threshold in (1, 3, 5, 10):
            share = sum(error <= threshold for error in errors) / len(errors)
            assert share_within(errors, threshold) == pytest.approx(share, abs=1e-9)
            assert error_auc(errors, threshold) == pytest.approx(loops.area(errors, threshold), abs=1e-9)
    assert error_auc([0.0], 3) == 1 and error_auc([math.inf], 3) == error_auc([3.0], 3) == 0
    assert share_within([3.0], 3) == 1

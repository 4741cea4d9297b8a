"""Each measure by hand, at its edges, and against loops."""

import math

import numpy as np
import pytest

from sdgmnet.benchmarks import matching_measures as measures
from sdgmnet.benchmarks.matching_measures import Mutual, PlanePair, corner_error, error_auc, share_within
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


def test_inside_is_from_the_first_pixel_to_the_last() -> None:
    xy = np.array([[0.0, 0], [15, 11], [15.01, 5], [-0.01, 5], [5, 11.01], [np.inf, np.inf]])
    assert measures.is_inside(xy, (16, 12)).tolist() == [True, True, False, False, False, False]


def test_found_keypoints_by_hand() -> None:
    expected = np.array([[10.0, 10], [50, 50], [90, 90], [200, 200]])
    other = np.array([[11.0, 10], [50, 53.1], [92, 90], [12, 11]])
    eye = np.eye(4, dtype=np.float32)
    pair = plane_pair(expected, other, expected, [True] * 4, [True] * 4)
    # 0 finds keypoint 3, within 3 px as well; 1 has none within 3 px; 2 finds keypoint 0, which is wrong; 3 has none.
    assert measures.count_found(pair, eye[[3, 1, 0, 2]], eye, near=3.0) == (2, 1)
    for empty in (pair._replace(reference=expected[:0]), pair._replace(other=other[:0])):
        assert measures.count_found(empty, eye, eye, 3.0) == (0, 0)


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


@pytest.mark.parametrize(("here", "there"), [(2, 0), (0, 2)])
def test_sampling_without_keypoints(here: int, there: int) -> None:
    xy, eye = np.ones((2, 2)), np.eye(2, dtype=np.float32)
    pair = plane_pair(xy[:here], xy[:there], xy[:here], [True] * here, [True] * there)
    score = measures.sample(pair, eye[:here], eye[:there])
    assert score.drawn == here == len(score.shown.keypoints) and score.correct == ((0, 0, 0),) * 10
    assert not score.shown.correct.any()


def test_mutual_matches_by_hand() -> None:
    expected = np.array([[10.0, 10], [20, 20], [30, 30], [np.inf, np.inf]])
    other = np.array([[10.0, 11], [20, 27], [33, 34], [9, 9]])  # off by 1, 7, 5 and infinitely
    pair = plane_pair(expected, other, expected, [True, True, False, False], [True] * 4)
    score = measures.count_mutual(pair, np.column_stack([np.arange(4)] * 2), near=6.0)
    assert score == Mutual(4, (1, 1, 1, 1, 2, 2, 3, 3, 3, 3), 2, 1)  # the third is correct but not in the shared region
    assert score.accuracy == tuple(count / 4 for count in score.correct) and score.score == 0.5
    nothing = measures.count_mutual(pair.strongest(0), np.zeros((0, 2), int), near=3.0)
    assert nothing == Mutual(0, (0,) * 10, 0, 0) and nothing.accuracy == (0.0,) * 10 and nothing.score == 0
    assert measures.mean_accuracy([Mutual(5, (5,) * 10, 8, 4), nothing]) == pytest.approx([0.5] * 10)


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

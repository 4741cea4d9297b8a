"""The stereo pair of the demo: the sign of its disparity, and matches judged by it."""

import cv2
import numpy as np

from sdgmnet.benchmarks.demo_pairs import score_matches, score_stereo, stereo_table
from sdgmnet.data.synthetic.demo import read_motorcycle, true_places
from sdgmnet.descriptors import load_descriptor
from sdgmnet.features.describe import Features
from sdgmnet.features.keypoints import Keypoints


def features(xy: list[tuple[float, float]]) -> Features:
    keypoints = Keypoints(np.array(xy, dtype=np.float64).reshape(-1, 2), *(np.ones(len(xy)) for _ in range(3)))
    return Features(keypoints, np.zeros((len(xy), 2)), (40, 20))


def test_the_right_image_looks_like_the_left_one_at_the_disparity() -> None:
    pair = read_motorcycle()
    left, right = (cv2.cvtColor(one, cv2.COLOR_RGB2GRAY).astype(np.float32) for one in (pair.left, pair.right))
    row, column = np.nonzero(np.isfinite(pair.disparity))
    places = true_places(pair.disparity, np.column_stack([column, row]).astype(np.float64))
    seen = np.flatnonzero(places[:, 0] >= 0)[:30000]  # OpenCV takes images of 32 767 rows at most

    def differs(there: np.ndarray) -> float:
        found = cv2.remap(right, *there.T.astype(np.float32).reshape(2, -1, 1), cv2.INTER_LINEAR)[:, 0]
        return float(np.median(np.abs(found - left[row[seen], column[seen]])))

    straight = differs(places[seen])
    assert straight < 4 and straight < 0.5 * differs(places[seen] + [4, 0])


def test_locations_without_disparity_are_unknown() -> None:
    disparity = np.array([[1.0, np.inf], [np.nan, 2.5]])
    places = true_places(disparity, np.array([[0.2, 0.4], [1.0, 0.0], [0.0, 1.0], [1.0, 0.6], [7.0, 7.0]]))
    expected = [[-0.8, 0.4], [np.nan, 0.0], [np.nan, 1.0], [-1.5, 0.6], [4.5, 7.0]]
    np.testing.assert_allclose(places, expected)


def test_matches_by_hand() -> None:
    disparity = np.full((20, 40), 5.0)
    disparity[:, 30:] = np.nan
    first = features([(10, 10), (20, 10), (35, 10), (12, 5)])
    second = features([(5, 13), (15, 13.1), (30, 10), (7, 5)])
    found = score_matches("x", first, second, np.column_stack([np.arange(4)] * 2), disparity)
    assert found.correct.tolist() == [True, False, True]
    np.testing.assert_array_equal(found.xy[0], [(10, 10), (20, 10), (12, 5)])
    assert stereo_table([found])[1] == [["x", "3", "2", "66.7"]]
    nothing = score_matches("x", features([]), features([]), np.empty((0, 2), dtype=np.int64), disparity)
    assert nothing.share == 0 and not len(nothing.correct)


def test_sift_finds_hundreds() -> None:
    found = score_stereo(load_descriptor("sift"), read_motorcycle())
    assert found.correct.sum() > 500 and found.share > 0.6

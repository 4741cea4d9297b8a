import numpy as np

from sdgmnet.benchmarks.geometry import distance, is_inside, true_places


def test_points_behind_are_nowhere() -> None:
    homography = np.array([[1.0, 0, 0], [0, 1, 0], [-0.1, 0, 1]])  # the horizon is at x = 10
    xy = np.array([[0.0, 5], [9, 5], [10, 5], [11, 5]])
    expected = [[0, 5], [90, 50], [np.inf, np.inf], [np.inf, np.inf]]
    for scale in (1, -2, 1e-3):  # a homography has neither scale nor sign
        np.testing.assert_allclose(true_places(scale * homography, xy, (16, 12)), expected)
    # Seen from an image whose middle is beyond, the other side is in front.
    np.testing.assert_allclose(true_places(homography, xy, (100, 12)), [*[[np.inf, np.inf]] * 3, [-110, -50]])


def test_inside_is_from_the_first_pixel_to_the_last() -> None:
    places = np.array([[0.0, 0], [15, 11], [15.01, 5], [-0.01, 5], [5, 11.01], [np.inf, np.inf]])
    assert is_inside(places, (16, 12)).tolist() == [True, True, False, False, False, False]
    assert distance(places[[0, 5]], np.array([[3.0, 4], [0, 0]])).tolist() == [5, np.inf]

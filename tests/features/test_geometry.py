"""Points and keypoints through homographies, against numeric derivatives."""

import math

import numpy as np
import pytest

from sdgmnet.features.geometry import map_keypoints, map_points
from tests.features.samples import random_keypoints

HOMOGRAPHY = np.array([[0.9, 0.2, 15.0], [-0.3, 1.1, 40.0], [4e-4, -2e-4, 1.0]])


def through(x: float, y: float) -> np.ndarray:
    u, v, w = HOMOGRAPHY @ np.array([x, y, 1.0])
    return np.array([u / w, v / w])


def test_keypoints_follow_the_numeric_derivative() -> None:
    rng, step = np.random.default_rng(0), 1e-4
    keypoints = random_keypoints(40, 0, 400, (1, 6))._replace(response=rng.random(40))
    mapped = map_keypoints(HOMOGRAPHY, keypoints)
    for row, (x, y) in enumerate(keypoints.xy):
        along_x = (through(x + step, y) - through(x - step, y)) / (2 * step)
        along_y = (through(x, y + step) - through(x, y - step)) / (2 * step)
        area = abs(along_x[0] * along_y[1] - along_x[1] * along_y[0])
        cos, sin = math.cos(keypoints.angle[row]), math.sin(keypoints.angle[row])
        ahead = through(x + step * cos, y + step * sin) - through(x - step * cos, y - step * sin)
        assert np.allclose(mapped.xy[row], through(x, y), atol=1e-9)
        assert mapped.sigma[row] == pytest.approx(keypoints.sigma[row] * math.sqrt(area), rel=1e-5)
        turn = mapped.angle[row] - math.atan2(ahead[1], ahead[0])
        assert math.remainder(turn, 2 * math.pi) == pytest.approx(0, abs=1e-5)
    assert np.array_equal(mapped.response, keypoints.response)


def test_points_at_infinity_stay_finite() -> None:
    homography = np.array([[1.0, 0, 0], [0, 1.0, 0], [1.0, 0, -5.0]])
    xy, w = map_points(homography, np.array([[5.0, 1.0], [4.0, 1.0], [6.0, 1.0]]))
    assert np.isfinite(xy).all() and abs(xy[0, 0]) > 1e9
    assert np.sign(w).tolist() == [0, -1, 1]

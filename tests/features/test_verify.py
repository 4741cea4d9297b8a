import numpy as np
import pytest

from sdgmnet.errors import InputError
from sdgmnet.features.describe import Features
from sdgmnet.features.match import Matches
from sdgmnet.features.verify import Model, Verified, verify
from tests.features.samples import keypoints_at

WRONG = np.arange(300) % 3 == 0  # every third match


def verified(a: np.ndarray, b: np.ndarray, model: Model, tolerance: float | None = None) -> Verified:
    """Of matches between the points of the same number."""
    first, second = (Features(keypoints_at(xy), np.zeros((len(xy), 8), np.float32), (1000, 1000)) for xy in (a, b))
    ones = np.ones(len(a), np.float32)
    return verify(first, second, Matches(np.column_stack([np.arange(len(a))] * 2), ones, ones), model, tolerance)


def test_a_homography_is_found_and_found_again() -> None:
    """Of a tilted plane."""
    rng, homography = np.random.default_rng(0), np.array([[0.9, 0.1, 30], [-0.12, 1.05, 12], [1e-4, 5e-5, 1]])
    a = rng.uniform(0, 1000, (300, 2))
    seen = np.column_stack([a, np.ones(300)]) @ homography.T
    b = seen[:, :2] / seen[:, 2:] + rng.normal(0, 0.3, (300, 2))
    b[WRONG] = rng.uniform(0, 1000, (100, 2))
    found, again = (verified(a, b, "homography") for _ in range(2))
    assert (found.inlier == WRONG).sum() <= 3
    np.testing.assert_allclose(found.matrix / found.matrix[2, 2], homography, rtol=0.05, atol=0.5)
    np.testing.assert_array_equal(found.inlier, again.inlier)


def test_a_fundamental_matrix_is_found() -> None:
    rng = np.random.default_rng(1)
    points = np.column_stack([rng.uniform(-1, 1, (300, 2)), rng.uniform(3, 6, 300)])
    cos, sin = np.cos(0.1), np.sin(0.1)
    moved = points @ np.array([[cos, 0, -sin], [0, 1, 0], [sin, 0, cos]]) + [1, 0.1, 0]
    a, b = (one[:, :2] / one[:, 2:] * 1000 + 500 for one in (points, moved))
    b[WRONG] = rng.uniform(0, 1000, (100, 2))
    found = verified(a, b, "fundamental")
    assert found.matrix is not None
    assert found.inlier[~WRONG].mean() > 0.97 and found.inlier[WRONG].mean() < 0.1


@pytest.mark.parametrize(("model", "least"), [("homography", 4), ("fundamental", 8)])
def test_too_few_or_all_at_one_location_determine_nothing(model: Model, least: int) -> None:
    for count in (0, least - 1):
        xy = np.random.default_rng(0).uniform(0, 9, (count, 2))
        found = verified(xy, xy, model)
        assert found.matrix is None and found.inlier.tolist() == [False] * count
    verified(np.ones((20, 2)), np.ones((20, 2)), model)  # must not raise


@pytest.mark.parametrize(
    ("model", "tolerance", "said"), [("essential", 1.0, "essential"), ("homography", 0, "tolerance")]
)
def test_bad_options_are_refused(model: Model, tolerance: float, said: str) -> None:
    with pytest.raises(InputError, match=said):
        verified(np.zeros((9, 2)), np.zeros((9, 2)), model, tolerance)

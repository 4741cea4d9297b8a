import numpy as np
import pytest

from sdgmnet.errors import InputError
from sdgmnet.features.describe import Features
from sdgmnet.features.keypoints import Keypoints
from sdgmnet.features.match import Matches
from sdgmnet.features.verify import Model, verify


def at(xy: np.ndarray) -> Features:
    ones = np.ones(len(xy))
    return Features(Keypoints(xy, ones, ones, ones), np.zeros((len(xy), 8), np.float32), (1000, 1000))


def straight(count: int) -> Matches:
    return Matches(np.column_stack([np.arange(count)] * 2), np.ones(count, np.float32), np.ones(count, np.float32))


@pytest.fixture
def scene() -> tuple[Features, Features, np.ndarray, np.ndarray]:
    """A tilted plane seen twice, every third match wrong."""
    rng = np.random.default_rng(0)
    homography = np.array([[0.9, 0.1, 30], [-0.12, 1.05, 12], [1e-4, 5e-5, 1]])
    a = rng.uniform(0, 1000, (300, 2))
    seen = np.column_stack([a, np.ones(300)]) @ homography.T
    b = seen[:, :2] / seen[:, 2:] + rng.normal(0, 0.3, (300, 2))
    right = np.arange(300) % 3 > 0
    b[~right] = rng.uniform(0, 1000, (100, 2))
    return at(a), at(b), homography, right


def test_a_homography_is_found_and_found_again(scene: tuple[Features, Features, np.ndarray, np.ndarray]) -> None:
    first, second, homography, right = scene
    found = verify(first, second, straight(300), "homography")
    assert found.matrix is not None
    assert (found.inlier != right).sum() <= 3
    np.testing.assert_allclose(found.matrix / found.matrix[2, 2], homography, rtol=0.05, atol=0.5)
    again = verify(first, second, straight(300), "homography")
    np.testing.assert_array_equal(found.inlier, again.inlier)


def test_a_fundamental_matrix_is_found() -> None:
    rng = np.random.default_rng(1)
    points = np.column_stack([rng.uniform(-1, 1, (300, 2)), rng.uniform(3, 6, 300)])
    a = points[:, :2] / points[:, 2:] * 1000 + 500
    turn = 0.1
    rotation = np.array([[np.cos(turn), 0, -np.sin(turn)], [0, 1, 0], [np.sin(turn), 0, np.cos(turn)]])
    moved = points @ rotation + [1, 0.1, 0]
    b = moved[:, :2] / moved[:, 2:] * 1000 + 500
    b[::3] = rng.uniform(0, 1000, (100, 2))
    found = verify(at(a), at(b), straight(300), "fundamental")
    assert found.matrix is not None
    assert found.inlier[np.arange(300) % 3 > 0].mean() > 0.97
    assert found.inlier[::3].mean() < 0.1


@pytest.mark.parametrize(("model", "least"), [("homography", 4), ("fundamental", 8)])
def test_too_few_or_all_in_one_place_determine_nothing(model: Model, least: int) -> None:
    for count, xy in ((0, np.zeros((0, 2))), (least - 1, np.random.default_rng(0).uniform(0, 9, (least - 1, 2)))):
        found = verify(at(xy), at(xy), straight(count), model)
        assert found.matrix is None
        assert found.inlier.tolist() == [False] * count
    same = np.ones((20, 2))
    verify(at(same), at(same), straight(20), model)  # must not raise


def test_nonsense_is_refused() -> None:
    xy = np.zeros((9, 2))
    with pytest.raises(InputError, match="one of homography, fundamental"):
        verify(at(xy), at(xy), straight(9), "essential")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="positive number"):
        verify(at(xy), at(xy), straight(9), "homography", tolerance=0)

from pathlib import Path

import cv2
import numpy as np
import pytest

from sdgmnet.errors import InputError
from sdgmnet.features.compact import (
    Projection,
    fit_projection,
    from_bytes,
    load_projection,
    project,
    save_projection,
    to_bytes,
)


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def views() -> tuple[np.ndarray, np.ndarray]:
    """Two views of 2000 points, as an encoder describes them: most of the spread in half of the dimensions."""
    rng = np.random.default_rng(0)
    axes, _ = np.linalg.qr(rng.normal(size=(128, 128)))
    points = rng.normal(size=(2000, 128)) * 0.96 ** np.arange(128)
    noisy = points + 1.1 * rng.normal(size=points.shape) * 0.96 ** np.arange(128)
    return unit(points @ axes.T), unit(noisy @ axes.T)


def nearest(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.argmax(first @ second.T, axis=1)


def test_bytes_there_and_back(views: tuple[np.ndarray, np.ndarray]) -> None:
    stored = to_bytes(views[0])
    assert stored.dtype == np.uint8 and stored.shape == (2000, 128) and stored.min() > 0 and stored.max() < 255
    back = from_bytes(stored)
    assert back.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(back, axis=1), 1, atol=1e-6)
    assert np.abs(back - views[0]).max() < 1.5 / 512  # half a step, and a little for the length
    assert np.linalg.norm(back - views[0], axis=1).max() < 0.02
    assert np.array_equal(to_bytes(back), stored)


def test_the_scale_is_the_documented_one() -> None:
    one = unit(np.array([[0.5, -0.5, 0.25, -0.25] * 2 + [0.0] * 8]))
    expected = np.clip(np.rint(one * 256) + 128, 0, 255)
    assert np.array_equal(to_bytes(one), expected)
    assert to_bytes(np.eye(4, dtype=np.float32))[0].tolist() == [255, 128, 128, 128]  # beyond the end it is cut
    flat = np.zeros((2, 128), dtype=np.float32)
    assert np.array_equal(from_bytes(to_bytes(flat)), flat)
    assert from_bytes(to_bytes(flat[:0])).shape == (0, 128)


def test_bytes_hardly_change_neighbours(views: tuple[np.ndarray, np.ndarray]) -> None:
    first, second = views
    before = nearest(first, second)
    assert 0.5 < (before == np.arange(2000)).mean() < 0.99  # neither easy nor hopeless
    assert (nearest(*(from_bytes(to_bytes(one)) for one in views)) == before).mean() > 0.99
    found = cv2.BFMatcher(cv2.NORM_L2).match(*(to_bytes(one) for one in views))  # on the bytes themselves
    assert (np.array([one.trainIdx for one in found]) == before).mean() > 0.99


def test_half_the_dimensions_hardly_change_neighbours(views: tuple[np.ndarray, np.ndarray]) -> None:
    """Axes from other points than those compared."""
    projection = fit_projection(views[0][1000:])
    first, second = (one[:1000] for one in views)
    small = [project(projection, one) for one in (first, second)]
    assert small[0].shape == (1000, 64) and small[0].dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(small[0], axis=1), 1, atol=1e-5)
    before = nearest(first, second)
    assert (nearest(*small) == before).mean() > 0.98
    assert (nearest(*(from_bytes(to_bytes(one)) for one in small)) == before).mean() > 0.97
    random = Projection(np.linalg.qr(np.random.default_rng(1).normal(size=(128, 64)))[0].astype(np.float32))
    assert (nearest(*(project(random, one) for one in (first, second))) == before).mean() < (
        nearest(*small) == before
    ).mean()


def test_axes_are_orthonormal_and_numbers_of_one_size(views: tuple[np.ndarray, np.ndarray]) -> None:
    projection = fit_projection(views[0])
    np.testing.assert_allclose(projection.axes.T @ projection.axes, np.eye(64), atol=1e-5)
    spread = project(projection, views[0]).std(axis=0)
    assert spread.max() / spread.min() < 2
    everything = fit_projection(views[0], 128)  # a rotation: cosines stay
    np.testing.assert_allclose(project(everything, views[0][:9]) @ project(everything, views[1][:9]).T,
                               views[0][:9] @ views[1][:9].T, atol=1e-5)  # fmt: skip


def test_saved_and_loaded(views: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    projection = fit_projection(views[0], 32)
    save_projection(projection, tmp_path / "axes.safetensors")
    assert np.array_equal(load_projection(tmp_path / "axes.safetensors").axes, projection.axes)
    assert np.array_equal(fit_projection(views[0], 32).axes, projection.axes)
    (tmp_path / "axes.safetensors").write_bytes(b"truncated")
    with pytest.raises(InputError, match="axes.safetensors"):
        load_projection(tmp_path / "axes.safetensors")
    with pytest.raises(InputError, match="does not exist"):
        load_projection(tmp_path / "none")


def test_bad_input_is_refused(views: tuple[np.ndarray, np.ndarray]) -> None:
    for call, sentence in (
        (lambda: to_bytes(views[0] * 2), "unit length"),
        (lambda: to_bytes(np.full((2, 3), np.nan)), "unit length"),
        (lambda: to_bytes(np.zeros((2, 3), dtype=np.uint8)), "floats"),
        (lambda: from_bytes(views[0]), "uint8"),
        (lambda: fit_projection(views[0], 129), "1 to 128"),
        (lambda: fit_projection(views[0][:100]), "too few"),
        (lambda: project(fit_projection(views[0]), views[0][:, :5]), "takes descriptors"),
    ):
        with pytest.raises(InputError, match=sentence):
            call()

from collections.abc import Callable
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
    unit,
)

Views = tuple[np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def views() -> Views:
    """Two views of 2000 points, as an encoder describes them: most of the spread in half of the dimensions."""
    rng = np.random.default_rng(0)
    axes, _ = np.linalg.qr(rng.normal(size=(128, 128)))
    points = rng.normal(size=(2000, 128)) * 0.96 ** np.arange(128)
    noisy = points + 1.1 * rng.normal(size=points.shape) * 0.96 ** np.arange(128)
    return unit(points @ axes.T), unit(noisy @ axes.T)


def nearest(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.argmax(first @ second.T, axis=1)


def test_bytes_there_and_back_hardly_change_neighbours(views: Views) -> None:
    stored, back = ([convert(one) for one in views] for convert in (to_bytes, through_bytes))
    assert stored[0].dtype == np.uint8 and stored[0].min() > 0 and stored[0].max() < 255
    assert back[0].dtype == np.float32 and np.array_equal(to_bytes(back[0]), stored[0])
    np.testing.assert_allclose(np.linalg.norm(back[0], axis=1), 1, atol=1e-6)
    assert np.abs(back[0] - views[0]).max() < 1.5 / 512  # half a step, and a little for the length
    before = nearest(*views)
    assert 0.5 < (before == np.arange(2000)).mean() < 0.99  # neither easy nor hopeless
    assert (nearest(*back) == before).mean() > 0.99
    found = cv2.BFMatcher(cv2.NORM_L2).match(*stored)  # on the bytes themselves
    assert (np.array([one.trainIdx for one in found]) == before).mean() > 0.99


def through_bytes(descriptors: np.ndarray) -> np.ndarray:
    return from_bytes(to_bytes(descriptors))


def test_the_scale_is_the_documented_one() -> None:
    one = unit(np.array([[0.5, -0.5, 0.25, -0.25] * 2 + [0.0] * 8]))
    assert np.array_equal(to_bytes(one), np.clip(np.rint(one * 256) + 128, 0, 255))
    assert to_bytes(np.eye(4, dtype=np.float32))[0].tolist() == [255, 128, 128, 128]  # clipped
    flat = np.zeros((2, 128), dtype=np.float32)
    assert np.array_equal(through_bytes(flat), flat) and through_bytes(flat[:0]).shape == (0, 128)


def test_half_the_dimensions_hardly_change_neighbours(views: Views) -> None:
    """Axes from other points than those compared."""
    projection, (first, second) = fit_projection(views[0][1000:]), (one[:1000] for one in views)
    random = Projection(np.linalg.qr(np.random.default_rng(1).normal(size=(128, 64)))[0].astype(np.float32))
    small, poor = ([project(axes, one) for one in (first, second)] for axes in (projection, random))
    assert small[0].shape == (1000, 64) and small[0].dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(small[0], axis=1), 1, atol=1e-5)
    kept = [(nearest(*some) == nearest(first, second)).mean() for some in (small, map(through_bytes, small), poor)]
    assert kept[0] > 0.98 and kept[1] > 0.97 and kept[2] < kept[0]
    np.testing.assert_allclose(projection.axes.T @ projection.axes, np.eye(64), atol=1e-5)
    spread = small[0].std(axis=0)
    assert spread.max() / spread.min() < 2  # numbers of one size
    rotated = [project(fit_projection(views[0], 128), one[:9]) for one in views]  # all dimensions: cosines stay
    np.testing.assert_allclose(rotated[0] @ rotated[1].T, first[:9] @ second[:9].T, atol=1e-5)


def test_saved_and_loaded(views: Views, tmp_path: Path) -> None:
    projection, path = fit_projection(views[0], 32), tmp_path / "axes.safetensors"
    assert np.array_equal(fit_projection(views[0], 32).axes, projection.axes)
    save_projection(projection, path)
    assert np.array_equal(load_projection(path).axes, projection.axes)
    path.write_bytes(b"truncated")
    for bad in (path, tmp_path / "none"):
        with pytest.raises(InputError, match=bad.name):
            load_projection(bad)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda rows: to_bytes(rows * 2), "unit length"),
        (lambda rows: to_bytes(rows * np.nan), "unit length"),
        (lambda rows: to_bytes(rows.astype(np.uint8)), "floats"),
        (lambda rows: from_bytes(rows), "uint8"),
        (lambda rows: fit_projection(rows, 129), "129"),
        (lambda rows: fit_projection(rows[:100]), "100"),
        (lambda rows: project(fit_projection(rows), rows[:, :5]), "2000, 5"),
    ],
)
def test_bad_input_is_refused(views: Views, call: Callable[[np.ndarray], object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        call(views[0])

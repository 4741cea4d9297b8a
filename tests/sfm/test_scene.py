from pathlib import Path

import numpy as np
import pytest

from sdgmnet.errors import InputError
from sdgmnet.sfm.scene import SparseScene, View, load_scene, project, save_scene, unproject


def view(seed: int = 0) -> View:
    rng = np.random.default_rng(seed)
    rotation = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    rotation *= np.sign(np.linalg.det(rotation))
    intrinsics = np.array([[900.0, 0, 399.5], [0, 910.0, 299.5], [0, 0, 1]])
    return View(f"sub/{seed}.jpg", 800, 600, intrinsics, rotation, rng.normal(size=3))


def test_project_and_unproject_are_inverse() -> None:
    rng = np.random.default_rng(1)
    pixels, depths = rng.uniform(0, 600, (50, 2)), rng.uniform(1, 9, 50)
    found, far = project(view(), unproject(view(), pixels, depths))
    np.testing.assert_allclose(found, pixels, atol=1e-9)
    np.testing.assert_allclose(far, depths, atol=1e-12)


def test_behind_the_camera_has_no_positive_depth() -> None:
    one = view()
    _, depth = project(one, one.centre()[None] - one.rotation[2])
    assert depth[0] == pytest.approx(-1)


def test_resizing_keeps_the_corners_of_the_image() -> None:
    """The outer corner of the first pixel is (-1/2, -1/2) at every size; pixel centres move."""
    big, small = view(), view().resized(400, 200)
    points = unproject(big, np.array([[-0.5, -0.5], [799.5, 599.5], [100.0, 50.0]]), np.ones(3))
    found, _ = project(small, points)
    np.testing.assert_allclose(found, [[-0.5, -0.5], [399.5, 199.5], [49.75, (50.5) / 3 - 0.5]], atol=1e-9)


def test_scene_survives_the_disk(tmp_path: Path) -> None:
    scene = SparseScene((view(0), view(1)), np.ones((4, 3)), np.array([[0, 1], [1, 3]]))
    save_scene(scene, tmp_path / "scene.npz")
    again = load_scene(tmp_path / "scene.npz")
    assert [one.name for one in again.views] == ["sub/0.jpg", "sub/1.jpg"]
    for one, other in zip(scene.views, again.views, strict=True):
        np.testing.assert_array_equal(one.intrinsics, other.intrinsics)
        np.testing.assert_array_equal(one.translation, other.translation)
    np.testing.assert_array_equal(again.observations, scene.observations)


def test_what_is_no_scene_is_said(tmp_path: Path) -> None:
    (tmp_path / "scene.npz").write_bytes(b"nothing")
    with pytest.raises(InputError, match="not a valid npz file"):
        load_scene(tmp_path / "scene.npz")
    scene = SparseScene((), np.zeros((4, 3)), np.array([[0, 1]]))  # a photo that is not there sees a point
    save_scene(scene, tmp_path / "scene.npz")
    with pytest.raises(InputError, match="not a scene"):
        load_scene(tmp_path / "scene.npz")

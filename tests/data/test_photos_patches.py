"""The PatchSet of a scene's models."""

import shutil
from pathlib import Path

import numpy as np

from sdgmnet.data.patchset import PatchSet
from sdgmnet.data.photos.pipeline import write_scene
from sdgmnet.data.photos.tracks import Points
from sdgmnet.sfm.scene import load_scene, save_scene


def test_a_photo_in_two_models_is_shown_once_under_its_own_name(model: Path, points: Points, tmp_path: Path) -> None:
    """Its places would otherwise be points of two numbers, and negatives of themselves."""
    again = tmp_path / "1"
    shutil.copytree(model, again)
    write_scene(tmp_path / "set", "two", {"options": 1}, {model: points, again: points}, {"1.png": "my photo 1.png"})
    made = PatchSet.open(tmp_path / "set")
    assert len(made) == len(points.view)
    assert made.origin["images"][:3] == ["0/0.png", "0/1.png", "0/2.png"]
    assert made.origin["sources"][:3] == ["0.png", "my photo 1.png", "2.png"]
    assert made.origin["options"] == 1


def test_two_models_make_one_set(model: Path, points: Points, tmp_path: Path) -> None:
    other, scene = tmp_path / "1", load_scene(model / "scene.npz")
    (other / "images").mkdir(parents=True)
    for view in scene.views:
        shutil.copyfile(model / "images" / view.name, other / "images" / f"again_{view.name}")
    renamed = tuple(view._replace(name=f"again_{view.name}") for view in scene.views)
    save_scene(scene._replace(views=renamed), other / "scene.npz")
    write_scene(tmp_path / "set", "two", {}, {model: points, other: points}, {})
    made = PatchSet.open(tmp_path / "set")
    count, most = len(points.view), points.point.max() + 1
    assert len(made) == 2 * count
    assert made.observations is not None and made.conflicts is not None
    np.testing.assert_array_equal(made.point_id[count:], made.point_id[:count] + most)
    np.testing.assert_array_equal(made.patches[count:], made.patches[:count])
    assert made.observations["image"].max() == 5
    assert len(made.conflicts) == 2 * len(points.conflicts)
    np.testing.assert_allclose(made.observations["x"][:count], points.keypoints.xy[:, 0], atol=1e-3)

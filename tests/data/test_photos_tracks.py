"""Which patches show the same point, decided on exact depth maps; and the PatchSet of a scene's models."""

import shutil
from pathlib import Path

import numpy as np

from sdgmnet.data.match_rule import PHOTOS, ambiguous_pairs
from sdgmnet.data.patchset import PatchSet, pairs_in
from sdgmnet.data.photos.correspondences import PointOptions
from sdgmnet.data.photos.pipeline import write_scene
from sdgmnet.data.photos.tracks import Locations, Points, ambiguous_in_views, load_points, points_by_geometry
from sdgmnet.sfm.scene import load_scene, save_scene
from sdgmnet.storage import write_json
from tests.sfm.rendered import Rendered, cast

EXACT = PointOptions(smallest_scale=1.0)


def test_patches_of_a_point_show_one_place(rendered: Rendered, points: Points) -> None:
    world = np.zeros((len(points.view), 3))  # the true point under each patch's centre
    for index, view in enumerate(rendered.scene.views):
        here = points.view == index
        world[here] = cast(view, points.keypoints.xy[here])[1]
    count = np.bincount(points.point)
    assert count.min() >= 2
    middle = np.stack([np.bincount(points.point, world[:, axis]) for axis in range(3)], 1) / count[:, None]
    pixel = 4.5 / (0.95 * 320)  # of the world, at about the distance of the things
    apart = np.linalg.norm(world - middle[points.point], axis=1) / pixel
    assert np.mean(apart < 5) > 0.99
    reprojected = ~points.detected
    assert 0.1 < reprojected.mean() < 0.9
    assert (points.distance[reprojected] == 0).all()
    assert np.nanmax(points.distance) <= PHOTOS.near_pixels
    # One patch per view, views in order, points numbered without gaps.
    assert len(np.unique(points.point * 10 + points.view)) == len(points.view)
    assert (np.diff(points.view) >= 0).all()
    assert set(np.unique(points.point)) == set(range(points.point.max() + 1))
    assert points.conflicts.max() <= points.point.max()


def test_close_points_are_ambiguous(points: Points) -> None:
    """Detected or reprojected: no two patches of a view within the far limits may be negatives of each other."""
    here = np.flatnonzero((points.view == 1) & points.detected)
    pairs = points.point[here[ambiguous_pairs(points.keypoints.select(here), PHOTOS)]]
    assert len(pairs) and pairs_in(pairs, points.conflicts).all()
    close = ambiguous_in_views(Locations(points.keypoints, points.view, points.point), PHOTOS)
    assert len(close) and pairs_in(close, points.conflicts).all()


def test_without_reprojected_patches_all_were_detected(model: Path, points: Points) -> None:
    fewer = points_by_geometry(model, PointOptions(smallest_scale=1.0, reprojected=False))
    assert fewer.detected.all()
    assert 50 < len(fewer.view) < len(points.view)


def test_points_are_found_once_for_the_same_options_and_maps(model: Path, points: Points, tmp_path: Path) -> None:
    again = tmp_path / "0"
    shutil.copytree(model, again)

    def found_anew() -> bool:
        before = (again / "points.npz").stat().st_mtime_ns
        found = points_by_geometry(again, EXACT)
        np.testing.assert_array_equal(found.point, points.point)
        np.testing.assert_array_equal(found.keypoints.xy, points.keypoints.xy)
        return (again / "points.npz").stat().st_mtime_ns != before

    points_by_geometry(again, EXACT)
    assert not found_anew()
    for maker, method in (("sdgmnet", 1), ("sdgmnet", 2), ("colmap", 2)):
        write_json(again / "stereo/options.json", {"maker": maker, "method": method})
        assert found_anew() and not found_anew()
    assert load_points(again / "points.npz", "other options") is None


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

"""Posed, undistorted images by COLMAP's SIFT: poses, pixel centres, and the same bits after a restart."""

import json
import sqlite3
from contextlib import closing
from itertools import combinations
from pathlib import Path

import cv2
import numpy as np
import pytest

from sdgmnet.errors import InputError
from sdgmnet.features.images import find_photos
from sdgmnet.sfm.colmap_steps import camera_groups
from sdgmnet.sfm.photo_import import Photo
from sdgmnet.sfm.scene import load_scene, project
from sdgmnet.sfm.undistorted import SparseOptions, UndistortedModels, reconstruct_undistorted
from sdgmnet.sfm.workspace import Workspace
from tests.sfm.planes import photograph, turn_between, views_around, write_odd_photos, write_photos

pytest.importorskip("pycolmap", reason="pycolmap is not installed: pip install 'sdgmnet[sfm]'")
OPTIONS = SparseOptions(threads=1, features=2000, size=480)


def reconstruct(photos: Path, work: Path, options: SparseOptions = OPTIONS) -> tuple[UndistortedModels, list[str]]:
    """And the stages in their order."""
    stages: dict[str, None] = {}
    found = reconstruct_undistorted(
        Workspace(work), photos, find_photos(photos), options, lambda stage, *_: stages.update({stage: None})
    )
    return found, list(stages)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scene")
    found, _ = reconstruct(write_odd_photos(folder / "photos", 6, odd_name=True), folder / "work")
    assert found.broken == [["06.jpg", "is truncated"]]
    assert len(found.sources) == 6 and found.sources["02_turned.jpg"] == "02 turned.jpg"
    assert found.pairs == "all 15" and found.models == [folder / "work/models/0"]
    assert found.peak_bytes > 1e7
    return folder / "work"


def test_poses_are_those_of_the_rendered_cameras(work: Path) -> None:
    """Up to the frame of the world, which is free: angles between the cameras' lines of sight, and ratios of distances."""
    views, truth = load_scene(work / "models/0/scene.npz").views, views_around(6)
    names = [view.name for view in views]
    assert names[:5] == ["00.png", "01.png", "02_turned.jpg", "03.png", "04.png"]
    assert names[5] in ("05%E9.png", "05.png")
    for pair in combinations(range(6), 2):
        assert turn_between(views, truth, *pair) < 1.0
    centres, true_centres = (np.array([view.centre() for view in some]) for some in (views, truth))
    found, true = (np.linalg.norm(some[1:] - some[0], axis=1) for some in (centres, true_centres))
    assert (found / true).std() / (found / true).mean() < 0.03


def test_points_project_to_their_keypoints_with_pixel_centres_at_integers(work: Path) -> None:
    scene = load_scene(work / "models/0/scene.npz")
    with np.load(work / "models/0/tracks.npz") as tracks:
        for index, view in enumerate(scene.views):
            mine = tracks["view"] == index
            there, _ = project(view, scene.points[tracks["point"][mine]])
            apart = there - tracks["xy"][mine]
            assert np.median(np.linalg.norm(apart, axis=1)) < 1.0
            assert np.abs(np.median(apart, axis=0)).max() < 0.25  # half a pixel off would show
            image = cv2.imread(str(work / "models/0/images" / view.name))
            assert image.shape[:2] == (view.height, view.width)
        assert (tracks["sigma"] > 0.5).all()


def test_images_are_numbered_camera_by_camera(work: Path) -> None:
    groups = camera_groups(json.loads((work / ".work/photos.json").read_text())["photos"], "auto")
    assert len(groups) == 2
    with closing(sqlite3.connect(work / "database.db")) as database:
        rows = database.execute("select name from images order by image_id").fetchall()
    assert [name for (name,) in rows] == [photo["name"] for group in groups for photo in group]


@pytest.mark.slow
def test_finished_stages_are_not_repeated_and_the_bits_are_the_same(work: Path, tmp_path: Path) -> None:
    photos = work.parent / "photos"
    before = {path: path.stat().st_mtime_ns for path in work.rglob("*") if path.is_file()}
    reconstruct(photos, work)
    assert before == {path: path.stat().st_mtime_ns for path in work.rglob("*") if path.is_file()}
    _, stages = reconstruct(photos, tmp_path / "again", SparseOptions(threads=2, features=2000, size=480))
    assert stages == ["photos", "features", "matching", "mapping", "undistorting"]
    for name in ("scene.npz", "tracks.npz"):
        with np.load(work / "models/0" / name) as one, np.load(tmp_path / "again/models/0" / name) as other:
            for key in one.files:
                np.testing.assert_array_equal(one[key], other[key])


def test_photos_that_do_not_overlap_and_too_few(tmp_path: Path) -> None:
    write_photos(tmp_path / "one", count=1)
    (tmp_path / "five").mkdir()
    for seed in range(5):
        cv2.imwrite(str(tmp_path / f"five/{seed}.png"), photograph(views_around(1, 240, 180)[0], seed=seed + 10))
    for name, shown in (("five", "5 photos"), ("one", "at least 5")):
        with pytest.raises(InputError, match=shown):
            reconstruct(tmp_path / name, tmp_path / f"work {name}")


def test_cameras_are_shared_by_size_folder_and_focal_length() -> None:
    rows = (("a/1.jpg", 4, None), ("a/2.jpg", 4, None), ("a/3.jpg", 3, None), ("b/1.jpg", 4, None), ("b/2.jpg", 4, 1.1))
    photos = [Photo(name=name, source=name, width=one, height=7 - one, focal=focal) for name, one, focal in rows]
    assert [len(group) for group in camera_groups(photos, "auto")] == [2, 1, 1, 1]
    assert [len(group) for group in camera_groups(photos, "one")] == [4, 1]
    assert [len(group) for group in camera_groups(photos, "each")] == [1] * 5

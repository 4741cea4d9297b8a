import json
import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import cv2
import numpy as np
import pytest

from sdgmnet.errors import InputError
from sdgmnet.features.images import find_photos
from sdgmnet.sfm.scene import load_scene, project
from sdgmnet.sfm.sparse import (
    SparseOptions,
    camera_groups,
    neighbours_in_order,
    pairs_by_shared_points,
    reconstruct,
)
from tests.sfm.planes import photograph, views_around, with_orientation, write_photos

pytest.importorskip("pycolmap", reason="pycolmap is not installed: pip install 'sdgmnet[sfm]'")
OPTIONS = SparseOptions(threads=1, features=2000, size=480)


def quiet(step: str) -> None:
    pass


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scene with one cut-off photo, one that EXIF turns upright, one of half the size and one whose name is no UTF-8."""
    folder = tmp_path_factory.mktemp("scene")
    paths = write_photos(folder / "photos", count=6)
    picture = cv2.imread(str(paths[2]), cv2.IMREAD_GRAYSCALE)
    paths[2].unlink()
    turned = cv2.imencode(".jpg", np.rot90(picture), [cv2.IMWRITE_JPEG_QUALITY, 98])[1].tobytes()
    (folder / "photos" / "02 turned.jpg").write_bytes(with_orientation(turned, 6))
    half = cv2.imread(str(paths[3]), cv2.IMREAD_GRAYSCALE)
    cv2.imwrite(str(paths[3]), cv2.resize(half, (320, 240), interpolation=cv2.INTER_AREA))
    whole = cv2.imencode(".jpg", picture)[1].tobytes()
    (folder / "photos" / "06.jpg").write_bytes(whole[: len(whole) // 2])
    with suppress(OSError):  # not every file system takes such names
        paths[5].rename(folder / "photos" / os.fsdecode(b"05\xe9.png"))
    (folder / "work").mkdir()
    said = reconstruct(folder / "photos", find_photos(folder / "photos"), folder / "work", OPTIONS, quiet)
    assert said["broken"] == [["06.jpg", "is truncated"]]
    assert said["photos"] == 6
    assert said["sources"]["02_turned.jpg"] == "02 turned.jpg"
    assert said["pairs"] == "all 15"
    assert said["models"] == [6]
    assert said["peak_bytes"] > 1e7
    return folder / "work"


def test_poses_are_those_of_the_rendered_cameras(work: Path) -> None:
    """Up to the frame of the world, which is free: angles between the cameras' lines of sight, and ratios of distances."""
    scene = load_scene(work / "models/0/scene.npz")
    truth = views_around(6)
    names = [view.name for view in scene.views]
    assert names[:5] == ["00.png", "01.png", "02_turned.jpg", "03.png", "04.png"]
    assert names[5] in ("05%E9.png", "05.png")
    for one in range(6):
        for other in range(one):
            turn = scene.views[one].rotation @ scene.views[other].rotation.T
            true_turn = truth[one].rotation @ truth[other].rotation.T
            assert np.rad2deg(np.arccos(np.clip((np.trace(turn @ true_turn.T) - 1) / 2, -1, 1))) < 1.0
    centres, true_centres = (np.array([view.centre() for view in views]) for views in (scene.views, truth))
    ratio = np.linalg.norm(centres[1:] - centres[0], axis=1) / np.linalg.norm(
        true_centres[1:] - true_centres[0], axis=1
    )
    assert ratio.std() / ratio.mean() < 0.03


def test_points_project_to_their_keypoints_with_pixel_centres_at_integers(work: Path) -> None:
    scene = load_scene(work / "models/0/scene.npz")
    with np.load(work / "models/0/tracks.npz") as tracks:
        for index, view in enumerate(scene.views):
            mine = tracks["view"] == index
            there, _ = project(view, scene.points[tracks["point"][mine]])
            apart = there - tracks["xy"][mine]
            assert np.median(np.linalg.norm(apart, axis=1)) < 1.0
            assert np.abs(np.median(apart, axis=0)).max() < 0.25  # half a pixel off would show
            picture = cv2.imread(str(work / "models/0/images" / view.name))
            assert picture.shape[:2] == (view.height, view.width)
        assert (tracks["sigma"] > 0.5).all()


def test_images_are_numbered_camera_by_camera(work: Path) -> None:
    groups = camera_groups(json.loads((work / "photos.json").read_text())["photos"], "auto")
    assert len(groups) == 2
    with closing(sqlite3.connect(work / "matches.db")) as database:
        rows = database.execute("select name from images order by image_id").fetchall()
    assert [name for (name,) in rows] == [photo["name"] for group in groups for photo in group]


def test_finished_steps_are_not_repeated_and_the_bits_are_the_same(work: Path, tmp_path: Path) -> None:
    photos = work.parent / "photos"
    told: list[str] = []
    reconstruct(photos, find_photos(photos), work, OPTIONS, told.append)
    assert told == []
    reconstruct(photos, find_photos(photos), tmp_path, SparseOptions(threads=2, features=2000, size=480), told.append)
    assert told == ["reading photos", "features", "matching", "mapping", "undistorting"]
    for name in ("scene.npz", "tracks.npz"):
        with np.load(work / "models/0" / name) as one, np.load(tmp_path / "models/0" / name) as other:
            for key in one.files:
                np.testing.assert_array_equal(one[key], other[key])


def test_photos_that_do_not_overlap_are_said_so(tmp_path: Path) -> None:
    for seed in range(5):
        cv2.imwrite(str(tmp_path / f"{seed}.png"), photograph(views_around(1, 240, 180)[0], seed=seed + 10))
    (tmp_path / "work").mkdir()
    with pytest.raises(InputError, match="cannot be joined into a model"):
        reconstruct(tmp_path, find_photos(tmp_path), tmp_path / "work", OPTIONS, quiet)


def test_one_photo_is_too_few(tmp_path: Path) -> None:
    write_photos(tmp_path / "photos", count=1)
    with pytest.raises(InputError, match="a scene needs at least 5"):
        reconstruct(tmp_path / "photos", ["00.png"], tmp_path / "work", OPTIONS, quiet)


def test_cameras_are_shared_by_size_folder_and_focal_length() -> None:
    photos = [
        {"name": "a/1.jpg", "width": 4, "height": 3, "focal": None},
        {"name": "a/2.jpg", "width": 4, "height": 3, "focal": None},
        {"name": "a/3.jpg", "width": 3, "height": 4, "focal": None},
        {"name": "b/1.jpg", "width": 4, "height": 3, "focal": None},
        {"name": "b/2.jpg", "width": 4, "height": 3, "focal": 1.1},
    ]
    assert [len(group) for group in camera_groups(photos, "auto")] == [2, 1, 1, 1]
    assert [len(group) for group in camera_groups(photos, "one")] == [4, 1]
    assert [len(group) for group in camera_groups(photos, "each")] == [1] * 5


def test_pairs_of_large_scenes() -> None:
    pairs = neighbours_in_order(50, 3)
    assert {(0, 1), (0, 3), (0, 6), (0, 12), (0, 48), (47, 49)} <= pairs
    assert (0, 4) not in pairs
    assert all(first < second < 50 for first, second in pairs)
    shared = np.column_stack([np.arange(40), np.arange(40)])
    verified = {(0, 1): shared, (1, 2): shared, (2, 3): shared[:10], (3, 4): shared[::-1]}
    assert pairs_by_shared_points(verified, {(0, 1), (1, 2)}, 5) == [(0, 2)]
    assert pairs_by_shared_points(verified, {(0, 1), (1, 2), (0, 2)}, 5) == []

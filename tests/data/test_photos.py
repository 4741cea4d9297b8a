"""Photos to PatchSets: what is decided on exact depth maps, and the whole way with a real reconstruction."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import cv2
import numpy as np
import pytest

from sdgmnet.cli import main
from sdgmnet.data.correspondences import Rule
from sdgmnet.data.patchset import PatchSet, pairs_in
from sdgmnet.data.photos import (
    PhotoOptions,
    Points,
    close_points,
    find_scenes,
    keep_apart,
    load_points,
    make_patchsets,
    points_by_geometry,
    write_scene,
)
from sdgmnet.errors import InputError
from sdgmnet.reconstruction.maps import write_map
from sdgmnet.reconstruction.sparse import SparseOptions
from sdgmnet.reconstruction.views import load_scene, save_scene
from tests.reconstruction.planes import write_photos
from tests.reconstruction.rendered import Rendered, cast, write_workspace

EXACT = PhotoOptions(smallest_scale=1.0)


@pytest.fixture(scope="module")
def model(rendered: Rendered, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace whose depth maps are the truth."""
    folder = tmp_path_factory.mktemp("work") / "0"
    write_workspace(rendered, folder)
    for view, depths, normals in zip(rendered.scene.views, rendered.depths, rendered.normals, strict=True):
        write_map(folder / f"stereo/depth_maps/{view.name}.geometric.bin", depths)
        write_map(folder / f"stereo/normal_maps/{view.name}.geometric.bin", normals)
    return folder


@pytest.fixture(scope="module")
def points(model: Path) -> Points:
    return points_by_geometry(model, EXACT)


def world_of(rendered: Rendered, points: Points) -> np.ndarray:
    """The true point of the world under each patch's centre."""
    world = np.zeros((len(points.view), 3))
    for index, view in enumerate(rendered.scene.views):
        here = points.view == index
        world[here] = cast(view, points.keypoints.xy[here])[1]
    return world


def test_patches_of_a_point_show_one_place(rendered: Rendered, points: Points) -> None:
    world = world_of(rendered, points)
    count = np.bincount(points.point)
    assert count.min() >= 2
    middle = np.stack([np.bincount(points.point, world[:, axis]) for axis in range(3)], 1) / count[:, None]
    pixel = 4.5 / (0.95 * 320)  # of the world, at about the distance of the things
    apart = np.linalg.norm(world - middle[points.point], axis=1) / pixel
    assert np.mean(apart < 5) > 0.99
    carried = ~points.detected
    assert 0.1 < carried.mean() < 0.9
    assert (points.distance[carried] == 0).all()
    assert np.nanmax(points.distance) <= Rule().near_pixels


def test_a_point_has_one_patch_a_view_and_views_are_in_order(points: Points) -> None:
    assert len(np.unique(points.point * 10 + points.view)) == len(points.view)
    assert (np.diff(points.view) >= 0).all()
    assert set(np.unique(points.point)) == set(range(points.point.max() + 1))
    assert points.conflicts.max() <= points.point.max()


def test_close_points_are_conflicts(points: Points) -> None:
    """Brute force over the patches of one view: nothing within the far border may be called different."""
    rule, missed = Rule(), 0
    here = np.flatnonzero((points.view == 1) & points.detected)
    xy, sigma, angle = points.keypoints.xy[here], points.keypoints.sigma[here], points.keypoints.angle[here]
    for row in range(len(here)):
        far = np.maximum(rule.far_pixels, rule.far_sigmas * sigma[row])
        near = (np.linalg.norm(xy - xy[row], axis=1) <= far) & (np.abs(np.log2(sigma / sigma[row])) <= rule.far_octaves)
        near &= np.abs((angle - angle[row] + np.pi) % (2 * np.pi) - np.pi) <= rule.far_radians
        near[row] = False
        for other in np.flatnonzero(near):
            pair = points.point[here[[row, other]]][None]
            missed += not pairs_in(pair, points.conflicts)[0]
    assert missed == 0


def test_without_carried_patches_all_were_detected(model: Path, points: Points) -> None:
    fewer = points_by_geometry(model, PhotoOptions(smallest_scale=1.0, carried=False))
    assert fewer.detected.all()
    assert 50 < len(fewer.view) < len(points.view)


def test_points_are_found_once(model: Path, points: Points) -> None:
    again = points_by_geometry(model, EXACT)
    first = (model / "points.npz").stat().st_mtime_ns
    same = points_by_geometry(model, EXACT)
    assert (model / "points.npz").stat().st_mtime_ns == first
    for one, other in ((points, again), (again, same)):
        np.testing.assert_array_equal(one.point, other.point)
        np.testing.assert_array_equal(one.keypoints.xy, other.keypoints.xy)
    assert load_points(model / "points.npz", "other options") is None


def test_a_photo_in_two_models_is_shown_once(model: Path, points: Points, tmp_path: Path) -> None:
    """Its places would otherwise be points of two numbers, and negatives of themselves."""
    write_scene(tmp_path / "set", "two", {}, [model, model], [points, points])
    assert len(PatchSet.open(tmp_path / "set")) == len(points.view)


@pytest.mark.parametrize("place", ["photos/s", "photos", "photos/s/deep"])
def test_work_never_mixes_with_the_photos(tmp_path: Path, place: str) -> None:
    """What is removed before a step must not be somebody's photos."""
    (tmp_path / "photos/s/deep").mkdir(parents=True)
    (tmp_path / "photos/s/1.png").write_bytes(b"photo")
    scene = find_scenes(tmp_path / "photos")[0]
    for target, work in ((tmp_path / place, tmp_path / "work"), (tmp_path / "out", tmp_path / place)):
        with pytest.raises(InputError, match="would mix"):
            keep_apart(scene, target, work)
    keep_apart(scene, tmp_path / "out", tmp_path / "work")
    (tmp_path / "work").mkdir()
    (tmp_path / "work/thesis.txt").touch()
    with pytest.raises(InputError, match="holds something else"):
        keep_apart(scene, tmp_path / "out", tmp_path / "work")


def test_carried_places_on_one_spot_are_conflicts(points: Points) -> None:
    close = close_points(points.keypoints, points.view, points.point, Rule())
    known = {tuple(pair) for pair in points.conflicts.tolist()}
    assert len(close)
    assert all(tuple(pair) in known for pair in close.tolist())


def test_two_models_make_one_set(model: Path, points: Points, tmp_path: Path) -> None:
    other, scene = tmp_path / "1", load_scene(model / "scene.npz")
    (other / "images").mkdir(parents=True)
    for view in scene.views:
        shutil.copyfile(model / "images" / view.name, other / "images" / f"again_{view.name}")
    renamed = tuple(view._replace(name=f"again_{view.name}") for view in scene.views)
    save_scene(scene._replace(views=renamed), other / "scene.npz")
    write_scene(tmp_path / "set", "two", {}, [model, other], [points, points])
    made = PatchSet.open(tmp_path / "set")
    count, most = len(points.view), points.point.max() + 1
    assert len(made) == 2 * count
    assert made.observations is not None
    assert made.conflicts is not None
    np.testing.assert_array_equal(made.point_id[count:], made.point_id[:count] + most)
    np.testing.assert_array_equal(made.patches[count:], made.patches[:count])
    assert made.observations["image"].max() == 5
    assert len(made.conflicts) == 2 * len(points.conflicts)
    assert made.origin["images"][:2] == ["0/0.png", "0/1.png"]
    np.testing.assert_allclose(made.observations["x"][:count], points.keypoints.xy[:, 0], atol=1e-3)


def test_scenes_of_a_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a folder"):
        find_scenes(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no photos"):
        find_scenes(tmp_path)
    for name in ("b/1.JPG", "a/left/1.png", "a/right/1.png", ".hidden/1.png", "a/.thumbs/1.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert [(scene.name, scene.photos) for scene in find_scenes(tmp_path)] == [
        ("a", ("left/1.png", "right/1.png")),
        ("b", ("1.JPG",)),
    ]
    (tmp_path / "c").symlink_to(tmp_path / "b")
    (tmp_path / "b/loop").symlink_to(tmp_path / "b")
    assert [scene.name for scene in find_scenes(tmp_path)][:1] == ["a"]
    assert [scene.photos for scene in find_scenes(tmp_path / "b")] == [("1.JPG",)]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scene of five photos, and one that cannot be reconstructed."""
    folder = tmp_path_factory.mktemp("photos")
    write_photos(folder / "boards", count=5, width=320, height=240)
    write_photos(folder / "alone", count=1)
    return folder


def files_of(patchset: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(patchset.iterdir())}


def run_killed_at(record: Path, words: list[str]) -> None:
    """Start the command and kill it, without a chance to clean up, as soon as a file appears."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "sdgmnet", *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment) as child:
        while not record.exists() and child.poll() is None:
            time.sleep(0.01)
        assert child.poll() is None, "it ended before it could be killed"
        child.send_signal(signal.SIGKILL)


def test_from_photos_to_patches_with_a_failed_scene_and_a_kill(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pycolmap", reason="pycolmap is not installed: pip install 'sdgmnet[sfm]'")
    words = ["data", "photos", str(photos), "--from", "tracks", "--threads", "1", "--size", "400"]
    work = tmp_path / "killed/.work/boards"
    run_killed_at(work / "features.json", [*words, "-o", str(tmp_path / "killed")])
    before = (work / "photos/00.png").stat().st_mtime_ns, (work / "features.json").stat().st_mtime_ns
    assert main([*words, "-o", str(tmp_path / "killed")]) == 0
    said = capsys.readouterr()
    assert before == ((work / "photos/00.png").stat().st_mtime_ns, (work / "features.json").stat().st_mtime_ns)
    assert "alone skipped: 1 readable photo(s): a scene needs at least 5 that overlap." in said.err
    assert "boards" in said.out
    assert (tmp_path / "killed/boards.png").stat().st_size > 10000
    results = json.loads((tmp_path / "killed/results.json").read_text())
    assert results["scenes"][0]["registered"] == 5
    assert [failure["scene"] for failure in results["failed"]] == ["alone"]
    assert main([*words, "-o", str(tmp_path / "whole"), "--discard-work"]) == 0
    assert files_of(tmp_path / "killed/boards") == files_of(tmp_path / "whole/boards")
    assert not (tmp_path / "whole/.work/boards").exists()
    with pytest.raises(InputError, match="other options"):
        other = PhotoOptions(SparseOptions(size=300), source="tracks")
        _, failures = make_patchsets(photos / "boards", tmp_path / "killed", other)
        raise InputError(failures[0].reason)


@pytest.mark.slow
def test_geometry_killed_in_the_middle_ends_the_same(photos: Path, tmp_path: Path) -> None:
    pytest.importorskip("pycolmap", reason="pycolmap is not installed: pip install 'sdgmnet[sfm]'")
    words = ["data", "photos", str(photos / "boards"), "--threads", "1", "--size", "400", "--dense-size", "300"]
    killed = tmp_path / "killed/.work/boards/models/0"
    run_killed_at(killed / "stereo/depth_maps/02.png.photometric.bin", [*words, "-o", str(tmp_path / "killed")])
    run_killed_at(killed / "points.npz", [*words, "-o", str(tmp_path / "killed")])
    first = killed / "stereo/depth_maps/00.png.photometric.bin"
    before = first.stat().st_mtime_ns
    assert main([*words, "-o", str(tmp_path / "killed")]) == 0
    assert first.stat().st_mtime_ns == before
    assert main([*words, "-o", str(tmp_path / "whole")]) == 0
    assert files_of(tmp_path / "killed/boards") == files_of(tmp_path / "whole/boards")
    made = PatchSet.open(tmp_path / "whole/boards")
    assert len(made) > 500


def test_pairs_are_written_into_sets(
    model: Path, points: Points, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_scene(tmp_path / "sets/one", "one", {}, [model], [points])
    assert main(["data", "pairs", str(tmp_path / "sets"), "--count", "400"]) == 0
    made = PatchSet.open(tmp_path / "sets/one")
    assert made.test_pairs is not None
    assert made.test_pairs.shape == (400, 3)
    assert made.test_pairs[:, 2].sum() == 200
    ids = made.point_id[made.test_pairs[:, :2]]
    np.testing.assert_array_equal(ids[:, 0] == ids[:, 1], made.test_pairs[:, 2] == 1)
    assert not pairs_in(ids[made.test_pairs[:, 2] == 0], np.asarray(made.conflicts)).any()
    assert main(["data", "pairs", str(tmp_path / "sets")]) == 2
    assert "--replace" in capsys.readouterr().err
    assert main(["data", "pairs", str(tmp_path / "sets"), "--count", "100", "--replace"]) == 0
    assert main(["data", "pairs", str(tmp_path)]) == 2


def test_broken_workspace_pictures_are_said(model: Path, tmp_path: Path) -> None:
    from sdgmnet.data.photos import read_gray

    (tmp_path / "a.png").write_bytes(b"nothing")
    with pytest.raises(InputError, match="not a picture"):
        read_gray(tmp_path / "a.png")
    assert read_gray(model / "images/0.png").shape == (240, 320)
    assert cv2.imread(str(model / "images/0.png"), 0) is not None

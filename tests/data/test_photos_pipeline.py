"""From photos to PatchSets: the scenes of a folder, and the whole way with a real reconstruction."""

import errno
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from sdgmnet.cli import main
from sdgmnet.data.patchset import PatchSet
from sdgmnet.data.photos.correspondences import PointOptions
from sdgmnet.data.photos.pipeline import PhotoOptions, make_patchsets
from sdgmnet.data.photos.tracks import Points
from sdgmnet.data.scenes import find_scenes, mixed_layout
from sdgmnet.errors import InputError, Stopped
from sdgmnet.sfm.stereo import DenseOptions
from sdgmnet.sfm.undistorted import SparseOptions, UndistortedModels
from sdgmnet.sfm.workspace import INPUTS, Workspace, read_map
from sdgmnet.storage import LOCK, only_worker, write_json
from tests.data.samples import contents
from tests.sfm.planes import write_photos

Captured = pytest.CaptureFixture[str]
needs_pycolmap = pytest.mark.skipif(find_spec("pycolmap") is None, reason="needs pycolmap: pip install 'sdgmnet[sfm]'")


def touch(folder: Path, *photos: str) -> None:
    for name in photos:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def test_scenes_of_a_folder(tmp_path: Path) -> None:
    for folder in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(InputError, match=str(folder)):
            find_scenes(folder)
    touch(tmp_path, "b/1.JPG", "a/left/1.png", "a/right/1.png", ".hidden/1.png", "a/.thumbs/1.png")
    scenes = [("a", ("left/1.png", "right/1.png")), ("b", ("1.JPG",))]
    assert [(scene.name, scene.photos) for scene in find_scenes(tmp_path)] == scenes
    (tmp_path / "c").symlink_to(tmp_path / "b")
    (tmp_path / "b/loop").symlink_to(tmp_path / "b")
    assert find_scenes(tmp_path)[0].name == "a"
    assert [scene.photos for scene in find_scenes(tmp_path / "b")] == [("1.JPG",)]
    assert mixed_layout(tmp_path) == mixed_layout(tmp_path / "a") == ""
    touch(tmp_path, "stray.png")  # photos next to scenes
    assert "1 photo(s), and its sub-folders 3" in mixed_layout(tmp_path)


def test_what_was_written_inside_of_the_photos_is_no_photo(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.png", "out/a.png", "out/.work/a/1.png", "kept/a/photos/1.png")
    (tmp_path / "link").symlink_to(tmp_path / "out")
    without = (tmp_path / "a/../out", tmp_path / "kept")
    assert [scene.name for scene in find_scenes(tmp_path, without)] == ["a"]
    assert find_scenes(tmp_path / "out", (tmp_path / "out",))[0].photos == ("a.png",)  # asked for by name


def test_a_folder_whose_name_is_no_text_is_a_scene(tmp_path: Path) -> None:
    odd = os.fsencode(tmp_path) + b"/caf\xe9"
    try:
        os.mkdir(odd)
    except OSError:
        pytest.skip("this file system takes no such names")
    with open(odd + b"/1\xe9.png", "wb"):
        pass
    scene = find_scenes(tmp_path)[0]
    assert scene.name == "caf%E9"
    assert (scene.folder / scene.photos[0]).exists()
    assert json.loads(json.dumps(scene.photos)) == list(scene.photos)
    assert scene.digests()[0][1] == hashlib.sha1(b"").hexdigest()


EXACT = PhotoOptions(points=PointOptions(smallest_scale=1.0))


@pytest.fixture
def two_models(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of photos whose sparse reconstruction is done already: twice the same model, with exact depth maps."""

    def reconstruct(workspace: Workspace, folder: Path, names: list[str], *_: Any) -> UndistortedModels:
        write_json(workspace.records / INPUTS, {})
        models = [workspace.folder / "models/0", workspace.folder / "models/1"]
        for copy in models:
            if not copy.exists():
                shutil.copytree(model, copy)
        return UndistortedModels(models, "all 3", [], {name: f"photo {name}" for name in names}, 0, {})

    monkeypatch.setattr("sdgmnet.data.photos.pipeline.reconstruct_undistorted", reconstruct)
    shutil.copytree(model / "images", tmp_path / "photos/scene")
    return tmp_path / "photos"


def fail_in(monkeypatch: pytest.MonkeyPatch, models: dict[str, Exception]) -> None:
    """Dense stereo that fails in some models and elsewhere leaves the maps that are there."""

    def make_depths(workspace: Path, *_: Any, **__: Any) -> str:
        if workspace.name in models:
            raise models[workspace.name]
        return "sdgmnet"

    monkeypatch.setattr("sdgmnet.data.photos.pipeline.make_depths", make_depths)


@needs_pycolmap
def test_a_model_that_fails_is_left_out_and_told(
    two_models: Path, points: Points, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    fail_in(monkeypatch, {"0": InputError("no photo got a depth map.")})
    words = ["data", "photos", str(two_models), "-o", str(tmp_path / "out"), "--smallest-scale", "1.0"]
    assert main(words) == 0
    assert "scene: model 0 skipped: no photo got a depth map." in capsys.readouterr().err
    made = PatchSet.open(tmp_path / "out/scene")
    assert len(made) == len(points.view)
    assert made.origin["images"] == ["1/0.png", "1/1.png", "1/2.png"]
    assert made.origin["sources"][0] == "photo 0.png"
    row = json.loads((tmp_path / "out/results.json").read_text())["scenes"][0]
    assert row["left_out"] == [["0", "no photo got a depth map."]]
    assert row["seconds"].keys() == {"sparse", "dense", "correspondence", "patches"}
    assert main(words) == 0
    assert "model 0 skipped" in capsys.readouterr().err


def test_failures_of_all_models_and_of_the_machine_leave_no_set(
    two_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A set without one of its models would be taken for finished ever after."""
    no_depth, full = InputError("no depth."), InputError("the disk is full.")
    full.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    every = "no model gave patches: 0: no depth; 1: patch match ended with code -6."
    for failing, reason in (
        ({"0": no_depth, "1": Stopped("patch match ended with code -6")}, every),
        ({"0": no_depth, "1": no_depth}, "no depth."),
        ({"1": OSError(errno.EIO, "Input/output error")}, "Input/output error"),
    ):
        fail_in(monkeypatch, failing)
        rows, failures = make_patchsets(two_models, tmp_path / "out", EXACT)
        assert not rows and reason in failures[0].reason
    fail_in(monkeypatch, {"1": full})
    with pytest.raises(InputError, match="the disk is full"):
        make_patchsets(two_models, tmp_path / "out", EXACT)
    assert not (tmp_path / "out/scene").exists()


def test_work_that_another_process_is_at_is_left_alone(two_models: Path, tmp_path: Path) -> None:
    with only_worker(tmp_path / "work/scene"):
        _, failures = make_patchsets(two_models, tmp_path / "out", EXACT, work=tmp_path / "work")
    assert failures[0].reason.startswith("another process is working on")
    assert [path.name for path in (tmp_path / "work/scene").iterdir()] == [LOCK]


@pytest.mark.slow
def test_other_dense_options_make_the_maps_anew(two_models: Path, tmp_path: Path) -> None:
    for size in (96, 80):
        dense = DenseOptions(size=size, coarsest=size // 2)
        options = PhotoOptions(dense=dense, points=EXACT.points)
        rows, failures = make_patchsets(two_models, tmp_path / f"{size}", options, work=tmp_path / "work")
        assert not failures
        assert rows[0]["left_out"] == []
        for path in (tmp_path / "work/scene/models/1/stereo").rglob("*.bin"):
            assert max(read_map(path).shape[:2]) == size


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scene of five photos, and one that cannot be reconstructed."""
    folder = tmp_path_factory.mktemp("photos")
    write_photos(folder / "boards", count=5, width=320, height=240)
    write_photos(folder / "alone", count=1)
    return folder


def run_killed_at(record: Path, words: list[str]) -> None:
    """Start the command and kill it, without a chance to clean up, as soon as a file appears."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "sdgmnet", *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment) as child:
        while not record.exists() and child.poll() is None:
            time.sleep(0.01)
        assert child.poll() is None, "it ended before it could be killed"
        child.send_signal(signal.SIGKILL)


@needs_pycolmap
def test_from_photos_to_patches_with_a_failed_scene_and_a_kill(photos: Path, tmp_path: Path, capsys: Captured) -> None:
    words = ["data", "photos", str(photos), "--from", "tracks", "--threads", "1", "--size", "400"]
    work = tmp_path / "killed/.work/boards"
    run_killed_at(work / "database.db", [*words, "-o", str(tmp_path / "killed")])
    before = (work / "images/00.png").stat().st_mtime_ns
    assert main([*words, "-o", str(tmp_path / "killed")]) == 0
    said = capsys.readouterr()
    assert before == (work / "images/00.png").stat().st_mtime_ns
    assert "alone skipped" in said.err and "at least 5" in said.err
    assert "boards" in said.out
    assert (tmp_path / "killed/boards.png").stat().st_size > 10000
    results = json.loads((tmp_path / "killed/results.json").read_text())
    assert results["scenes"][0]["registered"] == 5
    assert [failure["scene"] for failure in results["failed"]] == ["alone"]
    assert main([*words, "-o", str(tmp_path / "whole"), "--discard-work"]) == 0
    assert contents(tmp_path / "killed/boards") == contents(tmp_path / "whole/boards")
    assert not (tmp_path / "whole/.work/boards").exists()
    other = PhotoOptions(SparseOptions(size=300), source="tracks")
    _, failures = make_patchsets(photos / "boards", tmp_path / "killed", other)
    assert "other options" in failures[0].reason


@needs_pycolmap
@pytest.mark.slow
def test_geometry_killed_in_the_middle_ends_the_same(photos: Path, tmp_path: Path) -> None:
    words = ["data", "photos", str(photos / "boards"), "--threads", "1", "--size", "400", "--dense-size", "300"]
    killed = tmp_path / "killed/.work/boards/models/0"
    run_killed_at(killed / "stereo/depth_maps/02.png.photometric.bin", [*words, "-o", str(tmp_path / "killed")])
    run_killed_at(killed / "points.npz", [*words, "-o", str(tmp_path / "killed")])
    first = killed / "stereo/depth_maps/00.png.photometric.bin"
    before = first.stat().st_mtime_ns
    assert main([*words, "-o", str(tmp_path / "killed")]) == 0
    assert first.stat().st_mtime_ns == before
    assert main([*words, "-o", str(tmp_path / "whole")]) == 0
    assert contents(tmp_path / "killed/boards") == contents(tmp_path / "whole/boards")
    assert len(PatchSet.open(tmp_path / "whole/boards")) > 500

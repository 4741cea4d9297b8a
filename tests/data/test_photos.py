"""From photos to PatchSets: the scenes of a folder, and the whole way with a real reconstruction."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sdgmnet.cli import main
from sdgmnet.data.patchset import PatchSet
from sdgmnet.data.photos import PhotoOptions, find_scenes, keep_apart, make_patchsets
from sdgmnet.errors import InputError
from sdgmnet.reconstruction.sparse import SparseOptions
from tests.reconstruction.planes import write_photos


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

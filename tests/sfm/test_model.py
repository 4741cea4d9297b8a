"""`sdgmnet reconstruct`: photos to a COLMAP workspace, by the real COLMAP, on rendered photos of which the poses are known."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from itertools import combinations
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from sdgmnet.cli import main
from sdgmnet.errors import InputError
from sdgmnet.sfm import reconstruct as model
from sdgmnet.sfm.reconstruct import ModelOptions, NoModel, Place, choose_pairs
from sdgmnet.sfm.scene import load_scene
from sdgmnet.sfm.sparse import Step
from sdgmnet.sfm.viewer import read_ply
from tests.sfm.planes import photograph, views_around, with_orientation, write_photos

pytest.importorskip("pycolmap", reason="pycolmap is not installed: pip install 'sdgmnet[sfm]'")
COUNT = 5
OPTIONS = ["--descriptor", "rootsift", "--keypoints", "700", "--threads", "1"]


def in_pycolmap(code: str, *words: object) -> Any:
    """What a script prints as JSON that has a process of its own, cv2 imported first."""
    code = f"import sys, json, cv2, pycolmap\n{code}"
    done = subprocess.run([sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One photo turned by EXIF and with a space in its name, one of two thirds of the size, one cut off."""
    folder = tmp_path_factory.mktemp("photos")
    paths = write_photos(folder, COUNT)
    picture = cv2.imread(str(paths[2]), cv2.IMREAD_GRAYSCALE)
    paths[2].unlink()
    turned = cv2.imencode(".jpg", np.rot90(picture), [cv2.IMWRITE_JPEG_QUALITY, 98])[1].tobytes()
    (folder / "02 turned.jpg").write_bytes(with_orientation(turned, 6))
    large = cv2.imread(str(paths[3]), cv2.IMREAD_GRAYSCALE)
    cv2.imwrite(str(paths[3]), cv2.resize(large, (320, 240), interpolation=cv2.INTER_AREA))
    whole = cv2.imencode(".jpg", picture)[1].tobytes()
    (folder / "05.jpg").write_bytes(whole[: len(whole) // 2])
    return folder


@pytest.fixture(scope="module")
def workspace(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("model") / "model"
    assert main(["reconstruct", str(photos), "-o", str(out), *OPTIONS]) == 0
    return out


def figures(folder: Path) -> dict[str, Any]:
    """What does not depend on how long it took."""
    summary = json.loads((folder / "summary.json").read_text())
    return {key: value for key, value in summary.items() if key != "seconds" and not key.startswith("peak")}


def model_bytes(folder: Path) -> list[bytes]:
    return [(folder / "sparse/0" / f"{name}.bin").read_bytes() for name in ("cameras", "images", "points3D")]


def test_the_workspace_is_one_of_colmap(workspace: Path) -> None:
    summary = figures(workspace)
    assert summary["broken"] == [["05.jpg", "is truncated"]]
    assert (summary["photos"], summary["registered"], summary["unregistered"]) == (COUNT + 1, COUNT, [])
    assert summary["pairs"] == summary["inlier_pairs"] == COUNT * (COUNT - 1) // 2
    code = """
model = pycolmap.Reconstruction(sys.argv[1] + "/sparse/0")
text = pycolmap.Reconstruction()
text.read_text(sys.argv[1] + "/sparse/0")
with pycolmap.Database.open(sys.argv[1] + "/database.db") as database:
    said = {"inlier_pairs": database.num_verified_image_pairs(), "inlier_matches": database.num_inlier_matches(),
            "cameras": database.num_cameras(), "keypoints": database.num_keypoints(),
            "matched": database.num_matched_image_pairs()}
print(json.dumps({**said, "registered": model.num_reg_images(), "points": model.num_points3D(),
    "observations": model.compute_num_observations(), "text": text.num_points3D(),
    "track_length": model.compute_mean_track_length(), "error": model.compute_mean_reprojection_error(),
    "names": sorted(model.image(number).name for number in model.reg_image_ids())}))
"""
    read = in_pycolmap(code, workspace)
    for key in ("registered", "points", "observations", "track_length", "inlier_pairs", "inlier_matches"):
        assert read[key] == summary[key]
    assert read["names"] == ["00.png", "01.png", "02_turned.jpg", "03.png", "04.png"]
    assert read["cameras"] == 2  # that of the small photo
    assert read["keypoints"] == round(COUNT * summary["keypoints"]) == COUNT * 700
    assert read["matched"] == summary["pairs"]
    assert summary["points"] == read["text"] == len(read_ply(workspace / "sparse/points.ply").points) > 300
    assert summary["observations"] == pytest.approx(summary["track_length"] * summary["points"])
    assert summary["observations_per_image"] == pytest.approx(summary["observations"] / COUNT)
    assert read["error"] == pytest.approx(summary["reprojection_error"]) and read["error"] < 0.5


def test_poses_are_those_of_the_rendered_cameras(workspace: Path) -> None:
    views, truth = load_scene(workspace / ".work/scene.npz").views, views_around(COUNT)
    for one, other in combinations(range(COUNT), 2):
        turn = views[one].rotation @ views[other].rotation.T
        true_turn = truth[one].rotation @ truth[other].rotation.T
        assert np.rad2deg(np.arccos(np.clip((np.trace(turn @ true_turn.T) - 1) / 2, -1, 1))) < 1.0


def test_the_picture_shows_points_and_cameras(workspace: Path) -> None:
    picture = cv2.imread(str(workspace / "cloud.png")).astype(int)
    assert picture.shape[1] == 2000
    red = (picture[..., 2] > 150) & (picture[..., :2].max(axis=2) < 100)
    for half in (slice(0, 1000), slice(1000, 2000)):
        assert red[:, half].sum() > 300
        assert (picture[:, half].max(axis=2) < 100).sum() > 500


def test_started_again_nothing_is_repeated(
    workspace: Path, photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("this was finished")

    for name in ("match", "alone", "verify", "map_photos"):
        monkeypatch.setattr(model, name, never)
    before, places = figures(workspace), sorted(str(path) for path in workspace.rglob("*"))
    assert main(["reconstruct", str(photos), "-o", str(workspace), *OPTIONS]) == 0
    assert figures(workspace) == before
    assert sorted(str(path) for path in workspace.rglob("*")) == places
    assert "05.jpg is truncated; left out" in capsys.readouterr().err
    assert main(["reconstruct", str(photos), "-o", str(workspace), *OPTIONS, "--ratio", "0.8"]) == 2
    assert "made with another ratio" in capsys.readouterr().err


def test_killed_while_matching_finished_pairs_are_kept(
    workspace: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again, finished, total = tmp_path / "model", 4, COUNT * (COUNT - 1) // 2
    shutil.copytree(workspace, again)
    for spent in ("database.db", "sparse", "summary.json", ".work/verified.json", ".work/models.json"):
        path = again / spent
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    words = ["reconstruct", str(photos), "-o", str(again), *OPTIONS]
    code = f"""
import os, signal
from sdgmnet.sfm import reconstruct as model
plain, calls = model.match, []
def match(*given, **options):
    calls.append(1)
    if len(calls) > {finished}:
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(*given, **options)
model.match = match
from sdgmnet.cli import main
main({words!r})
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    plain, calls = model.match, []

    def count(*given: Any, **options: Any) -> Any:
        calls.append(1)
        return plain(*given, **options)

    monkeypatch.setattr(model, "match", count)
    assert main(words) == 0
    assert len(calls) == total - finished
    assert figures(again) == figures(workspace)
    assert model_bytes(again) == model_bytes(workspace)


@pytest.mark.parametrize("removed", ["database.db", "sparse", "images"])
def test_what_somebody_removed_is_made_again(removed: str, workspace: Path, photos: Path, tmp_path: Path) -> None:
    """With all that is made of it: notes of pairs that are gone would give figures of nothing."""
    again = tmp_path / "model"
    shutil.copytree(workspace, again)
    path = again / removed
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert main(["reconstruct", str(photos), "-o", str(again), *OPTIONS]) == 0
    assert figures(again) == figures(workspace)
    assert model_bytes(again) == model_bytes(workspace)
    assert sorted(one.name for one in (again / "images").iterdir()) == sorted(
        one.name for one in (workspace / "images").iterdir()
    )


def geometries(folder: Path) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(folder / "database.db")) as database:
        query = "SELECT pair_id, rows, data, config, F, E, H FROM two_view_geometries ORDER BY pair_id"
        return database.execute(query).fetchall()


def test_killed_while_verifying_the_rest_is_verified_and_no_more(workspace: Path, photos: Path, tmp_path: Path) -> None:
    """The same as at once: what is random in a pair does not depend on those before it."""
    again, marked = tmp_path / "model", 99
    shutil.copytree(workspace, again)
    for note in ("verified.json", "models.json"):
        (again / ".work" / note).unlink()
    with closing(sqlite3.connect(again / "database.db")) as database:
        kept = [number for (number,) in database.execute("SELECT pair_id FROM two_view_geometries ORDER BY pair_id")][
            :4
        ]
        marks = ", ".join("?" * len(kept))
        database.execute(f"DELETE FROM two_view_geometries WHERE pair_id NOT IN ({marks})", kept)
        database.execute("UPDATE two_view_geometries SET config = ?", (marked,))
        database.commit()
    assert main(["reconstruct", str(photos), "-o", str(again), *OPTIONS]) in (0, 2)
    before, after = geometries(workspace), geometries(again)
    assert [row[0] for row in before] == [row[0] for row in after]
    assert [row[3] for row in after if row[0] in kept] == [marked] * len(kept)  # these were not touched
    assert [row for row in before if row[0] not in kept] == [row for row in after if row[0] not in kept]


def test_bad_places_are_said(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/letter.txt").write_text("mine")
    (tmp_path / "empty").mkdir()
    write_photos(tmp_path / "one", 1)
    (tmp_path / "one/broken.jpg").write_bytes(b"")
    for words, said in (
        ([tmp_path / "nowhere", "-o", tmp_path / "out"], "not a folder"),
        ([tmp_path / "empty", "-o", tmp_path / "out"], "holds no photos"),
        ([photos, "-o", photos], "holds the photos themselves"),
        ([photos, "-o", photos.parent], "holds the photos themselves"),
        ([photos, "-o", tmp_path / "file"], "is a file"),
        ([photos, "-o", tmp_path / "mine"], "holds something else"),
        ([tmp_path / "one", "-o", tmp_path / "out"], "at least 3 that overlap. broken.jpg is empty."),
        ([photos, "-o", tmp_path / "out2", "--ratio", "2"], "--ratio"),
        ([photos, "-o", tmp_path / "out2", "--contrast", "-1"], "--contrast"),
        ([photos, "-o", tmp_path / "out2", "--keypoints", "0"], "--keypoints"),
        ([photos, "-o", tmp_path / "out2", "--pairs", tmp_path / "none.txt"], "none.txt"),
    ):
        assert main(["reconstruct", *OPTIONS, *map(str, words)]) == 2, words
        shown = capsys.readouterr().err
        assert said in shown and "Traceback" not in shown
    assert not (tmp_path / "out2").exists()
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["letter.txt"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_read_only_folder_is_said(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    assert main(["reconstruct", str(photos), "-o", str(tmp_path / "closed/model"), *OPTIONS]) == 2
    assert "Permission denied" in capsys.readouterr().err


def test_a_refused_folder_is_said(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As above for root, whom nothing refuses: the system's answer is played."""

    def refuse(path: Any, *_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "mkdir", refuse)
    assert main(["reconstruct", str(photos), "-o", str(tmp_path / "model"), *OPTIONS]) == 2
    assert capsys.readouterr().err.strip().endswith("model/.work: Permission denied.")
    assert not (tmp_path / "model").exists()


def test_photos_of_different_things_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "photos").mkdir()
    for seed in range(3):
        cv2.imwrite(str(tmp_path / "photos" / f"{seed}.png"), photograph(views_around(1, 320, 240)[0], seed=seed + 10))
    words = ["reconstruct", str(tmp_path / "photos"), "-o", str(tmp_path / "model"), *OPTIONS, "--ratio", "0.8"]
    assert main(words) == 2
    assert "no two of the 3 photos" in capsys.readouterr().err
    assert (tmp_path / "model/database.db").exists()  # what was found stays, and is not computed again


def test_a_full_disk_while_mapping_is_not_the_photos_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmark goes on after photos that give no model, and must not after this."""

    def refuse(*_: Any, **__: Any) -> Step:
        raise InputError("the disk is full.")

    def nothing(*_: Any, **__: Any) -> Step:
        return Step([], 0)

    for answer, expected in ((refuse, InputError), (nothing, NoModel)):
        monkeypatch.setattr(model, "map_photos", answer)
        with pytest.raises(InputError) as told:
            model.map_models(Place(tmp_path / "model"), 4, ModelOptions(), lambda *_: None)
        assert type(told.value) is expected


def test_pairs() -> None:
    photos = [{"name": f"{n:02d}.jpg", "source": f"{n:02d} .jpg"} for n in range(30)]
    names = [photo["name"] for photo in photos]

    def chosen(listed: tuple[tuple[str, str], ...] = (), **options: Any) -> list[tuple[str, str]]:
        pairs = choose_pairs(photos, ModelOptions(**options), listed)
        found = list(pairs.each)
        assert pairs.total == len(found) == len(set(found))
        return found

    assert chosen() == list(combinations(names, 2))
    near = chosen(pairs="sequential", neighbours=2)
    assert near[:4] == [("00.jpg", f"{step:02d}.jpg") for step in (1, 2, 4, 8)]
    assert ("00.jpg", "03.jpg") not in near
    listed = ("03 .jpg", "01 .jpg"), ("gone.jpg", "01 .jpg"), ("02 .jpg", "05 .jpg")
    assert chosen(listed, pairs="list") == [("01.jpg", "03.jpg"), ("02.jpg", "05.jpg")]


@pytest.mark.slow
def test_the_fountain_is_reconstructed(tmp_path: Path) -> None:
    """Real photos at a third of their size, with few keypoints."""
    if not os.environ.get("SDGMNET_DATA"):
        pytest.skip("SDGMNET_DATA is not set: it names the folder with reconstruction/fountain")
    photos = Path(os.environ["SDGMNET_DATA"]) / "reconstruction/fountain"
    words = ["--descriptor", "rootsift", "--size", "1024", "--keypoints", "2000", "--threads", "1"]
    assert main(["reconstruct", str(photos), "-o", str(tmp_path / "model"), *words]) == 0
    summary = figures(tmp_path / "model")
    assert summary["registered"] == 11
    assert summary["points"] > 1500 and summary["track_length"] > 3.5 and summary["reprojection_error"] < 1.5

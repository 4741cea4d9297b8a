"""`sdgmnet reconstruct`: photos to a COLMAP workspace, by the real COLMAP, on rendered photos of which the poses are known."""

import errno
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import asdict, replace
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest

from sdgmnet.cli import main
from sdgmnet.data.patchset import PatchSet
from sdgmnet.errors import InputError
from sdgmnet.features.h5 import read_features
from sdgmnet.features.images import find_photos
from sdgmnet.report import no_progress
from sdgmnet.sfm import colmap, colmap_steps, feature_sources, plausibility
from sdgmnet.sfm import reconstruct as driver
from sdgmnet.sfm.colmap_text import read_model
from sdgmnet.sfm.feature_sources import ReconstructOptions, Run
from sdgmnet.sfm.pairs import PairSelection
from sdgmnet.sfm.plausibility import ATTEMPTS, Attempt, Mapper, ModelFacts, distinct_attempts
from sdgmnet.sfm.process import Step
from sdgmnet.sfm.reconstruct import NoModel, Photos, SparseModels
from sdgmnet.sfm.scene import SparseScene, load_scene
from sdgmnet.sfm.viewer import read_ply
from sdgmnet.sfm.workspace import Workspace
from sdgmnet.storage import require_room_left
from tests.features.samples import unit_rows
from tests.sfm.planes import in_pycolmap, photograph, turn_between, views_around, write_odd_photos, write_photos

pytest.importorskip("pycolmap", reason="pycolmap is not installed: pip install 'sdgmnet[sfm]'")
COUNT = 5
OPTIONS = ["--descriptor", "rootsift", "--keypoints", "700", "--threads", "1"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_odd_photos(tmp_path_factory.mktemp("photos"), COUNT)


@pytest.fixture(scope="module")
def workspace(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("model") / "model"
    assert main(["reconstruct", str(photos), "-o", str(out), *OPTIONS]) == 0
    return out


def figures(folder: Path) -> dict[str, Any]:
    """All of the summary that does not depend on the machine."""
    summary = json.loads((folder / "summary.json").read_text())
    return {key: value for key, value in summary.items() if key != "seconds" and not key.startswith("peak")}


def model_bytes(folder: Path) -> list[bytes]:
    return [(folder / "sparse/0" / f"{name}.bin").read_bytes() for name in ("cameras", "images", "points3D")]


def remove(*paths: Path) -> None:
    for path in paths:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


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
    found = {"inlier_pairs": database.num_verified_image_pairs(), "inlier_matches": database.num_inlier_matches(),
             "cameras": database.num_cameras(), "keypoints": database.num_keypoints(),
             "matched": database.num_matched_image_pairs()}
print(json.dumps({**found, "registered": model.num_reg_images(), "points": model.num_points3D(),
    "observations": model.compute_num_observations(), "text": text.num_points3D(),
    "track_length": model.compute_mean_track_length(), "error": model.compute_mean_reprojection_error(),
    "names": sorted(model.image(number).name for number in model.reg_image_ids())}))
"""
    read = json.loads(in_pycolmap(code, workspace))
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
    for pair in combinations(range(COUNT), 2):
        assert turn_between(views, truth, *pair) < 1.0


def test_the_image_shows_points_and_cameras(workspace: Path) -> None:
    image = cv2.imread(str(workspace / "cloud.png")).astype(int)
    assert image.shape[1] == 2000
    red = (image[..., 2] > 150) & (image[..., :2].max(axis=2) < 100)
    for half in (slice(0, 1000), slice(1000, 2000)):
        assert red[:, half].sum() > 300
        assert (image[:, half].max(axis=2) < 100).sum() > 500


def test_started_again_nothing_is_repeated(
    workspace: Path, photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("this was finished")

    for name in ("match", "run_in_process"):
        monkeypatch.setattr(feature_sources, name, never)
    monkeypatch.setattr(Workspace, "run", never)
    before, files = figures(workspace), sorted(str(path) for path in workspace.rglob("*"))
    assert main(["reconstruct", str(photos), "-o", str(workspace), *OPTIONS]) == 0
    assert figures(workspace) == before
    assert sorted(str(path) for path in workspace.rglob("*")) == files
    assert "05.jpg" in capsys.readouterr().err
    assert main(["reconstruct", str(photos), "-o", str(workspace), *OPTIONS, "--ratio", "0.8"]) == 2
    assert "ratio 0.9 (now 0.8)" in capsys.readouterr().err


def test_killed_while_matching_finished_pairs_are_kept(
    workspace: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again, finished, total = tmp_path / "model", 4, COUNT * (COUNT - 1) // 2
    shutil.copytree(workspace, again)
    for name in ("database.db", "sparse", "summary.json", ".work/pairs.json", ".work/models.json"):
        remove(again / name)
    words = ["reconstruct", str(photos), "-o", str(again), *OPTIONS]
    code = f"""
import os, signal
from sdgmnet.sfm import feature_sources
plain, calls = feature_sources.match, []
def match(*given, **options):
    calls.append(1)
    if len(calls) > {finished}:
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(*given, **options)
feature_sources.match = match
from sdgmnet.cli import main
main({words!r})
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    plain, calls = feature_sources.match, []

    def count(*given: Any, **options: Any) -> Any:
        calls.append(1)
        return plain(*given, **options)

    monkeypatch.setattr(feature_sources, "match", count)
    assert main(words) == 0
    assert len(calls) == total - finished
    assert figures(again) == figures(workspace) and model_bytes(again) == model_bytes(workspace)


@pytest.mark.parametrize("removed", ["database.db", "sparse", "images"])
def test_what_somebody_removed_is_made_again(removed: str, workspace: Path, photos: Path, tmp_path: Path) -> None:
    """With all that is made from it: records of pairs that are gone would give wrong figures."""
    again = tmp_path / "model"
    shutil.copytree(workspace, again)
    remove(again / removed)
    assert main(["reconstruct", str(photos), "-o", str(again), *OPTIONS]) == 0
    assert figures(again) == figures(workspace) and model_bytes(again) == model_bytes(workspace)
    assert {one.name for one in (again / "images").iterdir()} == {one.name for one in (workspace / "images").iterdir()}


def geometries(folder: Path) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(folder / "database.db")) as database:
        query = "SELECT pair_id, rows, data, config, F, E, H FROM two_view_geometries ORDER BY pair_id"
        return database.execute(query).fetchall()


def test_killed_while_verifying_the_rest_is_verified_and_no_more(workspace: Path, photos: Path, tmp_path: Path) -> None:
    """The same as at once: what is random in a pair does not depend on those before it."""
    again, marked = tmp_path / "model", 99
    shutil.copytree(workspace, again)
    remove(again / ".work/pairs.json", again / ".work/models.json")
    kept = [row[0] for row in geometries(again)][:4]
    with closing(sqlite3.connect(again / "database.db")) as database:
        database.execute(f"DELETE FROM two_view_geometries WHERE pair_id NOT IN ({', '.join('?' * 4)})", kept)
        database.execute("UPDATE two_view_geometries SET config = ?", (marked,))
        database.commit()
    assert main(["reconstruct", str(photos), "-o", str(again), *OPTIONS]) in (0, 2)
    before, after = geometries(workspace), geometries(again)
    assert [row[0] for row in before] == [row[0] for row in after]
    assert [row[3] for row in after if row[0] in kept] == [marked] * len(kept)  # these were not touched
    assert [row for row in before if row[0] not in kept] == [row for row in after if row[0] not in kept]


def test_the_global_mapper(workspace: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From the same verified matches, which stay as they are; made again, it is the same model."""
    out = tmp_path / "model"
    words = ["reconstruct", str(photos), "-o", str(out), *OPTIONS, "--mapper", "global"]
    assert main(words) == 0
    assert geometries(out) == geometries(workspace)
    assert figures(out)["registered"] == COUNT and not figures(out)["implausible"]
    assert figures(out)["points"] == pytest.approx(figures(workspace)["points"], rel=0.1)
    views, truth = load_scene(out / ".work/scene.npz").views, views_around(COUNT)
    assert max(turn_between(views, truth, *pair) for pair in combinations(range(COUNT), 2)) < 1.0
    before = model_bytes(out)
    remove(out / "sparse")
    assert main(words) == 0 and model_bytes(out) == before
    assert main(words[:-2]) == 2
    assert "mapper global" in capsys.readouterr().err


def test_refined_keypoints(workspace: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A smaller error. Killed after the keypoints were replaced, the next start gives the same model."""
    out = tmp_path / "model"
    words = ["reconstruct", str(photos), "-o", str(out), *OPTIONS, "--refine"]
    with monkeypatch.context() as patched:
        patched.setattr(driver, "map_photos", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert main(words) == 130
    (Workspace(out).records / driver.REFINED).unlink()  # as if it had been killed before this was written
    assert main(words) == 0
    whole = tmp_path / "whole"
    assert main([*words[:3], str(whole), *words[4:]]) == 0
    assert model_bytes(out) == model_bytes(whole)
    refined, plain = figures(whole), figures(workspace)
    assert refined["reprojection_error"] < 0.8 * plain["reprojection_error"]
    assert refined["points"] > 0.95 * plain["points"]
    assert main([*words[:-1]]) == 2  # another option


def test_another_ratio_test_starts_from_the_detected_keypoints(photos: Path, tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "model")
    workspace.records.mkdir(parents=True)
    imported = driver.import_photos(workspace, Photos(photos, tuple(find_photos(photos))), 3, no_progress)
    run = Run(workspace, imported["photos"], ReconstructOptions(refine=True, threads=1), no_progress)
    source = feature_sources.descriptor_source("rootsift", 700, contrast=0.02, size=3200)
    source.extract(run)

    def locations() -> bytes:
        with closing(sqlite3.connect(workspace.database)) as database:
            return b"".join(row[0] for row in database.execute("SELECT data FROM keypoints ORDER BY image_id"))

    detected = locations()
    driver.make_models(run, source, PairSelection(), Attempt("loose"))
    assert locations() != detected
    driver.drop_other_matches(run, source)
    assert locations() != detected
    driver.drop_other_matches(run._replace(options=replace(run.options, ratio=0.8)), source)
    assert locations() == detected


def test_a_pycolmap_without_the_global_mapper(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(colmap, "run_in_process", lambda *_: Step(False, 0))
    assert main(["reconstruct", str(photos), "-o", str(tmp_path / "model"), *OPTIONS, "--mapper", "global"]) == 2
    assert "no global mapper" in capsys.readouterr().err and not (tmp_path / "model").exists()


def test_bad_input(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/letter.txt").write_text("mine")
    (tmp_path / "empty").mkdir()
    write_photos(tmp_path / "one", 1)
    (tmp_path / "one/broken.jpg").write_bytes(b"")
    PatchSet("set", np.zeros((2, 64, 64), np.uint8), np.zeros(2, np.int64)).save(tmp_path / "set")
    for words, shown in (
        ([tmp_path / "nowhere", "-o", tmp_path / "out"], "nowhere does not exist"),
        ([tmp_path / "set", "-o", tmp_path / "out"], "is a PatchSet"),
        ([tmp_path / "empty", "-o", tmp_path / "out"], "empty"),
        ([photos, "-o", photos.parent], str(photos)),
        ([photos, "-o", tmp_path / "mine"], "mine holds other files and is left as it is: give -o"),
        ([tmp_path / "one", "-o", tmp_path / "out"], "1 of the 2 files can be read"),
        ([photos, "-o", tmp_path / "out2", "--ratio", "2"], "--ratio"),
        ([photos, "-o", tmp_path / "out2", "--contrast", "-1"], "--contrast"),
        ([photos, "-o", tmp_path / "out2", "--keypoints", "0"], "--keypoints"),
        ([photos, "-o", tmp_path / "out2", "--pairs", tmp_path / "none.txt"], "none.txt does not exist"),
    ):
        assert main(["reconstruct", *OPTIONS, *map(str, words)]) == 2, words
        error = capsys.readouterr().err
        assert shown in error and "Traceback" not in error
    assert not (tmp_path / "out").exists() and not (tmp_path / "out2").exists()
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["letter.txt"]


def test_a_folder_of_too_few_photos_can_be_used_again(tmp_path: Path) -> None:
    """Photos that only decoding shows to be damaged."""
    (tmp_path / "photos").mkdir()
    damaged = cv2.imencode(".png", np.zeros((9, 9), np.uint8))[1].tobytes().replace(b"IDAT", b"IDAX")
    for name in "abc":
        (tmp_path / "photos" / f"{name}.png").write_bytes(damaged)
    out = tmp_path / "model"
    words = ["reconstruct", str(tmp_path / "photos"), "-o", str(out), *OPTIONS]
    assert main(words) == 2
    assert not [path for path in out.rglob("*") if path.is_file() and path.name not in (".lock", "seconds.json")]
    write_photos(tmp_path / "photos", 3)
    assert main(words) == 0


def test_a_refused_folder(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Root may write anywhere: the system's answer is simulated."""

    def refuse(path: Any, *_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "mkdir", refuse)
    assert main(["reconstruct", str(photos), "-o", str(tmp_path / "model"), *OPTIONS]) == 2
    assert "model/.work: Permission denied." in capsys.readouterr().err
    assert not (tmp_path / "model").exists()


def test_pairs_by_retrieval(workspace: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of five photos, four neighbours are all: the model is the same. The pairs are found once."""
    pytest.importorskip("faiss")
    words = [
        "reconstruct",
        str(photos),
        "-o",
        str(tmp_path / "model"),
        *OPTIONS,
        "--pairs",
        "retrieval",
        "--neighbours",
    ]
    assert main([*words, "4"]) == 0
    assert model_bytes(tmp_path / "model") == model_bytes(workspace)
    assert len(json.loads((tmp_path / "model/.work/retrieved.json").read_text())) == COUNT * (COUNT - 1) // 2
    monkeypatch.setattr(driver, "retrieve_pairs", lambda *_, **__: [])
    remove(tmp_path / "model/database.db")
    assert main([*words, "4"]) == 0
    assert model_bytes(tmp_path / "model") == model_bytes(workspace)
    assert main([*words, "3"]) == 2


def test_every_model_of_a_mixed_collection_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two scenes, the smaller one first by name, and a photo that matches nothing."""
    write_photos(tmp_path / "photos/a", 4, seed=7)
    write_photos(tmp_path / "photos/b", COUNT)
    cv2.imwrite(str(tmp_path / "photos/lone.png"), photograph(views_around(1)[0], seed=20))
    out = tmp_path / "model"
    # The incremental mapper would try every pair of accidental matches between the scenes.
    assert main(["reconstruct", str(tmp_path / "photos"), "-o", str(out), *OPTIONS, "--mapper", "global"]) == 0
    summary, printed = figures(out), capsys.readouterr()
    assert [one["photos"] for one in summary["models"]] == [
        [f"b/{number:02d}.png" for number in range(COUNT)],
        [f"a/{number:02d}.png" for number in range(4)],
    ]
    assert summary["unregistered"] == ["lone.png"] and "In no model: lone.png." in printed.err
    assert summary["registered"] == COUNT and not any(one["implausible"] for one in summary["models"])
    shown = [line.split()[1:4:2] for line in printed.out.splitlines() if " sparse/" in line]
    assert shown == [["sparse/0", "5"], ["sparse/1", "4"]]
    for number, one in enumerate(summary["models"]):
        found = read_model(out / "sparse" / str(number))
        assert sorted(image.name for image in found.images.values()) == one["photos"]
        assert len(found.points.number) == one["points"]
    page = (out / "cloud.html").read_text()
    assert "photos, model 1 of 2: 5 of 10 photos" in page and "photos, model 2 of 2: 4 of 10 photos" in page


def test_bundler_reads_the_model(workspace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By its definition: P = R X + t, p = -P / P.z, p' = f (1 + k1 |p|^2 + k2 |p|^4) p, from the centre of the image, y up."""
    assert main(["export", "bundler", str(workspace / "sparse/0"), "-o", str(tmp_path / "bundle.out")]) == 0
    head, *lines = (tmp_path / "bundle.out").read_text().splitlines()
    numbers = iter(np.array(" ".join(lines).split(), dtype=float).tolist())
    count, total = int(next(numbers)), int(next(numbers))
    assert head == "# Bundle file v0.3" and count == COUNT and total == figures(workspace)["points"]
    cameras = [np.array([next(numbers) for _ in range(15)]) for _ in range(count)]
    errors = []
    for _ in range(total):
        point, _ = ([next(numbers) for _ in range(3)] for _ in range(2))
        for _ in range(int(next(numbers))):
            camera, _, x, y = (next(numbers) for _ in range(4))
            (focal, k1, k2), turn, shift = np.split(cameras[int(camera)], [3, 12])
            seen = turn.reshape(3, 3) @ point + shift
            assert seen[2] < 0  # in front of the camera
            p = -seen[:2] / seen[2]
            square = p @ p
            errors.append(np.linalg.norm(focal * (1 + k1 * square + k2 * square**2) * p - [x, y]))
    assert next(numbers, None) is None and len(errors) == figures(workspace)["observations"]
    assert np.mean(errors) == pytest.approx(figures(workspace)["reprojection_error"], rel=0.01)
    listed = [line.split() for line in (tmp_path / "bundle.list.txt").read_text().splitlines()]
    assert [name for name, *_ in listed] == ["00.png", "01.png", "02_turned.jpg", "03.png", "04.png"]
    assert [float(focal) for *_, focal in listed] == [camera[0] for camera in cameras]
    assert main(["export", "bundler", str(tmp_path), "-o", str(tmp_path / "b.out")]) == 2
    assert "cameras.txt does not exist" in capsys.readouterr().err and not (tmp_path / "b.out").exists()


def test_openmvg_reads_features_and_matches(
    workspace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Text of x, y, scale, orientation; a uint64 and 128 bytes per keypoint; numbers of two images, of matches, and those."""
    out = tmp_path / "matches"
    assert main(["export", "openmvg", str(workspace), "-o", str(out)]) == 0
    names = ["00.png", "01.png", "02_turned.jpg", "03.png", "04.png"]
    for name in names:
        expected = read_features(workspace / "features.h5", name)
        x, y, scale, angle = np.loadtxt(out / f"{Path(name).stem}.feat").T
        np.testing.assert_allclose(np.column_stack([x, y]), expected.keypoints.xy, atol=1e-3)
        np.testing.assert_allclose(scale, expected.keypoints.sigma, rtol=1e-4)
        np.testing.assert_allclose(angle, expected.keypoints.angle, atol=1e-4)
        content = (out / f"{Path(name).stem}.desc").read_bytes()
        assert int.from_bytes(content[:8], "little") == len(x) == 700
        descriptors = np.frombuffer(content, np.uint8, offset=8).reshape(700, 128).astype(float)
        true = np.linalg.norm(expected.descriptors[:50] - expected.descriptors[50:100], axis=1)
        found = np.linalg.norm(descriptors[:50] - descriptors[50:100], axis=1)
        np.testing.assert_allclose(found, 256 * true, rtol=0.05)
    numbers = iter(map(int, (out / "matches.f.txt").read_text().split()))
    found = {}
    for first in numbers:
        pair = names[first], names[next(numbers)]
        found[pair] = [(next(numbers), next(numbers)) for _ in range(next(numbers))]
    inliers = driver.read_inliers(Workspace(workspace))
    assert found == {pair: [tuple(row) for row in rows.tolist()] for pair, rows in inliers.items()}
    assert json.loads((out / "image_describer.json").read_text())["regions_type"]["polymorphic_name"] == "SIFT_Regions"
    capsys.readouterr()
    assert main(["export", "openmvg", str(tmp_path), "-o", str(tmp_path / "no")]) == 2
    assert "features.h5 does not exist" in capsys.readouterr().err and not (tmp_path / "no").exists()


def test_photos_of_different_things(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "photos").mkdir()
    for seed in range(3):
        cv2.imwrite(str(tmp_path / "photos" / f"{seed}.png"), photograph(views_around(1, 320, 240)[0], seed=seed + 10))
    words = ["reconstruct", str(tmp_path / "photos"), "-o", str(tmp_path / "model"), *OPTIONS, "--ratio", "0.8"]
    assert main(words) == 2
    assert "no two of the 3 photos" in capsys.readouterr().err
    assert (tmp_path / "model/database.db").exists()  # what was computed stays


def facts(points: int) -> dict[str, Any]:
    """Of a model of five photos that is plausible, unless they see fewer than 30 points."""
    photo = {"name": "a.jpg", "points": points, "focal": 1.0, "corner_shift": 0.0}
    counts = {"verified_matches": 500, "matches_in_tracks": 5 * points, "connected": 5, "reprojection_error": 0.5}
    return {"photos": [photo] * 5, **counts}


def fake_models(monkeypatch: pytest.MonkeyPatch, points: list[int]) -> list[str]:
    """Attempts that register photos with so many points each; 0: none. Returns the names of the attempts, as they are made."""
    made: list[str] = []

    def make_models(run: Run, source: Any, pairs: Any, attempt: Attempt) -> Any:
        made.append(attempt.what)
        count = points[int(attempt.what)]
        figures = {"photos": [], "registered": 5, "points": count, "facts": facts(count)}
        return [10], [figures] if count else []

    monkeypatch.setattr(driver, "make_models", make_models)
    monkeypatch.setattr(driver, "import_photos", lambda *_: {"photos": [], "broken": []})
    return made


def find(folder: Path, count: int) -> SparseModels:
    (folder / "a.jpg").write_bytes(b"a")
    workspace = Workspace(folder / "model")
    workspace.records.mkdir(parents=True, exist_ok=True)
    workspace.database.touch()
    source: Any = SimpleNamespace(described={}, verifies=False, ratio_test=True, extract=lambda _: None)
    attempts = tuple(Attempt(str(number), Mapper(min_initial_matches=100 + number)) for number in range(count))
    photos = Photos(folder, ("a.jpg",))
    return driver.reconstruct(workspace, photos, source, PairSelection(), ReconstructOptions(), attempts=attempts)


@pytest.mark.parametrize(
    ("points", "chosen", "tried"),
    [
        ([90, 20, 95], "0", ["0", "0"]),  # the second time, the models on disk are only read
        ([9, 80, 95], "1", ["0", "1", "1"]),
        ([9, 0, 95], "2", ["0", "1", "2", "2"]),
        ([9, 19, 8], "1", ["0", "1", "2", "1"]),
        ([0, 3, 0], "1", ["0", "1", "2", "1"]),
    ],
)
def test_the_first_plausible_attempt_is_taken_or_else_the_best(
    points: list[int], chosen: str, tried: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = fake_models(monkeypatch, points)
    found = find(tmp_path, 3)
    assert (found.attempt, made) == (chosen, tried)
    assert bool(found.implausible) == (points[int(chosen)] < 30)
    assert [one["attempt"] for one in found.outcomes] == tried[:-1]
    made.clear()
    assert find(tmp_path, 3) == found and made == [chosen]  # finished attempts are not repeated
    with pytest.raises(InputError, match="other attempts"):
        find(tmp_path, 2)


def test_no_attempt_gives_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_models(monkeypatch, [0, 0])
    with pytest.raises(NoModel, match="do not form a model"):
        find(tmp_path, 2)


def test_attempts_that_would_repeat_an_earlier_one_are_left_out() -> None:
    plain, ratio = Attempt("plain"), Attempt("r", max_ratio=0.8)
    strict = Attempt("strict", Mapper(refine_distortion=False))
    assert distinct_attempts((plain, strict, ratio), None, ratio_test=True) == [plain, strict, ratio]
    assert distinct_attempts((plain, strict, ratio), 0.7, ratio_test=True) == [plain, strict]
    assert distinct_attempts((plain, strict, ratio), None, ratio_test=False) == [plain, strict]
    assert ratio.ratio(0.9) == ratio.ratio(None) == 0.8 and ratio.ratio(0.7) == 0.7 and plain.ratio(0.7) == 0.7


def test_an_implausible_model_is_not_a_success(
    workspace: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every attempt is implausible where photos should see more points than they have keypoints."""
    monkeypatch.setattr(plausibility, "MIN_POINTS_PER_PHOTO", 701)
    again = tmp_path / "model"
    shutil.copytree(workspace, again)
    remove(again / ".work/attempts.json")
    words = ["reconstruct", str(photos), "-o", str(again), *OPTIONS, "--dense"]
    assert main(words) == 3
    printed, summary = capsys.readouterr(), figures(again)
    assert len(summary["attempts"]) == len(ATTEMPTS["incremental"]) and "dense" not in summary
    assert "at least 701 per photo" in summary["implausible"][0]
    assert "at least 701 per photo" in printed.err and "implausible" in printed.out
    assert "at least 701 per photo" in (again / "cloud.html").read_text()
    best = max(summary["attempts"], key=lambda one: one["matches_in_tracks"])
    assert best["attempt"] == summary["attempt"] and best["points"] == summary["points"]
    assert json.loads((again / ".work/models.json").read_text())["attempt"] == summary["attempt"]
    before = model_bytes(again)
    remove(again / "sparse")
    assert main(words) == 3 and figures(again) == summary and model_bytes(again) == before


def test_a_full_disk_while_mapping_is_not_the_photos_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmark continues after photos that give no model, and must not after this."""

    def disk_full(*_: Any, **__: Any) -> None:
        raise InputError("the disk is full.")

    monkeypatch.setattr(Workspace, "run", disk_full)
    with pytest.raises(InputError) as raised:
        driver.map_photos(Run(Workspace(tmp_path), [], ReconstructOptions(), lambda *_: None), Attempt("as asked"))
    assert type(raised.value) is InputError
    assert not (tmp_path / ".work/models.json").exists()


@pytest.mark.parametrize("free", [0, 1 << 30])
def test_a_truncated_model_never_gets_its_name(free: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """COLMAP writes its models without a word about a full disk."""

    def write(folder: Path) -> None:
        (Path(folder) / "images.bin").write_bytes(b"")

    model = SimpleNamespace(
        num_reg_images=lambda: 5, num_points3D=lambda: 9, write_binary=write, write_text=write,
        extract_colors_for_all_images=lambda _: None, export_PLY=lambda _: None,
    )  # fmt: skip
    monkeypatch.setattr(colmap_steps, "map_incrementally", lambda *_: [model])
    monkeypatch.setattr(colmap_steps, "figures", lambda _: {"registered": 5})
    plausible = ModelFacts((), 0, 0, 5, 0.5)
    monkeypatch.setattr(colmap_steps, "model_facts", lambda *_: plausible)
    scene = SparseScene((), np.zeros((0, 3)), np.zeros((0, 2), int))
    monkeypatch.setattr(colmap_steps, "read_scene", lambda _: (scene, []))
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    paths = [str(tmp_path / name) for name in ("database.db", "images", "sparse", "scene.npz", "heartbeat")]
    if free:
        require_room_left(tmp_path)
        found = colmap_steps.map_images(*paths, 5, 0, "incremental", {})
        assert found == [{"registered": 5, "facts": asdict(plausible)}]
    else:
        with pytest.raises(InputError, match="disk is full"):
            colmap_steps.map_images(*paths, 5, 0, "incremental", {})
    assert (tmp_path / "sparse").exists() == bool(free)
    assert not list(tmp_path.glob(".sparse*"))


# Collections as people have them


def test_duplicates_two_cameras_and_a_photo_that_matches_nothing(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    photos, out = tmp_path / "photos", tmp_path / "model"
    paths = write_photos(photos, 5)
    shutil.copyfile(paths[0], photos / "copy.png")
    for view in views_around(5, 400, 300)[1:3]:  # another camera, between the others
        cv2.imwrite(str(photos / f"small_{view.name}"), photograph(view))
    cv2.imwrite(str(photos / "lone.png"), photograph(views_around(1)[0], seed=20))
    words = ["reconstruct", str(photos), "-o", str(out), "--descriptor", "rootsift", "--keypoints", "600"]
    # The incremental mapper would try every pair of accidental matches of the lone photo.
    assert main([*words, "--threads", "1", "--pairs", "retrieval", "--ratio", "0.8", "--mapper", "global"]) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert summary["registered"] >= 7 and not summary["implausible"]
    assert "lone.png" in summary["unregistered"]
    sizes = {(camera.width, camera.height) for camera in read_model(out / "sparse/0").cameras.values()}
    assert sizes == {(480, 360), (400, 300)}


def run_of(folder: Path, count: int = 4) -> tuple[Run, Any]:
    pytest.importorskip("faiss")
    workspace = Workspace(folder)
    workspace.records.mkdir(parents=True)
    photos: Any = [{"name": f"{number}.png"} for number in range(count)]
    descriptors = {photo["name"]: unit_rows(50, 16, number) for number, photo in enumerate(photos)}
    source: Any = SimpleNamespace(read_descriptors=lambda _, name: descriptors[name])
    return Run(workspace, photos, ReconstructOptions(), lambda *_: None), source


@pytest.mark.parametrize("content", [b"", b"\x00\xff", b"[[1, 2]]", b'[["0.png"]]', b'{"pairs": []}'])
def test_a_damaged_record_of_retrieved_pairs_is_named(content: bytes, tmp_path: Path) -> None:
    run, source = run_of(tmp_path)
    record = run.workspace.records / driver.RETRIEVED
    record.write_bytes(content)
    with pytest.raises(InputError, match=r"retrieved\.json"):
        driver.retrieve(run, source, 2)


def test_a_full_disk_leaves_no_record_and_the_pairs_are_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, source = run_of(tmp_path)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(driver, "write_json", full)
        with pytest.raises(OSError, match="No space left"):
            driver.retrieve(run, source, 2)
    assert not (run.workspace.records / driver.RETRIEVED).exists()
    found = driver.retrieve(run, source, 2)
    assert found == driver.retrieve(run, source, 2) and len(found) >= 4


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


@pytest.mark.slow
@pytest.mark.skipif("SDGMNET_DATA" not in os.environ, reason="SDGMNET_DATA is not set")
@pytest.mark.parametrize("ratio", ["0.9", "none"])
def test_photos_by_different_people(ratio: str, tmp_path: Path) -> None:
    """Ten cameras of unknown focal length: without a judgement of the model it has collapsed to 42 points, and succeeded."""
    photos = Path(os.environ["SDGMNET_DATA"], "tourist/reichstag")
    words = ["reconstruct", str(photos), "--keypoints", "4000", "--ratio", ratio, "-o", str(tmp_path / "model")]
    assert main(words) == 0
    summary = json.loads((tmp_path / "model/summary.json").read_text())
    assert summary["registered"] == 10 and summary["points"] > 1000 and not summary["implausible"]

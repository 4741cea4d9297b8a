"""`sdgmnet evaluate reconstruction` on rendered photos, by the real COLMAP."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from sdgmnet.benchmarks.published import published
from sdgmnet.benchmarks.reconstruction import parse_entries, table
from sdgmnet.cli import main
from sdgmnet.descriptors import describe
from sdgmnet.errors import InputError
from sdgmnet.features.eth import read_descriptors, read_keypoints, read_matches, write_matches
from sdgmnet.features.match import match
from sdgmnet.sfm import colmap
from sdgmnet.sfm.scene import SparseScene
from tests.sfm.planes import views_around, write_photos
from tests.sfm.rendered import write_sparse_text

pytest.importorskip("pycolmap", reason="pycolmap is not installed: pip install 'sdgmnet[sfm]'")
COUNT = 4
OPTIONS = ["--detector", "opencv", "--keypoints", "600", "--threads", "1"]
FIGURES = ("registered", "points", "observations", "track_length", "observations_per_image", "reprojection_error")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set with true cameras."""
    root = tmp_path_factory.mktemp("sets")
    write_photos(root / "boards/images", COUNT)
    views = tuple(views_around(COUNT))
    write_sparse_text(SparseScene(views, np.zeros((0, 3)), np.zeros((0, 2), int)), root / "boards/ground_truth")
    return root


@pytest.fixture(scope="module")
def results(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("results")
    words = ["evaluate", "reconstruction", "rootsift", "--root", str(root), "-o", str(out), *OPTIONS]
    assert main([*words, "--exchange", "--dense", "--dense-size", "160"]) == 0
    return out


def rows(out: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((out / "results.json").read_text())["rows"]
    return found


def test_a_row_has_the_figures_of_the_benchmark(results: Path) -> None:
    (row,) = rows(results)
    assert (row["set"], row["label"], row["registered"], row["photos"]) == ("boards", "rootsift", COUNT, COUNT)
    assert row["inlier_pairs"] == 6 and row["inlier_matches"] > 600
    assert row["keypoints"] == 600
    assert row["points"] > 200
    assert row["observations"] == pytest.approx(row["points"] * row["track_length"])
    assert row["reprojection_error"] < 0.5
    assert row["pose"]["pairs"] == 6 and 0.5 < row["pose"]["auc5"] < row["pose"]["auc10"] < row["pose"]["auc20"] <= 1
    assert row["dense"]["engine"] == "sdgmnet" and row["dense"]["size"] == 160 and row["dense"]["points"] > 1000
    written = (results / "table.md").read_text()
    assert "| boards | rootsift | 4 of 4 |" in written and "dense, engine sdgmnet" in written and "AUC@5" in written
    for name in ("reconstruction.png", "boards/rootsift/cloud.png", "boards/rootsift/dense.png"):
        assert cv2.imread(str(results / name)).shape[1] >= 160


def test_exchanged_files_are_what_was_used(root: Path, results: Path) -> None:
    """Keypoints, descriptors and matches once more, from the photos and by the plain functions."""
    place, names = results / "boards", ("00.png", "02.png")
    features = []
    for name in names:
        keypoints = read_keypoints(place / "keypoints" / f"{name}.bin")
        again = describe(root / "boards/images" / name, keypoints, descriptor="rootsift", size=None)
        descriptors = read_descriptors(place / "rootsift/descriptors" / f"{name}.bin")
        np.testing.assert_array_equal(descriptors, again.descriptors)
        features.append(again)
    np.testing.assert_array_equal(read_matches(place / "rootsift/matches", *names), match(*features, ratio=None).pairs)
    assert len(list((place / "rootsift/matches").iterdir())) == 6


def test_somebodys_files_give_the_same_figures(root: Path, results: Path, tmp_path: Path) -> None:
    """Two runs agree, and one of them had keypoints, descriptors and matches from files alone."""
    theirs, mine = tmp_path / "theirs", tmp_path / "sets/boards"
    theirs.mkdir()
    (theirs / "boards").symlink_to(results / "boards/rootsift")
    mine.mkdir(parents=True)
    (mine / "images").symlink_to(root / "boards/images")
    (mine / "keypoints").symlink_to(results / "boards/keypoints")
    words = ["evaluate", "reconstruction", f"theirs={theirs}", "--root", str(mine), "-o", str(tmp_path / "out")]
    assert main([*words, *OPTIONS]) == 0
    (before,), (after,) = rows(results), rows(tmp_path / "out")
    assert {key: after[key] for key in FIGURES} == {key: before[key] for key in FIGURES}
    assert after["inlier_matches"] == before["inlier_matches"]
    first, second = (out / name / "sparse/0/points3D.bin" for out, name in
                     ((results, "boards/rootsift"), (tmp_path / "out", "boards/theirs")))  # fmt: skip
    assert first.read_bytes() == second.read_bytes()
    assert "pose" not in after  # this copy of the set has no true cameras


def test_descriptors_that_do_not_fit_are_said(
    root: Path, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other/descriptors").mkdir(parents=True)
    for name in ("00.png", "01.png"):
        (tmp_path / f"other/descriptors/{name}.bin").write_bytes(np.array([1, 2, 3, 4], "<i4").tobytes())
    words = ["evaluate", "reconstruction", str(tmp_path / "other"), "--root", str(root), "-o", str(results), *OPTIONS]
    assert main(words) == 2
    assert "other/descriptors/00.png.bin" in capsys.readouterr().err
    assert main([*words[:2], "rootsift", *words[3:], "--contrast", "0.1"]) == 2
    assert "boards/keypoints" in capsys.readouterr().err


def test_published_rows_stand_beside_the_benchmarks_own_sets_only() -> None:
    assert published("Fountain", 11)[0].label == "official SIFT, ratio 0.8"
    assert published("fountain", 12) == () and published("castle", 30) == ()
    assert published("South-Building", 128)[-1].points == "166K"


def test_engines_have_columns_of_their_own_and_implausible_models_are_marked() -> None:
    row = {"set": "Fountain", "registered": 11, "photos": 11, "points": 1, "observations": 2, "track_length": 2.0,
           "observations_per_image": 1.0, "reprojection_error": 0.5, "inlier_pairs": 1, "inlier_matches": 20,
           "keypoints": 9.0, "implausible": []}  # fmt: skip
    rows = [
        {**row, "label": "a", "dense": {"engine": "sdgmnet", "points": 5}},
        {**row, "label": "b", "dense": {"engine": "colmap", "points": 7}, "implausible": ["few points"]},
    ]
    header, body = table(rows)
    columns = {name: [line[header.index(name)] for line in body] for name in header if name.startswith("dense")}
    assert columns["dense, engine sdgmnet"][:3] == ["5", "", ""]
    assert columns["dense, engine colmap"][:3] == ["", "7", ""]
    assert [line[header.index("registered")] for line in body[:2]] == ["11 of 11", "11 of 11, implausible"]
    assert columns["dense, published"][:3] == ["", "", "292609"]
    assert all(len(line) == len(header) for line in body)


@pytest.mark.slow
def test_colmaps_own_pipeline_is_a_row_and_its_keypoints_are_everybodys(tmp_path: Path) -> None:
    write_photos(tmp_path / "small", 3, width=280, height=210)
    (tmp_path / "small/broken.jpg").write_bytes(b"no image")
    words = ["evaluate", "reconstruction", "theirs=colmap", "rootsift", "--root", str(tmp_path / "small")]
    assert main([*words, "--threads", "1", "-o", str(tmp_path / "out")]) == 0
    theirs, ours = rows(tmp_path / "out")
    for row in (theirs, ours):
        assert row["registered"] == 3 and row["points"] > 100 and row["inlier_pairs"] == 3
        assert [name for name, _ in row["broken"]] == ["broken.jpg"]
    assert ours["keypoints"] == theirs["keypoints"] > 200
    for name, found in colmap.read_keypoints(tmp_path / "out/small/theirs/database.db").items():
        kept = read_keypoints(tmp_path / f"out/small/keypoints/{name}.bin")
        np.testing.assert_allclose(kept.xy, found.xy, atol=1e-4)
        np.testing.assert_allclose(kept.angle, found.angle, atol=1e-5)
    retrieved = ["--pairs", "retrieval", "--neighbours", "1", "-o", str(tmp_path / "retrieved")]
    assert main([*words, "--threads", "1", *retrieved]) == 0
    assert all(2 <= row["pairs"] <= 3 and row["registered"] == 3 for row in rows(tmp_path / "retrieved"))
    assert "pairs: retrieval" in (tmp_path / "retrieved/table.md").read_text()


def test_a_folder_of_files_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "set/descriptors").mkdir(parents=True)
    (entry,) = parse_entries([f"theirs={tmp_path}"])
    assert (entry.label, entry.files, entry.descriptor) == ("theirs", tmp_path, None)
    with pytest.raises(InputError, match="none"):
        parse_entries([str(tmp_path / "none")])


def test_earlier_results_are_no_set_and_a_set_without_a_model_stops_nothing(
    root: Path, results: Path, tmp_path: Path
) -> None:
    """Started again inside of the root, reconstruction.png of the first time is no photo to reconstruct."""
    sets, out = tmp_path / "sets", tmp_path / "sets/results"
    sets.mkdir()
    (sets / "boards").symlink_to(root / "boards")
    write_photos(sets / "alone", 1)
    shutil.copytree(results, out)
    assert main(["evaluate", "reconstruction", "rootsift", "--root", str(sets), *OPTIONS, "-o", str(out)]) == 0
    (row,) = rows(out)
    assert {key: row[key] for key in FIGURES} == {key: rows(results)[0][key] for key in FIGURES}
    written = (out / "table.md").read_text()
    assert "| alone | rootsift | no model |" in written and "| boards | rootsift | 4 of 4 |" in written
    (failed,) = json.loads((out / "results.json").read_text())["failed"]
    assert failed["set"] == "alone" and "alone" in failed["reason"]


def test_matches_of_keypoints_that_are_not_there_are_said(
    root: Path, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(results / "boards/rootsift/descriptors", tmp_path / "theirs/descriptors")
    shutil.copytree(results / "boards/rootsift/matches", tmp_path / "theirs/matches")
    pairs = np.column_stack([np.arange(581, 601), np.arange(20)])  # of 600
    write_matches(tmp_path / "theirs/matches", "00.png", "01.png", pairs)
    shutil.copytree(results / "boards/keypoints", tmp_path / "out/boards/keypoints")
    words = ["evaluate", "reconstruction", str(tmp_path / "theirs"), "--root", str(root), *OPTIONS]
    assert main([*words, "-o", str(tmp_path / "out")]) == 2
    assert "00.png and 01.png" in capsys.readouterr().err


def test_true_cameras_of_another_size_are_said(
    root: Path, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(root / "boards", tmp_path / "sets/boards")
    cameras = tmp_path / "sets/boards/ground_truth/cameras.txt"
    cameras.write_text(re.sub(r"PINHOLE \d+", "PINHOLE 4000", cameras.read_text()))
    shutil.copytree(results, tmp_path / "out")
    words = ["evaluate", "reconstruction", "rootsift", "--root", str(tmp_path / "sets"), *OPTIONS]
    assert main([*words, "-o", str(tmp_path / "out")]) == 2
    assert "4000 x" in capsys.readouterr().err

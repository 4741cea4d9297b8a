"""`python -m bench collection | growth | reconstruct | retrieval | stability`: what they count. The models are COLMAP's."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from bench import collection, growth, stability
from bench.__main__ import COMMANDS
from sdgmnet.cli import main
from sdgmnet.features.images import read_gray
from tests.features.samples import noise_image, write_image
from tests.sfm.planes import write_photos

needs_pycolmap = pytest.mark.skipif(find_spec("pycolmap") is None, reason="needs pycolmap: pip install 'sdgmnet[sfm]'")
needs_faiss = pytest.mark.skipif(find_spec("faiss") is None, reason="needs faiss: pip install 'sdgmnet[sfm]'")


def results(folder: Path, *words: object) -> dict[str, Any]:
    """What a command writes into folder/out."""
    call = [str(word) for word in (*words, "-o", folder / "out")]
    assert main(call, COMMANDS, "python -m bench") == 0
    found: dict[str, Any] = json.loads((folder / "out/results.json").read_text())
    return found


def model(points: int, *photos: str) -> dict[str, Any]:
    return {"registered": len(photos), "points": points, "photos": list(photos)}


@needs_pycolmap
def test_models_per_scene_and_extrapolated_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for scene in "ab":
        for number in range(3):
            write_image(tmp_path / "photos" / scene / f"{number}.png", noise_image(40, 40, number))

    def models_of(folder: Path, photos: Any, pairs: Any, *_: Any) -> dict[str, Any]:
        if folder.name != "together":
            models = [model(100, "0.png", "1.png", "2.png")] if folder.name == "a" else []
            return {"models": models}
        assert (pairs.method, pairs.neighbours, len(photos.names)) == ("retrieval", 20, 6)
        models = [model(90, "a/0.png", "a/1.png", "a/2.png", "b/0.png"), model(50, "b/1.png", "b/2.png")]
        seconds = {"features": 10.0, "matching": 2.0, "verifying": 1.0}
        return {"photos": 6, "models": models, "pairs": 5, "seconds": seconds, "peak_bytes": 10**9}

    monkeypatch.setattr(collection, "models_of", models_of)
    found = results(tmp_path, "collection", tmp_path / "photos")
    assert found["mixed_models"] == [["a", "b"]]
    assert [(one["compared"], one["of_pairs"], one["seconds"]) for one in found["costs"]] == [(5, 3, 13), (15, 9, 19)]
    assert collection.table(found["scenes"]) == [
        ["a", "3", "1", "1", "4", "3", "90", "100", "0.900"],
        ["b", "3", "2", "0", "4", "0", "90", "0", "nan"],
    ]


@needs_faiss
def test_a_collection_is_made_and_matched(tmp_path: Path) -> None:
    for number in range(2):
        write_image(tmp_path / "photos" / f"{number}.png", noise_image(260, 200, number))
    words = ["growth", tmp_path / "photos", "--counts", 5, "--descriptor", "rootsift", "--size", 200]
    (one,) = results(tmp_path, *words)["results"]
    assert (one["photos"], one["pairs"], one["runs"], one["repeated"]) == (5, 10, 1, 0) and one["peak_bytes"] > 10**7
    made = sorted((tmp_path / "out/5/photos").iterdir())
    assert len(made) == 5 and all(max(read_gray(path).shape) <= 200 for path in made)
    assert len({path.read_bytes() for path in made}) == 5
    assert len(growth.groups(tmp_path / "out/5/matches.h5")) == 10


def test_what_a_run_says_it_took_from_the_files() -> None:
    printed = "f.h5: 3 images described (90 keypoints, 0.1 s), 4 in the file already.\nm.h5: 1 pair matched (5 matches, 2.0 s)."
    assert growth.kept_in(printed) == {"image": 4, "pair": 0}


@needs_pycolmap
def test_reconstruct_has_a_row_per_descriptor_and_one_of_colmap(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_photos(tmp_path / "photos", 4)
    words = ["reconstruct", tmp_path / "photos", "--descriptors", "rootsift", "--repeats", 1, "--keypoints", 700]
    models = results(tmp_path, *words, "--threads", 1)["models"]
    assert list(models) == ["colmap", "rootsift"]
    assert all(one["registered"] == 4 and one["seconds"] > 0 for runs in models.values() for one in runs)
    assert "1.00 x" in capsys.readouterr().out


@needs_faiss
def test_recall_of_two_scenes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for scene in range(2):
        for number in range(3):
            pixels = noise_image(260, 200, scene)[:, 20 * number : 20 * number + 180]
            write_image(tmp_path / "photos" / f"{scene}{number}.png", pixels)
    words = [
        "retrieval",
        tmp_path / "photos",
        "-o",
        tmp_path / "out",
        "--descriptors",
        "rootsift",
        "--neighbours",
        2,
        5,
    ]
    assert main([*map(str, words)], COMMANDS, "python -m bench") == 0
    two, five = json.loads((tmp_path / "out/results.json").read_text())["results"]
    assert (two["photos"], two["verified"], two["recall"], two["compared"], two["share"]) == (6, 6, 1, 6, 0.4)
    assert (five["recall"], five["compared"], five["share"]) == (1, 15, 1)
    assert "100.0 %" in capsys.readouterr().out


@needs_pycolmap
def test_stability_has_a_row_per_descriptor_and_ratio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_image(tmp_path / "church/a.png", noise_image(40, 32))
    sizes: list[int] = []

    def reconstruct_copy(copy: stability.Copy, *_: Any) -> dict[str, Any]:
        sizes.append((copy.photos / "a.jpg").stat().st_size)
        worse = len(sizes) > 2
        figures = {"registered": 9 - worse, "points": 90 if worse else 110, "in_tracks": 0.5 - 0.1 * worse}
        same = {"track_length": 3.0, "reprojection_error": 0.5}
        return {**figures, **same, "attempts": 1 + worse, "implausible": ["few points"] * worse}

    monkeypatch.setattr(stability, "reconstruct_copy", reconstruct_copy)
    words = [
        "stability",
        tmp_path / "church",
        "--descriptors",
        "rootsift",
        "--ratios",
        "none",
        0.9,
        "--qualities",
        95,
        50,
    ]
    models = results(tmp_path, *words)["models"]
    assert sizes[0] == sizes[1] > sizes[2] == sizes[3]
    assert [(one["quality"], one["ratio"]) for one in models] == [(95, None), (95, 0.9), (50, None), (50, 0.9)]
    assert stability.table(models) == [
        ["church", "rootsift", ratio, "8", "100", "20.0 %", "3.00", "0.500", "40 %", "1", "1"]
        for ratio in ("none", "0.9")
    ]

"""`python -m bench collection`: what it counts. The models are COLMAP's."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench import collection
from bench.__main__ import COMMANDS
from sdgmnet.cli import main
from tests.features.samples import noise_image, write_image

pytest.importorskip("pycolmap", reason="pycolmap is not installed: pip install 'sdgmnet[sfm]'")


def model(points: int, *photos: str) -> dict[str, Any]:
    return {"registered": len(photos), "points": points, "photos": list(photos)}


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
    words = ["collection", str(tmp_path / "photos"), "-o", str(tmp_path / "out")]
    assert main(words, COMMANDS, "python -m bench") == 0
    results = json.loads((tmp_path / "out/results.json").read_text())
    assert results["mixed_models"] == [["a", "b"]]
    assert [(one["compared"], one["of_pairs"], one["seconds"]) for one in results["costs"]] == [(5, 3, 13), (15, 9, 19)]
    assert collection.table(results["scenes"]) == [
        ["a", "3", "1", "1", "4", "3", "90", "100", "0.900"],
        ["b", "3", "2", "0", "4", "0", "90", "0", "nan"],
    ]


def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place in (tmp_path / "none", tmp_path):
        assert main(["collection", str(place)], COMMANDS, "python -m bench") == 2
        assert str(place) in capsys.readouterr().err

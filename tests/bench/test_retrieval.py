"""`python -m bench retrieval`."""

import json
from pathlib import Path

import pytest

from bench.__main__ import COMMANDS
from sdgmnet.cli import main
from tests.features.samples import noise_image, write_image


def test_recall_of_two_scenes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("faiss")
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
    for word in (["--neighbours", "0"], ["--size", "1"]):
        assert main(["retrieval", str(tmp_path), *word], COMMANDS, "python -m bench") == 2

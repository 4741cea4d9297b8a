"""`python -m bench reconstruct`, on rendered photos."""

import json
from pathlib import Path

import pytest

from bench.__main__ import COMMANDS
from sdgmnet.cli import main
from tests.sfm.planes import write_photos

pytest.importorskip("pycolmap", reason="pycolmap is not installed: pip install 'sdgmnet[sfm]'")


def test_a_row_per_descriptor_and_one_of_colmap(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_photos(tmp_path / "photos", 4)
    words = ["reconstruct", tmp_path / "photos", "-o", tmp_path / "out", "--descriptors", "rootsift", "--repeats", 1]
    words += ["--keypoints", 700, "--threads", 1]
    assert main([*map(str, words)], COMMANDS, "python -m bench") == 0
    models = json.loads((tmp_path / "out/results.json").read_text())["models"]
    assert list(models) == ["colmap", "rootsift"]
    assert all(one["registered"] == 4 and one["seconds"] > 0 for runs in models.values() for one in runs)
    assert "1.00 x" in capsys.readouterr().out


def test_bad_input(tmp_path: Path) -> None:
    for place in (tmp_path / "none", tmp_path):
        assert main(["reconstruct", str(place)], COMMANDS, "python -m bench") == 2

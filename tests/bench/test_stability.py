"""`python -m bench stability`: its copies and its table. What it measures is COLMAP's."""

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from bench import stability
from bench.__main__ import COMMANDS
from sdgmnet.cli import main

pytest.importorskip("pycolmap", reason="pycolmap is not installed: pip install 'sdgmnet[sfm]'")


def test_a_row_per_descriptor_and_ratio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "church").mkdir()
    noise = np.random.default_rng(0).integers(0, 256, (32, 40, 3), dtype=np.uint8)
    cv2.imwrite(str(tmp_path / "church/a.png"), noise)
    sizes: list[int] = []

    def reconstruct_copy(copy: stability.Copy, *_: Any) -> dict[str, Any]:
        sizes.append((copy.photos / "a.jpg").stat().st_size)
        worse = len(sizes) > 2
        figures = {
            "registered": 9 - worse,
            "points": 90 if worse else 110,
            "track_length": 3.0,
            "in_tracks": 0.5 - 0.1 * worse,
        }
        return {**figures, "reprojection_error": 0.5, "attempts": 1 + worse, "implausible": ["few points"] * worse}

    monkeypatch.setattr(stability, "reconstruct_copy", reconstruct_copy)
    words = [
        "stability",
        str(tmp_path / "church"),
        "--descriptors",
        "rootsift",
        "--ratios",
        "none",
        "0.9",
        "--qualities",
        "95",
        "50",
    ]
    assert main([*words, "-o", str(tmp_path / "out")], COMMANDS, "python -m bench") == 0
    assert sizes[0] == sizes[1] > sizes[2] == sizes[3]
    models = json.loads((tmp_path / "out/results.json").read_text())["models"]
    assert [(one["quality"], one["ratio"]) for one in models] == [(95, None), (95, 0.9), (50, None), (50, 0.9)]
    assert stability.table(models) == [
        ["church", "rootsift", ratio, "8", "100", "20.0 %", "3.00", "0.500", "40 %", "1", "1"]
        for ratio in ("none", "0.9")
    ]


def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, shown in (
        ([str(tmp_path)], str(tmp_path)),
        ([str(tmp_path), "--ratios", "1.5"], "--ratios"),
        ([str(tmp_path), "--ratios", "all"], "--ratios"),
    ):
        assert main(["stability", *words], COMMANDS, "python -m bench") == 2
        assert shown in capsys.readouterr().err

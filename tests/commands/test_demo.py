"""The first part of the demo; training has its own tests."""

from pathlib import Path

import cv2
import pytest

from sdgmnet.commands.demo import match_motorcycle


def test_the_motorcycle_is_matched_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    section = match_motorcycle(tmp_path / "demo")
    assert [row[0] for row in section.rows] == ["SIFT", "RootSIFT", "SDGMNet"]  # for table.md
    assert section.header[-1] == "correct (%)" and 50 < float(section.rows[-1][-1]) < 100
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    correct = {row[1]: int(row[5]) for row in rows if len(row) > 6 and row[1].endswith(("SIFT", "Net"))}
    assert correct["SDGMNet"] > correct["RootSIFT"] > correct["SIFT"] > 500
    for name in ("matches.png", "matches_sift.png"):
        assert cv2.imread(str(tmp_path / "demo" / name)).shape[1] > 1000

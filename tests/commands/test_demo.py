"""The demo: its pairs, and the page before and after training, which has its own tests."""

from pathlib import Path

import cv2
import pytest

from sdgmnet.benchmarks.demo_pairs import compare_warped
from sdgmnet.commands import demo
from sdgmnet.commands.demo import match_hard_pair, match_motorcycle
from sdgmnet.data.synthetic.demo import read_hard_pair
from sdgmnet.descriptors import load_descriptor


def test_the_motorcycle_is_matched_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    section = match_motorcycle(tmp_path / "demo")
    assert [row[0] for row in section.rows] == ["SIFT", "RootSIFT", "SDGMNet"]  # for table.md
    assert section.header[-1] == "correct (%)" and 50 < float(section.rows[-1][-1]) < 100
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    correct = {row[1]: int(row[5]) for row in rows if len(row) > 6 and row[1].endswith(("SIFT", "Net"))}
    assert correct["SDGMNet"] > correct["RootSIFT"] > correct["SIFT"] > 500
    for name in ("matches.png", "matches_sift.png"):
        assert cv2.imread(str(tmp_path / "demo" / name)).shape[1] > 1000


def test_sift_cannot_match_the_hard_pair_and_the_shipped_weights_can(tmp_path: Path) -> None:
    section = match_hard_pair(tmp_path / "demo")
    found = {row[0]: row for row in section.rows}
    assert found["SIFT"][-1] == found["RootSIFT"][-1] == "no" and found["SDGMNet"][-1] == "yes"
    assert int(found["SDGMNet"][3]) > 60 > 15 > int(found["RootSIFT"][2])
    assert section.image is not None and section.image.stat().st_size < 250_000
    assert cv2.imread(str(section.image)).shape[1] == 1200


@pytest.mark.parametrize("ratio", [0.8, None])
def test_sift_fails_with_other_ratio_tests_too(ratio: float | None) -> None:
    descriptors = [load_descriptor(text) for text in ("sift", "rootsift")]
    assert not any(one.is_matched for one in compare_warped(descriptors, read_hard_pair(), ratio))


def test_the_page_is_written_before_training_and_renewed_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = []
    monkeypatch.setattr(
        demo, "write_page", lambda path, title, sections: pages.append([one.heading for one in sections])
    )
    demo.main(demo.Arguments(out=tmp_path / "demo", iterations=4, batch_size=16))
    assert pages[0][2] == "Training" and pages[1][2].startswith("FPR@95") and len(pages) == 2
    assert (tmp_path / "demo/training.png").exists() and "SDGMNet, 4 iterations" in (
        tmp_path / "demo/table.md"
    ).read_text()

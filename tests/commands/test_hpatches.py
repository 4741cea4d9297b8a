"""`sdgmnet evaluate hpatches` from the command line."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from sdgmnet.cli import main
from sdgmnet.data.hpatches.files import TYPES


@pytest.fixture
def root(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    for name in ("i_books", "v_bees"):
        (tmp_path / "strips" / name).mkdir(parents=True)
        base = 255 * cv2.GaussianBlur(random.random((65, 65, 20)), (0, 0), 6).transpose(2, 0, 1)
        base = np.clip((base - 127) * 6 + 127, 0, 255)
        for kind in TYPES:
            noisy = np.clip(base + 20 * random.normal(size=base.shape), 0, 255).astype(np.uint8)
            cv2.imwrite(str(tmp_path / "strips" / name / f"{kind}.png"), noisy.reshape(-1, 65))
    return tmp_path / "strips"


def test_tables_json_and_picture(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    words = [
        "evaluate",
        "hpatches",
        r"$\foo$ [/x]=sift",
        "root=rootsift",
        "--root",
        str(root),
        "--pairs",
        "100",
        "-o",
        str(out),
    ]
    assert main(words) == 0
    printed = capsys.readouterr()
    assert "distractors in all" in printed.out  # the pool is always printed
    assert "split a, 2 of 40 sequences" in printed.out
    assert "data:image/png;base64" in (out / "index.html").read_text()
    assert "38 sequences of split a are not there" in printed.err
    results = json.loads((out / "results.json").read_text())
    assert [line["label"] for line in results["lines"]] == [r"$\foo$ [/x]", "root"]
    assert set(results["lines"][0]["map"]) == {"verification", "matching", "retrieval"}
    assert "Retrieval" in (out / "table.md").read_text()
    picture = cv2.imread(str(out / "fig4.png"))
    assert picture is not None
    assert picture.std() > 10


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["sift", "--root", "gone"], "gone is not a folder"),
        (["sift", "--root", "ROOT", "--tasks", "gone"], "gone is not a folder"),
        (["sift", "sift", "--root", "ROOT"], "two descriptors are called 'sift'"),
        (["--root", "ROOT"], "at least one descriptor"),
        (["sift", "--root", "ROOT", "--pairs", "1"], "--pairs must be at least 5"),
        (["sift", "--root", "ROOT", "--split", "b"], "holds no sequence of split b"),
    ],
)
def test_bad_input_is_one_sentence(
    root: Path, words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if "b" in words:
        (root / "v_bees").rename(root / "own")
        (root / "i_books").rename(root / "mine")
    assert main(["evaluate", "hpatches", *(str(root) if word == "ROOT" else word for word in words)]) == 2
    printed = capsys.readouterr().err
    assert sentence in printed
    assert "Traceback" not in printed

"""`python -m bench growth`."""

import json
from pathlib import Path

import pytest

from bench import growth
from bench.__main__ import COMMANDS
from sdgmnet.cli import main
from sdgmnet.features.images import read_gray
from tests.features.samples import noise_image, write_image


def test_a_collection_is_made_and_matched(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    for number in range(2):
        write_image(tmp_path / "photos" / f"{number}.png", noise_image(260, 200, number))
    words = ["growth", tmp_path / "photos", "-o", tmp_path / "out", "--counts", 5, "--descriptor", "rootsift"]
    assert main([*map(str, words), "--size", "200"], COMMANDS, "python -m bench") == 0
    (one,) = json.loads((tmp_path / "out/results.json").read_text())["results"]
    assert (one["photos"], one["pairs"], one["runs"], one["repeated"]) == (5, 10, 1, 0) and one["peak_bytes"] > 10**7
    made = sorted((tmp_path / "out/5/photos").iterdir())
    assert len(made) == 5 and all(max(read_gray(path).shape) <= 200 for path in made)
    assert len({path.read_bytes() for path in made}) == 5
    assert len(growth.groups(tmp_path / "out/5/matches.h5")) == 10


def test_what_a_run_says_it_took_from_the_files() -> None:
    printed = "f.h5: 3 images described (90 keypoints, 0.1 s), 4 in the file already.\nm.h5: 1 pair matched (5 matches, 2.0 s)."
    assert growth.kept_in(printed) == {"image": 4, "pair": 0}


def test_bad_input(tmp_path: Path) -> None:
    for words in ([str(tmp_path / "none")], [str(tmp_path)], [str(tmp_path), "--counts", "1"]):
        assert main(["growth", *words], COMMANDS, "python -m bench") == 2

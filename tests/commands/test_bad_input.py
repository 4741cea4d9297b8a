"""Wrong words on the command line: exit code 2, a message that names them, and nothing written."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from sdgmnet.cli import main
from tests.data.test_hpatches_files import write_strips
from tests.features.samples import noise_image, write_image

# In a folder with [ab].png, text.jpg, photos/[ab].png, sequence/{1.png, 2.png, H_1_2}, sets/wall/a.png and strips/own/*.png
CASES = [
    ("describe nowhere -o f.h5", "nowhere does not exist"),
    ("describe a.png photos/a.png -o f.h5", "both named a.png"),
    ("describe a.png --keypoints 0 -o f.h5", "--keypoints"),
    ("describe a.png --size 3 -o f.h5", "size"),
    ("describe -o f.h5", "give images"),
    ("match a.png", "not 1 file."),
    ("match a.png a.png a.png photos", "not 3 files and 1 folder."),
    ("match a.png none.png", "none.png does not exist"),
    ("match a.png text.jpg", "text.jpg"),
    ("match a.png b.png --tolerance 2", "--tolerance needs --verify"),
    ("match a.png b.png -o m.txt", ".png"),
    ("match a.png b.png --ratio 2", "ratio"),
    ("match a.png b.png --tolerance 0 --verify homography", "--tolerance must be"),
    ("match a.png b.png --size 0", "size"),
    ("match a.png b.png --pairs p.txt", "--pairs"),
    ("match photos -o m.h5 --json", "--json"),
    ("match photos -o m.png", "-o matches.h5"),
    ("match photos -o m.h5 --features m.h5", "m.h5 cannot hold both"),
    ("match photos -o m.h5 --pairs retrival", "give exhaustive, sequential, retrieval"),
    ("match photos -o m.h5 --upright --auto-upright", "exclude each other"),
    ("data views photos -o out --views 1", "--views must be at least 2"),
    ("data hpatches sequence -o out --patches 0", "--patches"),
    ("data hpatches sequence -o out --patches 99999", "--patches"),
    ("data hpatches sequence -o out --seed -1", "--seed"),
    ("data hpatches sequence -o out", "sequence"),  # not six images
    ("data hpatches sequence -o out --only five", "five"),
    ("data hpatches sequence -o out --force five", "five"),
    ("evaluate hpatches sift --root gone", "gone"),
    ("evaluate hpatches sift --root strips --split all --tasks gone", "gone"),
    ("evaluate hpatches sift sift --root strips --split all", "'sift'"),
    ("evaluate hpatches --root strips", "at least one descriptor"),
    ("evaluate hpatches sift --root strips --split all --pairs 1", "pairs must be at least 5"),
    ("evaluate hpatches sift --root strips --split b", "split b"),
    ("evaluate matching --root sequence", "descriptor"),
    ("evaluate matching sift --root sequence --near -1", "--near"),
    ("evaluate matching sift --root sequence --sequences seqence", "did you mean sequence?"),
    ("evaluate reconstruction --root photos -o out", "descriptor"),
    ("evaluate reconstruction sift sift --root photos -o out", "sift"),
    ("evaluate reconstruction a/b=sift --root photos -o out", "a/b"),
    ("evaluate reconstruction sift --sets castle --root photos -o out", "castle"),
    ("evaluate reconstruction sift --ratio 0 --root photos -o out", "--ratio"),
    ("evaluate reconstruction sift --keypoints 0 --root photos -o out", "--keypoints"),
    ("evaluate reconstruction hog --root photos -o out", "hog"),
    ("evaluate reconstruction sift --root sets -o sets", "sets"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("place")
    for name in (
        "a.png",
        "b.png",
        "photos/a.png",
        "photos/b.png",
        "sequence/1.png",
        "sequence/2.png",
        "sets/wall/a.png",
    ):
        write_image(place / name, noise_image(60, 50))
    (place / "sequence/H_1_2").write_text("1 0 0\n0 1 0\n0 0 1\n")
    write_strips(place / "strips/own")
    (place / "text.jpg").write_text("text")
    return place


@pytest.mark.parametrize(("words", "said"), CASES)
def test_wrong_words_are_named_and_nothing_is_written(
    words: str, said: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if "reconstruction" in words and find_spec("pycolmap") is None:
        pytest.skip("pycolmap is not installed: pip install 'sdgmnet[sfm]'")
    monkeypatch.chdir(place)
    before = sorted(place.rglob("*"))
    assert main(words.split()) == 2
    shown = capsys.readouterr().err
    assert said in shown and "Traceback" not in shown
    assert sorted(place.rglob("*")) == before

from pathlib import Path

import numpy as np
import pytest

from sdgmnet.errors import InputError
from tests.data.samples import read_sequences

NO_INVERSE = "1 0 0\n1 0 0\n0 0 1\n"


def write(folder: Path, images: int, suffix: str = ".png", homography: str = "1 0 5\n0 1 0\n0 0 1\n") -> None:
    folder.mkdir(parents=True)
    for number in range(1, images + 1):
        (folder / f"{number}{suffix}").write_bytes(b"image")
        if number > 1:
            (folder / f"H_1_{number}").write_text(homography)


def test_reads_all_below_a_root(tmp_path: Path) -> None:
    write(tmp_path / "v_b", 3)
    write(tmp_path / "i_a", 2, ".ppm")
    (tmp_path / "notes").mkdir()
    first, second = read_sequences(tmp_path)
    assert (first.name, second.name) == ("i_a", "v_b")
    assert [path.name for path in second.others] == ["2.png", "3.png"]
    assert [one.name for one in read_sequences(tmp_path / "v_b")] == ["v_b"]  # one sequence is a root too
    np.testing.assert_array_equal(first.homographies[0], [[1, 0, 5], [0, 1, 0], [0, 0, 1]])


@pytest.mark.parametrize(
    "homography",
    ["1 0\n0 1\n", "1 0 0\n0 1 0\n0 0\n", "1 0 0\n0 1 0\n0 0 one\n", "", "a b c", NO_INVERSE, "nan 0 0\n0 1 0\n0 0 1"],
)
def test_bad_homographies_are_named(tmp_path: Path, homography: str) -> None:
    write(tmp_path / "wall", 2, homography=homography)
    with pytest.raises(InputError, match="wall/H_1_2"):
        read_sequences(tmp_path)


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("H_1_2", "wall/H_1_2"),
        ("4.png", "H_1_4 but not image 4"),
        ("3.png", "image 4 but not image 3"),
        ("1.png", "image 4 but not image 1"),
    ],
)
def test_missing_files_are_named(tmp_path: Path, missing: str, message: str) -> None:
    for folder in (tmp_path / "none", tmp_path):
        with pytest.raises(InputError, match=str(folder)):
            read_sequences(folder)
    write(tmp_path / "single", 1)
    with pytest.raises(InputError, match="single/2.png"):
        read_sequences(tmp_path / "single")
    write(tmp_path / "wall", 4)
    (tmp_path / "wall" / missing).unlink()
    with pytest.raises(InputError, match=message):
        read_sequences(tmp_path / "wall")

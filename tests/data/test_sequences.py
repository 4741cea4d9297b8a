from pathlib import Path

import numpy as np
import pytest

from sdgmnet.data.sequences import read_sequences
from sdgmnet.errors import InputError


def write(folder: Path, pictures: int, suffix: str = ".png", homography: str = "1 0 5\n0 1 0\n0 0 1\n") -> None:
    folder.mkdir(parents=True)
    for number in range(1, pictures + 1):
        (folder / f"{number}{suffix}").write_bytes(b"picture")
        if number > 1:
            (folder / f"H_1_{number}").write_text(homography)


def test_reads_all_below_a_root(tmp_path: Path) -> None:
    write(tmp_path / "v_b", 3)
    write(tmp_path / "i_a", 2, ".ppm")
    (tmp_path / "notes").mkdir()
    first, second = read_sequences(tmp_path)
    assert (first.name, second.name) == ("i_a", "v_b")
    assert [path.name for path in second.others] == ["2.png", "3.png"]
    np.testing.assert_array_equal(first.homographies[0], [[1, 0, 5], [0, 1, 0], [0, 0, 1]])


def test_one_sequence_is_a_root_too(tmp_path: Path) -> None:
    write(tmp_path / "wall", 2)
    assert [one.name for one in read_sequences(tmp_path / "wall")] == ["wall"]


@pytest.mark.parametrize(
    ("homography", "message"),
    [
        ("1 0\n0 1\n", "holds 4 in 2"),
        ("1 0 0\n0 1 0\n0 0\n", "no homography: it needs three rows of three numbers, and holds 8 in 3"),
        ("1 0 0\n0 1 0\n0 0 one\n", "cannot be read as a homography .*'one'"),
        ("", "holds 0 in 0"),
        ("a b c", "cannot be read"),
        ("1 0 0\n1 0 0\n0 0 1\n", "an inverse"),
        ("nan 0 0\n0 1 0\n0 0 1", "no homography"),
    ],
)
def test_bad_homographies_are_said(tmp_path: Path, homography: str, message: str) -> None:
    write(tmp_path / "wall", 2, homography=homography)
    with pytest.raises(InputError, match=message):
        read_sequences(tmp_path)


def test_missing_parts_are_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a folder"):
        read_sequences(tmp_path / "none")
    with pytest.raises(InputError, match="holds no sequence"):
        read_sequences(tmp_path)
    write(tmp_path / "one", 1)
    with pytest.raises(InputError, match="one image only"):
        read_sequences(tmp_path)
    write(tmp_path / "two", 2)
    (tmp_path / "two" / "H_1_2").unlink()
    (tmp_path / "one" / "1.png").unlink()
    with pytest.raises(InputError, match="H_1_2 cannot be read"):
        read_sequences(tmp_path)


def test_a_missing_first_or_last_picture_is_said(tmp_path: Path) -> None:
    write(tmp_path / "wall", 4)
    (tmp_path / "wall" / "4.png").unlink()
    with pytest.raises(InputError, match="holds H_1_4 but not image 4"):
        read_sequences(tmp_path)
    (tmp_path / "wall" / "1.png").unlink()
    with pytest.raises(InputError, match="holds image 3 but not image 1"):
        read_sequences(tmp_path)


def test_gaps_are_said(tmp_path: Path) -> None:
    write(tmp_path / "wall", 4)
    (tmp_path / "wall" / "3.png").unlink()
    with pytest.raises(InputError, match="holds image 4 but not image 3"):
        read_sequences(tmp_path)

from pathlib import Path

import numpy as np
import pytest

from sdgmnet.errors import InputError
from sdgmnet.sfm.workspace import read_map, write_map


@pytest.mark.parametrize("shape", [(3, 5), (3, 5, 3)])
def test_maps_survive_the_disk(tmp_path: Path, shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    write_map(tmp_path / "sub" / "one.bin", values)
    again = read_map(tmp_path / "sub" / "one.bin")
    assert again.dtype == np.float32
    np.testing.assert_array_equal(again, values)


def test_bytes_are_those_of_colmap(tmp_path: Path) -> None:
    """x fastest, then y, then channel."""
    normals = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    write_map(tmp_path / "one.bin", normals)
    content = (tmp_path / "one.bin").read_bytes()
    assert content.startswith(b"2&2&3&")
    assert np.frombuffer(content[6:], "<f4").tolist() == [0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11]


def test_what_is_cut_off_is_said(tmp_path: Path) -> None:
    path = tmp_path / "one.bin"
    write_map(path, np.ones((4, 4), np.float32))
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(InputError, match="61 bytes of values instead of 64: it is cut off"):
        read_map(path)
    path.write_bytes(b"12&")
    with pytest.raises(InputError, match="not a COLMAP map"):
        read_map(path)
    with pytest.raises(InputError, match="does not exist"):
        read_map(tmp_path / "none.bin")

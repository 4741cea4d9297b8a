"""The ETH benchmark's files, byte by byte from its description."""

import struct
from pathlib import Path

import numpy as np
import pytest

from sdgmnet.errors import InputError
from sdgmnet.features import eth
from sdgmnet.features.keypoints import Keypoints


def test_keypoints_are_the_bytes_of_the_description(tmp_path: Path) -> None:
    rows = [(10.5, 20.25, 2.0, 0.5), (3.0, 4.0, 7.5, 5.0)]
    keypoints = Keypoints(np.array([row[:2] for row in rows]), *np.array([row[2:] for row in rows]).T, np.ones(2))
    eth.write_keypoints(tmp_path / "a.png.bin", keypoints)
    content = (tmp_path / "a.png.bin").read_bytes()
    assert content == struct.pack("<ii8f", 2, 4, *rows[0], *rows[1])
    for ours, read in zip(keypoints, eth.read_keypoints(tmp_path / "a.png.bin"), strict=True):
        np.testing.assert_array_equal(read, ours)


def test_descriptors_and_matches(tmp_path: Path) -> None:
    descriptors = np.arange(6, dtype=np.float32).reshape(2, 3) / 7
    eth.write_descriptors(tmp_path / "d.bin", descriptors)
    assert (tmp_path / "d.bin").read_bytes() == struct.pack("<ii6f", 2, 3, *descriptors.ravel())
    np.testing.assert_array_equal(eth.read_descriptors(tmp_path / "d.bin"), descriptors)
    eth.write_matches(tmp_path, "a.png", "b.png", np.array([[0, 5], [7, 1]]))
    assert (tmp_path / "a.png---b.png.bin").read_bytes() == struct.pack("<ii4I", 2, 2, 0, 5, 7, 1)
    assert eth.read_matches(tmp_path, "a.png", "b.png").tolist() == [[0, 5], [7, 1]]  # type: ignore[union-attr]
    assert eth.read_matches(tmp_path, "b.png", "a.png").tolist() == [[5, 0], [1, 7]]  # type: ignore[union-attr]
    assert eth.read_matches(tmp_path, "a.png", "c.png") is None


def test_empty_tables(tmp_path: Path) -> None:
    eth.write_matches(tmp_path, "a", "b", np.empty((0, 2), int))
    assert (tmp_path / "a---b.bin").read_bytes() == struct.pack("<ii", 0, 2)
    assert eth.read_matches(tmp_path, "a", "b").shape == (0, 2)  # type: ignore[union-attr]
    (tmp_path / "k.bin").write_bytes(struct.pack("<ii", 0, 0))
    assert eth.read_keypoints(tmp_path / "k.bin").xy.shape == (0, 2)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "0 bytes"),
        (struct.pack("<ii", 2, 4), "2 x 4"),
        (struct.pack("<ii5f", 1, 4, 1, 1, 1, 1, 1), "1 x 4"),
        (struct.pack("<ii", -1, 4), "-1 x 4"),
        (struct.pack("<ii2f", 1, 2, 1, 1), "2 columns instead of 4"),
        (struct.pack("<ii4f", 1, 4, 1, float("nan"), 1, 1), "not finite"),
        (struct.pack("<ii4f", 1, 4, 1, 1, 0, 1), "scale"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "k.bin").write_bytes(content)
    with pytest.raises(InputError, match=said):
        eth.read_keypoints(tmp_path / "k.bin")

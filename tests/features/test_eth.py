"""The ETH benchmark's files, byte by byte from its description."""

import struct
from pathlib import Path

import numpy as np
import pytest

from sdgmnet.errors import InputError
from sdgmnet.features import eth
from tests.features.samples import keypoints_at


def test_files_are_the_bytes_of_the_description(tmp_path: Path) -> None:
    keypoints = keypoints_at([[10.5, 20.25], [3, 4]], [2.0, 7.5], [0.5, 5.0])
    eth.write_keypoints(tmp_path / "k.bin", keypoints)
    assert (tmp_path / "k.bin").read_bytes() == struct.pack("<ii8f", 2, 4, 10.5, 20.25, 2.0, 0.5, 3, 4, 7.5, 5)
    for ours, read in zip(keypoints, eth.read_keypoints(tmp_path / "k.bin"), strict=True):
        np.testing.assert_array_equal(read, ours)
    descriptors = np.arange(6, dtype=np.float32).reshape(2, 3) / 7
    eth.write_descriptors(tmp_path / "d.bin", descriptors)
    assert (tmp_path / "d.bin").read_bytes() == struct.pack("<ii6f", 2, 3, *descriptors.ravel())
    np.testing.assert_array_equal(eth.read_descriptors(tmp_path / "d.bin"), descriptors)
    eth.write_matches(tmp_path, "a.png", "b.png", np.array([[0, 5], [7, 1]]))
    assert (tmp_path / "a.png---b.png.bin").read_bytes() == struct.pack("<ii4I", 2, 2, 0, 5, 7, 1)
    np.testing.assert_array_equal(eth.read_matches(tmp_path, "a.png", "b.png"), [[0, 5], [7, 1]])
    np.testing.assert_array_equal(eth.read_matches(tmp_path, "b.png", "a.png"), [[5, 0], [1, 7]])
    assert eth.read_matches(tmp_path, "a.png", "c.png") is None


def test_empty_tables(tmp_path: Path) -> None:
    eth.write_matches(tmp_path, "a", "b", np.empty((0, 2), int))
    assert (tmp_path / "a---b.bin").read_bytes() == struct.pack("<ii", 0, 2)
    assert np.shape(eth.read_matches(tmp_path, "a", "b")) == (0, 2)
    (tmp_path / "k.bin").write_bytes(struct.pack("<ii", 0, 0))
    assert eth.read_keypoints(tmp_path / "k.bin").xy.shape == (0, 2)


@pytest.mark.parametrize(
    "content",
    [(), (2, 4), (1, 4, 1, 1, 1, 1, 1), (-1, 4), (1, 2, 1, 1), (1, 4, 1, float("nan"), 1, 1), (1, 4, 1, 1, 0, 1)],
    ids=["empty", "short", "long", "negative", "columns", "nan", "scale"],
)
def test_damaged_files_are_named(tmp_path: Path, content: tuple[float, ...]) -> None:
    (tmp_path / "k.bin").write_bytes(struct.pack(f"<{'ii' * bool(content)}{'f' * len(content[2:])}", *content))
    with pytest.raises(InputError, match="k.bin"):
        eth.read_keypoints(tmp_path / "k.bin")

"""HPatches' strips, descriptor files and splits."""

import os
from pathlib import Path

import cv2
import numpy as np
import pytest

from sdgmnet.data.hpatches.files import (
    TYPES,
    choose_sequences,
    digest_of_sequence,
    kind_of,
    read_descriptors,
    read_patches,
    read_strip,
    write_descriptors,
)
from sdgmnet.data.hpatches.splits import SPLITS
from sdgmnet.errors import InputError
from sdgmnet.storage import read_json


def write_strips(folder: Path, count: int = 3, seed: int = 0) -> np.ndarray:
    folder.mkdir(parents=True)
    patches = np.random.default_rng(seed).integers(256, size=(16, count, 65, 65), dtype=np.uint8)
    for name, strip in zip(TYPES, patches, strict=True):
        cv2.imwrite(str(folder / f"{name}.png"), strip.reshape(-1, 65))
    return patches


def test_patches_are_those_of_the_strips(tmp_path: Path) -> None:
    """Patch k is the rows from 65 k; the digest is of all sixteen files."""
    assert " ".join(TYPES) == "ref e1 e2 e3 e4 e5 h1 h2 h3 h4 h5 t1 t2 t3 t4 t5"
    patches = write_strips(tmp_path / "v_one")
    assert np.array_equal(read_patches(tmp_path / "v_one"), patches)
    write_strips(tmp_path / "same")
    write_strips(tmp_path / "other", seed=1)
    one, same, other = (digest_of_sequence(tmp_path / name, ".png") for name in ("v_one", "same", "other"))
    assert one == same != other


@pytest.mark.parametrize(("height", "width"), [(130, 64), (130, 66), (129, 65), (1, 65)])
def test_a_strip_of_the_wrong_size_is_named(tmp_path: Path, height: int, width: int) -> None:
    write_strips(tmp_path / "v_one")
    cv2.imwrite(str(tmp_path / "v_one" / "h3.png"), np.zeros((height, width), dtype=np.uint8))
    with pytest.raises(InputError, match=rf"h3.png.* {width} x {height}"):
        read_patches(tmp_path / "v_one")


def test_a_missing_empty_or_shorter_strip_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "v_one"
    write_strips(folder)
    cv2.imwrite(str(folder / "t5.png"), np.zeros((65, 65), dtype=np.uint8))
    with pytest.raises(InputError, match="t5.png.*ref.png"):
        read_patches(folder)
    (folder / "t5.png").write_bytes(b"")
    with pytest.raises(InputError, match="t5.png"):
        read_patches(folder)
    (folder / "t5.png").unlink()
    for read in (read_patches, lambda path: digest_of_sequence(path, ".png")):
        with pytest.raises(InputError, match="t5.png"):
            read(folder)


def test_descriptors_come_back_bit_for_bit(tmp_path: Path) -> None:
    descriptors = np.random.default_rng(0).normal(size=(16, 4, 5)).astype(np.float32)
    descriptors[0, 0, 0] = 1e-30
    write_descriptors(tmp_path / "mine", [("v_one", descriptors), ("i_two", descriptors[:, :1])])
    assert np.array_equal(read_descriptors(tmp_path / "mine" / "v_one"), descriptors)
    assert np.array_equal(read_descriptors(tmp_path / "mine" / "i_two"), descriptors[:, :1])
    (tmp_path / "mine" / "i_two" / "h2.csv").write_text("1.5;2;-3e-1;4;5\n")  # the other delimiter
    expected = np.array([[1.5, 2, -0.3, 4, 5]], dtype=np.float32)
    assert np.array_equal(read_descriptors(tmp_path / "mine" / "i_two")[TYPES.index("h2")], expected)


@pytest.mark.parametrize(
    "content", ["1,2,3\n", "1,2\n3,4\n", "1,2,3\n4,5\n", "a,b,c\n1,2,3\n", "1,2,nan\n1,2,3\n", "", "\xff\xfe"]
)
def test_bad_descriptor_files_are_named(tmp_path: Path, content: str) -> None:
    write_descriptors(tmp_path / "mine", [("one", np.ones((16, 2, 3), dtype=np.float32))])
    (tmp_path / "mine" / "one" / "h2.csv").write_bytes(content.encode("latin-1"))
    with pytest.raises(InputError, match="h2.csv"):
        read_descriptors(tmp_path / "mine" / "one")


def test_the_official_splits() -> None:
    counts = {"a": 40, "b": 40, "c": 40, "full": 116, "illum": 57, "view": 59}
    assert {name: len(names) for name, names in SPLITS.items()} == counts
    for name in "abc":
        assert sum(kind_of(one) == "illum" for one in SPLITS[name]) == 20
        assert set(SPLITS[name]) < set(SPLITS["full"])
    assert all(len(set(names)) == len(names) for names in SPLITS.values())


@pytest.mark.skipif("SDGMNET_DATA" not in os.environ, reason="SDGMNET_DATA names no folder with the official files")
def test_the_official_splits_and_a_real_strip() -> None:
    folder = Path(os.environ["SDGMNET_DATA"]) / "hpatches_tasks"
    assert {name: split["test"] for name, split in read_json(folder / "splits.json").items()} == SPLITS
    patches = read_strip(folder / "ref_strip_example.png")
    assert patches.shape == (1123, 65, 65) and patches.std() > 10


def test_what_is_there_of_a_split(tmp_path: Path) -> None:
    for name in ("v_bees", "i_books", "own", "v_dogman"):
        write_strips(tmp_path / name, 1)
    (tmp_path / "empty").mkdir()
    choice, missing = choose_sequences(tmp_path, "a")
    assert choice.names == ("i_books", "v_bees")
    assert choice.label == "split a, 2 of 40 sequences"
    assert len(missing) == 38
    everything, none = choose_sequences(tmp_path, "all")
    assert everything.names == ("i_books", "own", "v_bees", "v_dogman")
    assert not none
    assert [kind_of(name) for name in everything.names] == ["illum", "unlabelled", "view", "view"]


def test_folders_that_cannot_be_evaluated(tmp_path: Path) -> None:
    write_strips(tmp_path / "some" / "own", 1)
    (tmp_path / "none").mkdir()
    for name, split, message in (
        ("gone", "a", "gone"),
        ("none", "a", "none"),
        ("some", "a", "split a"),
        ("some", "d", "--split"),
    ):
        with pytest.raises(InputError, match=message):
            choose_sequences(tmp_path / name, split)

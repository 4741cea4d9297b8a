"""The HPatches benchmark as a whole: what is missing, what is broken, what is kept."""

import errno
from pathlib import Path

import cv2
import numpy as np
import pytest

from sdgmnet.benchmarks.hpatches import Row, compare, gap, headline, mean_of, run
from sdgmnet.data.hpatches.files import TYPES, write_descriptors
from sdgmnet.descriptors import Descriptor, load_descriptor
from sdgmnet.errors import InputError

NAMES = ("i_books", "v_bees", "v_dogman")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three small sequences; noise grows from easy to tough."""
    random = np.random.default_rng(0)
    for number, name in enumerate(NAMES):
        (tmp_path / "strips" / name).mkdir(parents=True)
        base = 255 * cv2.GaussianBlur(random.random((65, 65, 40 - number)), (0, 0), 6).transpose(2, 0, 1)
        base = np.clip((base - 127) * 6 + 127, 0, 255)
        for kind in TYPES:
            level = {"r": 0, "e": 5, "h": 150, "t": 600}[kind[0]]
            noisy = np.clip(base + level * random.normal(size=base.shape), 0, 255).astype(np.uint8)
            cv2.imwrite(str(tmp_path / "strips" / name / f"{kind}.png"), noisy.reshape(-1, 65))
    return tmp_path / "strips"


def pixels(patches: np.ndarray) -> np.ndarray:
    """A plain descriptor: what the patch looks like from afar."""
    small = np.array([cv2.resize(patch, (6, 6), interpolation=cv2.INTER_AREA) for patch in patches], dtype=np.float32)
    return small.reshape(len(patches), -1)


def test_all_rows_of_a_describing_function(root: Path) -> None:
    rows = run(pixels, root, split="full", pairs=200)
    assert all(0 <= row.value <= 1 for row in rows)
    assert len([row for row in rows if row.task == "verification"]) == 3 * 2 * 2
    assert {row.subset for row in rows if row.task == "matching"} == {"illum", "view", "all"}
    assert {row.subset for row in rows if row.task == "retrieval"} >= {"100", "20000"}
    assert headline(rows, "matching", "easy") > headline(rows, "matching", "tough")
    assert gap(rows, "matching") == headline(rows, "matching", "easy") - headline(rows, "matching", "tough")
    assert run(pixels, root, split="full", pairs=200) == rows


def test_the_means_are_the_stated_ones() -> None:
    rows = [
        *(Row("verification", "easy", subset, "ap", value) for subset, value in (("inter", 0.2), ("intra", 0.4))),
        Row("verification", "easy", "inter", "auc", 0.9),
        Row("matching", "easy", "illum", "ap", 0.5),
        Row("matching", "easy", "all", "ap", 0.7),
        *(Row("retrieval", "easy", pool, "ap", value) for pool, value in (("100", 0.9), ("20000", 0.3))),
    ]
    assert headline(rows, "verification") == pytest.approx(0.3)
    assert headline(rows, "matching") == pytest.approx(0.7)
    assert headline(rows, "retrieval") == pytest.approx(0.3)
    assert mean_of(rows, "retrieval") == pytest.approx(0.6)
    assert mean_of(rows, "retrieval", noise="tough") is None


def test_a_partial_set_says_so(root: Path) -> None:
    report = compare([Descriptor("pixels", pixels, ())], [""], root, split="a", pairs=50)
    assert report.choice.label == "split a, 2 of 40 sequences"
    assert len(report.missing) == 38
    assert not report.complaints


def broken(root: Path, how: str) -> str:
    if how == "missing":
        (root / "v_bees" / "h2.png").unlink()
        return "h2.png does not exist"
    if how == "width":
        cv2.imwrite(str(root / "v_bees" / "h2.png"), np.zeros((65, 64), dtype=np.uint8))
        return "h2.png is 64 x 65"
    (root / "v_bees" / "h2.png").write_bytes(b"no image")
    return "h2.png is not a supported image"


@pytest.mark.parametrize("how", ["missing", "width", "bytes"])
def test_a_broken_sequence_is_named_and_the_others_stay(root: Path, how: str) -> None:
    expected = compare([Descriptor("pixels", pixels, ())], [""], exclude(root, "v_bees"), split="all", pairs=50).lines
    sentence = broken(root, how)
    report = compare([Descriptor("pixels", pixels, ())], [""], root, split="all", pairs=50)
    assert report.choice.names == ("i_books", "v_dogman")
    assert len(report.complaints) == 1
    assert sentence in report.complaints[0]
    assert report.lines == expected


def exclude(root: Path, name: str) -> Path:
    other = root.with_name("without")
    other.mkdir()
    for folder in root.iterdir():
        if folder.name != name:
            (other / folder.name).symlink_to(folder)
    return other


def test_nothing_usable_is_said(root: Path) -> None:
    for name in NAMES:
        (root / name / "e1.png").unlink()
    with pytest.raises(InputError, match=r"no sequence of .* can be used: .*e1.png does not exist"):
        run(pixels, root, split="all", pairs=50)


def test_descriptor_files_give_the_same_numbers(root: Path, tmp_path: Path) -> None:
    contender = Descriptor("pixels", pixels, ())
    first = compare([contender], [""], root, split="all", pairs=300, csv=tmp_path / "csv")
    read = load_descriptor(str(tmp_path / "csv" / "pixels"))
    assert read.csv_folder == tmp_path / "csv" / "pixels"
    second = compare([contender, read], ["", "files"], root, split="all", pairs=300)
    assert second.lines[0][1] == second.lines[1][1] == first.lines[0][1]
    with pytest.raises(InputError, match="evaluate hpatches only"):
        read.describe(np.zeros((1, 64, 64), dtype=np.uint8))


def test_descriptor_files_of_other_strips_are_refused(root: Path, tmp_path: Path) -> None:
    sizes = {"i_books": 40, "v_bees": 38, "v_dogman": 38}
    made = ((name, np.ones((16, count, 4), dtype=np.float32)) for name, count in sizes.items())
    write_descriptors(tmp_path / "csv", made)
    read = load_descriptor(f"theirs={tmp_path / 'csv'}")
    report = compare([Descriptor("pixels", pixels, ()), read], ["", "x"], root, split="all", pairs=50)
    assert report.choice.names == ("i_books", "v_dogman")
    assert "v_bees" in report.complaints[0]
    assert "38 rows, but the strips 39 patches" in report.complaints[0]


def test_descriptors_and_tasks_are_kept(root: Path, tmp_path: Path) -> None:
    asked = []

    def describe(patches: np.ndarray) -> np.ndarray:
        asked.append(len(patches))
        return pixels(patches)

    first = compare([Descriptor("mine", describe, ())], ["mine 1"], root, split="all", cache=tmp_path / "c", pairs=50)
    count = len(asked)
    assert count
    again = compare([Descriptor("other", describe, ())], ["mine 1"], root, split="all", cache=tmp_path / "c", pairs=50)
    assert len(asked) == count
    assert again.lines[0][1] == first.lines[0][1]
    compare([Descriptor("mine", describe, ())], ["mine 2"], root, split="all", cache=tmp_path / "c", pairs=50)
    assert len(asked) == 2 * count
    kept = next((tmp_path / "c").rglob("v_bees-*.npy"))
    assert np.load(kept).dtype == np.float32
    # Other strips under the same name are described anew.
    cv2.imwrite(str(root / "v_bees" / "h2.png"), np.full((65 * 39, 65), 7, dtype=np.uint8))
    compare([Descriptor("mine", describe, ())], ["mine 1"], root, split="all", cache=tmp_path / "c", pairs=50)
    assert len(asked) == 2 * count + count // 3


def test_descriptors_that_are_no_numbers(root: Path) -> None:
    def describe(patches: np.ndarray) -> np.ndarray:
        return np.full((len(patches), 4), np.nan)

    with pytest.raises(InputError, match="gives NaN"):
        run(describe, root, split="all", pairs=50)
    with pytest.raises(InputError, match="one row each"):
        run(lambda patches: np.ones((1, 4)), root, split="all", pairs=50)


def test_descriptors_of_other_lengths_leave_their_sequence_out(root: Path, tmp_path: Path) -> None:
    sizes = {"i_books": (40, 4), "v_bees": (39, 1), "v_dogman": (38, 4)}
    random = np.random.default_rng(0)
    made = ((name, random.random((16, *size)).astype(np.float32)) for name, size in sizes.items())
    write_descriptors(tmp_path / "csv", made)
    report = compare([load_descriptor(f"theirs={tmp_path / 'csv'}")], ["x"], root, split="all", pairs=50)
    assert report.choice.names == ("i_books", "v_dogman")
    assert "have 1 numbers in v_bees, but 4 in others" in report.complaints[0]


def test_a_sequence_of_one_patch_is_left_out(root: Path) -> None:
    for kind in TYPES:
        cv2.imwrite(str(root / "v_bees" / f"{kind}.png"), np.full((65, 65), 100, dtype=np.uint8))
    report = compare([Descriptor("pixels", pixels, ())], [""], root, split="all", pairs=50)
    assert report.choice.names == ("i_books", "v_dogman")
    assert "holds one patch only" in report.complaints[0]


def test_a_sequence_without_its_reference_is_named(root: Path) -> None:
    (root / "v_bees" / "ref.png").unlink()
    report = compare([Descriptor("pixels", pixels, ())], [""], root, split="all", pairs=50)
    assert report.choice.label == "split all, 2 of 3 sequences"
    assert "ref.png does not exist" in report.complaints[0]


def test_no_retrieval_without_distractors(root: Path) -> None:
    for name in NAMES[1:]:
        for path in (root / name).iterdir():
            path.unlink()
    rows = run(pixels, root, split="all", pairs=50)
    assert headline(rows, "retrieval") is None
    assert gap(rows, "retrieval") is None
    assert headline(rows, "matching") is not None


def test_a_full_disk_is_no_broken_sequence(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(InputError, match="the disk is full"):
        run(pixels, root, split="all", pairs=50, cache=tmp_path / "c")


@pytest.mark.parametrize("damage", [b"", b"PK nothing", None])
def test_damaged_files_of_the_cache_are_made_again(root: Path, tmp_path: Path, damage: bytes | None) -> None:
    cache = tmp_path / "c"
    contender = [Descriptor("mine", pixels, ())]
    first = compare(contender, ["mine 1"], root, split="all", cache=cache, pairs=50)
    for path in [*cache.rglob("*.npy"), *cache.rglob("*.npz")]:
        path.write_bytes(path.read_bytes()[:200] if damage is None else damage)
    assert compare(contender, ["mine 1"], root, split="all", cache=cache, pairs=50).lines == first.lines


def test_places_for_descriptor_files_are_checked_first(root: Path, tmp_path: Path) -> None:
    (tmp_path / "csv" / "a-b" / "old").mkdir(parents=True)
    never = Descriptor("a b", lambda patches: pytest.fail("described before the check"), ())
    with pytest.raises(InputError, match="already exists"):
        compare([never], [""], root, split="all", csv=tmp_path / "csv")
    with pytest.raises(InputError, match="would both be written"):
        compare([never, never._replace(label="a-b")], ["", ""], root, split="all", csv=tmp_path / "other")

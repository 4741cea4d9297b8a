"""PatchSet on disk: round trips, memory maps, damaged folders; and the test pairs drawn from a set."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sdgmnet.data.patchset import FORMAT, PatchSet, is_patchset, pairs_in, random_test_pairs, write_patchset
from sdgmnet.errors import InputError
from tests.data.samples import blank_set, contents, names, noise_set

ARRAYS = {
    "test_pairs": np.array([[0, 1, 1], [2, 3, 0]]),
    "conflicts": np.array([[7, 107]]),
    "observations": np.array([(0, 1.5)] * 30, dtype=[("image", "i4"), ("x", "f8")]),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    noise_set(origin={"source": "test"}, **ARRAYS).save(tmp_path / "scene")
    return tmp_path / "scene"


def edit_card(folder: Path, **changes: object) -> None:
    card = json.loads((folder / "set.json").read_text())
    card = {key: value for key, value in {**card, **changes}.items() if value is not None}
    (folder / "set.json").write_text(json.dumps(card))


def assert_refused(folder: Path, message: str = "") -> None:
    with pytest.raises(InputError) as caught:
        PatchSet.open(folder)
    assert str(folder) in str(caught.value) and message in str(caught.value)


def test_round_trip_with_all_arrays(folder: Path, tmp_path: Path) -> None:
    original, opened = noise_set(), PatchSet.open(str(folder))
    assert (opened.name, opened.origin, len(opened)) == ("scene", {"source": "test"}, 30)
    assert np.array_equal(opened.patches, original.patches) and np.array_equal(opened.point_id, original.point_id)
    for name, array in ARRAYS.items():
        assert np.array_equal(getattr(opened, name), array)
    card = json.loads((folder / "set.json").read_text())
    assert (card["format"], card["patches"], card["points"]) == (FORMAT, 30, 10)
    assert isinstance(opened.patches, np.memmap)
    with pytest.raises(ValueError):
        opened.patches[0] = 0
    opened.save(tmp_path / "copy")
    assert contents(tmp_path / "copy") == contents(folder)


@pytest.mark.parametrize("count", [0, 5, 5000])
def test_round_trip_without_optional_arrays(tmp_path: Path, count: int) -> None:
    """An empty set, and one longer than a block."""
    opened = blank_set(np.arange(count)).save(tmp_path / "deep" / "scene")
    assert opened.test_pairs is None and opened.conflicts is None and opened.observations is None
    assert opened.patches.shape == (count, 64, 64)
    assert np.array_equal(opened.patches[:, 5, 7], (np.arange(count) % 256).astype(np.uint8))
    assert names(tmp_path / "deep" / "scene") == ["patches.npy", "point_id.npy", "set.json"]
    pairs = np.empty((0, 3), dtype=np.int64)
    again = blank_set([], test_pairs=pairs).save(tmp_path / "empty")
    assert again.test_pairs is not None and again.test_pairs.shape == (0, 3)


def large_set(folder: Path, count: int, byte_count: int, ids: int) -> Path:
    """patches.npy has a header for `count` patches and `byte_count` bytes that take no room on the disk."""
    folder.mkdir()
    with open(folder / "patches.npy", "wb") as stream:
        header = {"descr": "|u1", "fortran_order": False, "shape": (count, 64, 64)}
        np.lib.format.write_array_header_1_0(stream, header)
        stream.truncate(stream.tell() + byte_count)
    (folder / "set.json").write_text(json.dumps({"format": FORMAT, "name": "large", "patches": count}))
    np.save(folder / "point_id.npy", np.arange(ids))
    return folder


def test_opening_does_not_read_the_patches(tmp_path: Path) -> None:
    folder = large_set(tmp_path / "large", 500_000, 500_000 * 64 * 64, 500_000)
    start = time.perf_counter()
    opened = PatchSet.open(folder)
    assert time.perf_counter() - start < 0.5
    assert len(opened) == 500_000 and not opened.patches[-1].any()
    # A header for 4 TB and little behind it: a question of sizes, nothing that has to be read.
    assert_refused(large_set(tmp_path / "truncated", 10**9, 50 * 64 * 64, 10), "patches.npy")


@pytest.mark.parametrize("card", [None, '{"format": "something else"}', "[1]"])
def test_what_is_no_patchset_is_named(tmp_path: Path, card: str | None) -> None:
    if card is not None:
        (tmp_path / "set.json").write_text(card)
    for folder in (tmp_path, tmp_path / "none"):
        assert not is_patchset(folder)
        assert_refused(folder, FORMAT)


FILES = ("patches.npy", "point_id.npy", "test_pairs.npy", "conflicts.npy")


def keep_start(name: str, size: int) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "patches.npy").unlink(), "patches.npy"),
        (lambda folder: (folder / "point_id.npy").unlink(), "point_id.npy"),
        *((keep_start(name, left), name) for name in FILES for left in (0, 3, 60, -1)),
        (keep_start("set.json", 15), "set.json"),
        (keep_start("set.json", 0), "set.json"),
        (lambda folder: edit_card(folder, name=None), ""),
        *((lambda folder, count=count: edit_card(folder, patches=count), "30") for count in (29, 31, None)),
    ],
)
def test_damaged_folders_are_refused(folder: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(folder)
    assert_refused(folder, message)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("patches", np.zeros((30, 64, 64), dtype=np.float32), "uint8"),
        ("patches", np.zeros((30, 32, 32), dtype=np.uint8), "(30, 32, 32)"),
        ("patches", np.zeros((30, 64 * 64), dtype=np.uint8), "(30, 4096)"),
        ("point_id", np.zeros(30), "float64"),
        ("point_id", np.zeros((30, 1), dtype=np.int64), "(30, 1)"),
        ("point_id", np.zeros(29, dtype=np.int64), "29 point ids"),
        ("test_pairs", np.zeros((4, 3)), "float64"),
        ("test_pairs", np.zeros((4, 2), dtype=np.int64), "(4, 2)"),
        ("test_pairs", np.array([[0, 30, 1]]), "0..29"),
        ("test_pairs", np.array([[-1, 3, 1]]), "0..29"),
        ("conflicts", np.zeros((4, 3), dtype=np.int64), "(4, 3)"),
        ("observations", np.zeros(31), "31 observations"),
    ],
)
def test_wrong_arrays_are_refused(folder: Path, name: str, array: np.ndarray, message: str) -> None:
    np.save(folder / f"{name}.npy", array)
    assert_refused(folder, message)
    values = {"patches": np.zeros((30, 64, 64), dtype=np.uint8), "point_id": np.zeros(30, dtype=np.int64), name: array}
    with pytest.raises(InputError, match="scene"):
        PatchSet("scene", **values)


def test_writer_streams_blocks(tmp_path: Path) -> None:
    patches = noise_set().patches
    with write_patchset(tmp_path / "scene", "scene", {"by": "blocks"}) as writer:
        for start, stop in ((0, 1), (1, 1), (1, 18), (18, 30)):
            writer.append(patches[start:stop])
        assert not (tmp_path / "scene").exists()
        writer.finish(np.arange(30))
    opened = PatchSet.open(tmp_path / "scene")
    assert np.array_equal(opened.patches, patches) and opened.origin == {"by": "blocks"}
    assert [path.name for path in tmp_path.iterdir()] == ["scene"]


@pytest.mark.parametrize(
    ("shape", "dtype", "ids", "failure", "message"),
    [
        ((30, 64, 64), np.uint8, None, ValueError, "stop"),
        ((30, 64, 64), np.uint8, None, KeyboardInterrupt, "stop"),
        ((30, 64, 64), np.uint8, None, RuntimeError, "finish"),
        ((30, 64, 64), np.uint8, 29, InputError, "29 point ids"),
        ((2, 32, 32), np.uint8, 2, InputError, "uint8"),
        ((64, 64), np.uint8, 64, InputError, "uint8"),
        ((2, 64, 64), np.float64, 2, InputError, "float64"),
    ],
)
def test_a_writer_that_fails_leaves_nothing(
    tmp_path: Path, shape: tuple[int, ...], dtype: type, ids: int | None, failure: type[BaseException], message: str
) -> None:
    with pytest.raises(failure, match=message), write_patchset(tmp_path / "scene", "scene") as writer:
        writer.append(np.zeros(shape, dtype=dtype))
        if ids is not None:
            writer.finish(np.arange(ids))
        elif failure is not RuntimeError:  # left without finish
            raise failure("stop")
    assert list(tmp_path.iterdir()) == []


def test_saving_never_replaces(folder: Path) -> None:
    before = contents(folder.parent)
    with pytest.raises(InputError, match="already exists"):
        noise_set(seed=1).save(folder)
    assert contents(folder.parent) == before


FEW_PAIRS = np.array([(a, b) for a in range(20) for b in range(a) if (a + b) % 10])


@pytest.mark.parametrize(
    ("ids", "conflicts", "wanted", "expected"),
    [
        (np.random.default_rng(3).permutation(np.repeat(np.arange(200) * 13, 4)), None, 600, 600),
        # Points with one patch are in no matching pair.
        (np.concatenate([np.arange(1000, 1050), np.repeat(np.arange(50), 2)]), None, 60, 60),
        (np.repeat(np.arange(20), 2), None, 1000, 40),  # 20 matching pairs, however many are wanted for
        (np.repeat(np.arange(30) * 5, 4), np.array([[5 * n + 5, 5 * n] for n in range(29)]), 300, 300),
        (np.repeat(np.arange(20), 50), FEW_PAIRS, 1000, None),  # most points are ambiguous
        (np.concatenate([np.zeros(900, dtype=np.int64), np.repeat(np.arange(1, 51), 2)]), None, 1000, None),
    ],
)
def test_pairs_are_balanced_and_labelled_by_the_points(
    ids: np.ndarray, conflicts: np.ndarray | None, wanted: int, expected: int | None
) -> None:
    pairs = random_test_pairs(blank_set(ids, conflicts=conflicts), wanted)
    assert pairs.dtype == np.int64 and 0 < len(pairs) <= wanted and expected in (None, len(pairs))
    assert 2 * int(pairs[:, 2].sum()) == len(pairs)
    assert 0 < int(pairs[: len(pairs) // 4, 2].sum()) < len(pairs) // 4  # mixed, not one kind first
    assert (pairs[:, 0] != pairs[:, 1]).all()
    assert np.array_equal(pairs[:, 2] == 1, ids[pairs[:, 0]] == ids[pairs[:, 1]])
    matching = np.sort(pairs[pairs[:, 2] == 1, :2], axis=1)
    assert len(np.unique(matching, axis=0)) == len(matching)
    forbidden = {frozenset(pair) for pair in conflicts.tolist()} if conflicts is not None else set()

    def clashes(rows: np.ndarray) -> int:
        return sum(frozenset(pair) in forbidden for pair in ids[rows[rows[:, 2] == 0, :2]].tolist())

    assert clashes(pairs) == 0
    assert conflicts is None or clashes(random_test_pairs(blank_set(ids), wanted)) > 0  # there is something to avoid


@pytest.mark.parametrize("ids", [[], [1, 2, 3], [1, 1, 2, 3], [4, 4, 4]])
def test_sets_too_small_for_pairs_are_refused(ids: list[int]) -> None:
    with pytest.raises(InputError, match="'blank'"):
        random_test_pairs(blank_set(ids), 10)


@pytest.mark.parametrize("scale", [1, 10**15])
def test_pairs_in_is_a_set_lookup(scale: int) -> None:
    rng = np.random.default_rng(4)
    pairs, known = rng.integers(-12, 12, (400, 2)) * scale, rng.integers(-12, 12, (60, 2)) * scale
    lookup = {frozenset(pair) for pair in known.tolist()}
    expected = [frozenset(pair) in lookup for pair in pairs.tolist()]
    assert 20 < sum(expected) < 380
    assert pairs_in(pairs, known).tolist() == expected


def test_a_set_prints_as_one_line() -> None:
    assert repr(blank_set([0, 0, 1], "church")) == "PatchSet('church', 3 patches of 2 points)"

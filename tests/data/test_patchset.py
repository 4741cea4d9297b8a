"""PatchSet on disk: round trips, memory maps, damaged folders; and the test pairs drawn from a set."""

import json
import time
from pathlib import Path

import numpy as np
import pytest

from sdgmnet.data.patchset import (
    FORMAT,
    PatchSet,
    is_patchset,
    pairs_in,
    random_test_pairs,
    write_patchset,
)
from sdgmnet.errors import InputError


def make_set(points: int = 10, views: int = 3, seed: int = 0, **arrays: np.ndarray) -> PatchSet:
    rng = np.random.default_rng(seed)
    patches = rng.integers(256, size=(points * views, 64, 64), dtype=np.uint8)
    point_id = rng.permutation(np.repeat(100 * np.arange(points) + 7, views))
    return PatchSet("scene", patches, point_id, origin={"source": "test"}, **arrays)


def blank_set(point_id: np.ndarray, **arrays: np.ndarray) -> PatchSet:
    return PatchSet("blank", np.zeros((len(point_id), 64, 64), dtype=np.uint8), point_id, **arrays)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pairs = np.array([[0, 1, 1], [2, 3, 0]])
    observations = np.array([(0, 1.5)] * 30, dtype=[("image", "i4"), ("x", "f8")])
    make_set(test_pairs=pairs, conflicts=np.array([[7, 107]]), observations=observations).save(tmp_path / "scene")
    return tmp_path / "scene"


def edit_card(folder: Path, **changes: object) -> None:
    card = json.loads((folder / "set.json").read_text())
    card = {key: value for key, value in {**card, **changes}.items() if value is not None}
    (folder / "set.json").write_text(json.dumps(card))


def assert_refused(folder: Path, message: str = "") -> None:
    with pytest.raises(InputError) as caught:
        PatchSet.open(folder)
    assert str(folder) in str(caught.value)
    assert message in str(caught.value)


def test_round_trip_with_all_arrays(folder: Path) -> None:
    original, opened = make_set(), PatchSet.open(str(folder))
    assert (opened.name, opened.origin, len(opened)) == ("scene", {"source": "test"}, 30)
    assert np.array_equal(opened.patches, original.patches) and opened.patches.dtype == np.uint8
    assert np.array_equal(opened.point_id, original.point_id)
    assert opened.test_pairs is not None and opened.test_pairs.tolist() == [[0, 1, 1], [2, 3, 0]]
    assert opened.conflicts is not None and opened.conflicts.tolist() == [[7, 107]]
    assert opened.observations is not None and opened.observations["x"].tolist() == [1.5] * 30
    card = json.loads((folder / "set.json").read_text())
    assert (card["format"], card["patches"], card["points"]) == (FORMAT, 30, 10)


def test_round_trip_without_optional_arrays(tmp_path: Path) -> None:
    opened = make_set().save(tmp_path / "deep" / "scene")
    assert opened.test_pairs is None and opened.conflicts is None and opened.observations is None
    names = sorted(path.name for path in (tmp_path / "deep" / "scene").iterdir())
    assert names == ["patches.npy", "point_id.npy", "set.json"]


def test_patches_are_mapped_and_read_only(folder: Path) -> None:
    opened = PatchSet.open(folder)
    assert isinstance(opened.patches, np.memmap)
    with pytest.raises(ValueError):
        opened.patches[0] = 0


def test_a_copy_of_an_opened_set_is_the_same(folder: Path, tmp_path: Path) -> None:
    PatchSet.open(folder).save(tmp_path / "copy")
    for name in ("patches", "point_id", "test_pairs", "conflicts", "observations", "set"):
        suffix = "json" if name == "set" else "npy"
        assert (folder / f"{name}.{suffix}").read_bytes() == (tmp_path / "copy" / f"{name}.{suffix}").read_bytes()


def test_sets_longer_than_a_block_keep_their_order(tmp_path: Path) -> None:
    number = np.arange(5000)
    patches = np.broadcast_to(number[:, None, None], (5000, 64, 64)).astype(np.uint8)
    opened = PatchSet("long", patches, number).save(tmp_path / "long")
    assert np.array_equal(opened.patches[:, 5, 7], (number % 256).astype(np.uint8))
    assert np.load(tmp_path / "long" / "patches.npy").shape == (5000, 64, 64)


def test_empty_set(tmp_path: Path) -> None:
    empty = blank_set(np.empty(0, dtype=np.int64), test_pairs=np.empty((0, 3), dtype=np.int64))
    opened = empty.save(tmp_path / "empty")
    assert len(opened) == 0 and opened.patches.shape == (0, 64, 64)
    assert opened.test_pairs is not None and opened.test_pairs.shape == (0, 3)


def large_set(folder: Path, count: int, byte_count: int) -> Path:
    """patches.npy has a header for `count` patches and `byte_count` bytes that take no room on the disk."""
    folder.mkdir()
    with open(folder / "patches.npy", "wb") as stream:
        header = {"descr": "|u1", "fortran_order": False, "shape": (count, 64, 64)}
        np.lib.format.write_array_header_1_0(stream, header)
        stream.truncate(stream.tell() + byte_count)
    (folder / "set.json").write_text(json.dumps({"format": FORMAT, "name": "large", "patches": count}))
    return folder


def test_opening_does_not_read_the_patches(tmp_path: Path) -> None:
    folder = large_set(tmp_path / "large", 500_000, 500_000 * 64 * 64)
    np.save(folder / "point_id.npy", np.arange(500_000))
    start = time.perf_counter()
    opened = PatchSet.open(folder)
    assert time.perf_counter() - start < 0.5
    assert len(opened) == 500_000 and not opened.patches[-1].any()


def test_what_is_no_patchset_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "set.json").write_text('{"format": "something else"}')
    (tmp_path / "list").mkdir()
    (tmp_path / "list" / "set.json").write_text("[1]")
    for name in ("none", "empty", "other", "list"):
        assert not is_patchset(tmp_path / name)
        assert_refused(tmp_path / name, FORMAT)


@pytest.mark.parametrize("name", ["patches.npy", "point_id.npy"])
def test_missing_files_are_refused(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert_refused(folder, name)


@pytest.mark.parametrize("name", ["patches.npy", "point_id.npy", "test_pairs.npy", "conflicts.npy"])
@pytest.mark.parametrize("left", [0, 3, 60, -1])
def test_truncated_arrays_are_refused(folder: Path, name: str, left: int) -> None:
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[:left])
    assert_refused(folder, name)


def test_truncated_sets_larger_than_memory_are_refused(tmp_path: Path) -> None:
    """A header for 4 TB and little behind it: a question of sizes, nothing that has to be read."""
    folder = large_set(tmp_path / "large", 10**9, 50 * 64 * 64)
    np.save(folder / "point_id.npy", np.arange(10))
    assert_refused(folder, "patches.npy")


@pytest.mark.parametrize("content", ['{"format": "sdg', ""])
def test_truncated_card_is_refused(folder: Path, content: str) -> None:
    (folder / "set.json").write_text(content)
    assert_refused(folder, "set.json")


def test_card_without_a_name_is_refused(folder: Path) -> None:
    edit_card(folder, name=None)
    assert_refused(folder)


@pytest.mark.parametrize("count", [29, 31, None])
def test_count_of_the_card_must_agree(folder: Path, count: int | None) -> None:
    edit_card(folder, patches=count)
    assert_refused(folder, "30")


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


def test_pickled_arrays_are_refused_and_never_run(folder: Path, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple:
            return Path.touch, (tmp_path / "sprung",)

    np.save(folder / "point_id.npy", np.array([Trap()] * 30, dtype=object), allow_pickle=True)
    assert_refused(folder, "point_id.npy")
    assert not (tmp_path / "sprung").exists()


def test_writer_streams_blocks(tmp_path: Path) -> None:
    patches = make_set().patches
    with write_patchset(tmp_path / "scene", "scene", {"by": "blocks"}) as writer:
        for start, stop in ((0, 1), (1, 1), (1, 18), (18, 30)):
            writer.append(patches[start:stop])
        assert not (tmp_path / "scene").exists()
        writer.finish(np.arange(30))
    opened = PatchSet.open(tmp_path / "scene")
    assert np.array_equal(opened.patches, patches) and opened.origin == {"by": "blocks"}
    assert [path.name for path in tmp_path.iterdir()] == ["scene"]


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
def test_interrupted_writer_leaves_nothing(tmp_path: Path, failure: type[BaseException]) -> None:
    with pytest.raises(failure), write_patchset(tmp_path / "scene", "scene") as writer:
        writer.append(make_set().patches)
        raise failure
    assert list(tmp_path.iterdir()) == []


def test_writer_left_without_finish_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="finish"), write_patchset(tmp_path / "scene", "scene") as writer:
        writer.append(make_set().patches)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ids", [29, 31])
def test_writer_counts(tmp_path: Path, ids: int) -> None:
    with pytest.raises(InputError, match=f"{ids} point ids"), write_patchset(tmp_path / "scene", "scene") as writer:
        writer.append(make_set().patches)
        writer.finish(np.arange(ids))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shape", [(2, 32, 32), (64, 64), (2, 64, 64, 1)])
def test_writer_refuses_other_patches(tmp_path: Path, shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="uint8"), write_patchset(tmp_path / "scene", "scene") as writer:
        writer.append(np.zeros(shape, dtype=np.uint8))
    with pytest.raises(InputError, match="float64"), write_patchset(tmp_path / "scene", "scene") as writer:
        writer.append(np.zeros((2, 64, 64)))


def test_saving_never_replaces(folder: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(InputError, match="already exists"):
        make_set(seed=1).save(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in folder.parent.iterdir()] == ["scene"]


def unordered(pairs: np.ndarray) -> list[tuple[int, int]]:
    return [(min(first, second), max(first, second)) for first, second in pairs[:, :2].tolist()]


def assert_labels_and_distinctness(patchset: PatchSet, pairs: np.ndarray) -> None:
    assert pairs.dtype == np.int64
    for first, second, same in pairs:
        assert first != second
        assert same == int(patchset.point_id[first] == patchset.point_id[second])
    matching = unordered(pairs[pairs[:, 2] == 1])
    assert len(set(matching)) == len(matching)


@pytest.mark.parametrize("seed", [0, 1])
def test_pairs_are_balanced_and_labelled_by_the_points(seed: int) -> None:
    patchset = blank_set(np.random.default_rng(3).permutation(np.repeat(np.arange(200) * 13, 4)))
    pairs = random_test_pairs(patchset, 600, seed)
    assert pairs.shape == (600, 3)
    assert int(pairs[:, 2].sum()) == 300
    assert_labels_and_distinctness(patchset, pairs)
    assert 45 < int(pairs[:150, 2].sum()) < 105  # mixed, not one kind first


def test_points_with_one_patch_are_in_no_matching_pair() -> None:
    patchset = blank_set(np.concatenate([np.arange(1000, 1050), np.repeat(np.arange(50), 2)]))
    pairs = random_test_pairs(patchset, 60)
    assert_labels_and_distinctness(patchset, pairs)
    assert int(pairs[:, 2].sum()) == 30


def test_small_sets_give_each_matching_pair_once() -> None:
    """20 points with two patches: 20 matching pairs, however many are asked for."""
    patchset = blank_set(np.repeat(np.arange(20), 2))
    pairs = random_test_pairs(patchset, 1000)
    assert_labels_and_distinctness(patchset, pairs)
    assert int((pairs[:, 2] == 1).sum()) == 20 and int((pairs[:, 2] == 0).sum()) == 20


def test_conflicting_points_are_neither_matching_nor_different() -> None:
    ids = np.repeat(np.arange(30) * 5, 4)
    conflicts = np.array([[5 * (n + 1), 5 * n] for n in range(29)] + [[5 * n, 5 * (n + 2)] for n in range(28)])
    patchset = blank_set(ids, conflicts=conflicts)
    forbidden = {frozenset(pair) for pair in conflicts.tolist()}
    without = random_test_pairs(blank_set(ids), 300)
    between = [frozenset(ids[row[:2]].tolist()) for row in without if not row[2]]
    assert any(pair in forbidden for pair in between)  # there is something to avoid
    pairs = random_test_pairs(patchset, 300)
    assert_labels_and_distinctness(patchset, pairs)
    assert int(pairs[:, 2].sum()) == 150 and len(pairs) == 300
    assert not any(frozenset(ids[row[:2]].tolist()) in forbidden for row in pairs if not row[2])


def test_pairs_stay_balanced_when_most_points_conflict() -> None:
    ids = np.repeat(np.arange(20), 50)
    conflicts = np.array([(a, b) for a in range(20) for b in range(a) if (a + b) % 10])
    pairs = random_test_pairs(blank_set(ids, conflicts=conflicts), 1000)
    assert int((pairs[:, 2] == 1).sum()) == int((pairs[:, 2] == 0).sum()) > 0


def test_pairs_stay_balanced_when_one_point_has_most_patches() -> None:
    ids = np.concatenate([np.zeros(900, dtype=np.int64), np.repeat(np.arange(1, 51), 2)])
    pairs = random_test_pairs(blank_set(ids), 1000)
    assert int((pairs[:, 2] == 1).sum()) == int((pairs[:, 2] == 0).sum()) > 0


@pytest.mark.parametrize("ids", [[], [1, 2, 3], [1, 1, 2, 3], [4, 4, 4]])
def test_sets_too_small_for_pairs_are_refused(ids: list[int]) -> None:
    with pytest.raises(InputError, match="'blank'"):
        random_test_pairs(blank_set(np.array(ids, dtype=np.int64)), 10)


@pytest.mark.parametrize("scale", [1, 10**15])
def test_pairs_in_is_a_set_lookup(scale: int) -> None:
    rng = np.random.default_rng(4)
    pairs, known = rng.integers(-12, 12, (400, 2)) * scale, rng.integers(-12, 12, (60, 2)) * scale
    lookup = {frozenset(pair) for pair in known.tolist()}
    expected = [frozenset(pair) in lookup for pair in pairs.tolist()]
    assert 20 < sum(expected) < 380
    assert pairs_in(pairs, known).tolist() == expected

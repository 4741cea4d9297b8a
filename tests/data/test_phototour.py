"""The PhotoTour folder layout: what is read is what was written, and damaged folders are refused by name."""

import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from sdgmnet.data.patchset import PatchSet, is_patchset
from sdgmnet.data.phototour import (
    PATCH_COUNTS,
    is_phototour,
    number_by_appearance,
    read_bitmap,
    read_phototour,
    write_phototour,
)
from sdgmnet.errors import InputError
from tests.data.samples import blank_set, names, noise_set


def make_set(count: int = 300) -> PatchSet:
    """Ids have gaps and are not sorted; half of 40 test pairs match."""
    scene = noise_set(-(-count // 2), 2)
    patches, point_id = scene.patches[:count], scene.point_id[:count]
    first = np.arange(40) % count
    mate = [np.flatnonzero(point_id == point_id[number])[-1] for number in first]
    second = np.where(first % 2, mate, (first + 7) % count)
    return PatchSet("scene", patches, point_id, np.column_stack([first, second, point_id[first] == point_id[second]]))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """300 patches: two bitmaps, the second one mostly padding; 40 pairs."""
    write_phototour(make_set(), tmp_path / "scene")
    return tmp_path / "scene"


def assert_same(left: PatchSet, right: PatchSet) -> None:
    for name in ("patches", "point_id", "test_pairs"):
        assert np.array_equal(getattr(left, name), getattr(right, name))


@pytest.mark.parametrize("count", [1, 255, 256, 257, 700])
def test_reads_back_what_was_written_once(tmp_path: Path, count: int) -> None:
    write_phototour(make_set(count), tmp_path / "scene")
    heard: list[tuple[str, int, int]] = []
    first = read_phototour(tmp_path / "scene", on_progress=lambda *what: heard.append(what))
    assert_same(first, make_set(count))
    assert first.name == "scene" and isinstance(first.patches, np.memmap) and is_patchset(tmp_path / "scene/patchset")
    assert "scene" in heard[-1][0] and heard[-1][1] == heard[-1][2] == -(-count // 256)
    remove_bitmaps(tmp_path / "scene")
    assert_same(read_phototour(tmp_path / "scene"), first)


def test_is_phototour(folder: Path, tmp_path: Path) -> None:
    assert is_phototour(folder) and is_phototour(str(folder))
    assert not is_phototour(tmp_path) and not is_phototour(tmp_path / "nowhere")
    (folder / "info.txt").unlink()
    assert not is_phototour(folder)


def test_layout_of_the_written_files(folder: Path) -> None:
    written = make_set()
    assert names(folder) == ["info.txt", "m50_40_40_0.txt", "patches0000.bmp", "patches0001.bmp"]
    # 8-bit gray: a header of 14 + 40 bytes, a palette of 256 colours, the pixels
    assert (folder / "patches0001.bmp").stat().st_size == 14 + 40 + 1024 + 1024 * 1024
    last = cv2.imread(str(folder / "patches0001.bmp"), cv2.IMREAD_UNCHANGED)
    assert last is not None and last.shape == (1024, 1024)
    assert not last[64 * 3 :].any() and not last[128:192, 64 * 12 :].any()  # 44 patches: 2 rows and 12 cells
    assert (folder / "info.txt").read_text().splitlines()[7] == f"{written.point_id[7]} 0"
    assert written.test_pairs is not None
    first, second, _ = written.test_pairs[5]
    row = [first, written.point_id[first], 0, second, written.point_id[second], 0, 0]
    assert (folder / "m50_40_40_0.txt").read_text().splitlines()[5].split() == [str(value) for value in row]


def test_order_is_row_by_row_in_a_bitmap_made_by_hand(tmp_path: Path) -> None:
    image = np.zeros((1024, 1024), dtype=np.uint8)
    for row in range(16):
        for column in range(16):
            image[64 * row : 64 * row + 64, 64 * column : 64 * column + 64] = 16 * row + column
    image[64 + 5, 128 + 9] = 255  # patch 18, line 5, column 9: neither cells nor pixels are transposed
    cv2.imwrite(str(tmp_path / "patches0000.bmp"), image)
    patches = read_bitmap(tmp_path / "patches0000.bmp")
    assert patches.shape == (256, 64, 64)
    assert np.array_equal(patches[:, 0, 0], np.arange(256))
    assert np.array_equal(np.argwhere(patches[18] != 18), [[5, 9]])


def test_top_down_and_colour_bitmaps_give_the_same_patches(tmp_path: Path) -> None:
    gray = np.random.default_rng(1).integers(256, size=(1024, 1024), dtype=np.uint8)
    cv2.imwrite(str(tmp_path / "gray.bmp"), gray)
    cv2.imwrite(str(tmp_path / "colour.bmp"), cv2.cvtColor(gray, cv2.COLOR_GRAY2BGR))
    content = bytearray((tmp_path / "gray.bmp").read_bytes())
    struct.pack_into("<i", content, 22, -1024)
    (tmp_path / "down.bmp").write_bytes(content[:1078] + gray.tobytes())
    assert (tmp_path / "colour.bmp").stat().st_size > 3 * 1024 * 1024
    expected = read_bitmap(tmp_path / "gray.bmp")
    assert np.array_equal(read_bitmap(tmp_path / "colour.bmp"), expected)
    assert np.array_equal(read_bitmap(tmp_path / "down.bmp"), expected)


def test_contiguous_ids_count_up_in_order_of_appearance(tmp_path: Path) -> None:
    assert number_by_appearance(np.array([70, 5, 70, 9, 5, 9])).tolist() == [0, 1, 0, 2, 1, 2]
    original = make_set()
    write_phototour(original, tmp_path / "scene", contiguous_ids=True)
    expected = replace(original, point_id=number_by_appearance(original.point_id))
    assert_same(read_phototour(tmp_path / "scene"), expected)


def test_folders_that_hold_something_else_are_left_alone(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("keep")
    with pytest.raises(InputError, match="out"):
        read_phototour(folder, tmp_path / "out")
    assert names(tmp_path / "out") == ["mine.txt"]
    read_phototour(folder)
    with open(folder / "info.txt", "a") as info:
        info.write("5 0\n")
    with pytest.raises(InputError, match="patchset.* 301 "):  # a conversion of other patches
        read_phototour(folder)


def test_choice_of_the_file_of_pairs(folder: Path, tmp_path: Path) -> None:
    def pairs_read(name: str) -> int:
        return len(read_phototour(folder, tmp_path / name).test_pairs)  # type: ignore[arg-type]

    rows = (folder / PAIRS).read_text().splitlines(keepends=True)
    (folder / "m50_5_5_0.txt").write_text("".join(rows[:5]))
    (folder / "m50_9_8_0.txt").write_text("not a file of pairs")
    assert pairs_read("largest") == 40
    (folder / PAIRS).write_text("".join(line.rsplit(" ", 1)[0] + "\r\n" for line in rows))  # six columns
    assert_same(read_phototour(folder, tmp_path / "six"), make_set())
    (folder / "m50_100000_100000_0.txt").write_text(rows[0] * 100000)
    (folder / "m50_500000_500000_0.txt").write_text("not looked at")
    assert pairs_read("standard") == 100000
    assert pairs_read("largest") == 100000  # the conversion from before the file came takes it as well


PAIRS, LAST = "m50_40_40_0.txt", "patches0001.bmp"
Damage = Callable[[Path], object]


def rewrite(name: str, change: Callable[[bytes], bytes]) -> Damage:
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def keep_start(name: str, size: int) -> Damage:
    return rewrite(name, lambda content: content[:size])


def change_line(name: str, line: int, text: str) -> Damage:
    def change(content: bytes) -> bytes:
        lines = content.decode().splitlines()
        return "\n".join([*lines[:line], text, *lines[line + 1 :], ""]).encode()

    return rewrite(name, change)


def pack(offset: int, layout: str, value: int) -> Damage:
    """Another number in the header of the last bitmap."""
    number = struct.pack(layout, value)
    return rewrite(LAST, lambda content: content[:offset] + number + content[offset + len(number) :])


def replace_with(name: str, content: bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(content)


def remove(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def remove_bitmaps(folder: Path) -> None:
    for path in folder.glob("*.bmp"):
        path.unlink()


SMALL_BITMAP = cv2.imencode(".bmp", np.zeros((512, 1024), dtype=np.uint8))[1].tobytes()
REFUSALS: dict[str, tuple[Damage, str]] = {
    "no folder": (shutil.rmtree, "scene"),
    "no info": (remove("info.txt"), "info.txt"),
    "no bitmaps": (remove_bitmaps, "patches0000.bmp is missing"),
    "first bitmap missing": (remove("patches0000.bmp"), "patches0000.bmp is missing"),
    "last bitmap missing": (remove(LAST), "need 2 .patches0001.bmp is missing"),
    "bitmap too many": (replace_with("patches0002.bmp", b"BM"), "has 3 bitmaps.* need 2 .patches0002.bmp"),
    "bitmap not numbered": (replace_with("patches_old.bmp", b"BM"), "patches_old.bmp"),
    "bitmap twice": (replace_with("patches1.bmp", b"BM"), "has 3 bitmaps"),
    "gap in the numbers": (lambda folder: (folder / LAST).rename(folder / "patches0005.bmp"), f"{LAST}.*patches0005"),
    "empty bitmap": (keep_start(LAST, 0), f"{LAST} is empty"),
    "bitmap cut in its header": (keep_start(LAST, 20), LAST),
    "bitmap cut in its pixels": (keep_start(LAST, 500_000), f"{LAST} .* 500000"),
    "bitmap cut by one byte": (keep_start(LAST, 1049653), f"{LAST} .* 1049653 of 1049654"),
    "bitmap declares more": (pack(2, "<I", 1049655), LAST),
    "pixels start late": (pack(10, "<I", 2000), LAST),
    "not a bitmap": (replace_with(LAST, b"\x89PNG" + bytes(5000)), LAST),
    "compressed bitmap": (pack(30, "<I", 1), LAST),
    "one bit a pixel": (pack(28, "<H", 1), LAST),
    "bitmap of another size": (replace_with(LAST, SMALL_BITMAP), f"{LAST} has 1024x512 pixels"),
    "info empty": (replace_with("info.txt", b"\n"), "info.txt is empty"),
    "info with words": (change_line("info.txt", 3, "seven 0"), "info.txt .*seven"),
    "info with a fraction": (change_line("info.txt", 3, "7.5 0"), "info.txt"),
    "info with a comment": (change_line("info.txt", 0, "# ids"), "info.txt"),
    "info with a short line": (change_line("info.txt", 3, "7"), "info.txt"),
    "info with a huge id": (change_line("info.txt", 3, f"{10**30} 0"), "info.txt"),
    "info of bytes": (replace_with("info.txt", bytes(range(256))), "info.txt"),
    "info with one column": (replace_with("info.txt", b"1\n" * 300), "info.txt"),
    "negative id": (change_line("info.txt", 3, "-7 0"), "info.txt .* patch 3 .* -7"),
    "pairs cut off": (keep_start(PAIRS, 400), PAIRS),
    "fewer pairs": (replace_with(PAIRS, b"0 1 0 0 1 0 0\n"), f"{PAIRS} has 1 pairs .* 40"),
    "no pairs in the file": (replace_with(PAIRS, b""), f"{PAIRS} has 0 pairs .* 40"),
    "more pairs": (rewrite(PAIRS, lambda rows: rows + rows.splitlines()[0]), f"{PAIRS} has 41 pairs .* 40"),
    "pair with few columns": (change_line(PAIRS, 3, "0 0 0 1"), PAIRS),
    "all pairs with few columns": (replace_with(PAIRS, b"0 0 1 1\n" * 40), PAIRS),
    "pair of words": (change_line(PAIRS, 3, "a b c d e f g"), PAIRS),
    "patch out of range": (change_line(PAIRS, 3, "0 0 0 300 0 0 0"), f"{PAIRS}, pair 4"),
    "negative patch": (change_line(PAIRS, 3, "-1 0 0 3 0 0 0"), f"{PAIRS}, pair 4"),
    "one other point": (change_line(PAIRS, 3, f"0 {make_set().point_id[0]} 0 3 1 0 0"), f"{PAIRS}, pair 4"),
    "other point": (change_line(PAIRS, 3, "0 0 0 3 0 0 0"), f"{PAIRS}, pair 4"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_damaged_folders_are_refused_and_leave_nothing(folder: Path, tmp_path: Path, case: str) -> None:
    damage, message = REFUSALS[case]
    damage(folder)
    before = sorted(tmp_path.rglob("*"))
    for out in (None, tmp_path / "out"):
        with pytest.raises(InputError, match=message) as caught:
            read_phototour(folder, out)
        assert str(folder) in str(caught.value)
        assert str(caught.value).endswith(".") and ". " not in str(caught.value) and "\n" not in str(caught.value)
        assert sorted(tmp_path.rglob("*")) == before


def test_a_subset_with_an_official_name_needs_its_published_size(tmp_path: Path) -> None:
    assert len(PATCH_COUNTS) == 6
    write_phototour(make_set(), tmp_path / "liberty")
    with pytest.raises(InputError, match="info.txt.* 300 .*liberty.*450092"):
        read_phototour(tmp_path / "liberty", strict=True)
    assert not (tmp_path / "liberty" / "patchset").exists()
    with pytest.warns(UserWarning, match="450092"):
        assert len(read_phototour(tmp_path / "liberty")) == 300
    with pytest.raises(InputError, match="450092"):  # a conversion made before does not get around it
        read_phototour(tmp_path / "liberty", strict=True)


@pytest.fixture
def read_only_folder() -> Iterator[Path]:
    """A folder this process cannot write to, even when the tests run as the superuser."""
    top = Path(tempfile.mkdtemp())
    top.chmod(0o755)
    write_phototour(make_set(), top / "scene")
    (top / "scene").chmod(0o555)
    superuser = os.geteuid() == 0
    if superuser:
        os.seteuid(65534)
    try:
        yield top / "scene"
    finally:
        if superuser:
            os.seteuid(0)
        (top / "scene").chmod(0o755)
        shutil.rmtree(top)


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="needs POSIX users")
def test_a_read_only_folder_asks_for_an_output_folder(read_only_folder: Path) -> None:
    with pytest.raises(InputError, match="data phototour .*scene -o"):
        read_phototour(read_only_folder)
    with pytest.raises(InputError, match="other"):
        read_phototour(read_only_folder, read_only_folder / "other")
    assert not list(read_only_folder.glob("patchset*"))


def test_writing_refuses_what_the_layout_cannot_hold(tmp_path: Path) -> None:
    negative = blank_set([-1, 3])
    cases = [(negative, "a", "negative"), (blank_set([1, 3], test_pairs=np.array([[0, 1, 1]])), "a", "contradict")]
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine.txt").write_text("keep")
    for patchset, folder, message in [
        *cases,
        (blank_set([]), "a", "empty"),
        (blank_set([1, 3]), "b", "already exists"),
    ]:
        with pytest.raises(InputError, match=message):
            write_phototour(patchset, tmp_path / folder)
    assert names(tmp_path) == ["b", "b/mine.txt"]
    write_phototour(negative, tmp_path / "c", contiguous_ids=True)
    assert read_phototour(tmp_path / "c").point_id.tolist() == [0, 1]

"""The PhotoTour folder layout: what is read is what was written, and damaged folders are refused by name."""

import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
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


def make_set(count: int = 300, seed: int = 0, name: str = "scene") -> PatchSet:
    """A set with ids that have gaps and are not sorted."""
    rng = np.random.default_rng(seed)
    point_id = rng.permutation(np.repeat(rng.choice(10**6, count, replace=False), 2)[:count]).astype(np.int64)
    pairs = rng.integers(count, size=(40, 2))
    mate = {int(i): int(np.flatnonzero(point_id == point_id[i])[-1]) for i in pairs[::2, 0]}
    pairs[::2, 1] = [mate[int(i)] for i in pairs[::2, 0]]
    test_pairs = np.column_stack([pairs, point_id[pairs[:, 0]] == point_id[pairs[:, 1]]])
    patches = rng.integers(256, size=(count, 64, 64), dtype=np.uint8)
    return PatchSet(name, patches, point_id, test_pairs.astype(np.int64))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """300 patches: two bitmaps, the second one mostly padding; 40 pairs."""
    write_phototour(make_set(), tmp_path / "scene")
    return tmp_path / "scene"


def assert_same(left: PatchSet, right: PatchSet) -> None:
    assert np.array_equal(left.patches, right.patches)
    assert np.array_equal(left.point_id, right.point_id)
    assert (left.test_pairs is None) == (right.test_pairs is None)
    if left.test_pairs is not None and right.test_pairs is not None:
        assert np.array_equal(left.test_pairs, right.test_pairs)


@pytest.mark.parametrize("count", [1, 255, 256, 257, 700])
def test_reads_back_what_was_written(tmp_path: Path, count: int) -> None:
    original = make_set(count)
    write_phototour(original, tmp_path / "scene")
    assert is_phototour(tmp_path / "scene")
    back = read_phototour(tmp_path / "scene")
    assert_same(back, original)
    assert back.name == "scene"
    assert isinstance(back.patches, np.memmap)
    assert is_patchset(tmp_path / "scene" / "patchset")


def test_layout_of_the_written_files(folder: Path) -> None:
    written = make_set()
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["info.txt", "m50_40_40_0.txt", "patches0000.bmp", "patches0001.bmp"]
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
    back = read_phototour(tmp_path / "scene")
    assert back.point_id[0] == 0
    assert np.array_equal(np.unique(back.point_id), np.arange(len(np.unique(original.point_id))))
    same = original.point_id[:, None] == original.point_id[None]
    assert np.array_equal(back.point_id[:, None] == back.point_id[None], same)
    assert original.test_pairs is not None and back.test_pairs is not None
    assert np.array_equal(back.test_pairs, original.test_pairs)


def test_conversion_happens_once(folder: Path, tmp_path: Path) -> None:
    first = read_phototour(folder, tmp_path / "out")
    remove_bitmaps(folder)
    assert_same(read_phototour(folder, tmp_path / "out"), first)


def test_a_conversion_of_other_patches_is_not_taken(folder: Path) -> None:
    read_phototour(folder)
    with open(folder / "info.txt", "a") as info:
        info.write("5 0\n")
    with pytest.raises(InputError, match="patchset.* 301 "):
        read_phototour(folder)


def test_an_output_folder_with_other_files_is_left_alone(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("keep")
    with pytest.raises(InputError, match="out already exists"):
        read_phototour(folder, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]


def test_choice_of_the_file_of_pairs(folder: Path, tmp_path: Path) -> None:
    rows = (folder / "m50_40_40_0.txt").read_text().splitlines(keepends=True)
    (folder / "m50_5_5_0.txt").write_text("".join(rows[:5]))
    (folder / "m50_9_8_0.txt").write_text("not a file of pairs")
    assert len(read_phototour(folder, tmp_path / "largest").test_pairs) == 40  # type: ignore[arg-type]
    (folder / "m50_100000_100000_0.txt").write_text(rows[0] * 100000)
    (folder / "m50_500000_500000_0.txt").write_text("not looked at")
    assert len(read_phototour(folder, tmp_path / "standard").test_pairs) == 100000  # type: ignore[arg-type]
    # The conversion from before the file came takes it as well.
    assert len(read_phototour(folder, tmp_path / "largest").test_pairs) == 100000  # type: ignore[arg-type]


def test_pairs_with_six_columns_are_read(folder: Path) -> None:
    path = folder / "m50_40_40_0.txt"
    path.write_text("".join(line.rsplit(" ", 1)[0] + "\r\n" for line in path.read_text().splitlines()))
    assert np.array_equal(read_phototour(folder).test_pairs, make_set().test_pairs)  # type: ignore[arg-type]


def keep_start(name: str, size: int) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


def change_line(name: str, line: int, text: str) -> Callable[[Path], object]:
    def damage(folder: Path) -> None:
        lines = (folder / name).read_text().splitlines()
        lines[line] = text
        (folder / name).write_text("\n".join(lines) + "\n")

    return damage


def pack(name: str, offset: int, layout: str, value: int) -> Callable[[Path], object]:
    def damage(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        struct.pack_into(layout, content, offset, value)
        (folder / name).write_bytes(content)

    return damage


def replace_with(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def add_pair(folder: Path) -> None:
    path = folder / "m50_40_40_0.txt"
    path.write_text(path.read_text() + path.read_text().splitlines()[0])


def one_other_point(folder: Path) -> None:
    change_line(PAIRS, 3, f"0 {make_set().point_id[0]} 0 3 7 0 0")(folder)


def remove_bitmaps(folder: Path) -> None:
    for path in folder.glob("*.bmp"):
        path.unlink()


def small_bitmap(folder: Path) -> None:
    cv2.imwrite(str(folder / "patches0001.bmp"), np.zeros((512, 1024), dtype=np.uint8))


PAIRS, LAST = "m50_40_40_0.txt", "patches0001.bmp"
REFUSALS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no folder": (shutil.rmtree, "scene"),
    "no info": (lambda folder: (folder / "info.txt").unlink(), "info.txt"),
    "no bitmaps": (remove_bitmaps, "patches0000.bmp is missing"),
    "first bitmap missing": (lambda folder: (folder / "patches0000.bmp").unlink(), "patches0000.bmp is missing"),
    "last bitmap missing": (lambda folder: (folder / LAST).unlink(), "need 2 .patches0001.bmp is missing"),
    "bitmap too many": (replace_with("patches0002.bmp", b"BM"), "has 3 bitmaps.* need 2 .patches0002.bmp"),
    "bitmap not numbered": (replace_with("patches_old.bmp", b"BM"), "patches_old.bmp"),
    "bitmap twice": (replace_with("patches1.bmp", b"BM"), "has 3 bitmaps"),
    "gap in the numbers": (lambda folder: (folder / LAST).rename(folder / "patches0005.bmp"), f"{LAST}.*patches0005"),
    "empty bitmap": (keep_start(LAST, 0), f"{LAST} is empty"),
    "bitmap cut in its header": (keep_start(LAST, 20), LAST),
    "bitmap cut in its pixels": (keep_start(LAST, 500_000), f"{LAST} .* 500000"),
    "bitmap cut by one byte": (keep_start(LAST, 1049653), f"{LAST} .* 1049653 of 1049654"),
    "bitmap declares more": (pack(LAST, 2, "<I", 1049655), LAST),
    "pixels start late": (pack(LAST, 10, "<I", 2000), LAST),
    "not a bitmap": (replace_with(LAST, b"\x89PNG" + bytes(5000)), LAST),
    "compressed bitmap": (pack(LAST, 30, "<I", 1), LAST),
    "one bit a pixel": (pack(LAST, 28, "<H", 1), LAST),
    "bitmap of another size": (small_bitmap, f"{LAST} has 1024x512 pixels"),
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
    "more pairs": (add_pair, f"{PAIRS} has 41 pairs .* 40"),
    "pair with few columns": (change_line(PAIRS, 3, "0 0 0 1"), PAIRS),
    "all pairs with few columns": (replace_with(PAIRS, b"0 0 1 1\n" * 40), PAIRS),
    "pair of words": (change_line(PAIRS, 3, "a b c d e f g"), PAIRS),
    "patch out of range": (change_line(PAIRS, 3, "0 0 0 300 0 0 0"), f"{PAIRS}, pair 4"),
    "negative patch": (change_line(PAIRS, 3, "-1 0 0 3 0 0 0"), f"{PAIRS}, pair 4"),
    "one other point": (one_other_point, f"{PAIRS}, pair 4"),
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
    with pytest.raises(InputError, match="info.txt has 300 patches but liberty was published with 450092"):
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
    with pytest.raises(InputError, match=r"sdgmnet data phototour .*scene -o OUT"):
        read_phototour(read_only_folder)
    with pytest.raises(InputError, match="other cannot be written .* choose another"):
        read_phototour(read_only_folder, read_only_folder / "other")
    assert not list(read_only_folder.glob("patchset*"))


def test_writing_refuses_what_the_layout_cannot_hold(tmp_path: Path) -> None:
    patches = np.zeros((2, 64, 64), dtype=np.uint8)
    with pytest.raises(InputError, match="negative"):
        write_phototour(PatchSet("scene", patches, np.array([-1, 3])), tmp_path / "a")
    with pytest.raises(InputError, match="contradict"):
        pairs = np.array([[0, 1, 1]])
        write_phototour(PatchSet("scene", patches, np.array([1, 3]), pairs), tmp_path / "a")
    with pytest.raises(InputError, match="empty"):
        write_phototour(PatchSet("scene", patches[:0], np.array([], dtype=np.int64)), tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine.txt").write_text("keep")
    with pytest.raises(InputError, match="already exists"):
        write_phototour(PatchSet("scene", patches, np.array([1, 3])), tmp_path / "b")
    assert [path.name for path in tmp_path.rglob("*")] == ["b", "mine.txt"]
    write_phototour(PatchSet("scene", patches, np.array([-1, 3])), tmp_path / "c", contiguous_ids=True)
    assert read_phototour(tmp_path / "c").point_id.tolist() == [0, 1]


def test_is_phototour(folder: Path, tmp_path: Path) -> None:
    assert is_phototour(folder) and is_phototour(str(folder))
    assert not is_phototour(tmp_path) and not is_phototour(tmp_path / "nowhere")
    (folder / "info.txt").unlink()
    assert not is_phototour(folder)


def test_progress_of_a_conversion(folder: Path, tmp_path: Path) -> None:
    heard: list[tuple[str, int, int]] = []
    read_phototour(folder, tmp_path / "out", on_progress=lambda *what: heard.append(what))
    assert "scene" in heard[-1][0] and heard[-1][1] == heard[-1][2] > 1


PEAK = """
import sys
from sdgmnet.data.phototour import read_phototour

def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) / 1024

before = peak()
read_phototour(sys.argv[1])
print(peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_memory_does_not_grow_with_the_number_of_patches(tmp_path: Path) -> None:
    """20480 patches are 84 MB: whoever holds them all at once is found out.

    The peak comes from /proc because the one of getrusage is inherited from the process that starts this one.
    """
    count = 20480
    (tmp_path / "scene").mkdir()
    bitmap = cv2.imencode(".bmp", np.full((1024, 1024), 7, dtype=np.uint8))[1].tobytes()
    for index in range(count // 256):
        (tmp_path / "scene" / f"patches{index:04d}.bmp").write_bytes(bitmap)
    (tmp_path / "scene" / "info.txt").write_text("".join(f"{index // 3} 0\n" for index in range(count)))
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", PEAK, str(tmp_path / "scene")]
    grown = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    assert float(grown) < 40

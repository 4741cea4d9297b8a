"""UBC PhotoTour (Brown) patches: the original folder of bitmaps and texts, to and from a PatchSet.

A folder holds `patches0000.bmp`, ... of 1024x1024 pixels, each a 16x16 grid of 64x64 patches, row by row; `info.txt`,
whose row i is `<point id> <unused>` of patch i; and `m50_<n>_<n>_0.txt`, n verification pairs in rows
`<patch> <point> <unused> <patch> <point> <unused> ...`. The last bitmap is filled up with empty cells.
"""

import math
import re
import struct
import tempfile
import warnings
from pathlib import Path

import cv2
import numpy as np

from sdgmnet.data.patchset import PATCH_SIDE, PatchSet, is_patchset, number_by_appearance, write_patchset
from sdgmnet.errors import InputError
from sdgmnet.report import OnProgress, no_progress, track
from sdgmnet.storage import new_folder, reading

PATCH_COUNTS = {
    "liberty": 450092,
    "notredame": 468159,
    "yosemite": 633587,
    "liberty_harris": 379587,
    "notredame_harris": 325295,
    "yosemite_harris": 450912,
}
GRID = 16
PATCHES_PER_BITMAP = GRID * GRID
BITMAP_SIDE = GRID * PATCH_SIDE
STANDARD_PAIRS = 100000
# The documented columns end with the sixth; the files in circulation carry a seventh, unused as well.
PAIR_COLUMNS = 6
INFO_COLUMNS = 2
RETRIEVE_AGAIN = "unpack or download it again"


def is_phototour(folder: Path | str) -> bool:
    """Whether the folder looks like an original PhotoTour subset; its contents are not checked."""
    folder = Path(folder)
    return (folder / "info.txt").is_file() and any(folder.glob("patches*.bmp"))


def read_phototour(
    root: Path | str,
    out: Path | str | None = None,
    *,
    strict: bool = False,
    name: str | None = None,
    on_progress: OnProgress = no_progress,
) -> PatchSet:
    """Convert an original folder into a PatchSet in `out` (default: `root`/patchset), or open the one that is already there.

    The set gets the folder's name unless another is given. A subset with an official name but another number of patches than
    published gives a warning, or an InputError when `strict`.
    """
    root = Path(root)
    if not root.is_dir():
        raise InputError(f"{root} is not a folder: give the folder that holds info.txt and patches0000.bmp.")
    name = name or root.resolve().name
    point_id = read_point_ids(root / "info.txt")
    require_patch_count(name, len(point_id), root / "info.txt", strict)
    matches = find_matches(root)
    target = root / "patchset" if out is None else Path(out)
    if is_patchset(target):
        return _open_converted(target, root / "info.txt", point_id, matches)
    bitmaps = find_bitmaps(root, len(point_id))
    test_pairs = None if matches is None else read_test_pairs(matches, point_id)
    _require_writable(target, is_default=out is None)
    origin = {"source": "PhotoTour", "bitmaps": len(bitmaps), "matches": None if matches is None else matches.name}
    with write_patchset(target, name, origin) as writer:
        for bitmap in track(bitmaps, f"converting {name}", on_progress):
            writer.append(read_bitmap(bitmap)[: len(point_id) - writer.count])
        writer.finish(point_id, test_pairs=test_pairs)
    return PatchSet.open(target)


def write_phototour(patchset: PatchSet, folder: Path | str, contiguous_ids: bool = False) -> None:
    """Write the original layout into a new folder, completely or not at all.

    With `contiguous_ids` points are numbered 0, 1, ... in order of first appearance, which loaders that draw a class
    with `randint(0, classes)` rely on. Ambiguous pairs, observations and the window
    have no place in the layout and are left out: read again, the set has a window of 12 sigma.
    """
    if len(patchset) == 0:
        raise InputError(f"PatchSet {patchset.name!r} is empty: there is nothing to write into {folder}.")
    point_id = np.asarray(patchset.point_id, dtype=np.int64)
    pairs = patchset.test_pairs
    if pairs is not None and not np.array_equal(pairs[:, 2] != 0, point_id[pairs[:, 0]] == point_id[pairs[:, 1]]):
        raise InputError(f"PatchSet {patchset.name!r} has test pairs that contradict its point ids: draw them again.")
    if contiguous_ids:
        point_id = number_by_appearance(point_id)
    if point_id.min() < 0:
        raise InputError(f"PatchSet {patchset.name!r} has negative point ids: write it with contiguous ids.")
    bitmaps = math.ceil(len(patchset) / PATCHES_PER_BITMAP)
    # Loaders sort the names as text, so all of them need as many digits as the largest number.
    digits = max(4, len(str(bitmaps - 1)))
    with new_folder(folder) as part:
        for index in range(bitmaps):
            patches = patchset.patches[index * PATCHES_PER_BITMAP : (index + 1) * PATCHES_PER_BITMAP]
            encoded = cv2.imencode(".bmp", grid_of_patches(patches))[1]
            (part / f"patches{index:0{digits}d}.bmp").write_bytes(encoded.tobytes())
        np.savetxt(part / "info.txt", np.column_stack([point_id, np.zeros_like(point_id)]), fmt="%d")
        if pairs is not None:
            first, second = pairs[:, 0], pairs[:, 1]
            zero = np.zeros(len(pairs), dtype=np.int64)
            columns = [first, point_id[first], zero, second, point_id[second], zero, zero]
            np.savetxt(part / f"m50_{len(pairs)}_{len(pairs)}_0.txt", np.column_stack(columns), fmt="%d")


def grid_of_patches(patches: np.ndarray) -> np.ndarray:
    """(B <= 256, 64, 64) patches -> (1024, 1024) bitmap, zeros in the cells that are left over."""
    cells = np.zeros((PATCHES_PER_BITMAP, PATCH_SIDE, PATCH_SIDE), dtype=np.uint8)
    cells[: len(patches)] = patches
    return cells.reshape(GRID, GRID, PATCH_SIDE, PATCH_SIDE).swapaxes(1, 2).reshape(BITMAP_SIDE, BITMAP_SIDE)


def require_patch_count(name: str, count: int, where: Path, strict: bool) -> None:
    """Warn, or InputError when `strict`, where an official subset has another number of patches than published."""
    published = PATCH_COUNTS.get(name, count)
    if count == published:
        return
    message = f"{where} has {count} patches but {name} was published with {published}: {RETRIEVE_AGAIN}."
    if strict:
        raise InputError(message)
    warnings.warn(message, stacklevel=3)


def read_point_ids(info: Path) -> np.ndarray:
    """Point id of every patch, (N,) int64."""
    if not info.is_file():
        raise InputError(f"{info} is missing: give the folder that holds info.txt and patches0000.bmp.")
    rows = read_integers(info, INFO_COLUMNS)
    if len(rows) == 0:
        raise InputError(f"{info} is empty: {RETRIEVE_AGAIN}.")
    if rows[:, 0].min() < 0:
        row = int(np.argmax(rows[:, 0] < 0))
        raise InputError(f"{info} gives patch {row} the negative point id {rows[row, 0]}: {RETRIEVE_AGAIN}.")
    return np.ascontiguousarray(rows[:, 0])


def find_matches(root: Path) -> Path | None:
    """The verification pairs to use: the standard 100000, otherwise the largest file there is."""
    named = [(re.fullmatch(r"m50_([0-9]+)_\1_0\.txt", path.name), path) for path in root.glob("m50_*_0.txt")]
    counts = {int(found[1]): path for found, path in named if found}
    return counts.get(STANDARD_PAIRS) or counts.get(max(counts, default=0))


def read_test_pairs(matches: Path, point_id: np.ndarray) -> np.ndarray:
    """(P, 3) int64: patch, patch, same point (1) or not (0)."""
    rows = read_integers(matches, PAIR_COLUMNS)
    named = int(matches.name.split("_")[1])
    if len(rows) != named:
        raise InputError(f"{matches} has {len(rows)} pairs but its name says {named}: {RETRIEVE_AGAIN}.")
    patches, points = rows[:, [0, 3]], rows[:, [1, 4]]
    inside = ((patches >= 0) & (patches < len(point_id))).all(axis=1)
    wrong = np.flatnonzero(~inside | (points != point_id[patches.clip(0, len(point_id) - 1)]).any(axis=1))
    if len(wrong):
        pair, (first, second) = wrong[0] + 1, patches[wrong[0]]
        raise InputError(
            f"{matches}, pair {pair}: patches {first} and {second} do not exist in info.txt or have other points there: "
            "use both files of the same subset."
        )
    return np.column_stack([patches, points[:, 0] == points[:, 1]])


def read_integers(path: Path, columns: int) -> np.ndarray:
    """A text of whitespace-separated integers, at least `columns` in every row, as (rows, columns or more) int64."""
    try:
        with reading(path), warnings.catch_warnings():
            # numpy only warns when it reads 1.5 as an integer.
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", message=".*input contained no data")
            rows = np.loadtxt(path, dtype=np.int64, comments=None, ndmin=2, encoding="ascii")
    except InputError:
        raise
    except (ValueError, OverflowError, DeprecationWarning) as error:
        reason = str(error).split(". ")[0].rstrip(".")
        raise InputError(f"{path} is not a table of integers ({reason}): {RETRIEVE_AGAIN}.") from error
    if rows.size == 0:
        return np.empty((0, columns), dtype=np.int64)
    if rows.shape[1] < columns:
        raise InputError(f"{path} has rows of {rows.shape[1]} columns where {columns} are needed: {RETRIEVE_AGAIN}.")
    return rows


def find_bitmaps(root: Path, patches: int) -> list[Path]:
    """The bitmaps by number, which must run from 0 without gaps: a gap would shift all later patches."""
    paths = {path.name: path for path in sorted(root.glob("patches*.bmp"))}
    needed = math.ceil(patches / PATCHES_PER_BITMAP)
    numbered = {int(found[1]): paths[name] for name in paths if (found := re.fullmatch(r"patches(\d+)\.bmp", name))}
    missing = [f"patches{number:04d}.bmp is missing" for number in range(needed) if number not in numbered]
    used = {path.name for number, path in numbered.items() if number < needed}
    extra = [f"{name} is not expected" for name in paths if name not in used]
    if missing or extra:
        raise InputError(
            f"{root} has {len(paths)} bitmaps, but the {patches} rows of info.txt need {needed} "
            f"({', '.join([*missing[:3], *extra[:3]])}): {RETRIEVE_AGAIN}."
        )
    return [numbered[number] for number in range(needed)]


def read_bitmap(path: Path) -> np.ndarray:
    """One bitmap as its 256 patches (256, 64, 64) uint8, left to right, then top to bottom."""
    with reading(path), open(path, "rb") as stream:
        problem = bitmap_problem(stream.read(34), path.stat().st_size)
        if problem:
            raise InputError(f"{path} {problem}: {RETRIEVE_AGAIN}.")
        stream.seek(0)
        content = np.frombuffer(stream.read(), dtype=np.uint8)
    image = cv2.imdecode(content, cv2.IMREAD_GRAYSCALE)
    if image is None or image.shape != (BITMAP_SIDE, BITMAP_SIDE):
        raise InputError(f"{path} cannot be decoded: {RETRIEVE_AGAIN}.")
    return image.reshape(GRID, PATCH_SIDE, GRID, PATCH_SIDE).swapaxes(1, 2).reshape(-1, PATCH_SIDE, PATCH_SIDE)


def bitmap_problem(header: bytes, size: int) -> str:
    """What is wrong with a BMP file of `size` bytes that begins with `header`; empty when nothing is.

    Decoders fill up a truncated bitmap with zeros without an error, so the sizes it declares are checked.
    """
    if size == 0:
        return "is empty"
    if len(header) < 34 or header[:2] != b"BM":
        return "is not a BMP image"
    declared, offset, header_size, width, height, _, bits, compression = struct.unpack_from("<I4xIIiiHHI", header, 2)
    if header_size < 40 or bits not in (8, 24, 32) or compression != 0:
        return "is not an uncompressed BMP image of 8-bit grays"
    if (width, abs(height)) != (BITMAP_SIDE, BITMAP_SIDE):
        return f"has {width}x{abs(height)} pixels instead of {BITMAP_SIDE}x{BITMAP_SIDE}"
    needed = max(declared, offset + BITMAP_SIDE * BITMAP_SIDE * bits // 8)
    if size < needed:
        return f"is truncated at {size} of {needed} bytes"
    return ""


def _open_converted(target: Path, info: Path, point_id: np.ndarray, matches: Path | None) -> PatchSet:
    opened = PatchSet.open(target)
    if not np.array_equal(opened.point_id, point_id):
        raise InputError(
            f"{target} holds {len(opened)} patches that do not agree with the {len(point_id)} rows of {info}: "
            "remove it or choose another output folder."
        )
    if matches is not None and opened.origin.get("matches") != matches.name:
        # A file of pairs that was added after the conversion is used as well.
        return opened.with_test_pairs(read_test_pairs(matches, point_id))
    return opened


def _require_writable(target: Path, is_default: bool) -> None:
    """Fail before the work, not after. Only writing a file tests read-only mounts, too."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=target.parent):
            pass
    except OSError as error:
        by_option = f"pass an output folder (sdgmnet data phototour {target.parent} -o OUT)"
        advice = by_option if is_default else "choose another folder"
        raise InputError(f"{target} cannot be written ({error.strerror}): {advice}.") from error

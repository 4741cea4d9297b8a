"""HPatches on disk: 16 strips of patches per sequence, and descriptors as CSV files of the same names.

`ref.png`, `e1.png` ... `e5.png` (easy), `h1` ... (hard), `t1` ... (tough): gray, 65 pixels wide, one patch below the other.
Patch k shows the same region in all of them.
"""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sdgmnet.data.hpatches.splits import SPLITS
from sdgmnet.errors import InputError
from sdgmnet.features.images import read_gray
from sdgmnet.storage import new_folder, reading

SIDE = 65
NOISES = {"easy": "e", "hard": "h", "tough": "t"}
OTHERS = 5  # images besides the reference
TYPES = ("ref", *(f"{letter}{number}" for letter in NOISES.values() for number in range(1, OTHERS + 1)))
KINDS = {"i_": "illum", "v_": "view"}
UNLABELLED = "unlabelled"


class Choice(NamedTuple):
    """The available sequences of a split, in the split's own order."""

    split: str
    names: tuple[str, ...]
    of: int  # number of sequences in the whole split

    @property
    def label(self) -> str:
        return f"split {self.split}, {len(self.names)} of {self.of} sequences"

    def without(self, names: Iterable[str]) -> "Choice":
        left_out = set(names)
        return self._replace(names=tuple(name for name in self.names if name not in left_out))


def choose_sequences(root: Path | str, split: str) -> tuple[Choice, list[str]]:
    """The available sequences of the split, and the names of the missing ones. "all": every folder with a strip."""
    root = Path(root)
    if not root.is_dir():
        raise InputError(f"{root} is not a folder: give the folder that holds HPatches' sequences.")
    found = sorted(folder.name for folder in root.iterdir() if any((folder / f"{one}.png").is_file() for one in TYPES))
    if not found:
        raise InputError(
            f"{root} contains no HPatches strips: a sequence is a folder with ref.png, e1.png ... t5.png "
            "(sdgmnet data hpatches makes them from images)."
        )
    if split == "all":
        return Choice(split, tuple(found), len(found)), []
    if split not in SPLITS:
        raise InputError(f"--split is one of {', '.join(SPLITS)} or all, not {split!r}.")
    names = [name for name in SPLITS[split] if name in found]
    if not names:
        raise InputError(f"{root} has no sequence of split {split}: use --split all for its {len(found)} sequences.")
    return Choice(split, tuple(names), len(SPLITS[split])), [name for name in SPLITS[split] if name not in names]


def kind_of(name: str) -> str:
    """illum, view or unlabelled, by the prefix of the name."""
    return KINDS.get(name[:2], UNLABELLED)


def read_strip(path: Path | str) -> np.ndarray:
    """Patches (N, 65, 65) uint8."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path} does not exist: a sequence is {TYPES[0]}.png, {TYPES[1]}.png ... {TYPES[-1]}.png.")
    pixels = read_gray(path, exif_orientation=False)
    height, width = pixels.shape
    if width != SIDE or height % SIDE:
        raise InputError(f"{path} is {width} x {height} pixels: a strip is {SIDE} wide and a multiple of {SIDE} high.")
    return pixels.reshape(-1, SIDE, SIDE)


def read_patches(folder: Path | str) -> np.ndarray:
    """All patches of a sequence: (16, N, 65, 65) uint8, in the order of TYPES."""
    paths = [Path(folder) / f"{name}.png" for name in TYPES]
    reference = read_strip(paths[0])
    patches = np.empty((len(TYPES), *reference.shape), dtype=np.uint8)
    for number, path in enumerate(paths):
        strip = read_strip(path) if number else reference
        if len(strip) != len(reference):
            raise InputError(f"{path} has {len(strip)} patches, but ref.png {len(reference)}.")
        patches[number] = strip
    return patches


def digest_of_sequence(folder: Path | str, suffix: str) -> str:
    """The first twelve digits of the SHA-256 of its 16 files."""
    together = hashlib.sha256()
    for name in TYPES:
        path = Path(folder) / f"{name}{suffix}"
        if not path.is_file():
            raise InputError(f"{path} does not exist: a sequence is {TYPES[0]}{suffix} ... {TYPES[-1]}{suffix}.")
        with open(path, "rb") as file:
            together.update(hashlib.file_digest(file, "sha256").digest())
    return together.hexdigest()[:12]


def read_descriptors(folder: Path | str) -> np.ndarray:
    """Descriptors (16, N, D) float32 of a sequence from its 16 CSV files, separated by , or ;."""
    folder = Path(folder)
    files = [read_descriptor_file(folder / f"{name}.csv") for name in TYPES]
    for name, rows in zip(TYPES, files, strict=True):
        if rows.shape != files[0].shape:
            raise InputError(f"{folder / f'{name}.csv'} has shape {rows.shape}, but ref.csv {files[0].shape}.")
    return np.stack(files)


def read_descriptor_file(path: Path) -> np.ndarray:
    try:
        with reading(path), open(path, encoding="ascii") as file:
            first = file.readline()
            if not first.strip():
                raise InputError(f"{path} is empty: it needs a row per patch.")
            delimiter = ";" if ";" in first else ","
            file.seek(0)
            rows = np.loadtxt(file, dtype=np.float32, delimiter=delimiter, ndmin=2, comments=None)
    except InputError:
        raise
    except ValueError as error:
        reason = str(error).split(";")[0]
        message = f"{path} is not a table of numbers ({reason}): each row is one descriptor, without a header."
        raise InputError(message) from error
    if not np.isfinite(rows).all():
        raise InputError(f"{path} contains NaN or infinite numbers.")
    return rows


def write_descriptors(folder: Path | str, sequences: Iterable[tuple[str, np.ndarray]]) -> None:
    """Write a folder of official CSV files for (name, descriptors (16, N, D)). Nine digits keep every float32 exact."""
    with new_folder(folder) as part:
        for name, descriptors in sequences:
            (part / name).mkdir()
            for kind, rows in zip(TYPES, descriptors, strict=True):
                np.savetxt(part / name / f"{kind}.csv", rows, fmt="%.9g", delimiter=",")


def row_numbers(
    starts: np.ndarray, counts: np.ndarray, sequence: np.ndarray, kind: np.ndarray, index: np.ndarray
) -> np.ndarray:
    """Row of patch `index` of strip number `kind` of a sequence, when the (16, N) patches of all sequences are concatenated."""
    return starts[sequence] + kind * counts[sequence] + index


def counts_and_starts(counts: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """For `row_numbers`: patches per strip of each sequence, and the first row of each."""
    each = np.asarray(counts, dtype=np.int64)
    return each, np.concatenate([[0], np.cumsum(len(TYPES) * each)[:-1]]).astype(np.int64)

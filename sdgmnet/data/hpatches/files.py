"""HPatches on disk: strips of patches, 16 a sequence, and descriptors as CSV files of the same names.

`ref.png`, `e1.png` ... `e5.png` (easy), `h1` ... (hard), `t1` ... (tough): gray, 65 pixels wide, one patch below the other; a
patch has the same number in all of them.
"""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sdgmnet.data.hpatches.splits import SPLITS
from sdgmnet.errors import InputError
from sdgmnet.features.images import read_gray
from sdgmnet.storage import new_folder, require_plain

SIDE = 65
NOISES = {"easy": "e", "hard": "h", "tough": "t"}
OTHERS = 5  # images besides the reference
TYPES = ("ref", *(f"{letter}{number}" for letter in NOISES.values() for number in range(1, OTHERS + 1)))
KINDS = {"i_": "illum", "v_": "view"}
UNLABELLED = "unlabelled"


class Choice(NamedTuple):
    """Sequences of a split, in the split's own order."""

    split: str
    names: tuple[str, ...]
    of: int  # so many belong to the split

    @property
    def label(self) -> str:
        return f"split {self.split}, {len(self.names)} of {self.of} sequences"

    def without(self, names: Iterable[str]) -> "Choice":
        left_out = set(names)
        return self._replace(names=tuple(name for name in self.names if name not in left_out))


def choose_sequences(root: Path | str, split: str) -> tuple[Choice, list[str]]:
    """The sequences of the split that are there, and the names of those that are not. "all": every folder with a strip."""
    root = Path(root)
    if not root.is_dir():
        raise InputError(f"{root} is not a folder: give the folder that holds HPatches' sequences.")
    there = sorted(
        folder.name for folder in root.iterdir() if any((folder / f"{name}.png").is_file() for name in TYPES)
    )
    if not there:
        raise InputError(
            f"{root} holds no patch strips: a sequence is a folder with ref.png, e1.png ... t5.png (from images: "
            "sdgmnet data hpatches)."
        )
    if split == "all":
        return Choice(split, tuple(there), len(there)), []
    if split not in SPLITS:
        raise InputError(f"--split is one of {', '.join(SPLITS)} or all, not {split!r}.")
    names = [name for name in SPLITS[split] if name in set(there)]
    if not names:
        raise InputError(f"{root} holds no sequence of split {split}: its {len(there)} sequences are --split all.")
    return Choice(split, tuple(names), len(SPLITS[split])), [name for name in SPLITS[split] if name not in names]


def kind_of(name: str) -> str:
    """illum, view or unlabelled, by the name's beginning."""
    return KINDS.get(name[:2], UNLABELLED)


def read_strip(path: Path | str) -> np.ndarray:
    """Patches (N, 65, 65) uint8."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path} does not exist: a sequence is {TYPES[0]}.png, {TYPES[1]}.png ... {TYPES[-1]}.png.")
    pixels = read_gray(path, exif_orientation=False)
    height, width = pixels.shape
    if width != SIDE or height % SIDE:
        raise InputError(
            f"{path} is {width} x {height} pixels: a strip of patches is {SIDE} wide and a multiple of {SIDE} high."
        )
    return pixels.reshape(-1, SIDE, SIDE)


def read_patches(folder: Path | str) -> np.ndarray:
    """All patches of a sequence: (16, N, 65, 65) uint8, in the order of TYPES."""
    folder = Path(folder)
    patches = np.empty((0, 0, SIDE, SIDE), dtype=np.uint8)
    for number, name in enumerate(TYPES):
        strip = read_strip(folder / f"{name}.png")
        if not number:
            patches = np.empty((len(TYPES), *strip.shape), dtype=np.uint8)
        if len(strip) != patches.shape[1]:
            raise InputError(f"{folder / f'{name}.png'} holds {len(strip)} patches, but ref.png {patches.shape[1]}.")
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
    """Descriptors (16, N, D) float32 of a sequence from its 16 CSV files, whose numbers are parted by , or ;."""
    folder = Path(folder)
    files = [read_descriptor_file(folder / f"{name}.csv") for name in TYPES]
    for name, rows in zip(TYPES, files, strict=True):
        if rows.shape != files[0].shape:
            raise InputError(
                f"{folder / f'{name}.csv'} holds {rows.shape[0]} rows of {rows.shape[1]} numbers, but ref.csv "
                f"{files[0].shape[0]} of {files[0].shape[1]}."
            )
    return np.stack(files)


def read_descriptor_file(path: Path) -> np.ndarray:
    try:
        require_plain(path)
        with open(path, encoding="ascii") as file:
            first = file.readline()
            if not first.strip():
                raise InputError(f"{path} is empty: it needs a row a patch.")
            delimiter = ";" if ";" in first else ","
            file.seek(0)
            rows = np.loadtxt(file, dtype=np.float32, delimiter=delimiter, ndmin=2, comments=None)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}).") from error
    except InputError:
        raise
    except ValueError as error:
        reason = str(error).split(";")[0]
        raise InputError(
            f"{path} is no table of numbers ({reason}): a row is one descriptor, without header."
        ) from error
    if not np.isfinite(rows).all():
        raise InputError(f"{path} holds NaN or infinite numbers.")
    return rows


def write_descriptors(folder: Path | str, sequences: Iterable[tuple[str, np.ndarray]]) -> None:
    """A folder of official CSV files: name, descriptors (16, N, D) each. Nine digits give every float32 back."""
    with new_folder(folder) as part:
        for name, descriptors in sequences:
            (part / name).mkdir()
            for kind, rows in zip(TYPES, descriptors, strict=True):
                np.savetxt(part / name / f"{kind}.csv", rows, fmt="%.9g", delimiter=",")


def row_numbers(
    starts: np.ndarray, counts: np.ndarray, sequence: np.ndarray, kind: np.ndarray, index: np.ndarray
) -> np.ndarray:
    """Where patch `index` of type number `kind` of a sequence lies when all (16, N) of all sequences follow each other."""
    return starts[sequence] + kind * counts[sequence] + index


def counts_and_starts(counts: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    each = np.asarray(counts, dtype=np.int64)
    return each, np.concatenate([[0], np.cumsum(len(TYPES) * each)[:-1]]).astype(np.int64)

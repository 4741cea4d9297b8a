"""Descriptors of HPatches strips: computed or read from the official CSV files, and cached on disk as .npy files."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np

from sdgmnet.data.hpatches.files import digest_of_sequence, read_descriptors, read_patches, write_descriptors
from sdgmnet.descriptors import Descriptor
from sdgmnet.errors import InputError
from sdgmnet.report import OnProgress, track
from sdgmnet.storage import is_disk_full, new_file
from sdgmnet.version import __version__

CACHE_VERSION = 1  # files of another version are not used
PATCHES = 4096  # described at once


def cache_name(fingerprint: str) -> str:
    """Folder of a descriptor in the cache: readable and unique."""
    made_by = f"{fingerprint} {CACHE_VERSION} {__version__} {cv2.__version__}"  # SIFT is OpenCV's
    return f"{file_name(Path(fingerprint).name)[:40]}-{hashlib.sha256(made_by.encode()).hexdigest()[:12]}"


def file_name(label: str) -> str:
    """The label with everything replaced that a file name should not hold."""
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in label).strip(".") or "unnamed"


def describe_all(
    descriptors: Sequence[Descriptor],
    folders: Sequence[Path],
    root: Path,
    names: Sequence[str],
    on_progress: OnProgress,
) -> tuple[dict[str, list[Path]], list[str]]:
    """Files of descriptors (16, N, D) float32, by sequence and in the order of `descriptors`; and errors of other sequences.

    folders: where the files of each descriptor are written, or found if they have been written before.
    """
    for one in descriptors:
        if "@" in one.fingerprint.split(" ")[0]:
            raise InputError(f"{one.label}: HPatches' patches are cut already; leave out the window after @.")
    described: dict[str, list[Path]] = {}
    errors: list[str] = []
    lengths: list[int] | None = None
    for name in track(names, "describing", on_progress):
        try:
            files = describe_sequence(descriptors, folders, root / name)
            shapes = [np.load(file, mmap_mode="r").shape for file in files]
            lengths = require_consistent(shapes, lengths, descriptors, root / name)
            described[name] = files
        except InputError as error:
            if is_disk_full(error):
                raise  # every other sequence would fail as well
            errors.append(str(error))
    return described, errors


def require_consistent(
    shapes: Sequence[tuple[int, ...]], lengths: list[int] | None, descriptors: Sequence[Descriptor], folder: Path
) -> list[int]:
    """A sequence needs two patches, and descriptors of the same length as the sequences before. Returns the lengths."""
    if shapes[0][1] < 2:
        raise InputError(f"{folder / 'ref.png'} holds one patch only: pairs of patches need two.")
    lengths = lengths or [shape[2] for shape in shapes]
    for one, shape, length in zip(descriptors, shapes, lengths, strict=True):
        if shape[2] != length:
            raise InputError(
                f"the descriptors of {one.label} have {shape[2]} dimensions in {folder.name}, but {length} in others."
            )
    return lengths


def describe_sequence(descriptors: Sequence[Descriptor], folders: Sequence[Path], sequence: Path) -> list[Path]:
    """The cache file of each descriptor; those that are missing or damaged are written."""
    strips, patches, files = digest_of_sequence(sequence, ".png"), None, []
    for one, folder in zip(descriptors, folders, strict=True):
        csv = None if one.csv_folder is None else one.csv_folder / sequence.name
        key = strips if csv is None else f"{strips}-{digest_of_sequence(csv, '.csv')}"
        file = folder / f"{sequence.name}-{key}.npy"
        if not is_complete(file):
            patches = read_patches(sequence) if patches is None else patches
            described = read_checked(csv, patches) if csv else describe_patches(one, patches, sequence)
            with new_file(file) as part, open(part, "wb") as stream:
                np.save(stream, described)
        files.append(file)
    return files


def is_complete(path: Path) -> bool:
    try:
        return np.load(path, mmap_mode="r").ndim == 3
    except Exception:  # a damaged header can fail in any way
        return False


def describe_patches(descriptor: Descriptor, patches: np.ndarray, sequence: Path) -> np.ndarray:
    """(16, N, 65, 65) -> (16, N, D)."""
    flat = patches.reshape(-1, *patches.shape[2:])
    parts = [
        np.asarray(descriptor.describe(flat[start : start + PATCHES]), dtype=np.float32)
        for start in range(0, len(flat), PATCHES)
    ]
    described = np.concatenate(parts)
    if len(described) != len(flat) or described.ndim != 2:
        raise InputError(
            f"{descriptor.label} returns {described.shape} for {len(flat)} patches: it must return one row per patch."
        )
    if not np.isfinite(described).all():
        raise InputError(f"{descriptor.label} returns NaN or infinite descriptors for patches of {sequence}.")
    return described.reshape(*patches.shape[:2], -1)


def read_checked(csv: Path, patches: np.ndarray) -> np.ndarray:
    described = read_descriptors(csv)
    if described.shape[1] != patches.shape[1]:
        raise InputError(
            f"{csv / 'ref.csv'} holds {described.shape[1]} rows, but the strips {patches.shape[1]} patches."
        )
    return described


def csv_folders(descriptors: Sequence[Descriptor], folder: Path | str) -> list[Path]:
    """Where the CSV files of each descriptor go, checked before any work is done."""
    folders = [Path(folder) / file_name(one.label) for one in descriptors]
    for one in folders:
        if folders.count(one) > 1:
            raise InputError(f"two descriptors would both be written to {one}: give them other labels.")
        if one.is_file() or (one.is_dir() and any(one.iterdir())):
            raise InputError(f"{one} already exists and is not empty: choose another folder for --csv.")
    return folders


def write_csv(
    descriptors: Sequence[Descriptor],
    described: dict[str, list[Path]],
    folders: Sequence[Path],
    on_progress: OnProgress,
) -> None:
    """Write the official files of every descriptor: FOLDER/SEQUENCE/ref.csv ..."""
    for number, (one, folder) in enumerate(zip(descriptors, folders, strict=True)):
        arrays = ((name, np.load(files[number], mmap_mode="r")) for name, files in described.items())
        write_descriptors(folder, track(arrays, f"{one.label}, writing", on_progress, len(described)))

"""Image sequences with homographies, as HPatches and the Oxford set keep them: `1.png` ... `6.png`, `H_1_2` ... `H_1_6`."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from sdgmnet.errors import InputError

SUFFIXES = (".png", ".ppm", ".pgm", ".jpg", ".jpeg")


class ImageSequence(NamedTuple):
    """A reference picture and others of the same plane, with the homographies that lead from it to each of them."""

    name: str
    reference: Path
    others: tuple[Path, ...]
    homographies: tuple[np.ndarray, ...]  # (3, 3) each, pixel centres at integers


def read_sequences(root: Path | str) -> list[ImageSequence]:
    """All sequences below `root` (or `root` itself), by name."""
    return [read_sequence(folder) for folder in sequence_folders(root)]


def sequence_folders(root: Path | str) -> list[Path]:
    """The folders below `root`, or `root` itself, that hold a first picture."""
    root = Path(root)
    if not root.is_dir():
        raise InputError(f"{root} is not a folder: give the folder that holds the sequences.")
    folders = [folder for folder in sorted((root, *root.iterdir())) if folder.is_dir() and _picture(folder, 1)]
    if not folders:
        raise InputError(
            f"{root} holds no sequence: a sequence is a folder with pictures 1.png, 2.png ... and files H_1_2 ..."
        )
    return folders


def read_sequence(folder: Path) -> ImageSequence:
    """Its pictures and homographies; an error where one is missing or no homography."""
    reference, others, homographies = _picture(folder, 1), [], []
    assert reference is not None
    number = 2
    while (picture := _picture(folder, number)) is not None:
        others.append(picture)
        homographies.append(read_homography(folder / f"H_1_{number}"))
        number += 1
    last = max(
        (int(path.stem) for path in folder.iterdir() if path.stem.isdigit() and path.suffix in SUFFIXES), default=1
    )
    if last >= number:
        raise InputError(f"{folder} holds picture {last} but not picture {number}: number the pictures without gaps.")
    if not others:
        raise InputError(f"{folder} holds one picture only: a sequence needs {folder.name}/2.png and H_1_2 at least.")
    return ImageSequence(folder.name, reference, tuple(others), tuple(homographies))


def _picture(folder: Path, number: int) -> Path | None:
    return next((path for suffix in SUFFIXES if (path := folder / f"{number}{suffix}").is_file()), None)


def read_homography(path: Path) -> np.ndarray:
    """Nine numbers in text, three rows of three."""
    try:
        matrix = np.array([row.split() for row in path.read_text().strip().splitlines()], dtype=np.float64)
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path} cannot be read as a homography ({error}): it needs three rows of three numbers."
        ) from error
    if matrix.shape != (3, 3) or not np.isfinite(matrix).all() or abs(np.linalg.det(matrix)) < 1e-12:
        raise InputError(f"{path} is no homography: it needs three rows of three numbers and an inverse.")
    return matrix

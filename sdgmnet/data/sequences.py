"""Image sequences with homographies, as HPatches and the Oxford set keep them: `1.png` ... `6.png`, `H_1_2` ... `H_1_6`."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from sdgmnet.errors import InputError
from sdgmnet.storage import read_text

SUFFIXES = (".png", ".ppm", ".pgm", ".jpg", ".jpeg")


class ImageSequence(NamedTuple):
    """A reference image and others of the same plane, with the homographies that lead from it to each of them."""

    name: str
    reference: Path
    others: tuple[Path, ...]
    homographies: tuple[np.ndarray, ...]  # (3, 3) each, pixel centres at integers


def read_sequences(root: Path | str) -> list[ImageSequence]:
    """All sequences below `root` (or `root` itself), by name."""
    return [read_sequence(folder) for folder in sequence_folders(root)]


def sequence_folders(root: Path | str) -> list[Path]:
    """Folders of sequences below `root` (or `root` itself), by name: those with an image 1 or a homography from it."""
    root = Path(root)
    if not root.is_dir():
        raise InputError(f"{root} is not a folder: give the folder that holds the sequences.")
    folders = [folder for folder in sorted((root, *root.iterdir())) if folder.is_dir() and _is_sequence(folder)]
    if not folders:
        raise InputError(
            f"{root} holds no sequence: a sequence is a folder with images 1.png, 2.png ... and files H_1_2 ..."
        )
    return folders


def _is_sequence(folder: Path) -> bool:
    return _picture(folder, 1) is not None or bool(_homographies(folder))


def read_sequence(folder: Path) -> ImageSequence:
    """The sequence of a folder. Its images are looked for, not opened."""
    pictures: list[Path] = []
    while (picture := _picture(folder, len(pictures) + 1)) is not None:
        pictures.append(picture)
    missing = len(pictures) + 1
    last_picture, last_homography = (
        max(found, default=0) for found in (_numbers(folder, "", SUFFIXES), _homographies(folder))
    )
    if last_picture > missing:
        raise InputError(
            f"{folder} holds image {last_picture} but not image {missing}: number the images without gaps."
        )
    if last_homography >= missing:
        raise InputError(
            f"{folder} holds H_1_{last_homography} but not image {missing}: add the image or remove the homography."
        )
    if len(pictures) == 1:
        raise InputError(f"{folder} holds one image only: a sequence needs {folder.name}/2.png and H_1_2 at least.")
    homographies = tuple(read_homography(folder / f"H_1_{number}") for number in range(2, missing))
    return ImageSequence(folder.resolve().name, pictures[0], tuple(pictures[1:]), homographies)


def _picture(folder: Path, number: int) -> Path | None:
    return next((path for suffix in SUFFIXES if (path := folder / f"{number}{suffix}").is_file()), None)


def _homographies(folder: Path) -> list[int]:
    return _numbers(folder, "H_1_", ("",))


def _numbers(folder: Path, before: str, suffixes: tuple[str, ...]) -> list[int]:
    """Of the files that are called `before`, a number and one of the suffixes."""
    stems = [path.stem.removeprefix(before) for path in folder.glob(f"{before}*") if path.suffix in suffixes]
    return [int(stem) for stem in stems if stem.isdecimal()]


def read_homography(path: Path) -> np.ndarray:
    """Nine numbers in text, three rows of three."""
    try:
        rows = [[float(word) for word in line.split()] for line in read_text(path).strip().splitlines()]
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path} cannot be read as a homography ({error}): it needs three rows of three numbers."
        ) from error
    if [len(row) for row in rows] != [3, 3, 3]:
        count = sum(len(row) for row in rows)
        raise InputError(
            f"{path} is no homography: it needs three rows of three numbers, and holds {count} in {len(rows)}."
        )
    matrix = np.array(rows, dtype=np.float64)
    if not np.isfinite(matrix).all() or abs(np.linalg.det(matrix / max(np.abs(matrix).max(), 1e-300))) < 1e-15:
        raise InputError(f"{path} is no homography: it needs three rows of three numbers and an inverse.")
    return matrix

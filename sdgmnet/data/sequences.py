"""Image sequences with homographies, as in HPatches and the Oxford set: `1.png` ... `6.png`, `H_1_2` ... `H_1_6`."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from sdgmnet.errors import InputError
from sdgmnet.storage import read_text

SUFFIXES = (".png", ".ppm", ".pgm", ".jpg", ".jpeg")


class ImageSequence(NamedTuple):
    """A reference image and others of the same plane, with the homographies from the reference to each of them."""

    name: str
    reference: Path
    others: tuple[Path, ...]
    homographies: tuple[np.ndarray, ...]  # (3, 3) each, pixel centres at integers


def sequence_folders(root: Path | str) -> list[Path]:
    """Folders of sequences below `root` (or `root` itself), by name: those with an image 1 or a homography from it."""
    root = Path(root)
    if not root.is_dir():
        raise InputError(f"{root} is not a folder: give the folder that contains the sequences.")
    folders = [one for one in sorted((root, *root.iterdir())) if one.is_dir() and (_image(one, 1) or _numbers(one))]
    if not folders:
        raise InputError(f"{root} contains no sequence: a folder with images 1.png, 2.png ... and files H_1_2 ...")
    return folders


def read_sequence(folder: Path) -> ImageSequence:
    """The sequence of a folder. The existence of its images is checked; they are not opened."""
    images: list[Path] = []
    while (image := _image(folder, len(images) + 1)) is not None:
        images.append(image)
    missing, last = len(images) + 1, max(_numbers(folder, "", SUFFIXES), default=0)
    if last > missing:
        raise InputError(f"{folder} has image {last} but not image {missing}: number the images without gaps.")
    last = max(_numbers(folder), default=0)
    if last >= missing:
        raise InputError(f"{folder} has H_1_{last} but not image {missing}: add the image or remove the homography.")
    if len(images) == 1:
        raise InputError(f"{folder} has one image only: a sequence needs at least {folder.name}/2.png and H_1_2.")
    homographies = tuple(read_homography(folder / f"H_1_{number}") for number in range(2, missing))
    return ImageSequence(folder.resolve().name, images[0], tuple(images[1:]), homographies)


def _image(folder: Path, number: int) -> Path | None:
    return next((path for suffix in SUFFIXES if (path := folder / f"{number}{suffix}").is_file()), None)


def _numbers(folder: Path, prefix: str = "H_1_", suffixes: tuple[str, ...] = ("",)) -> list[int]:
    """Of the files named by a prefix, a number and one of the suffixes; by default of the homographies."""
    stems = [path.stem.removeprefix(prefix) for path in folder.glob(f"{prefix}*") if path.suffix in suffixes]
    return [int(stem) for stem in stems if stem.isdecimal()]


def read_homography(path: Path) -> np.ndarray:
    """Nine numbers in text, three rows of three."""
    lines = read_text(path).strip().splitlines()
    try:
        rows = [[float(word) for word in line.split()] for line in lines]
    except ValueError as error:
        raise InputError(f"{path} cannot be read as a homography ({error}): it needs 3 rows of 3 numbers.") from error
    if [len(row) for row in rows] != [3, 3, 3]:
        raise InputError(f"{path} is not a homography: it needs 3 rows of 3 numbers, not rows of {[*map(len, rows)]}.")
    matrix = np.array(rows, dtype=np.float64)
    if not np.isfinite(matrix).all() or abs(np.linalg.det(matrix / max(np.abs(matrix).max(), 1e-300))) < 1e-15:
        raise InputError(f"{path} is not a homography: it has no inverse.")
    return matrix

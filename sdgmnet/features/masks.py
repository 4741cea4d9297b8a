"""Masks of images, in COLMAP's convention: the mask of sub/a.jpg is MASKS/sub/a.jpg.png, and no keypoint is kept where it is 0.

An image without a mask is used as a whole. A mask has the size of its image, with EXIF orientation applied unless the
image is read as stored.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from sdgmnet.errors import InputError
from sdgmnet.features.images import photo_digests, read_gray

MASKS_HELP = (
    "Folder of masks, as in COLMAP: no keypoints are detected where MASKS/a.jpg.png, the mask of a.jpg, is 0. Images without "
    "a mask are used as a whole."
)


def mask_name(image: str) -> str:
    return f"{image}.png"


def read_mask(folder: Path, image: str, size: tuple[int, int]) -> np.ndarray | None:
    """(H, W) uint8 of the image of this name and size (width, height); None if it has no mask."""
    path = folder / mask_name(image)
    if not path.exists():
        return None
    mask = read_gray(path)
    if mask.shape != (size[1], size[0]):
        raise InputError(
            f"{path} has {mask.shape[1]} x {mask.shape[0]} pixels, its image {image} {size[0]} x {size[1]}: a mask must have "
            "the size of its image, with EXIF orientation applied."
        )
    return mask


def require_masks(folder: Path | None, images: Iterable[str]) -> None:
    """InputError unless at least one of the images has a mask: otherwise the folder is another one than was meant."""
    if folder is None:
        return
    if not folder.is_dir():
        raise InputError(f"--masks {folder} {'is a file' if folder.exists() else 'does not exist'}: give a folder.")
    names = list(images)
    if not any((folder / mask_name(name)).is_file() for name in names):
        raise InputError(
            f"--masks {folder} has no mask of these images: the mask of {names[0]} is called {mask_name(names[0])}."
        )


def mask_digests(folder: Path) -> list[list[str]]:
    """Name and SHA-1 of each mask, for the record of what was computed with them."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.png"))
    return photo_digests(folder, names)

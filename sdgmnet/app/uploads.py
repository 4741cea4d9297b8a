"""What a browser sends: files in one folder, bounded in size and count."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np

from sdgmnet.data.synthetic.demo import image_path, read_hard_pair
from sdgmnet.errors import InputError
from sdgmnet.features.images import declared_pixels, read_color, read_content, read_gray
from sdgmnet.storage import new_file

HOUR = 3600  # seconds: uploads and results that are older are removed
MAX_MEGABYTES = 30  # per file
MAX_MEGAPIXELS = 36  # per image: decoded, gray and in colour, it takes 150 MB
STEREO = ("motorcycle_left.png", "motorcycle_right.png")
ROTATED = "rocket.jpg"
EXAMPLES = ("motorcycle: from the side, in less light", "motorcycle: stereo pair", "rocket: rotated and smaller")


class Upload(NamedTuple):
    color: np.ndarray  # (H, W, 3) uint8, RGB
    gray: np.ndarray  # (H, W) uint8, decoded as `sdgmnet match` does


def read_upload(sent: Any, folder: Path, name: str) -> Upload:
    """The image that gradio has stored below `folder`; `name` stands for it in errors.

    sent: gradio's description of a file, a dictionary with "path" and "orig_name"; None if there is no file.
    """
    path = stored_path(sent, folder, name)
    shown = f"{name} ({sent.get('orig_name') or path.name})"
    with shown_as(path, shown):
        require_bounded(path, shown)
        return Upload(read_color(path), read_gray(path))


@contextmanager
def shown_as(path: Path, shown: str) -> Iterator[None]:
    """InputErrors without the path on the server, which means nothing to the user."""
    try:
        yield
    except InputError as error:
        raise InputError(str(error).replace(str(path), shown)) from error


def require_bounded(path: Path, shown: str) -> None:
    if path.stat().st_size > MAX_MEGABYTES * 1e6:
        raise InputError(f"{shown} has more than {MAX_MEGABYTES} MB: give a smaller image.")
    pixels = declared_pixels(read_content(path))
    if pixels > MAX_MEGAPIXELS * 1e6:
        raise InputError(
            f"{shown} has {pixels / 1e6:.1f} megapixels, more than the limit of {MAX_MEGAPIXELS}: resize it."
        )


def stored_path(sent: Any, folder: Path, name: str) -> Path:
    """InputError unless it is a file below `folder`: whoever calls the app's API could name any file of this machine."""
    if not isinstance(sent, dict) or not isinstance(sent.get("path"), str):
        raise InputError(f"{name} is missing: upload an image, or choose an example.")
    path = Path(sent["path"]).resolve()
    if not path.is_relative_to(folder.resolve()) or not path.is_file():
        raise InputError(f"{name} is no longer on the server: upload it again.")
    return path


def read_number(sent: Any, name: str) -> float:
    """The number in a field of the page; a browser sends None for an emptied one."""
    if not isinstance(sent, int | float) or not -inf < sent < inf:
        raise InputError(f"the field {name} has no number: give one.")
    return sent


def write_examples(folder: Path) -> list[tuple[Path, Path]]:
    """`EXAMPLES`: pairs of images from scikit-image, copied below `folder`; none if scikit-image is not installed."""
    try:
        pairs: list[Sequence[np.ndarray]] = [read_hard_pair()[:2], [read_color(image_path(name)) for name in STEREO]]
        upright = read_color(image_path(ROTATED))
    except InputError:  # the extra demo is not installed
        return []
    pairs.append([upright, rotated(upright)])
    found = []
    for number, pair in enumerate(pairs, start=1):
        paths = [folder / f"example_{number}{letter}.jpg" for letter in "ab"]
        for path, image in zip(paths, pair, strict=True):
            jpeg = cv2.imencode(".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, 95])[1]
            with new_file(path) as part:
                part.write_bytes(jpeg.tobytes())
        found.append((paths[0], paths[1]))
    return found


def rotated(image: np.ndarray, degrees: float = 30, scale: float = 0.8) -> np.ndarray:
    """The same scene, rotated about the centre and smaller, with a black border."""
    height, width = image.shape[:2]
    matrix = cv2.getRotationMatrix2D((width / 2, height / 2), degrees, scale)
    return cv2.warpAffine(image, matrix, (width, height), flags=cv2.INTER_AREA)

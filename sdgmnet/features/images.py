"""Files -> pictures, one way for all: gray, upright as the camera's note says, one sentence where a file is no picture."""

from pathlib import Path

import cv2
import numpy as np

from sdgmnet.errors import InputError


def read_gray(path: Path | str) -> np.ndarray:
    """(H, W) uint8, EXIF rotation applied."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path} does not exist: check the name of the picture.")
    try:
        content = np.fromfile(path, dtype=np.uint8)  # OpenCV's own reader fails on some names
        image = cv2.imdecode(content, cv2.IMREAD_GRAYSCALE) if len(content) else None
    except cv2.error:
        image = None
    if image is None:
        raise InputError(
            f"{path} is not a picture that can be read ({path.stat().st_size} bytes): replace or remove it."
        )
    return image

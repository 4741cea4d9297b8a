"""COLMAP's depth and normal map files: the text `width&height&channels&`, then float32, x fastest, then y, then channel."""

from pathlib import Path

import numpy as np

from sdgmnet.errors import InputError
from sdgmnet.files import new_file, read_bytes

LONGEST_HEADER = 64  # three numbers and their separators are shorter


def read_map(path: Path | str) -> np.ndarray:
    """Depths (H, W) or normals (H, W, 3), float32."""
    path = Path(path)
    try:
        content = read_bytes(path)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: estimate the depths first.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}).") from error
    parts = content[:LONGEST_HEADER].split(b"&", 3)
    if len(parts) != 4 or not all(part.isdigit() for part in parts[:3]):
        raise InputError(f"{path} is not a COLMAP map: it does not begin with width&height&channels&.")
    width, height, channels = (int(part) for part in parts[:3])
    start = sum(len(part) + 1 for part in parts[:3])
    if len(content) - start != 4 * width * height * channels:
        raise InputError(
            f"{path} holds {len(content) - start} bytes of values instead of {4 * width * height * channels}: "
            "it is cut off or damaged; remove it and estimate the depths again."
        )
    values = np.frombuffer(content, "<f4", offset=start).reshape(channels, height, width)
    return np.ascontiguousarray(values[0] if channels == 1 else values.transpose(1, 2, 0), dtype=np.float32)


def write_map(path: Path | str, values: np.ndarray) -> None:
    """Write depths (H, W) or normals (H, W, 3); the file appears whole or not at all."""
    if values.ndim not in (2, 3):
        raise InputError(f"A map has two or three dimensions, this one for {path} has {values.ndim}.")
    layers = values[..., None] if values.ndim == 2 else values
    height, width, channels = layers.shape
    with new_file(path) as part, part.open("wb") as file:
        file.write(f"{width}&{height}&{channels}&".encode())
        file.write(np.ascontiguousarray(layers.transpose(2, 0, 1), dtype="<f4").tobytes())

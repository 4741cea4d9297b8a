"""Exchange files of the ETH local-feature benchmark (docs/protocols.md 7.1): keypoints, descriptors and matches.

Each file is two int32, the numbers of rows and columns, and then the table, row by row. Keypoints are float32 (x, y, scale,
orientation) with pixel centres at integers: the benchmark's own export subtracts COLMAP's half pixel. Descriptors are float32,
matches uint32 counted from 0.
"""

from pathlib import Path

import numpy as np

from sdgmnet.errors import InputError
from sdgmnet.features.keypoints import Keypoints
from sdgmnet.storage import new_file, read_bytes


def read_table(path: Path, dtype: str, columns: int | None = None) -> np.ndarray:
    """(rows, columns) of a little-endian dtype."""
    content = read_bytes(path)
    if len(content) < 8:
        raise InputError(f"{path} has {len(content)} bytes, less than the header of 8: write it again.")
    rows, found = (int(number) for number in np.frombuffer(content, "<i4", 2))
    if rows < 0 or found < 0 or len(content) != 8 + 4 * rows * found:
        raise InputError(f"{path} declares {rows} x {found} numbers but has {len(content) - 8} bytes: write it again.")
    if columns is not None and found != columns and rows:
        raise InputError(f"{path} has {found} columns instead of {columns}.")
    return np.frombuffer(content, dtype, offset=8).reshape(rows, found if rows else columns or found)


def write_table(path: Path, table: np.ndarray, dtype: str) -> None:
    with new_file(path) as part, part.open("wb") as file:
        file.write(np.array(table.shape, dtype="<i4").tobytes())
        file.write(np.ascontiguousarray(table, dtype=dtype).tobytes())


def read_keypoints(path: Path) -> Keypoints:
    """In the order of the file; it has no responses, they are 1."""
    x, y, sigma, angle = read_table(path, "<f4", 4).astype(np.float64).T
    if not np.isfinite(x + y + sigma + angle).all() or not (sigma > 0).all():
        raise InputError(f"{path} has keypoints that are not finite, or whose scale is not positive.")
    return Keypoints(np.column_stack([x, y]), sigma, angle, np.ones(len(x)))


def write_keypoints(path: Path, keypoints: Keypoints) -> None:
    write_table(path, np.column_stack([keypoints.xy, keypoints.sigma, keypoints.angle]), "<f4")


def read_descriptors(path: Path) -> np.ndarray:
    descriptors = read_table(path, "<f4")
    if not np.isfinite(descriptors).all():
        raise InputError(f"{path} has descriptors that are not finite.")
    return descriptors


def write_descriptors(path: Path, descriptors: np.ndarray) -> None:
    write_table(path, descriptors, "<f4")


def matches_path(folder: Path, first: str, second: str) -> Path:
    return folder / f"{first}---{second}.bin"


def read_matches(folder: Path, first: str, second: str) -> np.ndarray | None:
    """(M, 2) int64 of two images, stored either way round; None if there is no such file."""
    for is_swapped, names in enumerate(((first, second), (second, first))):
        path = matches_path(folder, *names)
        if path.is_file():
            pairs = read_table(path, "<u4", 2).astype(np.int64)
            return pairs[:, ::-1] if is_swapped else pairs
    return None


def write_matches(folder: Path, first: str, second: str, pairs: np.ndarray) -> None:
    write_table(matches_path(folder, first, second), np.asarray(pairs).reshape(-1, 2), "<u4")

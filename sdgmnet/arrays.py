"""NumPy's .npy and .npz files, read without trust: never unpickled, never larger in memory than their size allows."""

import io
import math
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sdgmnet.errors import InputError

# What unpacks to more than both is taken for a bomb: a small file that fills the memory.
HARMLESS, RATIO = 256 * 1000**2, 20
PLAIN = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
READ_HEADER = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def demand_bounded(path: Path | str, unpacked: int) -> None:
    """That a file does not unpack to far more than it is: memory in proportion to what somebody sent."""
    if unpacked > max(HARMLESS, RATIO * Path(path).stat().st_size):
        raise InputError(f"{path} would unpack to {unpacked / 1e6:.0f} MB, far more than the file: write it again.")


def demand_bounded_zip(path: Path | str, entries: Sequence[zipfile.ZipInfo] | None = None) -> None:
    """Of a zip file, torch's among them, and nothing of any other. ValueError where an entry is packed otherwise than plainly
    or by deflate: zipfile unpacks the others all at once, however much it becomes and whatever size they say.
    """
    if entries is None:
        if not zipfile.is_zipfile(path):
            return
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    if any(entry.compress_type not in PLAIN for entry in entries):
        raise ValueError("it is packed in a way that is not read")
    demand_bounded(path, sum(entry.file_size for entry in entries))


def read_arrays(path: Path | str, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, all or those named."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path} does not exist.")
    try:
        with zipfile.ZipFile(path) as archive:
            entries = {entry.filename: entry for entry in archive.infolist()}
            demand_bounded_zip(path, archive.infolist())
            wanted = [f"{name}.npy" for name in names] if names is not None else list(entries)
            missing = [name for name in wanted if name not in entries]
            if missing:
                raise InputError(f"{path} lacks {missing[0].removesuffix('.npy')}: write it again.")
            return {name.removesuffix(".npy"): _array_in(archive.read(entries[name])) for name in wanted}
    except InputError:
        raise
    except Exception as error:  # a damaged file fails in whatever way its bytes lead to
        raise InputError(f"{path} is not a whole npz file ({reason_of(error)}): write it again.") from error


def _array_in(content: bytes) -> np.ndarray:
    """The array of a .npy file in memory, which must be exactly as long as its header says."""
    stream = io.BytesIO(content)
    version = np.lib.format.read_magic(stream)
    if version not in READ_HEADER:
        raise ValueError(f"npy version {version}")
    shape, by_columns, kind = READ_HEADER[version](stream)
    if kind.hasobject or not kind.itemsize or min(shape, default=0) < 0:
        raise ValueError(f"an array of {kind} {shape}")
    if math.prod(shape) * kind.itemsize != len(content) - stream.tell():
        raise ValueError(f"{len(content) - stream.tell()} bytes for an array of {kind} {shape}")
    flat = np.frombuffer(content, kind, offset=stream.tell())
    return flat.reshape(shape[::-1]).T.copy() if by_columns else flat.reshape(shape).copy()


def reason_of(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"

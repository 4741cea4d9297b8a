"""Nothing half-written: every file and folder is made beside its place and renamed when it is whole."""

import errno
import glob
import hashlib
import io
import json
import math
import os
import re
import shutil
import stat
import uuid
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from sdgmnet.errors import InputError

# ---- files


SPARE = 1 << 16  # bytes; more than libraries gather before they write


def _beside(target: Path) -> Path:
    """A place for the unfinished target. What processes that are gone left unfinished there is removed."""
    if target.exists() and not (target.is_file() or target.is_dir()):  # renaming would put a file in /dev/null's place
        raise InputError(f"{target} is a pipe, a socket or a device: give the name of a file.")
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_unfinished(target)
    return target.with_name(f".{target.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}.part")


def remove_unfinished(target: Path) -> None:
    """What processes that are gone left unfinished of the target."""
    ours = re.compile(rf"\.{re.escape(target.name)}\.(\d+)-[0-9a-f]{{8}}\.part.*", re.DOTALL)
    for stale in target.parent.glob(f".{glob.escape(target.name)}.*.part*"):
        if (made_by := ours.fullmatch(stale.name)) and not _is_alive(int(made_by[1])):
            _remove(stale)


def _remove_with_companions(part: Path) -> None:
    """The part and what a database keeps beside its file while it works (-wal, -shm, -journal)."""
    for found in part.parent.glob(f"{glob.escape(part.name)}*"):
        _remove(found)


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    """Where nobody waits for orphans, as in many containers, a killed process stays listed for ever: it counts as gone."""
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # there, but not ours
        return True
    return True


def is_disk_full(error: BaseException) -> bool:
    """Whether it was raised because of a full disk, or says so."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return error.__cause__ is not None and is_disk_full(error.__cause__)


def has_no_room(folder: Path) -> bool:
    """Whether the disk is full, but for a last megabyte that many libraries leave when they give up."""
    with suppress(OSError):
        return shutil.disk_usage(folder).free < 1 << 20
    return False


@contextmanager
def _disk_full_is_said(target: Path) -> Iterator[None]:
    """Libraries have many words for a full disk, down to running out of memory: where there is no room, that is the reason."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        if is_disk_full(error) or has_no_room(target.parent):
            raise InputError(f"{target} cannot be written, the disk is full: free some space and run again.") from error
        raise


def require_room_left(folder: Path | str) -> None:
    """OSError where the disk is full now: the end of what a library has just written may be missing."""
    if shutil.disk_usage(folder).free < SPARE:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


@contextmanager
def new_file(target: Path | str) -> Iterator[Path]:
    """Yield a path to write to; on success it is flushed to disk and renamed to `target`, otherwise removed."""
    target = Path(target)
    part = _beside(target)
    try:
        with _disk_full_is_said(target):
            yield part
            _flush(part)
            os.replace(part, target)
    finally:
        _remove_with_companions(part)


@contextmanager
def new_folder(target: Path | str) -> Iterator[Path]:
    """Yield an empty folder to fill; on success it is renamed to `target`, which must not hold anything yet."""
    target = Path(target)
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise InputError(f"{target} already exists and is not empty: choose another folder.")
    part = _beside(target)
    part.mkdir()
    try:
        with _disk_full_is_said(target):
            yield part
            for written in part.rglob("*"):
                if written.is_file():
                    _flush(written)
            _rename_folder(part, target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _rename_folder(part: Path, target: Path) -> None:
    try:
        os.replace(part, target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        raise InputError(f"{target} was made by another process meanwhile: it is kept as it is.") from error


def _flush(path: Path) -> None:
    with open(path, "rb+") as written:
        os.fsync(written.fileno())


def is_plain_name(name: str) -> bool:
    """Whether it can be part of a file's name without leading to another folder."""
    return bool(name) and name not in (".", "..") and not any(sign in name for sign in "/\\\0")


def stays_below(name: str) -> bool:
    """Whether folder / name lies below the folder, whatever the folder."""
    return all(is_plain_name(part) for part in name.split("/"))


def require_plain(source: Path | str) -> None:
    """OSError where it is a pipe, a socket or a device, whose reading may wait or go on for ever; or where there is nothing."""
    kind = os.stat(source).st_mode
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):  # of a folder, opening it complains
        raise OSError(errno.EINVAL, "a pipe, socket or device, not a file", str(source))


def read_bytes(source: Path | str) -> bytes:
    """Of a plain file, or OSError."""
    require_plain(source)
    return Path(source).read_bytes()


def read_text(source: Path | str) -> str:
    """Of a plain file, or OSError; UnicodeDecodeError where it is no text."""
    return read_bytes(source).decode("utf-8")


def digest(source: Path | str) -> str:
    """The first twelve digits of the content's SHA-256."""
    require_plain(source)
    with open(source, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:12]


def write_text(target: Path | str, text: str) -> None:
    with new_file(target) as part:
        part.write_text(text, encoding="utf-8")


def write_json(target: Path | str, content: Any) -> None:
    write_text(target, json.dumps(content, indent=2, allow_nan=False) + "\n")


def read_json(source: Path | str) -> Any:
    """What `write_json` wrote, or another's JSON; NaN and Infinity, which are none, are refused."""
    try:
        return parse_json(read_text(source))
    except FileNotFoundError:
        raise InputError(f"{source} does not exist.") from None
    except OSError as error:
        raise InputError(f"{source} cannot be read ({error.strerror}).") from error
    except ValueError as error:
        raise InputError(f"{source} is not valid JSON ({error}): it may be cut off; write it again.") from error


def read_record(source: Path | str, shape: Any) -> Any:
    """JSON of ours that somebody may have changed since: InputError where it does not fit the shape.

    A shape is a type; a dict of the shapes of keys that must be there; a list of one shape for all of its items; or a tuple of
    the shapes of the items of a list as long.
    """
    content = read_json(source)
    if not _fits(content, shape):
        raise InputError(f"{source} does not hold what sdgmnet writes there: it is damaged, or not ours; remove it.")
    return content


def _fits(content: Any, shape: Any) -> bool:
    if isinstance(shape, dict):
        return isinstance(content, dict) and all(key in content and _fits(content[key], shape[key]) for key in shape)
    if isinstance(shape, list):
        return isinstance(content, list) and all(_fits(one, shape[0]) for one in content)
    if isinstance(shape, tuple):
        return isinstance(content, list) and len(content) == len(shape) and all(map(_fits, content, shape))
    return isinstance(content, shape)


def require_same_inputs(path: Path, inputs: dict[str, Any], made: Path | str) -> None:
    """Record what `made` is made from, or raise InputError if the record of a former run differs."""
    if not path.exists():
        write_json(path, inputs)
    elif changed := changed_inputs(read_record(path, dict), inputs):
        raise InputError(f"{made} was made with another {', '.join(changed)}: remove it, or choose another folder.")


def changed_inputs(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    return [key for key in {**before, **now} if before.get(key) != now.get(key)]


def parse_json(text: str) -> Any:
    """Of any text, or ValueError."""
    try:
        content = json.loads(text, parse_constant=_no_number, parse_int=_bounded(int), parse_float=_bounded(float))
        if "\\u" in text:  # half a character is no text that can be written; bytes of a file's name may be none either
            json.dumps(content, ensure_ascii=False).encode(errors="surrogateescape")
        return content
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _bounded(kind: type[int] | type[float]) -> Callable[[str], int | float]:
    """Of the digits of a number, or ValueError where it is beyond any float."""

    def read(digits: str) -> int | float:
        if not math.isfinite(float(digits)):
            raise ValueError(f"{digits[:20]}... is too large a number")
        return kind(digits)

    return read


# ---- arrays


# What unpacks to more than both is taken for a bomb: a small file that fills the memory.
HARMLESS, RATIO = 256 * 1000**2, 20
PLAIN = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
READ_HEADER = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def require_bounded(path: Path | str, unpacked: int) -> None:
    """That a file does not unpack to far more than it is: memory in proportion to what somebody sent."""
    if unpacked > max(HARMLESS, RATIO * Path(path).stat().st_size):
        raise InputError(f"{path} would unpack to {unpacked / 1e6:.0f} MB, far more than the file: write it again.")


def require_bounded_zip(path: Path | str, entries: Sequence[zipfile.ZipInfo] | None = None) -> None:
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
    require_bounded(path, sum(entry.file_size for entry in entries))


def read_arrays(path: Path | str, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, all or those named."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path} does not exist.")
    try:
        with zipfile.ZipFile(path) as archive:
            entries = {entry.filename: entry for entry in archive.infolist()}
            require_bounded_zip(path, archive.infolist())
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


# ---- locks


try:
    import fcntl
except ImportError:  # not on Windows: there nothing is held
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"


@contextmanager
def only_worker(folder: Path, otherwise: str = "choose another -o") -> Iterator[None]:
    """Hold the folder, made where it is missing, while the block runs; an error where another process holds it.

    otherwise: what a user can do besides waiting.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file where a folder is needed: {otherwise}.")
    with holding(folder / LOCK) as mine:
        if not mine:
            raise InputError(f"another process is working on {folder}: let it end, or {otherwise}.")
        yield


@contextmanager
def holding(path: Path) -> Iterator[bool]:
    """Hold a small file, made where it is missing, while the block runs; gives False at once where another process has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if fcntl is None:
        yield True
        return
    descriptor = _take(path)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _take(path: Path) -> int | None:
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        # O_NOFOLLOW: a link would make a file elsewhere.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError:  # a file system without locks
            return descriptor
        if _leads_to(path, descriptor):
            return descriptor
        os.close(descriptor)


def _leads_to(path: Path, descriptor: int) -> bool:
    """Not where the holder before removed it: a lock on a file that is gone keeps nobody out."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False

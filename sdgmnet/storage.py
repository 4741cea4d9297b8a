"""Files on disk: atomic writes, JSON records, arrays from untrusted files, and locks between processes."""

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


def reason_of(error: BaseException) -> str:
    """A library's error as a short reason for a message: its type and text, without the line of the library's source."""
    text = re.sub(r"^\[\S+:\d+\] ", "", " ".join(str(error).split()))
    return f"{type(error).__name__}: {text[:120]}".rstrip(".")


# Atomic files: written under a temporary name in the same folder, renamed when complete.

REFUSALS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG)
BUFFERED = 1 << 16  # bytes; more than libraries buffer before they write


@contextmanager
def new_file(target: Path | str) -> Iterator[Path]:
    """Yield a path to write to; on success it is flushed to disk and renamed to `target`, otherwise removed."""
    target = Path(target)
    part = _temporary(target)
    try:
        with _report_reason(target):
            yield part
            _flush(part)
            os.replace(part, target)
    finally:
        for path in part.parent.glob(f"{glob.escape(part.name)}*"):  # a database also leaves -wal, -shm or -journal
            _remove(path)


@contextmanager
def new_folder(target: Path | str) -> Iterator[Path]:
    """Yield an empty folder to fill; on success it is renamed to `target`, which must be empty or missing."""
    target = Path(target)
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise InputError(f"{target} already exists and is not empty: choose another folder.")
    new_parents = [one for one in target.absolute().parents if not one.exists()]
    part = _temporary(target)
    with _report_reason(target):
        part.mkdir()
    try:
        with _report_reason(target):
            yield part
            for written in part.rglob("*"):
                if written.is_file():
                    _flush(written)
            _rename_folder(part, target)
    finally:
        shutil.rmtree(part, ignore_errors=True)
        with suppress(OSError):  # not empty: it has the target, or what others wrote
            for parent in new_parents:
                parent.rmdir()


def _temporary(target: Path) -> Path:
    if target.exists() and not (target.is_file() or target.is_dir()):  # renaming would replace /dev/null
        raise InputError(f"{target} is a pipe, a socket or a device: give the name of a file.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if is_disk_full(error):
            raise
        raise _refused(target, error) from error
    remove_unfinished(target)
    return target.with_name(f".{target.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}.part")


def require_writable(target: Path) -> None:
    """InputError if a file or folder of this name cannot be written, before any work that its writing would end."""
    places = (target, *target.absolute().parents)
    folder = next(one for one in places if one.exists() and (one.is_dir() or one != target))
    if not folder.is_dir():
        raise InputError(f"{target} cannot be written ({folder} is a file): choose another place.")
    probe = folder / f".{os.getpid()}-{uuid.uuid4().hex[:8]}.part"
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        if not is_disk_full(error):
            raise _refused(target, error) from error


def remove_unfinished(target: Path) -> None:
    """Remove temporary files of `target` whose processes have ended."""
    ours = re.compile(rf"\.{re.escape(target.name)}\.(\d+)-[0-9a-f]{{8}}\.part.*", re.DOTALL)
    for stale in target.parent.glob(f".{glob.escape(target.name)}.*.part*"):
        if (made_by := ours.fullmatch(stale.name)) and not _is_alive(int(made_by[1])):
            _remove(stale)


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    """Zombies count as dead: in many containers nobody waits for orphans, and they stay listed."""
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's process
        return True
    return True


def _flush(path: Path) -> None:
    with open(path, "rb+") as written:
        os.fsync(written.fileno())


def _rename_folder(part: Path, target: Path) -> None:
    try:
        os.replace(part, target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        raise InputError(f"{target} was created by another process in the meantime and is kept.") from error


@contextmanager
def _report_reason(target: Path) -> Iterator[None]:
    """InputError with the reason if `target` cannot be written.

    Libraries report a full disk in many ways, even as a lack of memory: if the disk is full, that is the reason, unless the
    system itself gives another.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        number = error.errno if isinstance(error, OSError) else None
        has_other_reason = number in (*REFUSALS, errno.ENOENT)
        if is_disk_full(error) or (not has_other_reason and has_no_room(target.parent)):
            raise InputError(f"{target} cannot be written, the disk is full: free some space and run again.") from error
        if isinstance(error, OSError) and number in REFUSALS and _is_about(error, target):
            raise _refused(target, error) from error
        raise


def _refused(target: Path, error: OSError) -> InputError:
    return InputError(f"{target} cannot be written ({error.strerror}): choose another place.")


def _is_about(error: OSError, target: Path) -> bool:
    """Whether the error is about the target, its temporary name or its folders, not about a file that was read meanwhile."""
    named = None if error.filename is None else Path(os.fsdecode(error.filename))
    return named is None or named.parent == target.parent or named in (target, *target.parents)


def is_disk_full(error: BaseException) -> bool:
    """Whether a full disk caused the error."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return error.__cause__ is not None and is_disk_full(error.__cause__)


def has_no_room(folder: Path) -> bool:
    """Whether less than a megabyte is free: many libraries give up with a little space left."""
    with suppress(OSError):
        usage = shutil.disk_usage(folder)
        return usage.total > 0 and usage.free < 1 << 20  # /proc has no space at all
    return False


def require_room_left(folder: Path | str) -> None:
    """OSError if the disk is full: the end of what a library has just written may be missing."""
    if shutil.disk_usage(folder).free < BUFFERED:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


def write_text(target: Path | str, text: str) -> None:
    with new_file(target) as part:
        part.write_text(text, encoding="utf-8")


# Reading files and names from elsewhere


def is_plain_name(name: str) -> bool:
    """Whether it is the name of a file or folder, without a path to another folder."""
    return bool(name) and name not in (".", "..") and not any(sign in name for sign in "/\\\0")


def stays_below(name: str) -> bool:
    """Whether folder / name lies below the folder, for any folder."""
    return all(is_plain_name(part) for part in name.split("/"))


def require_regular_file(source: Path | str) -> None:
    """OSError for a missing file, and for a pipe, socket or device, whose reading may never end."""
    kind = os.stat(source).st_mode
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):  # opening a folder fails by itself
        raise OSError(errno.EINVAL, "a pipe, socket or device, not a file", str(source))


@contextmanager
def reading(source: Path | str, advice: str = "") -> Iterator[None]:
    """InputError if it is not a regular file, or opening and reading it fails. advice: what to do where it is missing."""
    try:
        require_regular_file(source)
        yield
    except FileNotFoundError:
        raise InputError(f"{source} does not exist{advice and f': {advice}'}.") from None
    except OSError as error:
        raise InputError(f"{source} cannot be read ({error.strerror}).") from error


def require_file(source: Path | str, advice: str = "") -> None:
    """InputError unless it is a regular file or a folder, for libraries that would wait at a pipe."""
    with reading(source, advice):
        pass


def read_bytes(source: Path | str, advice: str = "") -> bytes:
    with reading(source, advice):
        return Path(source).read_bytes()


def read_text(source: Path | str, advice: str = "") -> str:
    """InputError if it is not UTF-8, too."""
    try:
        return read_bytes(source, advice).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{source} is not a text file: {advice or 'write it again'}.") from error


def digest(source: Path | str) -> str:
    """The first twelve digits of the content's SHA-256."""
    require_regular_file(source)
    with open(source, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:12]


# JSON


def write_json(target: Path | str, content: Any) -> None:
    write_text(target, json.dumps(content, indent=2, allow_nan=False) + "\n")


def read_json(source: Path | str) -> Any:
    """Any valid JSON. NaN and Infinity are not, and are refused."""
    text = read_text(source)
    try:
        return parse_json(text)
    except ValueError as error:
        raise InputError(f"{source} is not valid JSON ({error}): it may be truncated; write it again.") from error


def read_record(source: Path | str, shape: Any) -> Any:
    """JSON that sdgmnet wrote and somebody may have changed: InputError if it does not match the shape.

    A shape is a type; a dict of required keys and their shapes; a list of one shape, for all items; or a tuple of shapes,
    for a list of that length.
    """
    content = read_json(source)
    if not has_shape(content, shape):
        raise InputError(f"{source} is damaged or was not written by sdgmnet: remove it.")
    return content


def has_shape(content: Any, shape: Any) -> bool:
    """Whether parsed JSON matches a shape of `read_record`."""
    if isinstance(shape, dict):
        return isinstance(content, dict) and all(
            key in content and has_shape(content[key], shape[key]) for key in shape
        )
    if isinstance(shape, list):
        return isinstance(content, list) and all(has_shape(one, shape[0]) for one in content)
    if isinstance(shape, tuple):
        return isinstance(content, list) and len(content) == len(shape) and all(map(has_shape, content, shape))
    return isinstance(content, shape)


def require_same_inputs(path: Path, inputs: dict[str, Any], made: Path | str) -> None:
    """Record what `made` is made from, or raise InputError if the record of a former run differs."""
    if not path.exists():
        write_json(path, inputs)
    elif changes := changes_in_words(read_record(path, dict), inputs):
        raise InputError(f"{made} was made with {changes}: give the same, or choose another folder.")


def changes_in_words(before: dict[str, Any], now: dict[str, Any]) -> str:
    """ratio 0.9 (now 0.8), other photos: what differs, with both values where they are short."""
    changes = []
    for key in [key for key in {**before, **now} if before.get(key) != now.get(key)]:
        values, name = (before.get(key), now.get(key)), key.replace("_", " ")
        is_long = any(isinstance(value, (list, dict)) for value in values)
        changes.append(f"other {name}" if is_long else "{} {} (now {})".format(name, *map(_in_words, values)))
    return ", ".join(changes)


def _in_words(value: Any) -> str:
    return {None: "none", True: "yes", False: "no"}[value] if value is None or isinstance(value, bool) else str(value)


def parse_json(text: str) -> Any:
    """Valid JSON with numbers that fit a float and text that can be encoded, or ValueError."""
    try:
        content = json.loads(text, parse_constant=_refuse_constant, parse_int=_finite(int), parse_float=_finite(float))
        if "\\u" in text:  # lone surrogates cannot be encoded, except those of bytes in a file name
            json.dumps(content, ensure_ascii=False).encode(errors="surrogateescape")
        return content
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _finite(kind: type[int] | type[float]) -> Callable[[str], int | float]:
    def read(digits: str) -> int | float:
        if not math.isfinite(float(digits)):
            raise ValueError(f"{digits[:20]}... is too large a number")
        return kind(digits)

    return read


# Arrays from untrusted files

# A file that decompresses to more than both limits is refused as a decompression bomb.
MAX_BYTES, MAX_RATIO = 256 * 1000**2, 20
PLAIN = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
READ_HEADER = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def require_bounded(path: Path | str, unpacked: int) -> None:
    """InputError if a file decompresses to far more than its own size."""
    if unpacked > max(MAX_BYTES, MAX_RATIO * Path(path).stat().st_size):
        raise InputError(f"{path} would decompress to {unpacked / 1e6:.0f} MB, far more than its size: write it again.")


def require_bounded_zip(path: Path | str, entries: Sequence[zipfile.ZipInfo] | None = None) -> None:
    """The same for a zip file, such as torch's; other files pass.

    ValueError for compressions other than deflate: zipfile decompresses those at once, whatever size they claim.
    """
    if entries is None:
        if not zipfile.is_zipfile(path):
            return
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    if any(entry.compress_type not in PLAIN for entry in entries):
        raise ValueError("its compression is not supported")
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
            return {name.removesuffix(".npy"): _parse_npy(archive.read(entries[name])) for name in wanted}
    except InputError:
        raise
    except Exception as error:  # a damaged file can raise anything
        raise InputError(f"{path} is not a valid npz file ({reason_of(error)}): write it again.") from error


def _parse_npy(content: bytes) -> np.ndarray:
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


# Locks between processes: the system frees them when their holder dies.

LOCK = ".lock"
SECONDS_TO_LOCK = 0.1


@contextmanager
def only_worker(folder: Path, otherwise: str = "choose another -o") -> Iterator[None]:
    """Lock a folder, created if missing, while the block runs; InputError if another process holds it.

    otherwise: what a user can do instead of waiting.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file, but a folder is needed: {otherwise}.")
    with try_lock(folder / LOCK) as locked:
        if not locked:
            raise InputError(f"another process is working on {folder}: wait until it ends, or {otherwise}.")
        yield


@contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Lock a file, created if missing, while the block runs; yields False if another process holds it.

    A file system without locks never refuses. The file must not be a symbolic link (OSError).
    """
    from filelock import FileLock, Timeout

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path, timeout=SECONDS_TO_LOCK, poll_interval=SECONDS_TO_LOCK / 5)
    locked = True
    try:
        lock.acquire()
    except Timeout:
        locked = False
    except (OSError, NotImplementedError) as error:
        if getattr(error, "filename", None) is not None:  # the file cannot be opened; errors of locking name no file
            raise
    try:
        yield locked
    finally:
        lock.release()

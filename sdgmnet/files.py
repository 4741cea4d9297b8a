"""Nothing half-written: every file and folder is made beside its place and renamed when it is whole."""

import errno
import glob
import hashlib
import json
import math
import os
import re
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sdgmnet.errors import InputError

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


def demand_room_left(folder: Path | str) -> None:
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


def demand_plain(source: Path | str) -> None:
    """OSError where it is a pipe, a socket or a device, whose reading may wait or go on for ever; or where there is nothing."""
    kind = os.stat(source).st_mode
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):  # of a folder, opening it complains
        raise OSError(errno.EINVAL, "a pipe, socket or device, not a file", str(source))


def read_bytes(source: Path | str) -> bytes:
    """Of a plain file, or OSError."""
    demand_plain(source)
    return Path(source).read_bytes()


def read_text(source: Path | str) -> str:
    """Of a plain file, or OSError; UnicodeDecodeError where it is no text."""
    return read_bytes(source).decode("utf-8")


def digest(source: Path | str) -> str:
    """The first twelve digits of the content's SHA-256."""
    demand_plain(source)
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

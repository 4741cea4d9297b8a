"""One process at a time: a lock that the system takes back when its holder ends, however it ends."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sdgmnet.errors import InputError

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

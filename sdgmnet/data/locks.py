"""One process at a time in a folder: a lock that the system takes back when its holder ends, however it ends."""

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
def only_worker(folder: Path, otherwise: str = "choose another --work") -> Iterator[None]:
    """Hold the folder, made where it is missing, while the block runs; an error where another process holds it.

    otherwise: what a user can do besides waiting.
    """
    if fcntl is None:
        yield
        return
    descriptor = _take(folder, otherwise)
    try:
        yield
    finally:
        os.close(descriptor)


def _take(folder: Path, otherwise: str) -> int:
    path = folder / LOCK
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise InputError(f"another process is working on {folder}: let it end, or {otherwise}.") from None
        except OSError:  # a file system without locks
            return descriptor
        if _leads_to(path, descriptor):
            return descriptor
        os.close(descriptor)


def _leads_to(path: Path, descriptor: int) -> bool:
    """Not where the holder before removed the folder: a lock on a file that is gone keeps nobody out."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False

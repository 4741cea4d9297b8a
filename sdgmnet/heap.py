"""Memory that is freed and soon needed again."""

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager

# Of glibc's malloc.h, with their defaults.
TRIM_THRESHOLD, MMAP_MAX = -1, -4
DEFAULTS = {TRIM_THRESHOLD: 128 * 1024, MMAP_MAX: 65_536}
REUSED = {TRIM_THRESHOLD: 2**31 - 1, MMAP_MAX: 0}


@contextmanager
def reused_heap() -> Iterator[None]:
    """Keep freed blocks of any size in this process until the end of the block, for the next ones.

    glibc returns large blocks to the system at once, and the system clears every page that is asked for again: half of the
    time in which OpenCV detects the keypoints of a large image, a sixth of a training step. Does nothing without glibc.
    """
    libc = ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None
    if libc is None:
        yield
        return
    for option, value in REUSED.items():
        libc.mallopt(option, value)
    try:
        yield
    finally:
        for option, value in DEFAULTS.items():
            libc.mallopt(option, value)
        libc.malloc_trim(0)

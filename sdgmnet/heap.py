"""Memory that is freed and soon needed again."""

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager

TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4  # of glibc's malloc.h
WITHIN = {TRIM_THRESHOLD: 2**31 - 1, MMAP_MAX: 0}
# Setting any of them ends glibc's own adjustment: afterwards, the values that it would grow to.
AFTER = {TRIM_THRESHOLD: 64 << 20, MMAP_THRESHOLD: 32 << 20, MMAP_MAX: 65_536}


@contextmanager
def reused_heap() -> Iterator[None]:
    """Keep freed blocks of any size in this process until the end of the block, for the next ones.

    glibc returns large blocks to the system at once, and the system clears every page that is asked for again: half of the
    time in which OpenCV detects the keypoints of a large image, a sixth of a training step. Does nothing without glibc. It
    is a setting of the whole process: of two overlapping blocks, the first that ends ends both.
    """
    libc = ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None
    if libc is None:
        yield
        return
    for option, value in WITHIN.items():
        libc.mallopt(option, value)
    try:
        yield
    finally:
        for option, value in AFTER.items():
            libc.mallopt(option, value)
        libc.malloc_trim(0)

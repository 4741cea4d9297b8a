"""Memory of one step for the next."""

import ctypes
from contextlib import suppress

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of mallopt in the C library of Linux
LARGEST = 2**30  # bytes of a block that is kept


def keep_freed_memory() -> None:
    """Have what is freed kept for the next step, where the C library can be told so (glibc).

    For the whole process, and for good. Otherwise it gives large blocks back at once, and the system hands out and clears the
    same pages at each step: a fifth of a step of L2Net on a CPU. The most memory in use is a twentieth more with L2Net, and the
    same with SDGMNet.
    """
    with suppress(OSError, AttributeError, TypeError):  # no such library, no such function, Windows
        library = ctypes.CDLL(None)
        if library.mallopt(MMAP_THRESHOLD, LARGEST):  # one that refuses it would do worse with the second alone
            library.mallopt(TRIM_THRESHOLD, LARGEST)

"""Freed memory is reused within the block, and given back after it."""

import resource

import numpy as np
import pytest

from sdgmnet import heap
from sdgmnet.heap import reused_heap

MEGABYTES = 100


def faults(megabytes: int = MEGABYTES) -> int:
    """Pages that the system gives while blocks are taken, written and freed."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        np.full(megabytes << 20, 1, dtype=np.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() >> 20


@pytest.mark.skipif(heap.platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_freed_memory_is_reused_and_then_returned() -> None:
    fresh, began = faults(), resident()
    with reused_heap():
        faults()
        assert faults() < fresh / 10
        assert resident() > began + MEGABYTES / 2
    assert resident() < began + MEGABYTES / 2
    assert faults() > fresh / 2


@pytest.mark.skipif(heap.platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_smaller_blocks_are_as_cheap_as_before() -> None:
    faults(16), faults(16)  # glibc learns to keep them
    before = faults(16)
    with reused_heap():
        pass
    faults(16)
    assert faults(16) <= before + 100


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap.platform, "libc_ver", lambda: ("", ""))
    monkeypatch.delattr(heap.ctypes, "CDLL")
    with reused_heap():
        pass

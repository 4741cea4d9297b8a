"""Sets of the size of UBC PhotoTour: slow, since the folder alone is 1.8 GB."""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from sdgmnet.data.patchset import PatchSet
from sdgmnet.data.phototour import write_phototour
from sdgmnet.data.sampler import PairSampler

CONVERT = """
import re, sys, time
from pathlib import Path
from sdgmnet.data.phototour import read_phototour

def peak():  # megabytes; getrusage would carry over the peak of the process that started this one
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024

before, began = peak(), time.perf_counter()
read_phototour(sys.argv[1], sys.argv[2])
print(f"{time.perf_counter() - began:.1f} s, peak {peak()} MB, {peak() - before} MB above the imports")
sys.exit(peak() > 1000)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads peak memory from /proc")
def test_converting_450000_patches_stays_under_a_gigabyte(tmp_path: Path) -> None:
    count = 450_000
    patches = np.lib.format.open_memmap(tmp_path / "patches.npy", "w+", np.uint8, (count, 64, 64))  # sparse: all zero
    pairs = np.column_stack([np.arange(100_000) * 3, np.arange(100_000) * 3 + 1, np.ones(100_000, dtype=np.int64)])
    write_phototour(PatchSet("large", patches, np.arange(count) // 3, pairs), tmp_path / "folder")
    code = [sys.executable, "-c", CONVERT, str(tmp_path / "folder"), str(tmp_path / "set")]
    done = subprocess.run(code, capture_output=True, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stderr
    began = time.perf_counter()
    opened = PatchSet.open(tmp_path / "set")
    seconds = time.perf_counter() - began
    print(f"opened in {1000 * seconds:.0f} ms")
    assert len(opened) == count
    assert seconds < 0.2


@pytest.mark.slow
def test_batches_of_a_million_patches_with_conflicts_are_quick() -> None:
    count = 1_500_000
    patches = np.broadcast_to(np.zeros((1, 64, 64), dtype=np.uint8), (count, 64, 64))
    rng = np.random.default_rng(0)
    conflicts = rng.integers(0, count // 3, (2_000_000, 2))
    began = time.perf_counter()
    sampler = PairSampler([PatchSet("large", patches, np.arange(count) // 3, conflicts=conflicts)], seed=0)
    built = time.perf_counter() - began
    began = time.perf_counter()
    for step in range(10):
        sampler.indices(step, 1024)
    each = (time.perf_counter() - began) / 10
    print(f"sampler built in {built:.1f} s, {1000 * each:.1f} ms a batch of 1024 pairs")
    assert built < 10
    assert each < 0.05

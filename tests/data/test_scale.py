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
from tests.data.samples import blank_set

# The peak comes from /proc because the one of getrusage is inherited from the process that starts this one.
CONVERT = """
import re, sys, time
from pathlib import Path
from sdgmnet.data.phototour import read_phototour

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024

before, began = peak(), time.perf_counter()
read_phototour(sys.argv[1], sys.argv[2])
print(f"{peak() - before:.0f} MB above the imports, {time.perf_counter() - began:.1f} s")
"""


@pytest.mark.parametrize(("count", "megabytes"), [(20_480, 40), pytest.param(450_000, 150, marks=pytest.mark.slow)])
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads peak memory from /proc")
def test_patches_are_converted_without_holding_them_all(tmp_path: Path, count: int, megabytes: int) -> None:
    """They are 84 MB and 1.8 GB."""
    pairs = np.column_stack([np.arange(count // 5), np.arange(count // 5), np.ones(count // 5, dtype=np.int64)])
    write_phototour(blank_set(np.arange(count) // 3, test_pairs=pairs), tmp_path / "folder")
    code = [sys.executable, "-c", CONVERT, str(tmp_path / "folder"), str(tmp_path / "set")]
    said = subprocess.run(code, capture_output=True, text=True, check=True).stdout
    began = time.perf_counter()
    assert len(PatchSet.open(tmp_path / "set")) == count
    seconds = time.perf_counter() - began
    print(said, f"opened in {1000 * seconds:.0f} ms")
    assert float(said.split()[0]) < megabytes and seconds < 0.2


@pytest.mark.slow
def test_batches_of_a_million_patches_with_conflicts_are_quick() -> None:
    count = 1_500_000
    patches = np.broadcast_to(np.uint8(0), (count, 64, 64))
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

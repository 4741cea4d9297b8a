"""Two minutes of the soak test."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.trust.nursery import REPOSITORY


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_two_minutes() -> None:
    subprocess.run([sys.executable, "-m", "tests.trust.soak", "--minutes", "2"], cwd=REPOSITORY, check=True)

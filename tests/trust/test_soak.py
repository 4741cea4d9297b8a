"""The soak test's regression on known slopes; slow: two minutes of the soak test."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.trust.nursery import REPOSITORY
from tests.trust.soak import slope_of


def test_slope_of_a_known_line() -> None:
    hours = np.linspace(0, 2, 50)
    exact = slope_of(hours, 100 + 7 * hours)
    assert exact.per_hour == pytest.approx(7) and exact.interval == pytest.approx(0, abs=1e-9)
    noise = np.random.default_rng(0).normal(0, 3, (400, 50))
    hits = [abs(slope.per_hour - 7) <= slope.interval for row in noise for slope in [slope_of(hours, 7 * hours + row)]]
    assert 0.91 < np.mean(hits) < 0.98


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_two_minutes() -> None:
    subprocess.run([sys.executable, "-m", "tests.trust.soak", "--minutes", "2"], cwd=REPOSITORY, check=True)

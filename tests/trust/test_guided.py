import os
import subprocess
import sys

import pytest

from tests.trust.nursery import REPOSITORY
from tests.trust.reports import record

pytest.importorskip("atheris", reason="atheris is not installed, or does not run on this system")
pytestmark = pytest.mark.slow
TARGETS = ("own keypoints", "colmap cameras", "phototour texts", "configuration and logs", "ply cloud", "images")


@pytest.mark.parametrize("name", TARGETS)
def test_guided_by_coverage(name: str) -> None:
    seconds = os.environ.get("GUIDED_SECONDS", "30")
    words = [sys.executable, "-m", "tests.trust.guided", "--seconds", seconds, "--target", name]
    ended = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    lines = [line for line in ended.stderr.splitlines() if line.startswith(("Done ", "stat::number_of"))]
    record(
        f"reader: {name}", "coverage-guided bytes (atheris)", int(ended.returncode == 0), 1, lines[-1] if lines else ""
    )
    assert ended.returncode == 0, ended.stderr[-3000:]

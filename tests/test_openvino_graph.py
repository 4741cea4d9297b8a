import subprocess
import sys
from pathlib import Path

import pytest

from sdgmnet.openvino_graph import is_available


def test_openvino_engine_in_a_process_of_its_own() -> None:
    """A test process that had used OpenVINO was seen to crash later, for a reason not found yet: keep it out of the others."""
    if not is_available():
        pytest.skip("openvino is not installed")
    checks = Path(__file__).with_name("openvino_checks.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(checks)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=checks.parent.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "25 passed" in done.stdout

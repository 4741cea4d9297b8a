"""ckpt-chaos (published) kills training before and during every file operation in its folder, then resumes it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trust.jobs import prepare_training
from tests.trust.nursery import REPOSITORY
from tests.trust.reports import FOLDER, record

pytest.importorskip("ckpt_chaos", reason="ckpt-chaos is not installed: pip install 'sdgmnet[dev]'")
pytestmark = pytest.mark.slow
POINTS = int(os.environ.get("CKPT_CHAOS_POINTS", "1000"))  # more than there are: all of them


def test_every_kill_point_passes(tmp_path: Path) -> None:
    (tmp_path / "inputs").mkdir()
    prepare_training(tmp_path / "inputs")
    report = tmp_path / "report.md"
    train = [sys.executable, "-m", "tests.trust.chaos_train", str(tmp_path / "inputs"), "{out}/run"]
    words = [sys.executable, "-m", "ckpt_chaos", "run", "--step-regex", r"at step (\d+)", "--max-points", str(POINTS)]
    words += ["--result-file", "{out}/run/last.safetensors", "--fail-on", "HARD_FAIL,SILENT_DIVERGENCE,CONTROL_FAIL"]
    words += ["--work", str(tmp_path / "work"), "--summary", str(report), "--timeout", "120", "--", *train]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    ended = subprocess.run(words, env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    text = report.read_text() if report.exists() else ended.stdout + ended.stderr
    FOLDER.mkdir(parents=True, exist_ok=True)
    # Names of temporary files contain process ids, commands the folders of this machine.
    text = text.replace(str(tmp_path), "TMP").replace(sys.executable, "python")
    text = re.sub(r"\.\d+-[0-9a-f]{8}\.part", ".PROCESS.part", text)
    (FOLDER / "ckpt-chaos.md").write_text(text)
    passed, of = text.count("**PASS** |\n"), len(re.findall(r"^\| `", text, re.MULTILINE))
    record("train", "ckpt-chaos, every file operation", passed, of, "its own report: ckpt-chaos.md")
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]

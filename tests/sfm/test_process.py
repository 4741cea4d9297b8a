"""A process per COLMAP step, and time and memory of stages."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sdgmnet.errors import InputError
from sdgmnet.sfm.process import StepFailed, run_in_process
from sdgmnet.sfm.stage_timer import PersistentStageTimer


def add(first: int, second: int) -> dict[str, int]:
    print("adding")
    return {"sum": first + second, "process": os.getpid()}


def sleep() -> None:
    time.sleep(1.2)


def refuse(path: str) -> None:
    raise InputError(f"no photos in {path}.")


def fill_disk() -> None:
    print("SQLite error: database or disk is full.", flush=True)
    raise RuntimeError("No registered database factory succeeded.")


def crash() -> None:
    os.abort()


def hold_the_interpreter(mark: str) -> None:
    Path(mark).write_text(str(os.getpid()))
    sum(iter(int, 1))  # no other thread runs


def test_result_comes_back_from_another_process(tmp_path: Path) -> None:
    step = run_in_process(add, tmp_path / "log.txt", first=2, second=3)
    assert step.result["sum"] == 5 and step.result["process"] != os.getpid()
    assert "adding" in (tmp_path / "log.txt").read_text()


def test_memory_is_that_of_the_process_alone(tmp_path: Path) -> None:
    held = bytearray(b"1" * 400_000_000)
    assert len(held) > run_in_process(add, tmp_path / "log.txt", first=1, second=1).peak_bytes > 1e6


@pytest.mark.parametrize(
    ("function", "arguments", "error", "shown"),
    [
        (refuse, {"path": Path("here")}, InputError, "^no photos in here.$"),
        (fill_disk, {}, InputError, "disk is full"),
        (crash, {}, StepFailed, "crash ended with code -6"),
    ],
)
def test_failures(
    function: Callable[..., Any], arguments: dict[str, Any], error: type[Exception], shown: str, tmp_path: Path
) -> None:
    (tmp_path / "log.txt").write_text("disk is full\n")  # of an earlier step
    with pytest.raises(error, match=shown):
        run_in_process(function, tmp_path / "log.txt", **arguments)


def test_a_step_is_watched_while_it_runs(tmp_path: Path) -> None:
    looks: list[bool] = []
    run_in_process(sleep, tmp_path / "log.txt", watch=lambda: looks.append(True))
    assert looks


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread ends the process, once it runs")
def test_a_step_ends_with_its_parent_even_while_a_library_holds_the_interpreter(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from sdgmnet.sfm.process import run_in_process
from tests.sfm.test_process import hold_the_interpreter
run_in_process(hold_the_interpreter, Path({str(tmp_path / "log.txt")!r}), mark={str(tmp_path / "mark")!r})
"""
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2])
    wait_until(lambda: (tmp_path / "mark").exists() and (tmp_path / "mark").read_text() != "")
    step = int((tmp_path / "mark").read_text())
    parent.kill()
    parent.wait()
    try:
        wait_until(lambda: not Path(f"/proc/{step}").exists())
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(step, signal.SIGKILL)


def wait_until(holds: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_stages_add_up_over_restarts_and_failures(tmp_path: Path) -> None:
    with PersistentStageTimer(tmp_path / "seconds.json").stage("dense"):
        pass
    timer = PersistentStageTimer(tmp_path / "seconds.json")
    assert timer.read()["seconds"]["dense"] < 5 and timer.read()["peak_bytes"] > 1e6
    with pytest.raises(KeyboardInterrupt), timer.stage("matching"):
        raise KeyboardInterrupt
    timer.add_peak(10**15, "dense")
    after = timer.read()
    assert set(after["seconds"]) == {"dense", "matching"}
    assert after["peak_bytes"] == after["peak_bytes_of"]["dense"] == 10**15
    assert 1e6 < after["peak_bytes_of"]["matching"] < 10**15

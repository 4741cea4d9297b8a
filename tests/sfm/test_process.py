import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sdgmnet.errors import InputError
from sdgmnet.sfm.process import StepFailed, run_alone

HERE = "tests.sfm.test_process"


def add(first: int, second: int) -> dict[str, int]:
    print("adding")
    return {"sum": first + second, "process": os.getpid()}


def wait() -> None:
    time.sleep(1.2)


def refuse() -> None:
    raise InputError("no photos here.")


def fill() -> None:
    print("SQLite error: database or disk is full.", flush=True)
    raise RuntimeError("No registered database factory succeeded.")


def crash() -> None:
    print("about to fall")
    os.abort()


def test_result_comes_back_from_another_process(tmp_path: Path) -> None:
    answer = run_alone(f"{HERE}:add", tmp_path / "log.txt", first=2, second=3)
    assert answer["sum"] == 5
    assert answer["process"] != os.getpid()
    assert "adding" in (tmp_path / "log.txt").read_text()


def test_bad_input_stays_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="^no photos here.$"):
        run_alone(f"{HERE}:refuse", tmp_path / "log.txt")


def test_a_crash_is_told_with_the_end_of_the_log(tmp_path: Path) -> None:
    with pytest.raises(StepFailed, match="crash ended with code -6"):
        run_alone(f"{HERE}:crash", tmp_path / "log.txt")


def test_a_full_disk_is_bad_input_and_only_of_this_step(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="^fill ended because the disk is full: free some space and run again.$"):
        run_alone(f"{HERE}:fill", tmp_path / "log.txt")
    with pytest.raises(StepFailed) as told:
        run_alone(f"{HERE}:crash", tmp_path / "log.txt")
    assert "disk is full" not in str(told.value)  # which was before


def test_a_step_is_watched_while_it_runs(tmp_path: Path) -> None:
    looks: list[bool] = []
    run_alone(f"{HERE}:wait", tmp_path / "log.txt", watch=lambda: looks.append(True))
    assert looks


def holds_the_interpreter(mark: str) -> None:
    Path(mark).write_text(str(os.getpid()))
    sum(iter(int, 1))  # no other thread gets a turn


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread ends the step, once it gets its turn")
def test_a_step_dies_with_its_parent_even_while_a_library_holds_the_interpreter(tmp_path: Path) -> None:
    words = f"from pathlib import Path; from sdgmnet.sfm.process import run_alone; run_alone('{HERE}:"
    words += f"holds_the_interpreter', Path({str(tmp_path / 'log.txt')!r}), mark={str(tmp_path / 'mark')!r})"
    parent = subprocess.Popen([sys.executable, "-c", words], cwd=Path(__file__).parents[2])
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

"""Functions that call pycolmap, each run in a process of its own.

pycolmap and OpenCV bundle different versions of the same libraries: in one process, writing a PNG can abort
(docs/decisions/colmap-in-its-own-process.md).
"""

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from sdgmnet.errors import InputError, Stopped
from sdgmnet.sfm.stage_timer import peak_memory
from sdgmnet.storage import has_no_room

LOG_LINES = 12  # of a failed process's log, shown in the error
DISK_FULL = ("disk is full", "No space left on device")  # as SQLite and the system report it
PR_SET_PDEATHSIG = 1  # of Linux' prctl
POLL_SECONDS = 0.5  # between two calls of `watch`, or POLL_SHARE times as long as a call takes
POLL_SHARE = 20


class StepFailed(Stopped):
    """A process failed; the message holds the end of its log."""


class Step(NamedTuple):
    """What a function returned, and the peak memory of its process."""

    result: Any
    peak_bytes: int


def run_in_process(
    function: Callable[..., Any], log: Path, *, watch: Callable[[], None] | None = None, **arguments: Any
) -> Step:
    """Call a module-level function in a new process. Arguments and result must be representable in JSON; paths become text.

    Its output is appended to `log`. An InputError of the function is raised here; so is an InputError if the disk is
    full; any other failure is StepFailed. The process ends if its parent ends. `watch` is called regularly meanwhile.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, log.open("ab") as output:
        answer, log_start = Path(folder) / "answer.json", log.stat().st_size
        request = Path(folder) / "arguments.json"  # the names of many photos are too long for a command line
        request.write_text(json.dumps(arguments, default=os.fspath))
        command = [sys.executable, "-m", __name__, function.__module__, function.__name__, str(request), str(answer)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT) as child:
            try:
                code = _wait(child, watch)
            except BaseException:
                child.kill()
                raise
        answered = json.loads(answer.read_text()) if answer.exists() else {}
    if "error" in answered:
        raise InputError(answered["error"])
    if code == 0 and "result" in answered:
        return Step(answered["result"], answered["peak_bytes"])
    name, lines = function.__name__, log.read_bytes()[log_start:].decode(errors="replace").splitlines()
    if any(words in line for line in lines for words in DISK_FULL) or has_no_room(log.parent):
        raise InputError(f"{name}: the disk is full. Free some space and run the command again.")
    raise StepFailed(f"{name} ended with code {code}; the end of {log}:\n" + "\n".join(lines[-LOG_LINES:]))


def _wait(child: "subprocess.Popen[bytes]", watch: Callable[[], None] | None) -> int:
    if watch is None:
        return child.wait()
    pause = POLL_SECONDS
    while True:
        try:
            return child.wait(pause)
        except subprocess.TimeoutExpired:
            start = time.monotonic()
            with contextlib.suppress(FileNotFoundError):  # renamed or removed while it was looked at
                watch()
            pause = max(POLL_SECONDS, POLL_SHARE * (time.monotonic() - start))


def _end_with_parent() -> None:
    """On Linux the kernel kills this process, even while a library holds the interpreter lock; elsewhere a thread has to."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    def wait_for_parent() -> None:
        with contextlib.suppress(OSError):
            os.read(0, 1)  # returns only when the parent has closed the pipe
        os._exit(1)

    threading.Thread(target=wait_for_parent, daemon=True).start()


def _main(module: str, function: str, request: Path, answer: Path) -> None:
    _end_with_parent()
    import cv2  # noqa: F401  before pycolmap: in the other order, writing a PNG aborts the process

    try:
        result = getattr(importlib.import_module(module), function)(**json.loads(request.read_text()))
        answered = {"result": result, "peak_bytes": peak_memory()}
    except InputError as error:
        answered = {"error": str(error)}
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # an orderly shutdown would abort in the waiting thread and hide the traceback
    answer.write_text(json.dumps(answered))
    sys.stdout.flush()
    os._exit(0)  # skips the destructors of two libraries that share symbols


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))

"""Each COLMAP step in a process of its own: pycolmap and OpenCV bundle libraries that do not live together."""

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
from typing import Any

from sdgmnet.errors import InputError, Stopped
from sdgmnet.storage import has_no_room

LAST_LINES = 12  # of a failed step's log, shown to the user
DISK_FULL = ("disk is full", "No space left on device")  # SQLite's words, and the system's
PR_SET_PDEATHSIG = 1  # of Linux' prctl
GLANCE = 0.5  # seconds between looks at how far a step is
SHARE = 20  # or so many times as long as a look takes


class StepFailed(Stopped):
    """A COLMAP step ended badly; the message holds the end of its log."""


def run_alone(step: str, log: Path, *, watch: Callable[[], None] | None = None, **arguments: Any) -> Any:
    """Call `module:function` with JSON arguments in a fresh process and return its JSON result.

    Everything the step prints goes to `log`. The step's own InputError is raised here, and one where COLMAP says that the disk
    is full; any other end is StepFailed. The child
    dies with its parent, so that nothing writes on after a kill. `watch` is called every now and then while it runs.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, log.open("ab") as output:
        answer, before = Path(folder) / "answer.json", log.stat().st_size
        given = Path(folder) / "arguments.json"  # a command line would be too short for the names of many photos
        given.write_text(json.dumps(arguments))
        command = [sys.executable, "-m", __name__, step, str(answer), str(given)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT) as child:
            try:
                code = _wait(child, watch)
            except BaseException:
                child.kill()
                raise
        said = json.loads(answer.read_text()) if answer.exists() else {}
    if "error" in said:
        raise InputError(said["error"])
    if code != 0 or "result" not in said:
        name = str(arguments.get("place", step)).split(":")[-1]
        lines = log.read_bytes()[before:].decode(errors="replace").splitlines()
        if any(words in line for line in lines for words in DISK_FULL) or has_no_room(log.parent):
            raise InputError(f"{name} ended because the disk is full: free some space and run again.")
        raise StepFailed(f"{name} ended with code {code}; the end of {log}:\n" + "\n".join(lines[-LAST_LINES:]))
    return said["result"]


def _wait(child: "subprocess.Popen[bytes]", watch: Callable[[], None] | None) -> int:
    if watch is None:
        return child.wait()
    pause = GLANCE
    while True:
        try:
            return child.wait(pause)
        except subprocess.TimeoutExpired:
            began = time.monotonic()
            watch()
            pause = max(GLANCE, SHARE * (time.monotonic() - began))


def _killed_with_parent() -> None:
    """Linux kills the child itself, even while a library computes and holds the interpreter; elsewhere the thread must do."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _end_with_parent() -> None:
    with contextlib.suppress(OSError):
        os.read(0, 1)  # returns only when the parent is gone
    os._exit(1)


def _serve(step: str, answer: Path, arguments: dict[str, Any]) -> None:
    _killed_with_parent()
    import cv2  # noqa: F401  before pycolmap: the other way round, writing a PNG later aborts the process

    threading.Thread(target=_end_with_parent, daemon=True).start()
    module, function = step.split(":")
    try:
        said = {"result": getattr(importlib.import_module(module), function)(**arguments)}
    except InputError as error:
        said = {"error": str(error)}
    except BaseException:
        # Leave at once: a shutdown beside the waiting thread aborts, and buries the reason under a stack of addresses.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    answer.write_text(json.dumps(said))
    sys.stdout.flush()
    os._exit(0)  # past the destructors of two libraries that share symbols


if __name__ == "__main__":
    _serve(sys.argv[1], Path(sys.argv[2]), json.loads(Path(sys.argv[3]).read_text()))

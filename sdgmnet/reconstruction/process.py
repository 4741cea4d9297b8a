"""Each COLMAP step in a process of its own: pycolmap and OpenCV bundle libraries that do not live together."""

import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from sdgmnet.errors import InputError, Stopped

LAST_LINES = 12  # of a failed step's log, shown to the user


class StepFailed(Stopped):
    """A COLMAP step ended badly; the message holds the end of its log."""


def run_alone(step: str, log: Path, **arguments: Any) -> Any:
    """Call `module:function` with JSON arguments in a fresh process and return its JSON result.

    Everything the step prints goes to `log`. The step's own InputError is raised here; any other end is StepFailed. The child
    dies with its parent, so that nothing writes on after a kill.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, log.open("ab") as output:
        answer = Path(folder) / "answer.json"
        command = [sys.executable, "-m", __name__, step, str(answer), json.dumps(arguments)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT) as child:
            try:
                code = child.wait()
            except BaseException:
                child.kill()
                raise
        said = json.loads(answer.read_text()) if answer.exists() else {}
    if "error" in said:
        raise InputError(said["error"])
    if code != 0 or "result" not in said:
        lines = log.read_text(errors="replace").splitlines()[-LAST_LINES:]
        raise StepFailed(f"{step.split(':')[1]} ended with code {code}; the end of {log}:\n" + "\n".join(lines))
    return said["result"]


def _end_with_parent() -> None:
    with contextlib.suppress(OSError):
        sys.stdin.buffer.read()  # returns only when the parent is gone
    os._exit(1)


def _serve(step: str, answer: Path, arguments: dict[str, Any]) -> None:
    import cv2  # noqa: F401  before pycolmap: the other way round, writing a PNG later aborts the process

    threading.Thread(target=_end_with_parent, daemon=True).start()
    module, function = step.split(":")
    try:
        said = {"result": getattr(importlib.import_module(module), function)(**arguments)}
    except InputError as error:
        said = {"error": str(error)}
    answer.write_text(json.dumps(said))
    sys.stdout.flush()
    os._exit(0)  # past the destructors of two libraries that share symbols


if __name__ == "__main__":
    _serve(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]))

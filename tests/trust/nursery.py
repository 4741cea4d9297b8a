"""Commands of sdgmnet as processes that start at once: one process imports the libraries, each command is a fork of it.

A kill then hits the command's work, not its imports. `python -m tests.trust.nursery` is the server: it reads a JSON list of
arguments per line, and answers with the process id, then with the exit code.
"""

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).parents[2]
MODULES = (
    "cv2", "h5py", "torch", "matplotlib.pyplot", "sdgmnet.commands.train", "sdgmnet.commands.data", "sdgmnet.commands.describe",
    "sdgmnet.commands.evaluate", "sdgmnet.data.photos.pipeline", "sdgmnet.plots.benchmarks", "sdgmnet.plots.training",
)  # fmt: skip


class Ended(NamedTuple):
    code: int  # negative: the signal that ended it
    said: str  # stdout and stderr
    seconds: float

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL


class Nursery:
    def __init__(self, child: "subprocess.Popen[str]", log: Path) -> None:
        self.child, self.log = child, log

    def run(
        self, words: Sequence[object], kill_when: Callable[[float], bool] | None = None, *, helpers_too: bool = True
    ) -> Ended:
        """Run a command; it is killed once `kill_when(seconds so far)`, called every two milliseconds, is true."""
        assert self.child.stdin is not None and self.child.stdout is not None
        self.child.stdin.write(json.dumps([str(word) for word in words]) + "\n")
        self.child.stdin.flush()
        process, began = int(self.child.stdout.readline()), time.monotonic()
        if kill_when is not None:
            while not _is_over(process):
                if kill_when(time.monotonic() - began):
                    with contextlib.suppress(ProcessLookupError):
                        (os.killpg if helpers_too else os.kill)(process, signal.SIGKILL)
                    break
                time.sleep(0.002)
        self.child.stdin.write("\n")
        self.child.stdin.flush()
        code = int(self.child.stdout.readline())
        return Ended(code, self.log.read_text(errors="replace"), time.monotonic() - began)


def _is_over(process: int) -> bool:
    """Whether the process has ended; its parent may not have waited for it yet."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@contextmanager
def nursery(folder: Path) -> Iterator[Nursery]:
    log = folder / "nursery.log"
    command = [sys.executable, "-m", "tests.trust.nursery", str(log)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg", "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=REPOSITORY
    ) as child:
        try:
            assert child.stdout is not None and child.stdout.readline() == "ready\n"
            yield Nursery(child, log)
        finally:
            assert child.stdin is not None
            child.stdin.close()


def _serve(log: str) -> None:
    for name in MODULES:
        importlib.import_module(name)
    answers = os.fdopen(os.dup(1), "w")
    print("ready", file=answers, flush=True)
    while words := sys.stdin.readline().strip():
        process = os.fork()
        if process == 0:
            _become(json.loads(words), log)
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.setpgid(process, process)
        print(process, file=answers, flush=True)
        sys.stdin.readline()
        _, status = os.waitpid(process, 0)
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)


def _become(words: list[str], log: str) -> None:
    """Run the command in its own process group, so that its helpers can be killed with it."""
    code = 70
    try:
        os.setpgid(0, 0)
        nothing = os.open(os.devnull, os.O_RDONLY)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for target, descriptor in ((0, nothing), (1, output), (2, output)):
            os.dup2(descriptor, target)
        from sdgmnet.cli import main

        code = main(words)
        sys.stdout.flush()
        sys.stderr.flush()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    _serve(sys.argv[1])

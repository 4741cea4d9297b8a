"""Mutated files through every reader: each must return a valid result or raise InputError.

    python -m tests.trust.fuzz --count 100000
    python -m tests.trust.fuzz --target "hloc h5" --first 1234 --count 1 --loud      one input again, with its traceback

Inputs are a pure function of (seed, target, number). They run in child processes, some hundred per process, with bounded
memory, a timer per input and an audit hook that forbids writing elsewhere, starting programs and opening connections. So a
crash in a library, a hang and excessive memory are counted like any other escape.
"""

import argparse
import faulthandler
import json
import math
import os
import resource
import select
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any, NamedTuple

import cv2
import torch

from sdgmnet.errors import InputError
from sdgmnet.report import markdown
from tests.trust.mutations import mutate_bytes
from tests.trust.readers import TARGETS, valid_files

SECONDS_PER_INPUT = 5.0  # of CPU time: a busy machine does not count as a hang
SECONDS_WITHOUT_NEWS = 60.0  # wall clock, for what the timer cannot interrupt
MORE_MEMORY = 1 << 30  # bytes that reading a small file may allocate
INPUTS_PER_PROCESS = 400
READ, REFUSED, ESCAPED = b"r", b"i", b"e"
FORBIDDEN = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "socket.connect", "os.symlink",
             "os.link")  # fmt: skip
MOVING = ("os.rename", "shutil.move")
WRITING = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree", "shutil.move")


class Hang(BaseException):
    """Raised by the timer; no reader catches it as a damaged file."""


class Forbidden(BaseException):
    """Raised by the audit hook."""


class Escape(NamedTuple):
    target: str
    number: int
    reason: str


class Tally(NamedTuple):
    target: str
    inputs: int
    read: int  # returned a valid result
    refused: int  # raised InputError
    escapes: list[Escape]
    seconds: float


def mutated_input(target: str, seed: int, number: int) -> tuple[str, bytes]:
    """The name of the mutated file, and its new content."""
    rng = Random(f"{seed} {target} {number}")
    name = rng.choice(sorted(TARGETS[target].mutated))
    content = valid_files(target)[name]
    for _ in range(20):
        try:
            changed = TARGETS[target].mutated[name](content, rng)
        except Exception:  # the format cannot be written with this change
            changed = mutate_bytes(content, rng)
        if changed != content:
            break
    return name, changed


def run_inputs(target: str, seed: int, numbers: range, seconds: float | None = None) -> Tally:
    """The inputs of these numbers, or as many as the seconds allow."""
    began, read, refused, escapes, done = time.monotonic(), 0, 0, list[Escape](), 0
    valid_files(target)
    while done < len(numbers) and (seconds is None or time.monotonic() - began < seconds):
        batch = numbers[done : done + INPUTS_PER_PROCESS]
        finished, died = _in_a_process(target, seed, batch)
        for number, kind, reason in finished:
            read, refused = read + (kind == READ), refused + (kind == REFUSED)
            escapes += [Escape(target, number, reason)] if kind == ESCAPED else []
        done += len(finished)
        if died:
            escapes.append(Escape(target, batch[len(finished)], died))
            done += 1
    return Tally(target, done, read, refused, escapes, time.monotonic() - began)


def _in_a_process(target: str, seed: int, batch: range) -> tuple[list[tuple[int, bytes, str]], str]:
    """The outcome of each input, and how the process ended if it died early."""
    news, child_end = os.pipe()
    with tempfile.TemporaryDirectory(prefix="sdgmnet-fuzz-") as folder:
        child = os.fork()
        if child == 0:
            os.close(news)
            code = 3
            try:
                _work(target, seed, batch, Path(folder), child_end)
                code = 0
            finally:
                os._exit(code)
        os.close(child_end)
        finished, silent = _listen(news, batch)
        if silent:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        os.close(news)
    if len(finished) == len(batch):
        return finished, ""
    if silent:
        return finished, f"hang of more than {SECONDS_WITHOUT_NEWS:.0f} s that no alarm ends"
    code = os.waitstatus_to_exitcode(status)
    if code == 3:
        raise RuntimeError(f"the fuzzer itself failed on {target}, see --loud")
    return finished, f"the process died ({signal.Signals(-code).name if code < 0 else f'exit code {code}'})"


def _listen(news: int, batch: range) -> tuple[list[tuple[int, bytes, str]], bool]:
    finished, held = [], b""
    while True:
        if not select.select([news], [], [], SECONDS_WITHOUT_NEWS)[0]:
            return finished, True
        piece = os.read(news, 1 << 16)
        if not piece:
            return finished, False
        held += piece
        while len(held) >= 5 and len(held) >= 5 + (size := struct.unpack_from("<I", held, 1)[0]):
            finished.append((batch[len(finished)], held[:1], held[5 : 5 + size].decode()))
            held = held[5 + size :]


def _work(target: str, seed: int, batch: range, folder: Path, news: int) -> None:
    faulthandler.disable()  # crashes are only counted
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    bound_memory(MORE_MEMORY)
    watch_writes(folder)
    write_valid(target, folder)
    for number in batch:
        kind, reason = try_one(target, seed, number, folder)
        os.write(news, kind + struct.pack("<I", len(reason.encode())) + reason.encode())


def bound_memory(more: int) -> None:
    has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (has + more, has + more))


def watch_writes(folder: Path) -> None:
    inside = str(folder.resolve()) + os.sep
    allowed = (inside, os.devnull)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in FORBIDDEN:
            raise Forbidden(f"{event} {arguments[:1]}")
        if event == "open" and isinstance(arguments[0], str | bytes):
            path, mode, flags = arguments
            writes = (flags or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            if writes and not os.path.realpath(os.fsdecode(path)).startswith(allowed):
                raise Forbidden(f"{os.fsdecode(path)} opened for writing ({mode})")
        elif event in WRITING and isinstance(arguments[0], str | bytes | os.PathLike):
            for given in arguments[:2] if event in MOVING else arguments[:1]:
                path = os.path.realpath(os.fsdecode(given))
                if not f"{path}{os.sep}".startswith(inside) and (len(arguments) < 2 or arguments[-1] in (-1, None)):
                    raise Forbidden(f"{event} {path}")

    sys.addaudithook(hook)


def write_valid(target: str, folder: Path) -> None:
    for name, content in valid_files(target).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def try_one(target: str, seed: int, number: int, folder: Path) -> tuple[bytes, str]:
    name, content = mutated_input(target, seed, number)
    (folder / name).write_bytes(content)
    before = signal.signal(signal.SIGPROF, _ring)
    try:
        signal.setitimer(signal.ITIMER_PROF, SECONDS_PER_INPUT)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            TARGETS[target].read(folder)
        return READ, ""
    except InputError as error:
        return (REFUSED, "") if str(error).strip() else (ESCAPED, "an InputError without a message")
    except BaseException as error:
        return ESCAPED, describe_escape(error)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        restore(target, name, folder)


def restore(target: str, name: str, folder: Path) -> None:
    """Undo the mutation and whatever the reader changed or left behind."""
    valid = valid_files(target)
    (folder / name).write_bytes(valid[name])
    for path in folder.iterdir():
        if path.name.startswith((".", "tmp")) or path.suffix in (".db-wal", ".db-shm", ".db-journal"):
            _remove(path)
    for other, content in valid.items():
        path = folder / other
        if other.endswith((".h5", ".db")) and (not path.exists() or path.stat().st_size != len(content)):
            path.write_bytes(content)


def _remove(path: Path) -> None:
    if path.is_dir():
        for inner in path.iterdir():
            _remove(inner)
        path.rmdir()
    else:
        path.unlink()


def _ring(number: int, frame: FrameType | None) -> None:
    raise Hang(f"more than {SECONDS_PER_INPUT:.0f} s of computing")


def describe_escape(error: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "sdgmnet" in frame.filename]
    where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}{where}"


def fuzz(
    count: int, seed: int, names: Sequence[str] = tuple(TARGETS), minutes: float | None = None, first: int = 0,
    tell: Callable[[Tally], None] = lambda tally: None,
) -> list[Tally]:  # fmt: skip
    """`count` inputs, divided by the shares of the targets; `minutes` are divided equally."""
    torch.set_num_threads(1)
    cv2.setNumThreads(0)
    whole = sum(TARGETS[name].share for name in names)
    tallies = []
    for name in names:
        share = TARGETS[name].share / whole
        wanted = math.ceil(count * share)
        seconds = None if minutes is None else 60 * minutes / len(names)
        tallies.append(run_inputs(name, seed, range(first, first + wanted), seconds))
        tell(tallies[-1])
    return tallies


def table(tallies: Sequence[Tally]) -> str:
    header = ["reader", "inputs", "read", "refused", "escapes", "seconds"]
    rows = [[t.inputs, t.read, t.refused, len(t.escapes), round(t.seconds)] for t in tallies]
    sums = [sum(column) for column in zip(*rows, strict=True)]
    named = zip([*(t.target for t in tallies), "all"], [*rows, sums], strict=True)
    return markdown(header, [[name, *map(str, numbers)] for name, numbers in named])


def again(target: str, seed: int, number: int) -> None:
    """Run one input in this process, with its traceback."""
    with tempfile.TemporaryDirectory(prefix="sdgmnet-fuzz-") as folder:
        write_valid(target, Path(folder))
        name, content = mutated_input(target, seed, number)
        (Path(folder) / name).write_bytes(content)
        print(f"{target} {number}: {name}, {len(content)} bytes: {content[:300]!r}")
        TARGETS[target].read(Path(folder))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.trust.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="inputs in all")
    parser.add_argument("--minutes", type=float, help="at most, divided equally among the readers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first input of each reader")
    parser.add_argument("--target", action="append", choices=list(TARGETS), help="only these readers")
    parser.add_argument("--loud", action="store_true", help="one input in this process, with its traceback")
    parser.add_argument("-o", "--out", type=Path, help="folder for fuzz.md and fuzz.json")
    given = parser.parse_args()
    names = given.target or list(TARGETS)
    if given.loud:
        again(names[0], given.seed, given.first)
        return 0

    def tell(tally: Tally) -> None:
        print(f"{tally.target}: {tally.inputs} inputs, {len(tally.escapes)} escapes, {tally.seconds:.0f} s", flush=True)
        seen: dict[str, list[int]] = {}
        for escape in tally.escapes:
            seen.setdefault(escape.reason[:110], []).append(escape.number)
        for reason, numbers in seen.items():
            print(f"    {len(numbers)} x {reason} (number {numbers[0]})", flush=True)

    tallies = fuzz(given.count, given.seed, names, given.minutes, given.first, tell)
    print(table(tallies))
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "fuzz.md").write_text(table(tallies))
        (given.out / "fuzz.json").write_text(json.dumps([tally._asdict() for tally in tallies], indent=2))
    return 1 if any(tally.escapes for tally in tallies) else 0


if __name__ == "__main__":
    sys.exit(main())

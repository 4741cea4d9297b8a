"""Carrying out a plan: what is finished is read, what was begun goes on, the rest is trained, by one process or several."""

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from rich.console import Console

from reproduce.plan import (
    NOT_IN_DIGEST,
    NOTHING_MORE,
    Planned,
    Then,
    announce,
    check,
    flat_settings,
    missing,
    pace_key,
    seconds_per_iteration,
    unique_runs,
)
from reproduce.progress import Board, Work, counted, say
from reproduce.results import Result, best, last, last_ten, mean_of
from sdgmnet.benchmarks import phototour
from sdgmnet.data.patchset import some_pairs
from sdgmnet.errors import InputError, Interrupted, TrainingStopped
from sdgmnet.storage import holding, read_record
from sdgmnet.training.config import TrainConfig
from sdgmnet.training.fit import train
from sdgmnet.training.log import read_log

DescribeFn = Callable[[np.ndarray], np.ndarray]
SECONDS_BETWEEN_LOOKS = 1.0  # at what other processes train


def run_plan(
    runs: Sequence[Planned],
    out: Path,
    describe_of: Callable[[Path], DescribeFn],
    console: Console,
    then: Then = NOTHING_MORE,
) -> list[Result]:
    """The results of all runs, in their order. What is finished is read, what was begun goes on, the rest is trained.

    describe_of: from a file of weights to what describes patches with them.
    """
    unique = unique_runs(runs)
    left = missing(unique, out)
    if left:
        check(left)
        rates = seconds_per_iteration(left, out)
        announce(unique, out, rates, console, then)
        work = {
            one.digest(): Work(
                one.title, one.config.iterations, rates.get(pace_key(one.config), 0.0), one.steps_done(out)
            )
            for one in left
        }
        with Board(console, work) as board:
            _work_off(left, out, describe_of, console, board)
    else:
        say(console, f"Plan: {counted(len(unique), 'training run')}, all done before.")
    return [_finished(one, out) for one in runs]


def _work_off(
    runs: Sequence[Planned], out: Path, describe_of: Callable[[Path], DescribeFn], console: Console, board: Board
) -> None:
    """Each run by the process that takes it first: the same command started several times shares the work.

    A run that another process gives up, or dies with, is taken over.
    """
    left, waiting = list(runs), False
    while left:
        before = len(left)
        for one in list(left):
            with _taken(one, out) as mine:
                if not mine:
                    continue
                result, here = one.result(out), False
                if result is None:
                    waiting, here = False, True
                    result = _train_one(one, out, describe_of, console, board)
            left.remove(one)
            board.finish_run(one.digest())
            elsewhere = "" if here else " (trained by another process)"
            say(console, f"{one.title}{elsewhere}: {_in_words(result, one)}; {board.state()}")
        if len(left) == before:
            if not waiting:
                say(console, f"Waiting for {counted(len(left), 'run')} that other processes train.")
                waiting = True
            try:
                time.sleep(SECONDS_BETWEEN_LOOKS)
            except KeyboardInterrupt:
                raise Interrupted("stopped while other processes train; the same command goes on from there.") from None


@contextmanager
def _taken(one: Planned, out: Path) -> Iterator[bool]:
    """Known by the digest, as another command may call the same run otherwise. The file goes when the run is finished."""
    path = out / "runs" / f".{one.digest()}.lock"
    with holding(path) as mine:
        yield mine
        if mine:
            path.unlink(missing_ok=True)


def _finished(one: Planned, out: Path) -> Result:
    result = one.result(out)
    if result is None:
        raise InputError(f"{one.find(out)} went away while the plan was run: start the same command again.")
    return result


def _train_one(
    one: Planned, out: Path, describe_of: Callable[[Path], DescribeFn], console: Console, board: Board
) -> Result:
    folder = one.find(out)
    begun, saved = time.monotonic(), one.begun(out)
    resume, config = saved is not None, saved or one.config
    if resume:
        require_same_sets(one, folder)
    else:  # a start that was cut off before it was whole
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    board.begin_run(one.digest())
    try:
        if not (folder / "results.json").exists():  # else it was trained, and only the last evaluation is missing
            train(config, folder, resume=resume, sources=one.sources(), console=console, show=board.show)
    except Interrupted as stopped:
        where = str(stopped).partition(";")[0]
        raise Interrupted(f"{one.title}: {where}; the same command goes on from there.") from stopped
    except TrainingStopped as stopped:
        result = _result(one, folder, {}, time.monotonic() - begun, board.steps, diverged=_reason(stopped, folder))
    else:
        describe = describe_of(folder / "last.safetensors")
        rows = phototour.run(describe, one.sources().test)
        scores = {row.test: row.fpr95 for row in rows if row.fpr95 is not None}
        result = _result(one, folder, scores, time.monotonic() - begun, board.steps)
    result.save(folder)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)  # the run is over: its weights and its log stay
    if tells_the_rate(board.steps, config):
        board.measured(time.monotonic() - begun)
    return result


def _result(
    one: Planned, folder: Path, last: dict[str, float], seconds: float, steps: int, diverged: str | None = None
) -> Result:
    config, tests = one.config, one.sources().test
    lines = [line for line in read_log(folder / "log.jsonl", "evaluation") if line["step"] > 0]
    return Result(
        name=one.title,
        digest=one.digest(),
        config={key: value for key, value in flat_settings(config).items() if key not in NOT_IN_DIGEST},
        trained_on=[patchset.name for patchset in one.train.train],
        checkpoints=[
            {"step": line["step"], "fpr95": {patchset.name: line["fpr95"][patchset.name] for patchset in tests}}
            for line in lines
        ],
        checkpoint_pairs={patchset.name: len(some_pairs(patchset, config.most_evaluation_pairs)) for patchset in tests},
        last=last,
        pairs={patchset.name: len(some_pairs(patchset, None)) for patchset in tests},
        seconds_per_iteration=seconds / steps if tells_the_rate(steps, config) else 0.0,
        diverged=diverged,
        powers=powers_of(folder / "log.jsonl"),
        data=trained_with(folder, one),
    )


def tells_the_rate(steps: int, config: TrainConfig) -> bool:
    """Whether so many steps were made here in one go that the last evaluation hardly counts beside them."""
    return 2 * steps >= config.iterations


def trained_with(folder: Path, one: Planned) -> dict[str, dict[str, str]]:
    """Fingerprints of the sets that the run was begun with, wherever that was: as `train` wrote them."""
    known = trained_on_sets(folder)
    return {part: {name: known[name] for name in sets} for part, sets in one.fingerprints().items()}


def require_same_sets(one: Planned, folder: Path) -> None:
    """What goes on, or is only evaluated at its end, must find the sets that it began with."""
    if not (folder / "data.json").exists():
        return  # cut off before it was written: nothing was trained
    found = one.fingerprints()
    if trained_on_sets(folder) != {**found["train"], **found["test"]}:
        raise InputError(
            f"{folder} was begun with other sets than those that are there now: move it away, and it is trained on these."
        )


def trained_on_sets(folder: Path) -> dict[str, str]:
    return dict(read_record(folder / "data.json", [(str, str)]))


def powers_of(log: Path) -> list[list[float]]:
    """Step, P⁺ and P⁻ at the end of each epoch; none where the loss has no powers."""
    lines = (line for line in read_log(log, "epoch") if "power_pos" in line)
    return [[line["step"], line["power_pos"], line["power_neg"]] for line in lines]


def _reason(stopped: TrainingStopped, folder: Path) -> str:
    """Without the place on this machine."""
    return str(stopped).partition(" The last checkpoint")[0].replace(str(folder), folder.name)


def _in_words(result: Result, one: Planned) -> str:
    if result.diverged is not None:
        return f"diverged ({result.diverged})"
    found = (100 * mean_of(way(result, one.tests)) for way in (best, last_ten, last))
    return "FPR@95 best {:.2f} %, last ten {:.2f} %, last on all pairs {:.2f} %".format(*found)

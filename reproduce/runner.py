"""Carry out a plan: read finished runs, resume begun ones, train the rest. Several processes share the work."""

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from reproduce.results import FILE, RATE, Result, best, last, last_ten, mean_of
from reproduce.runs import NOT_IN_DIGEST, Planned, flat_settings, missing, unique_runs
from sdgmnet.benchmarks import phototour
from sdgmnet.data.patchset import PatchSet, some_pairs
from sdgmnet.descriptors import load_descriptor
from sdgmnet.errors import InputError, Interrupted, TrainingStopped
from sdgmnet.report import STDERR, print_aside
from sdgmnet.storage import read_record, try_lock
from sdgmnet.training.fit import train
from sdgmnet.training.log import read_log
from sdgmnet.training.run import Diverged, Run, evaluate, iterate_once, make_sampler, start

TIMED_STEPS = 3
TIMED_PAIRS = 200
POLL_SECONDS = 1.0  # between looks at what other processes train

Rates = dict[tuple[str, int], float]  # encoder and batch size -> seconds per iteration


class Then(NamedTuple):
    """Runs that follow a plan and are known only when it is done."""

    runs: int
    what: str


NOTHING_MORE = Then(0, "")


def run_plan(runs: Sequence[Planned], out: Path, then: Then = NOTHING_MORE) -> list[Result]:
    """The results of all runs, in their order."""
    unique = unique_runs(runs)
    left = missing(unique, out)
    if left:
        require_batches(left)
        rates = seconds_per_iteration(left, out)
        announce(unique, out, rates, then)
        _share_work(left, out, rates)
    else:
        print_aside(f"Plan: {counted(len(unique), 'training run')}, all done before.")
    results = []
    for one in runs:
        result = one.result(out)
        if result is None:
            raise InputError(f"{one.find(out)} disappeared while the plan was running: start the same command again.")
        results.append(result)
    return results


def _share_work(runs: Sequence[Planned], out: Path, rates: Rates) -> None:
    """Each run is trained by the process that locks it first. A run that another process abandons is taken over."""
    left, waiting = list(runs), False
    while left:
        before = len(left)
        for one in list(left):
            with _locked(one, out) as mine:
                if not mine:
                    continue
                result, where = one.result(out), " (trained by another process)"
                if result is None:
                    waiting, where = False, ""
                    result = _train_one(one, out)
            left.remove(one)
            if result.seconds_per_iteration:
                rates[rate_key(one)] = result.seconds_per_iteration
            remaining = duration(sum(line["seconds"] for line in plan_content(left, out, rates)))
            state = f"run {len(runs) - len(left)} of {len(runs)} done, about {remaining} left"
            print_aside(f"{one.title}{where}: {_in_words(result, one)}; {state}")
        if len(left) == before:
            if not waiting:
                print_aside(f"Waiting for {counted(len(left), 'run')} that other processes train.")
                waiting = True
            try:
                time.sleep(POLL_SECONDS)
            except KeyboardInterrupt:
                raise Interrupted("stopped while other processes train; the same command continues.") from None


@contextmanager
def _locked(one: Planned, out: Path) -> Iterator[bool]:
    """By the digest, since another command may name the same run differently."""
    path = out / "runs" / f".{one.digest()}.lock"
    with try_lock(path) as mine:
        yield mine
        if mine:
            path.unlink(missing_ok=True)


def _train_one(one: Planned, out: Path) -> Result:
    folder = one.find(out)
    begun, saved, steps = time.monotonic(), one.begun(out), one.config.iterations - one.steps_done(out)
    is_trained = (folder / "results.json").exists()  # only the last evaluation is missing
    if saved is not None:
        require_same_sets(one, folder)
    else:  # interrupted before its configuration was written
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    scores: dict[str, float] = {}
    diverged = None
    try:
        if not is_trained:
            print_aside(f"{one.title}:")
            train(saved or one.config, folder, resume=saved is not None, sources=one.sources(), console=STDERR)
    except Interrupted as stopped:
        where = str(stopped).partition(";")[0]
        raise Interrupted(f"{one.title}: {where}; the same command continues from there.") from stopped
    except TrainingStopped as stopped:  # the reason, without paths of this machine
        diverged = str(stopped).partition(" The last checkpoint")[0].replace(str(folder), folder.name)
    else:
        rows = phototour.run(load_descriptor(str(folder / "last.safetensors")).describe, one.sources().test)
        scores = {row.test: row.fpr95 for row in rows if row.fpr95 is not None}
    # The rate is known if most iterations were made here in one go, so that the last evaluation hardly counts.
    is_timed = not is_trained and diverged is None and 2 * steps >= one.config.iterations
    result = _result(one, folder, scores, (time.monotonic() - begun) / steps if is_timed else 0.0, diverged)
    result.save(folder)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)  # weights and log stay
    return result


def _result(one: Planned, folder: Path, scores: dict[str, float], seconds: float, diverged: str | None) -> Result:
    config, tests = one.config, one.sources().test
    lines = [line for line in read_log(folder / "log.jsonl", "evaluation") if line["step"] > 0]
    known = trained_on_sets(folder)
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
        last=scores,
        pairs={patchset.name: len(some_pairs(patchset, None)) for patchset in tests},
        seconds_per_iteration=seconds,
        diverged=diverged,
        powers=read_powers(folder / "log.jsonl"),
        data={part: {name: known[name] for name in sets} for part, sets in one.fingerprints().items()},
    )


def require_same_sets(one: Planned, folder: Path) -> None:
    """A run is resumed, or evaluated at its end, only with the sets it began with."""
    if not (folder / "data.json").exists():
        return  # interrupted before it was written: nothing was trained
    found = one.fingerprints()
    if trained_on_sets(folder) != {**found["train"], **found["test"]}:
        raise InputError(f"{folder} was begun with other sets than the present ones: move it away to train on these.")


def trained_on_sets(folder: Path) -> dict[str, str]:
    """Fingerprints of the sets that the run was begun with."""
    return dict(read_record(folder / "data.json", [(str, str)]))


def read_powers(log: Path) -> list[list[float]]:
    """Step, P⁺ and P⁻ at the end of each epoch; empty if the loss has no powers."""
    lines = (line for line in read_log(log, "epoch") if "power_pos" in line)
    return [[line["step"], line["power_pos"], line["power_neg"]] for line in lines]


def _in_words(result: Result, one: Planned) -> str:
    if result.diverged is not None:
        return f"diverged ({result.diverged})"
    found = (100 * mean_of(way(result, one.tests)) for way in (best, last_ten, last))
    return "FPR@95 best {:.2f} %, last ten {:.2f} %, last on all pairs {:.2f} %".format(*found)


# The plan and its cost.


def require_batches(runs: Sequence[Planned]) -> None:
    """Every group must fill a batch: checked before anything is trained."""
    seen = set()
    for one in runs:
        config = one.config
        settings = (config.balance, config.views, config.scenes_per_batch, config.carried, config.window)
        key = (one.train.name, config.batch_size, *settings)
        if key not in seen:
            seen.add(key)
            try:
                make_sampler(config, one.train.train).require_batch_size(config.batch_size)
            except InputError as error:
                raise InputError(f"group {one.train.name}: {error}") from error


def seconds_per_iteration(runs: Sequence[Planned], out: Path) -> Rates:
    """The median of finished runs with the same encoder and batch size, otherwise from a few timed steps."""
    found: dict[tuple[str, int], list[float]] = {}
    for path in sorted((out / "runs").glob(f"*/{FILE}")):
        content = read_record(path, RATE)
        if content.get("diverged") is None and content.get("seconds_per_iteration"):
            key = (content["config"]["encoder"], content["config"]["batch_size"])
            found.setdefault(key, []).append(content["seconds_per_iteration"])
    rates = {key: float(np.median(many)) for key, many in found.items()}
    for one in runs:
        if rate_key(one) not in rates and one.result(out) is None:
            rates[rate_key(one)] = time_steps(one)
    return rates


def rate_key(one: Planned) -> tuple[str, int]:
    return one.config.encoder, one.config.batch_size


def time_steps(one: Planned) -> float:
    run, times = start(one.config, one.train.train), []
    with suppress(Diverged):  # the run itself reports it
        for _ in range(TIMED_STEPS + 1):
            begun = time.monotonic()
            iterate_once(run)
            times.append(time.monotonic() - begun)
    seconds = min(times, default=0.0)
    with suppress(Diverged):
        seconds += _seconds_of_evaluations(run, one.sources().test) / one.config.iterations
    return seconds


def _seconds_of_evaluations(run: Run, tests: Sequence[PatchSet]) -> float:
    """Of a whole run, extrapolated from one on a few pairs."""
    few = replace(tests[0], test_pairs=some_pairs(tests[0], TIMED_PAIRS))
    begun = time.monotonic()
    evaluate(run, [few])
    each = (time.monotonic() - begun) / len(some_pairs(few, run.config.most_evaluation_pairs))
    along = sum(len(some_pairs(one, run.config.most_evaluation_pairs)) for one in tests)
    at_the_end = sum(len(some_pairs(one, None)) for one in tests)
    return each * (along * len(run.config.evaluation_steps()) + at_the_end)


def plan_content(runs: Sequence[Planned], out: Path, rates: Rates) -> list[dict[str, Any]]:
    """Per run: what it is, its state, and the seconds that are left."""
    lines = []
    for one in runs:
        done = one.result(out) is not None
        state = "done" if done else "to do" if one.begun(out) is None else "begun"
        left = 0 if done else one.config.iterations - one.steps_done(out)
        config = {name: getattr(one.config, name) for name in ("iterations", "batch_size")}
        seconds = left * rates.get(rate_key(one), 0.0)
        lines.append({"name": one.title, "state": state, **config, "seconds": seconds, "folder": one.find(out).name})
    return lines


def seconds_of(then: Then, runs: Sequence[Planned], rates: Rates) -> float:
    """As many complete runs, each as long as the mean of these."""
    each = [rates[key] * one.config.iterations for one in runs if (key := rate_key(one)) in rates]
    return then.runs * float(np.mean(each)) if each else 0.0


def announce(runs: Sequence[Planned], out: Path, rates: Rates, then: Then = NOTHING_MORE) -> None:
    """The plan and its cost, before anything is done."""
    lines = plan_content(runs, out, rates)
    left = [line for line in lines if line["state"] != "done"]
    print_aside(f"Plan: {counted(len(lines), 'training run')}, {len(lines) - len(left)} of them done before.")
    for line in lines:
        print_aside(f"  {line['state']:5}  {line['name']}: {line['iterations']} iterations, N = {line['batch_size']}")
    if left:
        seconds = duration(sum(line["seconds"] for line in left))
        print_aside(f"Estimate: {seconds} for {len(left)} runs, from finished runs or {TIMED_STEPS} timed steps.")
    if then.runs:
        cost = duration(seconds_of(then, runs, rates))
        print_aside(f"Then {then.runs} more runs: {then.what}, about {cost}.")


def duration(seconds: float) -> str:
    minutes = int(seconds // 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes} min {int(seconds % 60):02d} s" if minutes else f"{int(seconds)} s"


def counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"

"""Training runs that a table or figure needs: each done once, through interruptions, by one process or several.

A run's folder is named by a digest of its configuration and of its data, so that any command finds what any other trained.
"""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from reproduce.groups import Group
from reproduce.methods import METHODS, Presets, preset_of
from reproduce.progress import counted, duration, say
from reproduce.results import FILE, RATED, Result, read_result
from sdgmnet.data.patchset import PatchSet, some_pairs
from sdgmnet.data.sampler import PairSampler
from sdgmnet.data.sources import Sources
from sdgmnet.errors import InputError
from sdgmnet.loss.registry import loss_defaults, parse_options
from sdgmnet.storage import read_record
from sdgmnet.training.checkpoint import checkpoints
from sdgmnet.training.config import TrainConfig
from sdgmnet.training.recipes import settings_of
from sdgmnet.training.run import Diverged, Run, evaluate, iterate_once, start

Rates = dict[tuple[str, int], float]  # encoder and batch size -> seconds an iteration
NOT_IN_DIGEST = ("data", "holdout", "checkpoint_every", "tensorboard")  # places, and what changes no bits
TIMED_STEPS = 3
TIMED_PAIRS = 200


def flat_settings(config: TrainConfig) -> dict[str, Any]:
    """The settings with SDGM's options beside the others: what records hold and what digests are made of."""
    sdgm = {**loss_defaults("sdgm"), "decay": None}
    settings = {**asdict(config), **sdgm}
    if config.loss == "sdgm":
        for name, value in parse_options(config.loss_options).items():
            is_number = isinstance(value, int) and not isinstance(value, bool)
            settings[name] = float(value) if is_number else value  # alpha=1 and alpha=1.0 are the same run
        settings["loss_options"] = ()
    return settings


@dataclass(frozen=True)
class Budget:
    """What every learned method gets."""

    iterations: int
    batch_size: int | None  # None: each recipe's own
    checkpoints: int  # evaluations along a run
    checkpoint_pairs: int | None  # of all test scenes together, at each of them; None: all pairs

    def sentence(self) -> str:
        batch = "each method's own batch size" if self.batch_size is None else f"N = {self.batch_size}"
        few = f"at most {self.checkpoint_pairs} test pairs of all scenes together, the last also on all pairs"
        pairs = "all test pairs" if self.checkpoint_pairs is None else few
        count = min(self.checkpoints, self.iterations)
        half = ", so that ten of them are half of it (the paper's are 200)" if count == 20 else ""
        return (
            f"{self.iterations} iterations for every learned method, {batch}; {count} checkpoints along each run{half}, "
            f"evaluated on {pairs}"
        )


@dataclass(frozen=True)
class Planned:
    """One training run: on a group, tested on the others."""

    method: str  # a method of Table 1, or any name for it
    config: TrainConfig
    train: Group
    tests: tuple[Group, ...]

    @property
    def title(self) -> str:
        return f"{self.method} on {self.train.name}, seed {self.config.seed}"

    def digest(self) -> str:
        usual = flat_settings(TrainConfig())  # defaults are left out: a setting added later finds old runs
        config = {
            name: value
            for name, value in flat_settings(self.config).items()
            if name not in NOT_IN_DIGEST and value != usual[name]
        }
        tests = sorted(one for group in self.tests for one in group.test_identity)
        content = json.dumps(
            {"config": config, "train": sorted(self.train.train_identity), "test": tests}, sort_keys=True
        )
        return hashlib.sha256(content.encode()).hexdigest()[:12]

    def folder(self, out: Path) -> Path:
        readable = "".join(sign if sign.isalnum() or sign in "+-.=" else "-" for sign in self.method)
        return out / "runs" / f"{readable}-{self.train.name}-s{self.config.seed}-{self.digest()}"

    def find(self, out: Path) -> Path:
        """Its folder, also where another command has called it otherwise: the digest counts."""
        known = sorted((out / "runs").glob(f"*-{self.digest()}"))
        for file in (
            FILE,
            "config.json",
        ):  # what is finished goes before what was begun, as where records were copied in
            for folder in known:
                if (folder / file).exists():
                    return folder
        return known[0] if known else self.folder(out)

    def result(self, out: Path) -> Result | None:
        """None where the run is not finished. The digest is blind to a default that has changed since: looked for here."""
        folder = self.find(out)
        result = read_result(folder, self.digest())
        if result is not None:
            self.require_same(result.config, folder)
        return result

    def begun(self, out: Path) -> TrainConfig | None:
        """The configuration a run was begun with; None where there is none."""
        path = self.find(out) / "config.json"
        if not path.exists():
            return None
        config = TrainConfig.load(path)
        self.require_same(json.loads(json.dumps(flat_settings(config))), path.parent)
        return config

    def steps_done(self, out: Path) -> int:
        """Those that are not trained again: 0 where the run was not begun, or only cut off at its start."""
        if self.begun(out) is None:
            return 0
        known = [path.stem.rpartition("-")[2] for path in checkpoints(self.find(out) / "checkpoints")]
        return max((int(one) for one in known if one.isdigit()), default=0)

    def require_same(self, trained: Mapping[str, Any], folder: Path) -> None:
        """Settings that are open today, the machine has settled for the run."""
        for name, value in json.loads(json.dumps(flat_settings(self.config))).items():
            if name in trained and name not in NOT_IN_DIGEST and value not in (None, "auto", trained[name]):
                raise InputError(
                    f"{folder} was trained with {name} = {trained[name]}, which is {value} today: move it away to train it "
                    "again."
                )

    def fingerprints(self) -> dict[str, dict[str, str]]:
        """Of the very sets that are there, as `Result.data` has them of those that were."""
        tests = {name: value for group in self.tests for name, value in group.test_fingerprints.items()}
        return {"train": self.train.train_fingerprints, "test": tests}

    def sources(self) -> Sources:
        return Sources(list(self.train.train), [one for group in self.tests for one in group.test])


def plan_run(
    method: str,
    recipe: str,
    preset: str,
    group: Group,
    groups: Sequence[Group],
    budget: Budget,
    seed: int,
    **overrides: Any,
) -> Planned:
    """The recipe in the budget. `overrides` are settings that a sweep varies."""
    tests = tuple(one for one in groups if one.name != group.name)
    sets, most = sum(len(one.test) for one in tests), max(one.pairs for one in tests)
    settings: dict[str, Any] = {
        "iterations": budget.iterations,
        "evaluations": budget.checkpoints,
        "evaluation_pairs": most if budget.checkpoint_pairs is None else max(2, budget.checkpoint_pairs // sets),
        "seed": seed,
        "data": tuple(folder for one in groups for folder in one.folders),
        "holdout": tuple(one.name for other in tests for one in other.test),
        **({} if budget.batch_size is None else {"batch_size": budget.batch_size}),
        **overrides,
    }
    return Planned(method, replace(settings_of(recipe, preset), **settings), group, tests)


def plan_method(
    name: str, group: Group, groups: Sequence[Group], budget: Budget, seed: int, presets: Presets = "table"
) -> Planned:
    """A learned row of Table 1."""
    method = METHODS[name]
    if method.recipe is None:
        raise InputError(f"{method.label} is not trained.")
    return plan_run(name, method.recipe, preset_of(name, presets), group, groups, budget, seed)


def check(runs: Sequence[Planned]) -> None:
    """Refuse what could not be trained before anything is."""
    seen = set()
    for one in runs:
        config = one.config
        key = (one.train.name, config.batch_size, config.balance, config.views, config.carried)
        if key not in seen:
            seen.add(key)
            sampler = PairSampler(
                one.train.train, config.seed, balance=config.balance, views=config.views, reprojected=config.carried
            )
            try:
                sampler.require_batch_size(config.batch_size)
            except InputError as error:
                raise InputError(f"group {one.train.name}: {error}") from error


def seconds_per_iteration(runs: Sequence[Planned], out: Path) -> Rates:
    """By encoder and batch size: as finished runs had it, otherwise by a few timed steps."""
    found: dict[tuple[str, int], list[float]] = {}
    for path in sorted((out / "runs").glob(f"*/{FILE}")):
        content = read_record(path, RATED)
        if content.get("diverged") is None and content.get("seconds_per_iteration"):
            key = (content["config"]["encoder"], content["config"]["batch_size"])
            found.setdefault(key, []).append(content["seconds_per_iteration"])
    rates = {key: float(np.median(many)) for key, many in found.items()}
    for one in runs:
        if pace_key(one.config) not in rates and one.result(out) is None:
            rates[pace_key(one.config)] = time_steps(one)
    return rates


def pace_key(config: TrainConfig) -> tuple[str, int]:
    return config.encoder, config.batch_size


def time_steps(one: Planned) -> float:
    run, times = start(one.config, one.train.train), []
    with suppress(Diverged):  # its own row will say so
        for _ in range(TIMED_STEPS + 1):
            begun = time.monotonic()
            iterate_once(run)
            times.append(time.monotonic() - begun)
    seconds = min(times, default=0.0)
    with suppress(Diverged):
        seconds += _seconds_of_evaluations(run, one.sources().test) / one.config.iterations
    return seconds


def _seconds_of_evaluations(run: Run, tests: Sequence[PatchSet]) -> float:
    """Of a whole run, by one on a few pairs."""
    few = replace(tests[0], test_pairs=some_pairs(tests[0], TIMED_PAIRS))
    begun = time.monotonic()
    evaluate(run, [few])
    each = (time.monotonic() - begun) / len(some_pairs(few, run.config.most_evaluation_pairs))
    along = sum(len(some_pairs(one, run.config.most_evaluation_pairs)) for one in tests)
    at_the_end = sum(len(some_pairs(one, None)) for one in tests)
    return each * (along * len(run.config.evaluation_steps()) + at_the_end)


def unique_runs(runs: Sequence[Planned]) -> list[Planned]:
    """Each training once, under its first name: m = 0.6 and α = 0.9 are the same run."""
    unique: dict[str, Planned] = {}
    for one in runs:
        unique.setdefault(one.digest(), one)
    return list(unique.values())


def missing(runs: Sequence[Planned], out: Path) -> list[Planned]:
    return [one for one in runs if one.result(out) is None]


def plan_content(runs: Sequence[Planned], out: Path, rates: Rates) -> list[dict[str, Any]]:
    """A line a run: what it is, whether it is done, and the seconds that are left of it."""
    lines = []
    for one in runs:
        done = one.result(out) is not None
        state = "done" if done else "to do" if one.begun(out) is None else "begun"
        left = 0 if done else one.config.iterations - one.steps_done(out)
        seconds = left * rates.get(pace_key(one.config), 0.0)
        config = {name: getattr(one.config, name) for name in ("iterations", "batch_size")}
        lines.append({"name": one.title, "state": state, **config, "seconds": seconds, "folder": one.find(out).name})
    return lines


class Then(NamedTuple):
    """Runs that follow a plan, of which only then is known which they are."""

    runs: int
    what: str


NOTHING_MORE = Then(0, "")


def seconds_of(then: Then, runs: Sequence[Planned], rates: Rates) -> float:
    """As many whole runs as these are in the mean."""
    whole = [rates[key] * one.config.iterations for one in runs if (key := pace_key(one.config)) in rates]
    return then.runs * float(np.mean(whole)) if whole else 0.0


def announce(runs: Sequence[Planned], out: Path, rates: Rates, console: Console, then: Then = NOTHING_MORE) -> None:
    """The plan and its cost, before anything is done."""
    lines = plan_content(runs, out, rates)
    left = [line for line in lines if line["state"] != "done"]
    say(console, f"Plan: {counted(len(lines), 'training run')}, {len(lines) - len(left)} of them done before.")
    for line in lines:
        what = f"{line['name']}: {line['iterations']} iterations, N = {line['batch_size']}"
        say(console, f"  {line['state']:5}  {what}")
    if left:
        seconds = sum(line["seconds"] for line in left)
        say(
            console,
            f"Estimate: {duration(seconds)} for what is missing of {len(left)}, by finished runs or {TIMED_STEPS} timed steps.",
        )
    if then.runs:
        cost = duration(seconds_of(then, runs, rates))
        say(console, f"After these, {then.runs} runs more: {then.what}, about {cost} by the mean of these.")


def made_elsewhere(runs: Sequence[Planned], results: Sequence[Result]) -> str:
    """Sentence for a caption where some runs had an earlier cut of the same photos; otherwise nothing."""
    known = {one.digest(): result.data != one.fingerprints() for one, result in zip(runs, results, strict=True)}
    if not any(known.values()):
        return ""
    return (
        f" {sum(known.values())} of the {len(known)} runs had sets that were cut from the same photos with the same options at "
        "another time, not those counted here."
    )

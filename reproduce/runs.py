"""Training runs that tables and figures need. Each is trained once and found by any command.

A run's folder is named by a digest of its configuration and data.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from reproduce.groups import Group
from reproduce.published import METHODS, Presets
from reproduce.results import (
    FILE,
    Result,
    differing_scenes,
    left_out_note,
    read_result,
    require_common,
    scenes_left_out,
)
from sdgmnet.data.sources import Sources
from sdgmnet.errors import InputError
from sdgmnet.loss.registry import loss_defaults
from sdgmnet.registry import parse_options
from sdgmnet.report import print_aside
from sdgmnet.training.checkpoint import checkpoints
from sdgmnet.training.config import EPOCHS, PAPER_ITERATIONS, TrainConfig
from sdgmnet.training.recipes import settings_of

NOT_IN_DIGEST = ("data", "holdout", "checkpoint_every", "tensorboard", "wandb")  # places, and what changes no bits


def preset_of(method: str, presets: Presets) -> str:
    return METHODS[method].preset if presets == "table" else presets


@dataclass(frozen=True)
class Budget:
    """What every learned method gets."""

    iterations: int
    batch_size: int | None  # None: the recipe's own
    checkpoints: int  # evaluations along a run
    checkpoint_pairs: int | None  # of all test scenes together, at each of them; None: all pairs

    def sentence(self) -> str:
        batch = "each method's own batch size" if self.batch_size is None else f"N = {self.batch_size}"
        few = f"at most {self.checkpoint_pairs} test pairs of all scenes together, the last also on all pairs"
        pairs = "all test pairs" if self.checkpoint_pairs is None else few
        count = min(self.checkpoints, self.iterations)
        half = ", so that ten of them are half of it (the paper has 200)" if count == 20 else ""
        return (
            f"{self.iterations} iterations for every learned method, {batch}; {count} checkpoints along each run{half}, "
            f"evaluated on {pairs}"
        )


SMALL_BUDGET = Budget(iterations=400, batch_size=256, checkpoints=20, checkpoint_pairs=4000)
FULL_BUDGET = Budget(iterations=PAPER_ITERATIONS, batch_size=None, checkpoints=EPOCHS, checkpoint_pairs=None)


def flat_settings(config: TrainConfig) -> dict[str, Any]:
    """The settings with SDGM's options among them: the form in which records hold them and digests are made."""
    settings = {**asdict(config), **loss_defaults("sdgm"), "decay": None}
    if config.loss == "sdgm":
        for name, value in parse_options(config.loss_options).items():
            is_number = isinstance(value, int) and not isinstance(value, bool)
            settings[name] = float(value) if is_number else value  # alpha=1 and alpha=1.0 are the same run
        settings["loss_options"] = ()
    return settings


@dataclass(frozen=True)
class Planned:
    """One training run: on a group, tested on the others."""

    method: str  # a method of Table 1, or any name
    config: TrainConfig
    train: Group
    tests: tuple[Group, ...]

    @property
    def title(self) -> str:
        return f"{self.method} on {self.train.name}, seed {self.config.seed}"

    def digest(self) -> str:
        """Of the settings that differ from their defaults, so that a setting added later does not orphan old runs."""
        default = flat_settings(TrainConfig())
        config = {
            name: value
            for name, value in flat_settings(self.config).items()
            if name not in NOT_IN_DIGEST and value != default[name]
        }
        tests = sorted(one for group in self.tests for one in group.test_identity)
        content = {"config": config, "train": sorted(self.train.train_identity), "test": tests}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]

    def folder(self, out: Path) -> Path:
        """The folder that this run gets if it has none yet."""
        readable = "".join(sign if sign.isalnum() or sign in "+-.=" else "-" for sign in self.method)
        return out / "runs" / f"{readable}-{self.train.name}-s{self.config.seed}-{self.digest()}"

    def find(self, out: Path) -> Path:
        """Its folder, also if another command named it differently: the digest counts. Finished comes before begun."""
        known = sorted((out / "runs").glob(f"*-{self.digest()}"))
        for file in (FILE, "config.json"):
            for folder in known:
                if (folder / file).exists():
                    return folder
        return known[0] if known else self.folder(out)

    def weights(self, out: Path) -> Path:
        return self.find(out) / "last.safetensors"

    def result(self, out: Path) -> Result | None:
        """None if the run is not finished."""
        folder = self.find(out)
        result = read_result(folder, self.digest())
        if result is not None:
            self.require_same(result.config, folder)
        return result

    def begun(self, out: Path) -> TrainConfig | None:
        """The configuration of a run that was begun, None if there is none."""
        path = self.find(out) / "config.json"
        if not path.exists():
            return None
        config = TrainConfig.load(path)
        self.require_same(flat_settings(config), path.parent)
        return config

    def steps_done(self, out: Path) -> int:
        """Iterations that resuming does not repeat."""
        if self.begun(out) is None:
            return 0
        known = [path.stem.rpartition("-")[2] for path in checkpoints(self.find(out) / "checkpoints")]
        return max((int(one) for one in known if one.isdigit()), default=0)

    def require_same(self, trained: Mapping[str, Any], folder: Path) -> None:
        """The digest does not notice a default that has changed since. Settings left open are decided by the machine."""
        there = json.loads(json.dumps(trained))
        for name, value in json.loads(json.dumps(flat_settings(self.config))).items():
            if name in there and name not in NOT_IN_DIGEST and value not in (None, "auto", there[name]):
                raise InputError(
                    f"{folder} was trained with {name} = {there[name]}, which is now {value}: move it away to train it again."
                )

    def fingerprints(self) -> dict[str, dict[str, str]]:
        """Of the present sets, in the form of `Result.data`."""
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
    """A recipe in the budget. overrides: settings that a sweep varies."""
    tests = tuple(one for one in groups if one.name != group.name)
    sets, most = sum(len(one.test) for one in tests), max(one.pairs() for one in tests)
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


def unique_runs(runs: Sequence[Planned]) -> list[Planned]:
    """Each training once, under its first name: m = 0.6 and α = 0.9 are the same run."""
    unique: dict[str, Planned] = {}
    for one in runs:
        unique.setdefault(one.digest(), one)
    return list(unique.values())


def missing(runs: Sequence[Planned], out: Path) -> list[Planned]:
    return [one for one in runs if one.result(out) is None]


def finished_runs(runs: Sequence[Planned], out: Path) -> tuple[list[Planned], list[Result]]:
    known = [(one, result) for one in runs if (result := one.result(out)) is not None]
    if not known:
        raise InputError(f"{out} has no finished run of this plan yet: omit --finished to train them.")
    return [one for one, _ in known], [result for _, result in known]


def groups_tested(runs: Sequence[Planned]) -> list[Group]:
    return list({group.name: group for one in runs for group in one.tests}.values())


def require_comparable(runs: Sequence[Planned], out: Path) -> None:
    """Before anything is trained: finished runs and those to come must have test scenes in common."""
    known = [one.result(out) for one in runs]
    scenes = differing_scenes(
        one.fingerprints()["test"] if result is None else result.data["test"]
        for one, result in zip(runs, known, strict=True)
        if result is None or result.diverged is None
    )
    require_common(groups_tested(runs), scenes)
    if scenes:
        print_aside(f"Note:{left_out_note(scenes)}")


def data_notes(runs: Sequence[Planned], results: Sequence[Result]) -> str:
    """Sentences for a caption: runs on another cut of the same photos, and test scenes that were left out for it."""
    other = {one.digest(): result.data != one.fingerprints() for one, result in zip(runs, results, strict=True)}
    note = ""
    if any(other.values()):
        note = (
            f" {sum(other.values())} of the {len(other)} runs used sets that were cut from the same photos with the same "
            "options at another time, not the present ones."
        )
    return note + left_out_note(scenes_left_out(results))

"""`python -m reproduce everything`: train every row of the comparison on equal terms, then measure all of them.

Each loss first gets the same search over learning rates, judged on a scene that is neither trained on nor tested on.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from reproduce.arguments import EverythingArguments
from reproduce.groups import Group, make_group
from reproduce.measure import (
    HAND_CRAFTED,
    first_seeds,
    keep_runs,
    label_of,
    measure_hpatches,
    measure_matching,
    measure_reconstruction,
    measure_sift,
)
from reproduce.published import METHODS
from reproduce.results import Result, mean_of
from reproduce.runner import announce, require_batches, run_plan, seconds_per_iteration
from reproduce.runs import Budget, Planned, missing, plan_run, unique_runs
from sdgmnet.data.patchset import PatchSet, scene_of
from sdgmnet.data.sources import open_patchsets, require_holdout
from sdgmnet.errors import InputError
from sdgmnet.options import require_options
from sdgmnet.report import print_aside, progress_bars
from sdgmnet.storage import try_lock, write_json
from sdgmnet.training.recipes import settings_of

RATES = (0.1, 0.3, 1.0)  # of the search; 1 is the paper's
CHECKPOINTS = 10
KEPT = (
    "encoder", "holdout", "validation", "pairs", "search_pairs", "batch_size", "seeds", "window", "scenes_per_batch", "threads",
)  # fmt: skip
LEARNED = tuple(name for name, method in METHODS.items() if method.recipe is not None)
FIRST, SECOND = ("sdgmnet", "hardnet+frn"), ("hynet", "sosnet", "cdfdesc")


class Stage(NamedTuple):
    """Runs that belong together; the most valuable stages come first, in case that time runs out."""

    preset: str
    methods: tuple[str, ...]
    seeds: range


def stages(seeds: int, only: Sequence[str]) -> list[Stage]:
    plan = [
        Stage("sdgm", FIRST + SECOND, range(1)),
        Stage("sdgm", FIRST, range(1, seeds)),
        Stage("sdgm", SECOND, range(1, seeds)),
        Stage("sdgm", tuple(name for name in LEARNED if name not in FIRST + SECOND), range(1)),
        Stage("native", LEARNED, range(1)),
    ]
    return [one._replace(methods=tuple(name for name in one.methods if name in only)) for one in plan]


@dataclass(frozen=True)
class Scenes:
    """train and validation do not share a scene with tests; search is train without the validation scene."""

    train: Group
    search: Group
    validation: Group
    tests: tuple[Group, ...]


def open_scenes(arguments: EverythingArguments) -> Scenes:
    """Of --data: the test scenes, the validation scene, and the rest. Views of a held-out scene are not trained on."""
    with progress_bars() as on_progress:
        found = open_patchsets(arguments.data, on_progress)
    names = [one.name for one in found]
    require_holdout([*arguments.holdout, arguments.validation], names)
    if arguments.validation in arguments.holdout or not arguments.holdout:
        raise InputError(
            "--holdout needs test scenes, and --validation another scene, on which learning rates are chosen."
        )
    group = partial(make_group, folders=arguments.data)

    def without(held_out: Sequence[str]) -> list[PatchSet]:
        scenes = {scene_of(one) for one in found if one.name in held_out}
        return [one for one in found if scene_of(one) not in scenes]

    by_name = dict(zip(names, found, strict=True))
    train, search = without(arguments.holdout), without([*arguments.holdout, arguments.validation])
    if not search:
        raise InputError("--holdout and --validation leave nothing to train on: give more sets with --data.")
    return Scenes(
        group("sets", found=train),
        group("search", found=search),
        group(arguments.validation, found=[by_name[arguments.validation]]),
        tuple(group(name, found=[by_name[name]]) for name in arguments.holdout),
    )


def plan_row(
    arguments: EverythingArguments, scenes: Scenes, method: str, preset: str, seed: int, rate: float | None
) -> Planned:
    """rate: None for the recipe's own. The native preset keeps its batch size; the number of pairs is the same."""
    recipe = METHODS[method].recipe or ""
    own = settings_of(recipe, preset)
    batch = min(own.batch_size, arguments.batch_size)
    budget = Budget(math.ceil(arguments.pairs / batch), batch, CHECKPOINTS, arguments.checkpoint_pairs)
    name, groups = method if preset == "sdgm" else f"{method}-native", [scenes.train, *scenes.tests]
    settings = {**common(arguments, preset), "learning_rate": own.learning_rate if rate is None else rate}
    return plan_run(name, recipe, preset, scenes.train, groups, budget, seed, **settings)


def plan_search(arguments: EverythingArguments, scenes: Scenes, method: str) -> list[Planned]:
    batch = arguments.batch_size
    budget = Budget(math.ceil(arguments.search_pairs / batch), batch, 1, arguments.checkpoint_pairs)
    groups, recipe = [scenes.search, scenes.validation], METHODS[method].recipe or ""

    def plan(rate: float) -> Planned:
        settings = {**common(arguments, "sdgm"), "learning_rate": rate}
        return plan_run(f"{method}-rate={rate:g}", recipe, "sdgm", scenes.search, groups, budget, 0, **settings)

    return [plan(rate) for rate in RATES]


def common(arguments: EverythingArguments, preset: str) -> dict[str, object]:
    """Settings that all runs share; the preset native has the networks of the papers."""
    shared = ("window", "scenes_per_batch", "threads") + (("encoder",) if preset == "sdgm" else ())
    return {name: getattr(arguments, name) for name in shared}


def best_rate(results: Sequence[Result]) -> float:
    """That of the lowest FPR@95 on the validation scene; of equal ones the paper's, or the nearest to it."""
    scores = {one.config["learning_rate"]: 1.0 if one.diverged else mean_of(one.last) for one in results}
    return min(scores, key=lambda rate: (scores[rate], -rate))


Carry = Callable[[Sequence[Planned]], object]


def rows_of(arguments: EverythingArguments, scenes: Scenes, carry: Carry) -> Iterator[list[Planned]]:
    """The runs of each stage in turn: first `carry` gets its searches, whose results decide the learning rates."""
    for stage in stages(arguments.seeds, arguments.only):
        searches = {name: plan_search(arguments, scenes, name) for name in stage.methods if stage.preset == "sdgm"}
        carry([one for runs in searches.values() for one in runs])
        rates: dict[str, float | None] = dict.fromkeys(stage.methods)
        for name, runs in searches.items():
            found = [one.result(arguments.out) for one in runs]
            known = [result for result in found if result is not None]
            rates[name] = best_rate(known) if len(known) == len(runs) else None
        yield [
            plan_row(arguments, scenes, name, stage.preset, seed, rates[name])
            for seed in stage.seeds
            for name in stage.methods
        ]


def everything(arguments: EverythingArguments) -> None:
    require_options(arguments, seeds=1, pairs=2, search_pairs=2, batch_size=2, checkpoint_pairs=2)
    if unknown := [name for name in arguments.only if name not in LEARNED]:
        raise InputError(f"--only {unknown[0]}: no such row; there are {', '.join(LEARNED)}.")
    scenes = open_scenes(arguments)
    if arguments.plan:
        print_plan(arguments, scenes)
        return

    def carry_out(runs: Sequence[Planned]) -> None:
        if runs:
            run_plan(runs, arguments.out)

    if not arguments.finished:
        for runs in rows_of(arguments, scenes, carry_out):
            carry_out(runs)
    with try_lock(arguments.out / ".measure.lock") as mine:
        if mine:
            measure(arguments, scenes)
        else:
            print_aside("Another process measures the networks.")


def measure(arguments: EverythingArguments, scenes: Scenes) -> None:
    """All that is finished, into OUT/records. Rows without a learned descriptor (diverged) have only their result."""
    out, records = arguments.out, arguments.out / "records"
    searches: list[Planned] = []
    planned = unique_runs([one for runs in rows_of(arguments, scenes, searches.extend) for one in runs])
    rows, searched = ([one for one in runs if one.result(out) is not None] for runs in (planned, unique_runs(searches)))
    if not rows:
        raise InputError(f"{out} has no finished row yet: omit --finished to train them.")
    settings = {name: getattr(arguments, name) for name in KEPT}
    sets = {part: list(getattr(scenes, part).train_fingerprints) for part in ("train", "search")}
    write_json(records / "plan.json", {**settings, "sets": sets, "planned": [label_of(one) for one in planned]})
    keep_runs([*rows, *searched], out, records)
    found = [result for one in rows if (result := one.result(out)) is not None and result.diverged is None]
    measure_sift(scenes.tests, found, out, records)
    learned = {label_of(one): str(file) for one in rows if (file := one.weights(out)).exists()}
    specs = {**HAND_CRAFTED, **learned}
    if arguments.sequences is not None:
        measure_hpatches(specs, arguments.sequences, out, records)
        measure_matching(specs, arguments.sequences, out, records)
    if arguments.reconstruction is not None:
        measure_reconstruction(first_seeds(specs), arguments.reconstruction, out, records)
    print_aside(f"Records in {records}. python -m reproduce answer {records} -o {out} makes the tables from them.")


def print_plan(arguments: EverythingArguments, scenes: Scenes) -> None:
    """Runs, pairs and hours. Rows whose search is not finished are counted at the recipe's learning rate."""
    searches: list[Planned] = []
    rows = [one for runs in rows_of(arguments, scenes, searches.extend) for one in runs]
    runs = unique_runs([*searches, *rows])
    left = missing(runs, arguments.out)
    require_batches(runs)
    announce(runs, arguments.out, seconds_per_iteration(left, arguments.out))
    print_aside(
        f"Pairs: {sum(one.config.pairs for one in runs)}, {sum(one.config.pairs for one in left)} of them to do."
    )

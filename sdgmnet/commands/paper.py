"""`sdgmnet paper ...` for tables and figures that need several trained runs."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console

from sdgmnet.benchmarks import phototour
from sdgmnet.commands.paper_output import deliver_paper, demand_folder
from sdgmnet.contenders import parse_contender
from sdgmnet.data.patchset import PatchSet
from sdgmnet.errors import InputError
from sdgmnet.files import read_record, write_json
from sdgmnet.handcrafted import SIFT_VARIANT, sift
from sdgmnet.paper import table1 as first
from sdgmnet.paper.comparable import compared, demand_comparable, scenes_left_out
from sdgmnet.paper.groups import Group, open_groups
from sdgmnet.paper.methods import METHODS, Presets, demand_methods, preset_of
from sdgmnet.paper.plan import (
    NOTHING_MORE,
    Budget,
    Planned,
    Then,
    announce,
    check,
    made_elsewhere,
    missing,
    plan_content,
    plan_method,
    seconds_of,
    seconds_per_iteration,
    unique_runs,
)
from sdgmnet.paper.printed import TABLE1_NOTE
from sdgmnet.paper.progress import say
from sdgmnet.paper.results import WAY_NAMES, WAYS, Cells, Result, by_group
from sdgmnet.paper.runner import DescribeFn, run_plan
from sdgmnet.report import Section
from sdgmnet.training.config import EPOCHS, PAPER_ITERATIONS

SMALL = Budget(iterations=400, batch_size=256, checkpoints=20, checkpoint_pairs=4000)
FULL = Budget(iterations=PAPER_ITERATIONS, batch_size=None, checkpoints=EPOCHS, checkpoint_pairs=None)
TABLE1_NAMES: dict[Presets, tuple[str, str, str]] = {  # of its files, its title, and what the picture's title adds
    "table": ("table1", "Table 1", ""),
    "native": ("table1-native", "Table 1 with every method as in its own paper", ", as in their papers"),
    "sdgm": ("table1-sdgm", "Table 1 with nothing but the loss changed", ", losses alone"),
}


@dataclass(frozen=True)
class PlanArguments:
    """What all commands that train have in common."""

    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """Folder for the results and, in runs/, the trained runs. Commands with the same folder share them, and a command that
    is started twice at a time, as for two GPUs, trains two runs beside each other."""
    groups: tuple[str, ...] = ()
    """Groups of scenes as NAME=FOLDER,FOLDER: PatchSets, or folders of such. Trained on one, tested on the others."""
    phototour: Path | None = None
    """Instead: a folder with PhotoTour's liberty, notredame and yosemite."""
    scale: Literal["small", "full"] = "small"
    """small: 400 iterations, N = 256, for all methods. full: 200 K iterations, each method's own batch size."""
    iterations: int | None = None
    """Other than the scale says."""
    batch_size: int | None = None
    """Other than the scale says."""
    checkpoint_pairs: int | None = None
    """Test pairs, of all scenes together, to evaluate each checkpoint on; small: 4000, full: all."""
    plan: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print what would be trained and how long it would take, and do nothing."""
    finished: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Train nothing: what the finished runs give so far."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print JSON instead of tables."""

    def budget(self) -> Budget:
        if self.plan and self.finished:
            raise InputError("--plan is about what is missing, --finished about what is there: give one of them.")
        given = SMALL if self.scale == "small" else FULL
        for name in ("iterations", "batch_size", "checkpoint_pairs"):
            value = getattr(self, name)
            if value is not None and value < 2:
                raise InputError(f"--{name.replace('_', '-')} must be at least 2, not {value}.")
        return Budget(
            self.iterations or given.iterations,
            self.batch_size or given.batch_size,
            given.checkpoints,
            self.checkpoint_pairs or given.checkpoint_pairs,
        )

    def opened(self) -> list[Group]:
        demand_folder(self.out)
        return open_groups(self.groups, self.phototour, progress=True)

    def data_sentence(self, groups: Sequence[Group], left_out: Sequence[str] = ()) -> str:
        parts = []
        for group in groups:
            names, patches = ", ".join(one.name for one in group.train), sum(len(one) for one in group.train)
            parts.append(f"{group.name} = {names} ({patches} patches, {group.pairs_without(left_out)} test pairs)")
        drawn = [name for group in groups for name in group.drawn]
        kinds = {one.origin.get("source") for group in groups for one in group.train}
        kind = "UBC PhotoTour's subsets"
        if self.phototour is None:
            photos = " made from photos" if kinds <= {"photos", "views"} else ""
            kind = f"Groups of scenes{photos}{'' if 'PhotoTour' in kinds else ', not PhotoTour'}"
        drawn_sentence = f" Test pairs drawn here with a fixed seed: {', '.join(drawn)}." if drawn else ""
        return f"{kind}: {'; '.join(parts)}. A group's score is the mean over its scenes.{drawn_sentence}"


@dataclass(frozen=True)
class Table1Arguments(PlanArguments):
    """Table 1: FPR@95 of nine methods, trained on one group of scenes and tested on the others.

    Prints the plan and its cost, trains what is missing, and writes table1.md, .json, .png and .pdf. Ctrl-C stops it; the same
    command goes on, and no finished run is trained twice.

        sdgmnet paper table1 --groups A=sets/castle,sets/dog B=sets/rock C=sets/temple -o paper
        sdgmnet paper table1 --phototour ubc --scale full -o paper
        sdgmnet paper table1 --groups ... --preset sdgm -o paper     # losses alone: table1-sdgm.md, ...
    """

    methods: tuple[str, ...] = tuple(METHODS)
    """Rows, by recipe."""
    preset: Presets = "table"
    """table: HardNet+FRN, HyNet and SDGMNet differ in their loss alone, the others are as in their own papers. native: all as
    in their own papers. sdgm: all as SDGMNet, only the loss differs."""
    seeds: int = 1
    """Trainings of each method on each group."""
    best_seeds: int = 2
    """The same for the three methods that turn out best, by their last checkpoints on all test pairs."""


def table1(words: list[str]) -> None:
    arguments = tyro.cli(Table1Arguments, prog="sdgmnet paper table1", args=words)
    methods, out = demand_methods(arguments.methods), arguments.out
    arguments.budget()  # refused before anything is opened
    for name, value in (("--seeds", arguments.seeds), ("--best-seeds", arguments.best_seeds)):
        if value < 1:
            raise InputError(f"{name} must be at least 1, not {value}.")
    groups, console = arguments.opened(), Console(stderr=True)
    learned = [name for name in methods if METHODS[name].recipe is not None]
    runs = _table1_runs(learned, groups, arguments, range(arguments.seeds))
    more = range(arguments.seeds, max(arguments.seeds, arguments.best_seeds))
    if missing(runs, out):
        count = len(more) * min(first.BEST_ROWS, len(learned)) * len(groups)
        second, then = [], Then(count, "further seeds of the three best methods")
    else:  # it is known which these are
        done = finished_runs(runs, out)[1] if runs else []
        best = first.best_methods(learned_lines(learned, runs, done, groups))
        second, then = _table1_runs(best, groups, arguments, more), NOTHING_MORE
    if not arguments.finished:
        demand_comparable([*runs, *second], out, console)
    if arguments.plan:
        only_plan([*runs, *second], arguments, console, then)
        return
    if arguments.finished:
        table1_so_far(arguments, groups, learned)
        return
    found = run_plan(runs, out, describe_with, console, then)
    if more:
        second = _table1_runs(first.best_methods(learned_lines(learned, runs, found, groups)), groups, arguments, more)
        runs, found = runs + second, found + run_plan(second, out, describe_with, console)
    deliver_table1(arguments, groups, learned, runs, found)


def table1_so_far(arguments: Table1Arguments, groups: Sequence[Group], learned: Sequence[str]) -> None:
    out, seeds = arguments.out, range(arguments.seeds, max(arguments.seeds, arguments.best_seeds))
    runs = _table1_runs(learned, groups, arguments, range(arguments.seeds))
    more = _table1_runs(learned, groups, arguments, seeds)
    done, found = finished_runs([*runs, *whole_seeds(more, out)], out) if learned else ([], [])
    lacking = len(runs) - len([one for one in done if one.config.seed < arguments.seeds])
    state = f" Not whole yet: {lacking} of the {len(runs)} runs of the first seeds are missing." if lacking else ""
    deliver_table1(arguments, groups, learned, done, found, state)


def learned_lines(
    learned: Sequence[str], runs: Sequence[Planned], found: Sequence[Result], groups: Sequence[Group]
) -> list[first.Line]:
    results = keyed(runs, compared(runs, found)[0])
    return [first.learned_line(name, results, groups) for name in learned]


def whole_seeds(runs: Sequence[Planned], out: Path) -> list[Planned]:
    """Of these only what is finished on every group: cells and their mean are then of the same seeds."""
    lacking = {(one.method, one.config.seed) for one in missing(runs, out)}
    return [one for one in runs if (one.method, one.config.seed) not in lacking]


def finished_runs(runs: Sequence[Planned], out: Path) -> tuple[list[Planned], list[Result]]:
    known = [(one, result) for one in runs if (result := one.result(out)) is not None]
    if not known:
        raise InputError(f"{out} holds no finished run of this plan yet: leave --finished out to train them.")
    return [one for one, _ in known], [result for _, result in known]


def deliver_table1(
    arguments: Table1Arguments,
    groups: Sequence[Group],
    learned: Sequence[str],
    runs: Sequence[Planned],
    found: Sequence[Result],
    state: str = "",
) -> None:
    budget, left_out = arguments.budget(), scenes_left_out(found)
    remarks = made_elsewhere(runs, found) + compared(runs, found)[1] + state
    lines = learned_lines(learned, runs, found, groups)
    if "sift" in arguments.methods:
        cells, remark = sift_cells(groups, found, arguments.out, Console(stderr=True))
        lines.insert(0, first.fixed_line("sift", cells, groups))
        remarks += remark
    presets = {
        kind: ", ".join(
            METHODS[line.method].label
            for line in lines
            if METHODS[line.method].recipe is not None and preset_of(line.method, arguments.preset) == kind
        )
        for kind in ("native", "sdgm")
    }
    sentences = [
        f"FPR@95 in %, lower is better. {arguments.data_sentence(groups, left_out)}",
        f"{budget.sentence()}.{remarks}",
        f"Networks, optimisers and augmentations of their own papers, schedules stretched to the run: {presets['native']}."
        if presets["native"]
        else "",
        f"All as SDGMNet, only the loss differs: {presets['sdgm']}." if presets["sdgm"] else "",
        f"SIFT: {SIFT_VARIANT}; on all pairs." if any(line.method == "sift" for line in lines) else "",
        "± is the standard deviation over the seeds.",
    ]
    caption = " ".join(sentence for sentence in sentences if sentence)
    notes = [sentence for line in lines for sentence in line.concerns]
    name, title, drawn = TABLE1_NAMES[arguments.preset]
    sections = [
        Section(f"{title}: mean over all cells", caption, *first.summary_table(lines)),
        *(Section(f"{title}: {WAY_NAMES[way]}", "", *first.way_table(lines, way, groups)) for way in WAYS),
        Section("Table 1 as printed in the paper", TABLE1_NOTE, *first.paper_table(lines)),
    ]
    results = {
        "caption": caption,
        "budget": vars(budget),
        "groups": {group.name: [one.name for one in group.train] for group in groups},
        "left_out": left_out,
        "rows": first.content(lines, arguments.preset),
    }
    kind = "PhotoTour" if arguments.phototour is not None else "groups of scenes"
    deliver_paper(
        arguments.out,
        name,
        results,
        sections,
        lambda stem: first.draw_table1(lines, stem, f"{kind}, {budget.iterations} iterations{drawn}"),
        arguments.json,
        notes,
    )


def _table1_runs(
    methods: Sequence[str], groups: Sequence[Group], arguments: Table1Arguments, seeds: range
) -> list[Planned]:
    budget, presets = arguments.budget(), arguments.preset
    return [
        plan_method(name, group, groups, budget, seed, presets)
        for seed in seeds
        for group in groups
        for name in methods
    ]


def keyed(runs: Sequence[Planned], results: Sequence[Result]) -> dict[first.Key, Result]:
    return {(one.method, one.train.name, one.config.seed): result for one, result in zip(runs, results, strict=True)}


def only_plan(runs: Sequence[Planned], arguments: PlanArguments, console: Console, then: Then = NOTHING_MORE) -> None:
    unique, out = unique_runs(runs), arguments.out
    check(unique)
    rates = seconds_per_iteration(unique, out)
    if arguments.json:
        later = {"runs": then.runs, "what": then.what, "seconds": seconds_of(then, unique, rates)}
        print(json.dumps({"runs": plan_content(unique, out, rates), "then": later if then.runs else None}, indent=2))
    else:
        announce(unique, out, rates, console, then)


def describe_with(weights: Path) -> DescribeFn:
    return parse_contender(str(weights)).describe


def sift_cells(groups: Sequence[Group], found: Sequence[Result], out: Path, console: Console) -> tuple[Cells, str]:
    """FPR@95 of SIFT on all test pairs of the scenes that the runs are compared on; a sentence where it has others.

    Scores are kept by the data, so that those of sets that are no longer there are still known.
    """
    present = {name: value for group in groups for name, value in group.test_fingerprints.items()}
    left_out = scenes_left_out(found)
    tested = {name: value for result in found for name, value in result.data["test"].items() if result.diverged is None}
    wanted = {name: tested.get(name, value) for name, value in present.items() if name not in left_out}
    lost = any(known_sift(out, name, wanted[name]) is None for name in wanted if wanted[name] != present[name])
    scores: dict[str, float] = {}
    for patchset in (one for group in groups for one in group.test if one.name in wanted):
        fingerprint = (present if lost else wanted)[patchset.name]
        known = known_sift(out, patchset.name, fingerprint)
        if known is None:
            known = measure_sift(patchset, sift_file(out, patchset.name, fingerprint), console)
        scores[patchset.name] = known
    remark = " SIFT's row is of the sets counted here, so of other test pairs than the runs had." if lost else ""
    return by_group(scores, groups), remark


def measure_sift(patchset: PatchSet, path: Path, console: Console) -> float:
    say(console, f"SIFT on {patchset.name}")
    (row,) = phototour.run(sift, [patchset])
    assert row.fpr95 is not None  # nothing that SIFT was trained on
    write_json(path, {"fpr95": row.fpr95, "pairs": row.pairs, "sift": SIFT_VARIANT})
    return row.fpr95


def sift_file(out: Path, scene: str, fingerprint: str) -> Path:
    return out / "runs" / f"sift-{scene}-{fingerprint}.json"


def known_sift(out: Path, scene: str, fingerprint: str) -> float | None:
    """None where it is not known, or was measured with another SIFT."""
    path = sift_file(out, scene, fingerprint)
    if not path.exists():
        return None
    record = read_record(path, {"fpr95": int | float, "sift": str})
    return float(record["fpr95"]) if record["sift"] == SIFT_VARIANT else None

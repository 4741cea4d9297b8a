"""`sdgmnet paper ...` for tables and figures that need several trained runs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import matplotlib.lines
import matplotlib.ticker
import numpy as np
import tyro
from matplotlib.axes import Axes
from rich.console import Console

from reproduce.comparable import compared, require_comparable, scenes_left_out
from reproduce.groups import Group, open_groups
from reproduce.methods import METHODS, Presets, preset_of, require_methods
from reproduce.output import deliver_paper, require_folder
from reproduce.plan import (
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
from reproduce.printed import TABLE1, TABLE1_COLUMNS, TABLE1_NOTE
from reproduce.progress import say
from reproduce.results import WAY_NAMES, WAYS, Cells, Result, by_group, concern, number
from reproduce.runner import DescribeFn, run_plan
from sdgmnet.benchmarks import phototour
from sdgmnet.data.patchset import PatchSet
from sdgmnet.descriptors import load_descriptor
from sdgmnet.errors import InputError
from sdgmnet.features.sift import SIFT_VARIANT, sift
from sdgmnet.plots import COLOURS, PAGE, SMALL, new_figure, printed, save_print
from sdgmnet.report import Section, progress_bars
from sdgmnet.storage import read_record, write_json
from sdgmnet.training.config import EPOCHS, PAPER_ITERATIONS

# ---- paper.table1


Key = tuple[str, str, int]  # method, group trained on, seed
MARKERS = {"best": "<", "last ten": "o", "last": ">"}
SMALLEST = 1e-4  # that the image's logarithmic axis shows: an error of 0 stands there
BEST_ROWS = 3  # that get more seeds


@dataclass(frozen=True)
class Line:
    """One method. Cells are FPR@95 as fractions, a list over the seeds; a seed that diverged somewhere is in no mean."""

    method: str
    cells: dict[str, dict[str, list[float]]]  # way -> "TRAIN→TEST" -> values
    means: dict[str, list[float]]  # way -> mean over all cells, a seed each
    diverged: dict[str, list[str]]  # group trained on -> what happened
    concerns: list[str] = field(default_factory=list)  # about runs that came to their end


def columns(groups: Sequence[Group]) -> list[str]:
    """TRAIN→TEST, in the order of the paper: by the test group."""
    return [f"{train.name}→{test.name}" for test in groups for train in groups if train.name != test.name]


def learned_line(method: str, results: Mapping[Key, Result], groups: Sequence[Group]) -> Line:
    mine = {key: result for key, result in results.items() if key[0] == method}
    cells: dict[str, dict[str, list[float]]] = {way: {name: [] for name in columns(groups)} for way in WAYS}
    means: dict[str, list[float]] = {way: [] for way in WAYS}
    for seed in sorted({seed for _, _, seed in mine}):
        for way, score in WAYS.items():
            found = {}
            for train in groups:
                result = mine.get((method, train.name, seed))
                if result is not None and result.diverged is None:
                    tests = [group for group in groups if group.name != train.name]
                    found.update({f"{train.name}→{name}": value for name, value in score(result, tests).items()})
            for name, value in found.items():
                cells[way][name].append(value)
            if len(found) == len(columns(groups)):
                means[way].append(float(np.mean(list(found.values()))))
    diverged: dict[str, list[str]] = {}
    for (_, train_name, _), result in mine.items():
        if result.diverged is not None:
            diverged.setdefault(train_name, []).append(f"{result.name}: {result.diverged}")
    return Line(method, cells, means, diverged, [one for result in mine.values() if (one := concern(result))])


def fixed_line(method: str, scores: Cells, groups: Sequence[Group]) -> Line:
    """A method that is not trained: one number a test group, whatever the others were trained on."""
    cells = {name: [scores[name.split("→")[1]]] for name in columns(groups)}
    mean = [float(np.mean([values[0] for values in cells.values()]))]
    return Line(method, dict.fromkeys(WAYS, cells), dict.fromkeys(WAYS, mean), {})


def best_methods(lines: Sequence[Line], count: int = BEST_ROWS) -> list[str]:
    """Learned methods by their last checkpoints, the ones that see all test pairs; one that diverged is in no rank."""
    ranked = [line for line in lines if METHODS[line.method].recipe is not None and line.means["last"]]
    return [line.method for line in sorted(ranked, key=lambda line: float(np.mean(line.means["last"])))[:count]]


def summary_table(lines: Sequence[Line]) -> tuple[list[str], list[list[str]]]:
    header = [
        "method",
        "best (%)",
        "last ten (%)",
        "last, all pairs (%)",
        "seeds",
        "paper (%)",
        "paper, of its cells (%)",
    ]
    body = [
        [
            METHODS[line.method].label,
            *(number(line.means[way], bool(line.diverged)) for way in WAYS),
            "-" if METHODS[line.method].recipe is None else str(len(line.means["last"])),
            f"{TABLE1[line.method].mean:.2f}",
            f"{np.mean(TABLE1[line.method].cells):.2f}",
        ]
        for line in lines
    ]
    return header, body


def way_table(lines: Sequence[Line], way: str, groups: Sequence[Group]) -> tuple[list[str], list[list[str]]]:
    names = columns(groups)
    body = [
        [
            METHODS[line.method].label,
            *(number(line.cells[way][name], name.split("→")[0] in line.diverged) for name in names),
            number(line.means[way], bool(line.diverged)),
        ]
        for line in lines
    ]
    return ["train→test (%)", *names, "mean"], body


def paper_table(lines: Sequence[Line]) -> tuple[list[str], list[list[str]]]:
    body = [
        [METHODS[one].label, *(f"{cell:.2f}" for cell in TABLE1[one].cells), f"{TABLE1[one].mean:.2f}"]
        for one in (line.method for line in lines)
    ]
    return ["train→test (%)", *TABLE1_COLUMNS, "mean"], body


def content(lines: Sequence[Line], presets: Presets) -> list[dict[str, Any]]:
    return [
        {
            "method": METHODS[line.method].label,
            "recipe": METHODS[line.method].recipe,
            "preset": None if METHODS[line.method].recipe is None else preset_of(line.method, presets),
            "fpr95": line.cells,
            "mean_a_seed": line.means,
            "concerns": line.concerns,
            "paper_percent": dict(zip(TABLE1_COLUMNS, TABLE1[line.method].cells, strict=True)),
            "paper_mean_percent": TABLE1[line.method].mean,
        }
        for line in lines
    ]


def draw_table1(lines: Sequence[Line], path: Path, data: str) -> list[Path]:
    """Means of all cells: ours by the three ways of counting, the paper's beside it on its own scale."""
    with printed():
        figure, axes = new_figure(1, 2, PAGE, 0.9 + 0.27 * len(lines))
        ours, theirs = axes[0]
        for place, line in enumerate(lines):
            colour = COLOURS[line.method]
            theirs.plot(np.mean(TABLE1[line.method].cells), place, marker="D", color=colour, markersize=4)
            if METHODS[line.method].recipe is None:
                ours.plot(100 * max(line.means["last"][0], SMALLEST), place, marker="s", color=colour, markersize=4)
                continue
            # One above the other: the three are often nearly equal.
            for shift, (way, marker) in zip((-0.2, 0, 0.2), MARKERS.items(), strict=True):
                if line.means[way]:
                    values = 100 * np.array(line.means[way]).clip(SMALLEST)
                    ours.plot(values.mean(), place + shift, marker=marker, color=colour, markersize=4)
                    if len(values) > 1:
                        ours.plot(
                            values, [place + shift] * len(values), "|-", color=colour, linewidth=0.8, markersize=4
                        )
            if not line.means["last ten"]:
                state = "diverged" if line.diverged else "not finished"
                ours.text(0.5, place, state, transform=ours.get_yaxis_transform(), ha="center", va="center")
        for axis, title in ((ours, f"here: {data}"), (theirs, "paper: PhotoTour, best epoch, mean of cells")):
            _finish(axis, lines, title)
        theirs.tick_params(labelleft=False)
        handles = [
            matplotlib.lines.Line2D([], [], color="#4d4d4d", marker=marker, linestyle="", label=name)
            for name, marker in (
                ("best checkpoint", "<"),
                ("mean of last ten", "o"),
                ("last, all pairs (bars: seeds)", ">"),
                ("not trained", "s"),
            )
        ]
        if any(value <= SMALLEST for line in lines for values in line.means.values() for value in values):
            figure.supxlabel(f"at {100 * SMALLEST:g} %: as little or less, also 0", fontsize=SMALL)
        figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
        return save_print(figure, path)


def _finish(axis: Axes, lines: Sequence[Line], title: str) -> None:
    axis.set_yticks(range(len(lines)), [METHODS[line.method].label for line in lines], parse_math=False)
    axis.set(ylim=(len(lines) - 0.5, -0.5), xscale="log", xlabel="mean FPR@95 (%), lower is better", title=title)
    left, right = axis.get_xlim()
    axis.set_xlim(left, min(right, 110))
    decades = np.log10(min(right, 110) / left)
    subs = (1, 1.5, 2, 3, 5, 7) if decades < 1.7 else (1, 3) if decades < 3 else (1,)
    axis.xaxis.set_major_locator(matplotlib.ticker.LogLocator(subs=subs))
    axis.xaxis.set_major_formatter(matplotlib.ticker.FormatStrFormatter("%g"))
    axis.xaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
    axis.grid(axis="x", linestyle=":", linewidth=0.5)
    axis.set_axisbelow(True)


# ---- commands.paper


SMALL_BUDGET = Budget(iterations=400, batch_size=256, checkpoints=20, checkpoint_pairs=4000)
FULL_BUDGET = Budget(iterations=PAPER_ITERATIONS, batch_size=None, checkpoints=EPOCHS, checkpoint_pairs=None)
TABLE1_NAMES: dict[Presets, tuple[str, str, str]] = {  # of its files, its title, and what the image's title adds
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
        given = SMALL_BUDGET if self.scale == "small" else FULL_BUDGET
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
        require_folder(self.out)
        with progress_bars() as on_progress:
            return open_groups(self.groups, self.phototour, on_progress)

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

        python -m reproduce table1 --groups A=sets/castle,sets/dog B=sets/rock C=sets/temple -o paper
        python -m reproduce table1 --phototour ubc --scale full -o paper
        python -m reproduce table1 --groups ... --preset sdgm -o paper     # losses alone: table1-sdgm.md, ...
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
    arguments = tyro.cli(Table1Arguments, prog="python -m reproduce table1", args=words)
    methods, out = require_methods(arguments.methods), arguments.out
    arguments.budget()  # refused before anything is opened
    for name, value in (("--seeds", arguments.seeds), ("--best-seeds", arguments.best_seeds)):
        if value < 1:
            raise InputError(f"{name} must be at least 1, not {value}.")
    groups, console = arguments.opened(), Console(stderr=True)
    learned = [name for name in methods if METHODS[name].recipe is not None]
    runs = _table1_runs(learned, groups, arguments, range(arguments.seeds))
    more = range(arguments.seeds, max(arguments.seeds, arguments.best_seeds))
    if missing(runs, out):
        count = len(more) * min(BEST_ROWS, len(learned)) * len(groups)
        second, then = [], Then(count, "further seeds of the three best methods")
    else:  # it is known which these are
        done = finished_runs(runs, out)[1] if runs else []
        best = best_methods(learned_lines(learned, runs, done, groups))
        second, then = _table1_runs(best, groups, arguments, more), NOTHING_MORE
    if not arguments.finished:
        require_comparable([*runs, *second], out, console)
    if arguments.plan:
        only_plan([*runs, *second], arguments, console, then)
        return
    if arguments.finished:
        table1_so_far(arguments, groups, learned)
        return
    found = run_plan(runs, out, describe_with, console, then)
    if more:
        second = _table1_runs(best_methods(learned_lines(learned, runs, found, groups)), groups, arguments, more)
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
) -> list[Line]:
    results = keyed(runs, compared(runs, found)[0])
    return [learned_line(name, results, groups) for name in learned]


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
        lines.insert(0, fixed_line("sift", cells, groups))
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
        Section(f"{title}: mean over all cells", caption, *summary_table(lines)),
        *(Section(f"{title}: {WAY_NAMES[way]}", "", *way_table(lines, way, groups)) for way in WAYS),
        Section("Table 1 as printed in the paper", TABLE1_NOTE, *paper_table(lines)),
    ]
    results = {
        "caption": caption,
        "budget": vars(budget),
        "groups": {group.name: [one.name for one in group.train] for group in groups},
        "left_out": left_out,
        "rows": content(lines, arguments.preset),
    }
    kind = "PhotoTour" if arguments.phototour is not None else "groups of scenes"
    deliver_paper(
        arguments.out,
        name,
        results,
        sections,
        lambda stem: draw_table1(lines, stem, f"{kind}, {budget.iterations} iterations{drawn}"),
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


def keyed(runs: Sequence[Planned], results: Sequence[Result]) -> dict[Key, Result]:
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
    return load_descriptor(str(weights)).describe


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

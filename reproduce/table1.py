"""`python -m reproduce table1`: FPR@95 of nine methods, each trained on one group of scenes and tested on the others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

from reproduce.arguments import Table1Arguments
from reproduce.groups import Group
from reproduce.output import Table
from reproduce.published import METHODS, TABLE1, TABLE1_COLUMNS, TABLE1_NOTE, Presets
from reproduce.results import WAY_NAMES, WAYS, Cells, Result, by_group, compared, concerns, number, scenes_left_out
from reproduce.runner import NOTHING_MORE, Then, run_plan
from reproduce.runs import (
    Planned,
    data_notes,
    finished_runs,
    groups_tested,
    missing,
    plan_method,
    preset_of,
    require_comparable,
)
from sdgmnet.benchmarks import phototour
from sdgmnet.data.patchset import PatchSet
from sdgmnet.errors import InputError
from sdgmnet.features.sift import SIFT_VARIANT, sift
from sdgmnet.options import require_options
from sdgmnet.plots.style import COLOURS, PAGE, SMALL, new_figure, printed, save_print
from sdgmnet.report import Section, print_aside
from sdgmnet.storage import read_record, write_json

MARKERS = {"best": "<", "last ten": "o", "last": ">"}
SMALLEST = 1e-4  # shown on the figure's logarithmic axis; an error of 0 is drawn there
BEST_ROWS = 3  # that get more seeds
NAMES: dict[Presets, tuple[str, str, str]] = {  # of the files, of the table, added to the figure's title
    "table": ("table1", "Table 1", ""),
    "native": ("table1-native", "Table 1 with every method as in its own paper", ", as in their papers"),
    "sdgm": ("table1-sdgm", "Table 1 with only the loss changed", ", losses alone"),
}


def planned(arguments: Table1Arguments, methods: Sequence[str], groups: Sequence[Group], seeds: range) -> list[Planned]:
    budget = arguments.budget()
    return [
        plan_method(name, group, groups, budget, seed, arguments.preset)
        for seed in seeds
        for group in groups
        for name in methods
    ]


def table1(arguments: Table1Arguments) -> None:
    out = arguments.out
    for name in arguments.methods or ("",):
        if name not in METHODS:
            raise InputError(f"--methods {name}: no such method; there are {', '.join(METHODS)}.")
    arguments.budget()  # invalid numbers are refused before anything is opened
    require_options(arguments, seeds=1, best_seeds=1)
    groups = arguments.open_groups()
    learned = [name for name in METHODS if name in arguments.methods and METHODS[name].recipe is not None]
    runs = planned(arguments, learned, groups, range(arguments.seeds))
    further = range(arguments.seeds, max(arguments.seeds, arguments.best_seeds))
    if arguments.finished:
        second = complete_seeds(planned(arguments, learned, groups, further), out)
        done, found = finished_runs([*runs, *second], out) if learned else ([], [])
        lacking = len(runs) - len([one for one in done if one.config.seed < arguments.seeds])
        state = f" Incomplete: {lacking} of the {len(runs)} runs of the first seeds are missing." if lacking else ""
        deliver_table1(arguments, groups, learned, done, found, state)
        return
    second, then = [], NOTHING_MORE
    if missing(runs, out):
        count = len(further) * min(BEST_ROWS, len(learned)) * len(groups)
        then = Then(count, "further seeds of the three best methods")
    elif runs:  # then the best methods are known
        best = best_methods(learned_lines(learned, runs, finished_runs(runs, out)[1], groups))
        second = planned(arguments, best, groups, further)
    require_comparable([*runs, *second], out)
    if arguments.plan:
        arguments.print_plan([*runs, *second], then)
        return
    found = run_plan(runs, out, then)
    if further:
        second = planned(arguments, best_methods(learned_lines(learned, runs, found, groups)), groups, further)
        runs, found = runs + second, found + run_plan(second, out)
    deliver_table1(arguments, groups, learned, runs, found)


def complete_seeds(runs: Sequence[Planned], out: Path) -> list[Planned]:
    """Runs of those seeds that are finished on every group, so that cells and their mean are of the same seeds."""
    lacking = {(one.method, one.config.seed) for one in missing(runs, out)}
    return [one for one in runs if (one.method, one.config.seed) not in lacking]


def deliver_table1(
    arguments: Table1Arguments,
    groups: Sequence[Group],
    learned: Sequence[str],
    runs: Sequence[Planned],
    found: Sequence[Result],
    state: str = "",
) -> None:
    budget, left_out = arguments.budget(), scenes_left_out(found)
    notes = data_notes(runs, found) + state
    lines = learned_lines(learned, runs, found, groups)
    if "sift" in arguments.methods:
        cells, note = sift_cells(groups, found, arguments.out)
        lines.insert(0, fixed_line("sift", cells, groups))
        notes += note
    labels = {
        preset: ", ".join(METHODS[one].label for one in learned if preset_of(one, arguments.preset) == preset)
        for preset in ("native", "sdgm")
    }
    sentences = [
        f"FPR@95 in %, lower is better. {arguments.data_sentence(groups, left_out)}",
        f"{budget.sentence()}.{notes}",
    ]
    if labels["native"]:
        own = "Networks, optimisers and augmentations of their own papers, schedules scaled to the length of the run"
        sentences.append(f"{own}: {labels['native']}.")
    if labels["sdgm"]:
        sentences.append(f"All as SDGMNet, only the loss differs: {labels['sdgm']}.")
    if "sift" in arguments.methods:
        sentences.append(f"SIFT: {SIFT_VARIANT}; on all pairs.")
    caption = " ".join([*sentences, "± is the standard deviation over the seeds."])
    name, title, addition = NAMES[arguments.preset]
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
    figure_title = f"{kind}, {budget.iterations} iterations{addition}"
    warnings = [sentence for line in lines for sentence in line.concerns]
    arguments.deliver(name, results, sections, lambda stem: draw_table1(lines, stem, figure_title), warnings)


# SIFT.


def sift_cells(groups: Sequence[Group], found: Sequence[Result], out: Path) -> tuple[Cells, str]:
    """FPR@95 of SIFT on all test pairs of the scenes that the runs are compared on, and a note if it has other pairs.

    Scores are stored by fingerprint, so they are still known for sets that are gone.
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
            known = measure_sift(patchset, sift_file(out, patchset.name, fingerprint))
        scores[patchset.name] = known
    note = (
        " SIFT was evaluated on the present sets, which have other test pairs than those of the runs." if lost else ""
    )
    return by_group(scores, groups), note


def measure_sift(patchset: PatchSet, path: Path) -> float:
    print_aside(f"SIFT on {patchset.name}")
    (row,) = phototour.run(sift, [patchset])
    assert row.fpr95 is not None  # only None for sets that a descriptor was trained on
    write_json(path, {"fpr95": row.fpr95, "pairs": row.pairs, "sift": SIFT_VARIANT})
    return row.fpr95


def sift_file(out: Path, scene: str, fingerprint: str) -> Path:
    return out / "runs" / f"sift-{scene}-{fingerprint}.json"


def known_sift(out: Path, scene: str, fingerprint: str) -> float | None:
    """None if it was not measured, or with another SIFT."""
    path = sift_file(out, scene, fingerprint)
    if not path.exists():
        return None
    record = read_record(path, {"fpr95": int | float, "sift": str})
    return float(record["fpr95"]) if record["sift"] == SIFT_VARIANT else None


# The table.


@dataclass(frozen=True)
class Line:
    """One method. Cells are FPR@95 as fractions, a list over the seeds; a seed that diverged on any group is in no mean."""

    method: str
    cells: dict[str, dict[str, list[float]]]  # way -> "TRAIN→TEST" -> values
    means: dict[str, list[float]]  # way -> mean over all cells, per seed
    diverged: frozenset[str] = frozenset()  # groups trained on
    concerns: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return METHODS[self.method].label

    @property
    def is_learned(self) -> bool:
        return METHODS[self.method].recipe is not None


def columns(groups: Sequence[Group]) -> list[str]:
    """TRAIN→TEST, ordered by the test group as in the paper."""
    return [f"{train.name}→{test.name}" for test in groups for train in groups if train.name != test.name]


def learned_lines(
    learned: Sequence[str], runs: Sequence[Planned], found: Sequence[Result], groups: Sequence[Group]
) -> list[Line]:
    results = compared(groups_tested(runs), found)
    by_run = {(one.method, one.train.name, one.config.seed): result for one, result in zip(runs, results, strict=True)}
    return [learned_line(name, by_run, groups) for name in learned]


def learned_line(method: str, results: Mapping[tuple[str, str, int], Result], groups: Sequence[Group]) -> Line:
    """results: by method, group trained on, and seed."""
    mine = {(train, seed): result for (name, train, seed), result in results.items() if name == method}
    cells: dict[str, dict[str, list[float]]] = {way: {name: [] for name in columns(groups)} for way in WAYS}
    means: dict[str, list[float]] = {way: [] for way in WAYS}
    for seed in sorted({seed for _, seed in mine}):
        for way, score in WAYS.items():
            found = {}
            for train in groups:
                result = mine.get((train.name, seed))
                if result is not None and result.diverged is None:
                    tests = [group for group in groups if group.name != train.name]
                    found.update({f"{train.name}→{name}": value for name, value in score(result, tests).items()})
            for name, value in found.items():
                cells[way][name].append(value)
            if len(found) == len(columns(groups)):
                means[way].append(float(np.mean(list(found.values()))))
    diverged = frozenset(train for (train, _), result in mine.items() if result.diverged is not None)
    return Line(method, cells, means, diverged, tuple(concerns(list(mine.values()))))


def fixed_line(method: str, scores: Cells, groups: Sequence[Group]) -> Line:
    """A method that is not trained: one number per test group, whatever the others were trained on."""
    cells = {name: [scores[name.split("→")[1]]] for name in columns(groups)}
    mean = [float(np.mean([values[0] for values in cells.values()]))]
    return Line(method, dict.fromkeys(WAYS, cells), dict.fromkeys(WAYS, mean))


def best_methods(lines: Sequence[Line]) -> list[str]:
    """Learned methods that did not diverge, by their last checkpoints, which see all test pairs."""
    ranked = [line for line in lines if line.is_learned and line.means["last"]]
    ranked.sort(key=lambda line: float(np.mean(line.means["last"])))
    return [line.method for line in ranked[:BEST_ROWS]]


def summary_table(lines: Sequence[Line]) -> Table:
    ways = ["best (%)", "last ten (%)", "last, all pairs (%)"]
    body = [
        [
            line.label,
            *(number(line.means[way], bool(line.diverged)) for way in WAYS),
            str(len(line.means["last"])) if line.is_learned else "-",
            f"{TABLE1[line.method].mean:.2f}",
            f"{np.mean(TABLE1[line.method].cells):.2f}",
        ]
        for line in lines
    ]
    return ["method", *ways, "seeds", "paper (%)", "paper, of its cells (%)"], body


def way_table(lines: Sequence[Line], way: str, groups: Sequence[Group]) -> Table:
    names = columns(groups)
    body = [
        [
            line.label,
            *(number(line.cells[way][name], name.split("→")[0] in line.diverged) for name in names),
            number(line.means[way], bool(line.diverged)),
        ]
        for line in lines
    ]
    return ["train→test (%)", *names, "mean"], body


def paper_table(lines: Sequence[Line]) -> Table:
    known = [(line.label, TABLE1[line.method]) for line in lines]
    body = [[label, *(f"{cell:.2f}" for cell in one.cells), f"{one.mean:.2f}"] for label, one in known]
    return ["train→test (%)", *TABLE1_COLUMNS, "mean"], body


def content(lines: Sequence[Line], presets: Presets) -> list[dict[str, Any]]:
    return [
        {
            "method": line.label,
            "recipe": METHODS[line.method].recipe,
            "preset": preset_of(line.method, presets) if line.is_learned else None,
            "fpr95": line.cells,
            "mean_a_seed": line.means,
            "concerns": list(line.concerns),
            "paper_percent": dict(zip(TABLE1_COLUMNS, TABLE1[line.method].cells, strict=True)),
            "paper_mean_percent": TABLE1[line.method].mean,
        }
        for line in lines
    ]


def draw_table1(lines: Sequence[Line], stem: Path, title: str) -> list[Path]:
    """Means of all cells: measured in three ways on the left, the paper's on its own scale on the right."""
    with printed():
        figure, axes = new_figure(1, 2, PAGE, 0.9 + 0.27 * len(lines))
        ours, theirs = axes[0]
        for row, line in enumerate(lines):
            colour = COLOURS[line.method]
            theirs.plot(np.mean(TABLE1[line.method].cells), row, marker="D", color=colour, markersize=4)
            if not line.is_learned:
                ours.plot(100 * max(line.means["last"][0], SMALLEST), row, marker="s", color=colour, markersize=4)
                continue
            # Slightly above each other, since the three are often nearly equal.
            for shift, (way, marker) in zip((-0.2, 0, 0.2), MARKERS.items(), strict=True):
                values = 100 * np.array(line.means[way]).clip(SMALLEST)
                if len(values):
                    ours.plot(values.mean(), row + shift, marker=marker, color=colour, markersize=4)
                if len(values) > 1:
                    ours.plot(values, [row + shift] * len(values), "|-", color=colour, linewidth=0.8, markersize=4)
            if not line.means["last ten"]:
                state = "diverged" if line.diverged else "not finished"
                ours.text(0.5, row, state, transform=ours.get_yaxis_transform(), ha="center", va="center")
        _finish(ours, lines, f"here: {title}")
        _finish(theirs, lines, "paper: PhotoTour, best epoch, mean of cells")
        theirs.tick_params(labelleft=False)
        legend = {
            "best checkpoint": "<",
            "mean of last ten": "o",
            "last, all pairs (bars: seeds)": ">",
            "not trained": "s",
        }
        handles = [
            Line2D([], [], color="#4d4d4d", marker=one, linestyle="", label=name) for name, one in legend.items()
        ]
        if any(value <= SMALLEST for line in lines for values in line.means.values() for value in values):
            figure.supxlabel(f"at {100 * SMALLEST:g} %: as little or less, also 0", fontsize=SMALL)
        figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
        return save_print(figure, stem)


def _finish(axis: Axes, lines: Sequence[Line], title: str) -> None:
    axis.set_yticks(range(len(lines)), [line.label for line in lines], parse_math=False)
    axis.set(ylim=(len(lines) - 0.5, -0.5), xscale="log", xlabel="mean FPR@95 (%), lower is better", title=title)
    left, right = axis.get_xlim()
    right = min(right, 110)
    axis.set_xlim(left, right)
    decades = np.log10(right / left)
    axis.xaxis.set_major_locator(
        LogLocator(subs=(1, 1.5, 2, 3, 5, 7) if decades < 1.7 else (1, 3) if decades < 3 else (1,))
    )
    axis.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.grid(axis="x", linestyle=":", linewidth=0.5)
    axis.set_axisbelow(True)

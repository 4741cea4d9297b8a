"""Table 1: FPR@95 of every method, trained on one group and tested on the others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib.lines
import matplotlib.ticker
import numpy as np
from matplotlib.axes import Axes

from sdgmnet.paper.colours import COLOURS
from sdgmnet.paper.figures import new_figure
from sdgmnet.paper.groups import Group
from sdgmnet.paper.methods import METHODS, Presets, preset_of
from sdgmnet.paper.printed import TABLE1, TABLE1_COLUMNS
from sdgmnet.paper.printing import PAGE, SMALL, printed, save_print
from sdgmnet.paper.results import WAYS, Cells, Result, concern, number

Key = tuple[str, str, int]  # method, group trained on, seed
MARKERS = {"best": "<", "last ten": "o", "last": ">"}
SMALLEST = 1e-4  # that the picture's logarithmic axis shows: an error of 0 stands there
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

"""Fig. 6 (b) and Fig. 7: the margin m and the attenuation α, one at a time, on one group."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import matplotlib.lines
import numpy as np

from reproduce.groups import Group
from reproduce.plan import Budget, Planned, plan_run
from reproduce.results import Cells, Result, last, last_ten, mean_of, number, top_ten
from sdgmnet.benchmarks.hpatches import TASKS
from sdgmnet.errors import InputError
from sdgmnet.plots import COLOURS, COLUMN, PAGE, RELATIVE, new_figure, printed, save_print

# The paper gives its ranges in the figure only; its text names m = 0.6 and 0.7, α = 0.9 and 1.
MARGINS = (0.0, 0.3, 0.5, 0.6, 0.7)
ALPHAS = (0.8, 0.85, 0.9, 0.95, 1.0)
SYMBOLS = {"margin": "m", "alpha": "α"}
WAYS: dict[str, Callable[[Result, Sequence[Group]], Cells]] = {"top ten": top_ten, "last ten": last_ten, "last": last}
NAMES = {
    "top ten": "ten best checkpoints",
    "last ten": "last ten checkpoints",
    "last": "last checkpoint, all pairs",
}
Curve = dict[float, dict[str, list[float]]]  # value -> way -> FPR@95, a seed each


def sweep_runs(
    setting: str, values: Sequence[float], trained: Group, groups: Sequence[Group], budget: Budget, seeds: int
) -> list[Planned]:
    """SDGMNet with one setting varied; the value of the paper's settings is Table 1's run."""
    for value in values:
        if not (0 <= value < 1 if setting == "margin" else value > 0):
            rule = "lies in [0, 1)" if setting == "margin" else "is positive"
            raise InputError(f"--{setting}s: {SYMBOLS[setting]} {rule}, not {value}.")
    if len(set(values)) < 2:
        raise InputError(f"--{setting}s needs two different values at least.")
    return [
        plan_run(
            f"{setting}={value:g}",
            "sdgmnet",
            "sdgm",
            trained,
            groups,
            budget,
            seed,
            loss_options=(f"{setting}={value!r}",),
        )
        for seed in range(seeds)
        for value in sorted(set(values))
    ]


def curve_of(setting: str, runs: Sequence[Planned], results: Sequence[Result]) -> Curve:
    """Of the runs of that sweep; what diverged has no number."""
    curve: Curve = {}
    for one, result in zip(runs, results, strict=True):
        if one.method.startswith(f"{setting}="):
            scores = curve.setdefault(float(one.config.loss_setting(setting)), {way: [] for way in WAYS})
            if result.diverged is None:
                for way, score in WAYS.items():
                    scores[way].append(mean_of(score(result, one.tests)))
    return dict(sorted(curve.items()))


def sweep_table(curves: Mapping[str, Curve]) -> tuple[list[str], list[list[str]]]:
    body = [
        [
            f"{SYMBOLS[setting]} = {value:g}",
            *(number(scores[way], diverged=True) for way in WAYS),
            str(len(scores["last"])),
        ]
        for setting, curve in curves.items()
        for value, scores in curve.items()
    ]
    return ["setting", *(f"{name} (%)" for name in NAMES.values()), "seeds"], body


# The paper's way, and on all pairs.
DRAWN: tuple[tuple[str, str, Literal["-", "--"]], ...] = (
    ("top ten", COLOURS["sdgmnet"], "-"),
    ("last", "#7f7f7f", "--"),
)


def draw_fig6b(curves: Mapping[str, Curve], path: Path) -> list[Path]:
    """Two panels on one scale: FPR@95 against m and against α; dots are seeds."""
    with printed():
        figure, axes = new_figure(1, len(curves), COLUMN, 2.2)
        for axis, (setting, curve) in zip(axes[0], curves.items(), strict=True):
            for way, colour, style in DRAWN:
                known = [(value, 100 * np.array(scores[way])) for value, scores in curve.items() if scores[way]]
                axis.plot(
                    [value for value, _ in known], [one.mean() for _, one in known], style, marker="o", color=colour
                )
                for value, one in known:
                    if len(one) > 1:
                        axis.plot([value] * len(one), one, ".", color=colour, markersize=2.5, alpha=0.7)
            axis.set(xlabel=r"margin $m$" if setting == "margin" else r"attenuation $\alpha$")
            axis.grid(linestyle=":")
        axes[0, 0].set_ylabel("mean FPR@95 (%)")
        for axis in axes[0, 1:]:
            axis.sharey(axes[0, 0])
            axis.tick_params(labelleft=False)
        handles = [
            matplotlib.lines.Line2D([], [], color=colour, linestyle=style, marker="o", label=NAMES[way])
            for way, colour, style in DRAWN
        ]
        figure.legend(handles=handles, loc="outside upper center", ncols=2)
        return save_print(figure, path)


Accuracy = dict[float, dict[str, dict[str, float | None]]]  # α -> task -> "map", "delta" as fractions


def accuracy_table(found: Accuracy) -> tuple[list[str], list[list[str]]]:
    def percent(value: float | None) -> str:
        return "-" if value is None else f"{100 * value:.2f}"

    body = [
        [f"{alpha:g}", *(percent(tasks[task][kind]) for kind in ("map", "delta") for task in TASKS)]
        for alpha, tasks in found.items()
    ]
    return ["α", *(f"{task} mAP (%)" for task in TASKS), *(f"{task} ΔmAP (%)" for task in TASKS)], body


def draw_fig7(found: Accuracy, path: Path) -> list[Path]:
    """A panel a task: mAP on the left scale, ΔmAP = mAP(easy) - mAP(tough) on the right one, both named at the edges."""
    with printed():
        figure, axes = new_figure(1, len(TASKS), PAGE, 2.2)
        for axis, task in zip(axes[0], TASKS, strict=True):
            right = axis.twinx()
            # Room below the one and above the other: two curves of the same shape would hide each other.
            for place, kind, colour, marker, below, above in (
                (axis, "map", COLOURS["sdgmnet"], "o", 0.3, 0.06),
                (right, "delta", RELATIVE, "s", 0.06, 0.3),
            ):
                known = [
                    (alpha, 100 * value) for alpha, tasks in found.items() if (value := tasks[task][kind]) is not None
                ]
                place.plot([alpha for alpha, _ in known], [value for _, value in known], marker=marker, color=colour)
                place.tick_params(axis="y", colors=colour)
                if known:
                    low, high = min(value for _, value in known), max(value for _, value in known)
                    room = max(high - low, 0.1)
                    place.set_ylim(low - below * room, high + above * room)
                else:
                    place.set_yticks([])
            if all(tasks[task]["map"] is None for tasks in found.values()):
                axis.text(0.5, 0.5, "not measured", transform=axis.transAxes, ha="center", va="center")
            axis.set(title=f"patch {task}" if task != "matching" else "image matching", xlabel=r"attenuation $\alpha$")
            if task == TASKS[0]:
                axis.set_ylabel("mAP (%)", color=COLOURS["sdgmnet"])
            if task == TASKS[-1]:
                right.set_ylabel(r"$\Delta$mAP (%)", color=RELATIVE)
            axis.grid(axis="x", linestyle=":")
        return save_print(figure, path)


def content(curves: Mapping[str, Curve]) -> dict[str, Any]:
    return {
        setting: [{"value": value, "fpr95": scores} for value, scores in curve.items()]
        for setting, curve in curves.items()
    }

"""Fig. 6 (a), FPR@95 along training, and the reproducibility of Section V-A: both from SDGMNet's runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reproduce.plan import Planned
from reproduce.printed import REPRODUCIBILITY, TABLE1, TABLE1_COLUMNS
from reproduce.results import Cells, Result, curve, mean_of, top_ten
from sdgmnet.plots import COLOURS, COLUMN, FURTHER_COLOURS, new_figure, printed, save_print

Curve = list[tuple[int, float]]  # step, mean FPR@95 of the test groups


def curves_of(runs: Sequence[Planned], results: Sequence[Result]) -> dict[str, Curve]:
    """By the group trained on; what diverged has no best checkpoint."""
    return {
        one.train.name: [(step, mean_of(cells)) for step, cells in curve(result, one.tests)]
        for one, result in zip(runs, results, strict=True)
        if result.diverged is None
    }


def draw_fig6a(curves: dict[str, Curve], path: Path, pairs: str) -> list[Path]:
    """A curve a training group, its best checkpoint marked with its value. The first half is left out where it is long, as in
    the paper: it would flatten the rest. pairs: on which the checkpoints are evaluated."""
    with printed():
        figure, axes = new_figure(1, 1, COLUMN, 2.6)
        axis = axes[0, 0]
        for place, (name, points) in enumerate((name, points) for name, points in curves.items() if points):
            shown = points[len(points) // 2 :] if len(points) >= 20 else points
            colour = FURTHER_COLOURS[place % len(FURTHER_COLOURS)]
            step, lowest = min(points, key=lambda point: (point[1], -point[0]))  # the last of equals
            label = f"trained on {name}, best {100 * lowest:.2f} %"
            steps, percent = [one for one, _ in shown], [100 * value for _, value in shown]
            axis.plot(steps, percent, color=colour, marker="o" if len(shown) <= 20 else "", label=label)
            if step >= shown[0][0]:
                axis.plot(step, 100 * lowest, marker="*", color=colour, markersize=8, clip_on=False, zorder=3)
        axis.set(xlabel="iteration", ylabel=f"mean FPR@95 (%)\n{pairs}")
        axis.grid(linestyle=":")
        figure.legend(loc="outside upper center", ncols=1)
        return save_print(figure, path)


def fig6a_table(curves: dict[str, Curve]) -> tuple[list[str], list[list[str]]]:
    steps = sorted({step for points in curves.values() for step, _ in points})
    body = [
        [str(step), *(f"{100 * dict(points)[step]:.2f}" if step in dict(points) else "-" for points in curves.values())]
        for step in steps
    ]
    lowest = (f"{100 * min(value for _, value in points):.2f}" if points else "-" for points in curves.values())
    return ["iteration", *(f"trained on {name} (%)" for name in curves)], [*body, ["best", *lowest]]


BEST_NOTE = "PhotoTour, full training: the best epoch's mean over the two test subsets."


def paper_best() -> dict[str, float]:
    """Subset trained on -> mean of SDGMNet's two cells, in %."""
    cells = dict(zip(TABLE1_COLUMNS, TABLE1["sdgmnet"].cells, strict=True))
    trained = ("LIB", "ND", "YOS")
    return {one: float(np.mean([cells[name] for name in cells if name.startswith(f"{one}→")])) for one in trained}


def printed_best() -> tuple[list[str], list[list[str]]]:
    return ["trained on", "best (%)"], [[name, f"{value:.2f}"] for name, value in paper_best().items()]


Spread = dict[str, list[float]]  # "TRAIN→TEST" or "mean" -> FPR@95 of the ten best checkpoints, a seed each


def spread_of(runs: Sequence[Planned], results: Sequence[Result], groups: int) -> Spread:
    """Only seeds whose runs on all groups came to their end are in the mean over all cells."""
    cells: Spread = {}
    by_seed: dict[int, list[Cells]] = {}
    for one, result in zip(runs, results, strict=True):
        if result.diverged is None:
            found = top_ten(result, one.tests)
            by_seed.setdefault(one.config.seed, []).append(found)
            for name, value in found.items():
                cells.setdefault(f"{one.train.name}→{name}", []).append(value)
    order = sorted(cells, key=lambda name: [one.name for one in _groups(runs)].index(name.split("→")[1]))
    whole = [found for _, found in sorted(by_seed.items()) if len(found) == groups]
    means = [float(np.mean([value for one in found for value in one.values()])) for found in whole]
    return {**{name: cells[name] for name in order}, "mean": means}


def _groups(runs: Sequence[Planned]) -> list[Any]:
    known = {one.train.name: one.train for one in runs}
    for one in runs:
        known.update({group.name: group for group in one.tests})
    return list(known.values())


def spread_table(spread: Spread) -> tuple[list[str], list[list[str]]]:
    body = [
        [
            name,
            f"{100 * np.mean(values):.2f}" if values else "-",
            f"{100 * np.std(values, ddof=1):.2f}" if len(values) > 1 else "-",
            str(len(values)),
        ]
        for name, values in spread.items()
    ]
    return ["train→test", "top ten (%)", "± over seeds (%)", "seeds"], body


def printed_spread() -> tuple[list[str], list[list[str]]]:
    names = (*TABLE1_COLUMNS, "mean")
    body = [[name, f"{mean:.2f}", f"{std:.2f}", "10"] for name, (mean, std) in zip(names, REPRODUCIBILITY, strict=True)]
    return ["train→test", "top ten (%)", "± over seeds (%)", "seeds"], body


def draw_spread(spread: Spread, path: Path) -> list[Path]:
    """Every seed as a dot, mean and standard deviation beside it; what the paper prints on its own scale below."""
    with printed():
        figure, axes = new_figure(2, 1, COLUMN, 3.6)
        ours, theirs = axes[:, 0]
        for place, values in enumerate(spread.values()):
            percent = 100 * np.array(values)
            ours.plot([place - 0.12] * len(percent), percent, "o", color="#7f7f7f", markersize=3)
            if len(percent) > 1:
                ours.errorbar(
                    place + 0.12, percent.mean(), percent.std(ddof=1), fmt="s", color=COLOURS["sdgmnet"], capsize=2
                )
        for place, (mean, std) in enumerate(REPRODUCIBILITY):
            theirs.errorbar(place, mean, std, fmt="s", color=COLOURS["sdgmnet"], capsize=2)
        ours.set_xticks(range(len(spread)), list(spread), rotation=30, ha="right")
        theirs.set_xticks(range(len(REPRODUCIBILITY)), [*TABLE1_COLUMNS, "mean"], rotation=30, ha="right")
        ours.set(title="here: a dot a seed; mean ± std", ylabel="FPR@95 (%)")
        theirs.set(title="paper: PhotoTour, 10 trainings", ylabel="FPR@95 (%)")
        for axis in (ours, theirs):
            axis.grid(axis="y", linestyle=":")
        return save_print(figure, path)

"""`python -m reproduce fig6a | reproducibility`: SDGMNet along training (Fig. 6 a), and with several seeds (Section V-A)."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from reproduce.arguments import Fig6aArguments, ReproducibilityArguments
from reproduce.output import Table
from reproduce.published import REPRODUCIBILITY, TABLE1, TABLE1_COLUMNS
from reproduce.results import Cells, Result, concerns, curve, mean_of, top_ten
from reproduce.runs import Planned, plan_method
from sdgmnet.options import require_options
from sdgmnet.plots.style import COLOURS, COLUMN, FURTHER_COLOURS, new_figure, printed, save_print
from sdgmnet.report import Section

Curve = list[tuple[int, float]]  # step, mean FPR@95 of the test groups
Spread = dict[str, list[float]]  # "TRAIN→TEST" or "mean" -> FPR@95 of the ten best checkpoints, per seed
TOP_TEN = "the mean of a run's ten best checkpoints, chosen on the test pairs (the paper's way)"


def fig6a(arguments: Fig6aArguments) -> None:
    groups, trained = arguments.open_trained()
    done = arguments.carry_out([plan_method("sdgmnet", one, groups, arguments.budget(), 0) for one in trained])
    if done is None:
        return
    curves = curves_of(done.runs, done.results)
    what = "SDGMNet's checkpoints: mean over the test groups; the figure shows the second half of long runs."
    caption = arguments.caption(what, groups, trained, done)
    note = "PhotoTour, full training: the best epoch's mean over the two test subsets."
    paper = [[name, f"{value:.2f}"] for name, value in paper_best().items()]
    sections = [
        Section("Fig. 6 (a)", caption, *fig6a_table(curves)),
        Section("As printed in the paper (Table 1)", note, ["trained on", "best (%)"], paper),
    ]
    results = {"caption": caption, "left_out": done.left_out, "curves": curves, "paper_best_percent": paper_best()}
    pairs = max((sum(result.checkpoint_pairs.values()) for result in done.results), default=0)
    draw = partial(draw_fig6a, curves, pairs=f"on {pairs} test pairs per checkpoint")
    arguments.deliver("fig6a", results, sections, draw, concerns(done.results))


def curves_of(runs: Sequence[Planned], results: Sequence[Result]) -> dict[str, Curve]:
    """By the group trained on, without runs that diverged."""
    return {
        one.train.name: [(step, mean_of(cells)) for step, cells in curve(result, one.tests)]
        for one, result in zip(runs, results, strict=True)
        if result.diverged is None
    }


def fig6a_table(curves: dict[str, Curve]) -> Table:
    steps = sorted({step for points in curves.values() for step, _ in points})
    body = [
        [str(step), *(f"{100 * dict(points)[step]:.2f}" if step in dict(points) else "-" for points in curves.values())]
        for step in steps
    ]
    lowest = (f"{100 * min(value for _, value in points):.2f}" if points else "-" for points in curves.values())
    return ["iteration", *(f"trained on {name} (%)" for name in curves)], [*body, ["best", *lowest]]


def paper_best() -> dict[str, float]:
    """Subset trained on -> mean of SDGMNet's two cells, in %."""
    cells = dict(zip(TABLE1_COLUMNS, TABLE1["sdgmnet"].cells, strict=True))
    return {
        one: float(np.mean([cells[name] for name in cells if name.startswith(f"{one}→")]))
        for one in ("LIB", "ND", "YOS")
    }


def draw_fig6a(curves: dict[str, Curve], stem: Path, pairs: str) -> list[Path]:
    """One curve per training group, its best checkpoint marked. As in the paper, without the first half of long runs, which
    would flatten the rest. pairs: which the checkpoints are evaluated on."""
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
        return save_print(figure, stem)


def reproducibility(arguments: ReproducibilityArguments) -> None:
    require_options(arguments, seeds=1)
    groups, trained = arguments.open_trained()
    budget, seeds = arguments.budget(), range(arguments.seeds)
    done = arguments.carry_out([plan_method("sdgmnet", one, groups, budget, seed) for seed in seeds for one in trained])
    if done is None:
        return
    spread = spread_of(done.runs, done.results, len(trained))
    caption = arguments.caption(f"SDGMNet, {TOP_TEN}.", groups, trained, done, arguments.seeds)
    sections = [
        Section("Reproducibility", caption, *spread_table(spread)),
        Section("As printed in the paper (Section V-A)", "PhotoTour, full trainings.", *paper_spread()),
    ]
    results = {"caption": caption, "left_out": done.left_out, "fpr95": spread, "paper_percent": REPRODUCIBILITY}
    arguments.deliver("reproducibility", results, sections, partial(draw_spread, spread), concerns(done.results))


def spread_of(runs: Sequence[Planned], results: Sequence[Result], groups: int) -> Spread:
    """The mean over all cells has only the seeds whose runs finished on all groups."""
    cells: Spread = {}
    by_seed: dict[int, list[Cells]] = {}
    for one, result in zip(runs, results, strict=True):
        if result.diverged is None:
            found = top_ten(result, one.tests)
            by_seed.setdefault(one.config.seed, []).append(found)
            for name, value in found.items():
                cells.setdefault(f"{one.train.name}→{name}", []).append(value)
    trained = dict.fromkeys(one.train.name for one in runs)
    tests = list(trained | dict.fromkeys(group.name for one in runs for group in one.tests))
    complete = [found for _, found in sorted(by_seed.items()) if len(found) == groups]
    means = [float(np.mean([value for one in found for value in one.values()])) for found in complete]
    return {name: cells[name] for name in sorted(cells, key=lambda name: tests.index(name.split("→")[1]))} | {
        "mean": means
    }


SPREAD_HEADER = ["train→test", "top ten (%)", "± over seeds (%)", "seeds"]


def spread_table(spread: Spread) -> Table:
    body = [
        [
            name,
            f"{100 * np.mean(values):.2f}" if values else "-",
            f"{100 * np.std(values, ddof=1):.2f}" if len(values) > 1 else "-",
            str(len(values)),
        ]
        for name, values in spread.items()
    ]
    return SPREAD_HEADER, body


def paper_spread() -> Table:
    known = zip((*TABLE1_COLUMNS, "mean"), REPRODUCIBILITY, strict=True)
    return SPREAD_HEADER, [[name, f"{mean:.2f}", f"{std:.2f}", "10"] for name, (mean, std) in known]


def draw_spread(spread: Spread, stem: Path) -> list[Path]:
    """Above, every seed as a dot with mean and standard deviation; below, the paper's numbers on their own scale."""
    with printed():
        figure, axes = new_figure(2, 1, COLUMN, 3.6)
        ours, theirs = axes[:, 0]
        style = {"fmt": "s", "color": COLOURS["sdgmnet"], "capsize": 2}
        for place, values in enumerate(spread.values()):
            percent = 100 * np.array(values)
            ours.plot([place - 0.12] * len(percent), percent, "o", color="#7f7f7f", markersize=3)
            if len(percent) > 1:
                ours.errorbar(place + 0.12, percent.mean(), percent.std(ddof=1), **style)
        for place, (mean, std) in enumerate(REPRODUCIBILITY):
            theirs.errorbar(place, mean, std, **style)
        ours.set_xticks(range(len(spread)), list(spread), rotation=30, ha="right")
        theirs.set_xticks(range(len(REPRODUCIBILITY)), [*TABLE1_COLUMNS, "mean"], rotation=30, ha="right")
        ours.set(title="here: one dot per seed; mean ± std", ylabel="FPR@95 (%)")
        theirs.set(title="paper: PhotoTour, 10 trainings", ylabel="FPR@95 (%)")
        for axis in (ours, theirs):
            axis.grid(axis="y", linestyle=":")
        return save_print(figure, stem)

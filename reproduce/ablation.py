"""`python -m reproduce fig6c`: four self weights with and without power adjustment, and the power ratios of Section V-D."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from reproduce.arguments import Fig6cArguments
from reproduce.groups import Group
from reproduce.output import Table
from reproduce.published import METHODS, POWER_RATIOS, TABLE1
from reproduce.results import WAY_NAMES, WAYS, Result, concerns, number
from reproduce.runs import Budget, Planned, plan_method, plan_run
from sdgmnet.options import require_options
from sdgmnet.plots.style import COLOURS, COLUMN, new_figure, printed, save_print
from sdgmnet.report import Section

LATE = 0.9  # a run is in its last tenth
SELF_WEIGHTS = {"theta": "&θ", "s": "&s", "l2": "&l₂", "af": "&AF"}
FRAMEWORKS = {
    f"{kind}{pa}": f"{label} {sign}PA"
    for pa, sign in (("-pa", "−"), ("+pa", "+"))
    for kind, label in SELF_WEIGHTS.items()
}
DASHED = ("hynet", "hardnet+frn")
IN_TABLE1 = {"af+pa": "sdgmnet", **{name: name for name in DASHED}}  # these three of the ten are rows of Table 1
RATIO_NOTE = (
    "Means over the epochs, and over the runs (their range). &θ is 1 by construction. The paper prints its four numbers "
    "without naming them; here they are assigned by the definitions."
)


def fig6c(arguments: Fig6cArguments) -> None:
    require_options(arguments, seeds=1)
    groups, trained = arguments.open_trained(everywhere=arguments.scale == "full")
    done = arguments.carry_out(ablation_runs(trained, groups, arguments.budget(), arguments.seeds))
    if done is None:
        return
    scores = scores_of(done.runs, done.results, len(trained))
    ratios, late = (power_ratios(done.runs, done.results, since) for since in (None, LATE))
    what = "Mean over all train→test cells. HyNet and HardNet+FRN are their losses with SDGMNet's network and settings."
    caption = arguments.caption(what, groups, trained, done, arguments.seeds)
    ratio_title = "Ratio of powers P⁺/P⁻ without power adjustment (Section V-D)"
    sections = [
        Section("Fig. 6 (c): ablation", caption, *score_table(scores)),
        Section(ratio_title, RATIO_NOTE, *ratio_table(ratios, late)),
    ]
    results = {"caption": caption, "left_out": done.left_out, **content(scores, ratios, late)}
    arguments.deliver("fig6c", results, sections, partial(draw_fig6c, scores), concerns(done.results))


def ablation_runs(trained: Sequence[Group], groups: Sequence[Group], budget: Budget, seeds: int) -> list[Planned]:
    """&AF +PA is SDGMNet: the same configuration, so the same run as Table 1's."""
    runs = []
    for seed in range(seeds):
        for group in trained:
            runs += [plan_run(name, name, "native", group, groups, budget, seed) for name in FRAMEWORKS]
            runs += [plan_method(name, group, groups, budget, seed) for name in DASHED]
    return runs


class Score(NamedTuple):
    """FPR@95 of a framework or method as fractions, a list over the seeds; each is the mean over all cells."""

    label: str
    ways: dict[str, list[float]]
    diverged: list[str]


def scores_of(runs: Sequence[Planned], results: Sequence[Result], groups: int) -> dict[str, Score]:
    """By the runs' method names. A seed counts if its runs on all groups finished."""
    found: dict[str, Score] = {}
    for method in dict.fromkeys(one.method for one in runs):
        mine = [(one, result) for one, result in zip(runs, results, strict=True) if one.method == method]
        finished = Counter(one.config.seed for one, result in mine if result.diverged is None)
        ways: dict[str, list[float]] = {way: [] for way in WAYS}
        for seed in sorted(seed for seed, count in finished.items() if count == groups):
            for way, score in WAYS.items():
                scores = [score(result, one.tests) for one, result in mine if one.config.seed == seed]
                ways[way].append(float(np.mean([value for cells in scores for value in cells.values()])))
        label = FRAMEWORKS.get(method) or METHODS[method].label
        diverged = [f"{result.name}: {result.diverged}" for _, result in mine if result.diverged]
        found[method] = Score(label, ways, diverged)
    return found


def score_table(scores: Mapping[str, Score]) -> Table:
    """The paper's Fig. 6 (c) prints no numbers."""
    body = [
        [
            one.label,
            *(number(one.ways[way], bool(one.diverged)) for way in WAYS),
            str(len(one.ways["last"])),
            f"{TABLE1[IN_TABLE1[name]].mean:.2f}" if name in IN_TABLE1 else "-",
        ]
        for name, one in scores.items()
    ]
    return ["framework", *(WAY_NAMES[way] for way in WAYS), "seeds", "paper, Table 1 (%)"], body


def power_ratio(powers: Sequence[Sequence[float]], since: float, iterations: int) -> float | None:
    """Mean of P⁺/P⁻ over the epochs that begin after the fraction `since` of a run, None if there are none."""
    begun = [0, *(step for step, _, _ in powers)]  # an epoch begins where the previous one ended
    late = [line for start, line in zip(begun, powers, strict=False) if start / iterations >= since]
    ratios = [power_pos / power_neg for _, power_pos, power_neg in late if power_neg > 0]
    return float(np.mean(ratios)) if ratios else None


def power_ratios(
    runs: Sequence[Planned], results: Sequence[Result], since: float | None = None
) -> dict[str, list[float]]:
    """Frameworks without power adjustment: self weight -> one ratio per run. since None: after the warm-up."""
    ratios: dict[str, list[float]] = {kind: [] for kind in SELF_WEIGHTS}
    for one, result in zip(runs, results, strict=True):
        kind, _, adjustment = one.method.partition("-")
        if kind in SELF_WEIGHTS and adjustment == "pa" and result.diverged is None:
            begin = one.config.loss_setting("warmup") if since is None else since
            ratio = power_ratio(result.powers, begin, one.config.iterations)
            ratios[kind] += [] if ratio is None else [ratio]
    return ratios


def ratio_table(ratios: Mapping[str, Sequence[float]], late: Mapping[str, Sequence[float]]) -> Table:
    def cell(values: Sequence[float]) -> str:
        if not values:
            return "-"
        spread = f" ({min(values):.3f} to {max(values):.3f})" if len(values) > 1 else ""
        return f"{np.mean(values):.3f}{spread}"

    body = [
        [f"{label} −PA", cell(ratios[kind]), cell(late[kind]), str(len(ratios[kind])), f"{POWER_RATIOS[kind]:.2f}"]
        for kind, label in SELF_WEIGHTS.items()
    ]
    return ["framework", "after the warm-up", "last tenth", "runs", "paper"], body


def content(
    scores: Mapping[str, Score], ratios: Mapping[str, Sequence[float]], late: Mapping[str, Sequence[float]]
) -> dict[str, Any]:
    return {
        "scores": {
            name: {"label": one.label, "fpr95": one.ways, "diverged": one.diverged} for name, one in scores.items()
        },
        "power_ratios": {
            kind: {"after_warm_up": list(ratios[kind]), "last_tenth": list(late[kind]), "paper": POWER_RATIOS[kind]}
            for kind in SELF_WEIGHTS
        },
    }


def draw_fig6c(scores: Mapping[str, Score], stem: Path) -> list[Path]:
    """Bars of the mean over the seeds, a dot per seed; HyNet and HardNet+FRN as dashed lines, their seeds at the right edge.

    Of the last checkpoints: at small scale the others see few pairs, the same for all seeds, and differ by chance of these.
    """
    percent = {name: [100 * value for value in one.ways["last"]] for name, one in scores.items() if one.ways["last"]}
    grey, orange, edge = "#bdbdbd", COLOURS["sdgmnet"], "#4d4d4d"
    with printed():
        figure, axes = new_figure(1, 1, COLUMN, 2.5)
        axis, width = axes[0, 0], 0.38
        for place, kind in enumerate(SELF_WEIGHTS):
            for x, name, colour in (
                (place - width / 2, f"{kind}-pa", grey),
                (place + width / 2, f"{kind}+pa", orange),
            ):
                if name in percent:
                    axis.bar(x, np.mean(percent[name]), width, color=colour, edgecolor=edge, linewidth=0.6)
                    axis.plot([x] * len(percent[name]), percent[name], "o", color="black", markersize=2.5)
        # The dashes of one fill the gaps of the other if both lie at the same height.
        for phase, name in enumerate(one for one in DASHED if one in percent):
            axis.axhline(np.mean(percent[name]), color=COLOURS[name], linestyle=(5 * phase, (5, 5)))
            axis.plot([], [], color=COLOURS[name], linestyle="--", label=METHODS[name].label)
            x = len(SELF_WEIGHTS) - 0.42 + 0.12 * phase
            axis.plot([x] * len(percent[name]), percent[name], "o", color=COLOURS[name], markersize=2.5)
        axis.bar(0, 0, color=grey, edgecolor=edge, label="−PA")
        axis.bar(0, 0, color=orange, edgecolor=edge, label="+PA")
        axis.set_xticks(range(len(SELF_WEIGHTS)), [r"&$\theta$", r"&$s$", r"&$l_2$", "&AF"])
        values = [value for many in percent.values() for value in many]
        if values:  # the paper's bars do not start at 0 either: differences are small
            spread = max(max(values) - min(values), 0.05 * max(values), 0.01)
            axis.set_ylim(max(0, min(values) - 0.5 * spread), max(values) + 0.2 * spread)
        cut = ", axis cut" if axis.get_ylim()[0] > 0 else ""
        axis.set(ylabel=f"mean FPR@95 (%){cut}\nlast checkpoint, all pairs")
        figure.legend(loc="outside upper center", ncols=4, columnspacing=1.0, handlelength=1.8)
        return save_print(figure, stem)

"""Fig. 6 (c): four self weights with and without power adjustment, and the ratios of powers of Section V-D."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from reproduce.groups import Group
from reproduce.methods import ABLATION, METHODS
from reproduce.plan import Budget, Planned, plan_method, plan_run
from reproduce.printed import POWER_RATIOS, TABLE1
from reproduce.results import WAY_NAMES, WAYS, Result, number
from sdgmnet.plots import COLOURS, COLUMN, new_figure, printed, save_print

LATE = 0.9  # a run is in its last tenth
SDGMNET = "af+pa"
DASHED = ("hynet", "hardnet+frn")
DASHED_NOTE = "HyNet and HardNet+FRN are their losses with SDGMNet's network and settings."
FRAMEWORKS = {
    f"{kind}{pa}": f"{label} {sign}PA" for pa, sign in (("-pa", "−"), ("+pa", "+")) for kind, label in ABLATION.items()
}


class Score(NamedTuple):
    """FPR@95 of a framework or method as fractions, a list over the seeds; each the mean over all cells."""

    label: str
    ways: dict[str, list[float]]
    diverged: list[str]


def ablation_runs(trained: Sequence[Group], groups: Sequence[Group], budget: Budget, seeds: int) -> list[Planned]:
    """&AF +PA is SDGMNet: the same configuration, so the same run as Table 1's."""
    runs = []
    for seed in range(seeds):
        for group in trained:
            runs += [plan_run(name, name, "native", group, groups, budget, seed) for name in FRAMEWORKS]
            runs += [plan_method(name, group, groups, budget, seed) for name in DASHED]
    return runs


def scores_of(runs: Sequence[Planned], results: Sequence[Result], groups: int) -> dict[str, Score]:
    """By the runs' method names. A seed counts where its runs on all groups came to their end."""
    found: dict[str, Score] = {}
    for method in dict.fromkeys(one.method for one in runs):
        mine = [(one, result) for one, result in zip(runs, results, strict=True) if one.method == method]
        whole = Counter(one.config.seed for one, result in mine if result.diverged is None)
        ways: dict[str, list[float]] = {way: [] for way in WAYS}
        for seed in sorted(seed for seed, count in whole.items() if count == groups):
            for way, score in WAYS.items():
                cells = [
                    value
                    for one, result in mine
                    if one.config.seed == seed
                    for value in score(result, one.tests).values()
                ]
                ways[way].append(float(np.mean(cells)))
        label = FRAMEWORKS.get(method) or METHODS[method].label
        found[method] = Score(
            label, ways, [f"{result.name}: {result.diverged}" for _, result in mine if result.diverged]
        )
    return found


def score_table(scores: Mapping[str, Score]) -> tuple[list[str], list[list[str]]]:
    """The paper's Fig. 6 (c) prints no numbers; three of its ten are rows of Table 1."""
    in_table1 = {SDGMNET: "sdgmnet", **{name: name for name in DASHED}}
    body = [
        [
            one.label,
            *(number(one.ways[way], bool(one.diverged)) for way in WAYS),
            str(len(one.ways["last"])),
            f"{TABLE1[in_table1[name]].mean:.2f}" if name in in_table1 else "-",
        ]
        for name, one in scores.items()
    ]
    return ["framework", *(WAY_NAMES[way] for way in WAYS), "seeds", "paper, Table 1 (%)"], body


def power_ratio(powers: Sequence[Sequence[float]], since: float, iterations: int) -> float | None:
    """Mean of P⁺/P⁻ over a run's epochs that begin after the share `since` of it; None where there are none."""
    begun = [0, *(step for step, _, _ in powers)]  # an epoch begins where the one before ended
    late = [line for start, line in zip(begun, powers, strict=False) if start / iterations >= since]
    ratios = [power_pos / power_neg for _, power_pos, power_neg in late if power_neg > 0]
    return float(np.mean(ratios)) if ratios else None


def power_ratios(
    runs: Sequence[Planned], results: Sequence[Result], since: float | None = None
) -> dict[str, list[float]]:
    """Of the frameworks without power adjustment: self weight -> one ratio a run; None: since the end of the warm-up."""
    ratios: dict[str, list[float]] = {kind: [] for kind in ABLATION}
    for one, result in zip(runs, results, strict=True):
        kind, _, adjustment = one.method.partition("-")
        if kind in ABLATION and adjustment == "pa" and result.diverged is None:
            begin = one.config.loss_setting("warmup") if since is None else since
            ratio = power_ratio(result.powers, begin, one.config.iterations)
            ratios[kind] += [] if ratio is None else [ratio]
    return ratios


def ratio_table(
    ratios: Mapping[str, Sequence[float]], late: Mapping[str, Sequence[float]]
) -> tuple[list[str], list[list[str]]]:
    def number(values: Sequence[float]) -> str:
        if not values:
            return "-"
        spread = f" ({min(values):.3f} to {max(values):.3f})" if len(values) > 1 else ""
        return f"{np.mean(values):.3f}{spread}"

    body = [
        [f"{label} −PA", number(ratios[kind]), number(late[kind]), str(len(ratios[kind])), f"{POWER_RATIOS[kind]:.2f}"]
        for kind, label in ABLATION.items()
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
            for kind in ABLATION
        },
    }


def _percent(score: Score | None) -> list[float]:
    return [] if score is None else [100 * one for one in score.ways["last"]]


def draw_fig6c(scores: Mapping[str, Score], path: Path) -> list[Path]:
    """Bars of the mean over the seeds, a dot a seed; HyNet and HardNet+FRN as dashed lines, their seeds at the right edge.

    Of the last checkpoints: at small scale the others see few pairs, the same for all seeds, and differ by chance of these.
    """
    with printed():
        figure, axes = new_figure(1, 1, COLUMN, 2.5)
        axis, width = axes[0, 0], 0.38
        values = []
        for place, kind in enumerate(ABLATION):
            for shift, adjustment, colour in ((-0.5, "-pa", "#bdbdbd"), (0.5, "+pa", COLOURS["sdgmnet"])):
                found = _percent(scores.get(f"{kind}{adjustment}"))
                if found:
                    axis.bar(
                        place + shift * width, np.mean(found), width, color=colour, edgecolor="#4d4d4d", linewidth=0.6
                    )
                    axis.plot([place + shift * width] * len(found), found, "o", color="black", markersize=2.5)
                    values += found
        # Dashes of one fill the gaps of the other where both lie at the same height.
        for phase, name in enumerate(DASHED):
            found = _percent(scores.get(name))
            if found:
                axis.axhline(np.mean(found), color=COLOURS[name], linestyle=(5 * phase, (5, 5)))
                axis.plot([], [], color=COLOURS[name], linestyle="--", label=METHODS[name].label)
                edge = len(ABLATION) - 0.42 + 0.12 * phase
                axis.plot([edge] * len(found), found, "o", color=COLOURS[name], markersize=2.5)
                values += found
        axis.bar(0, 0, color="#bdbdbd", edgecolor="#4d4d4d", label="−PA")
        axis.bar(0, 0, color=COLOURS["sdgmnet"], edgecolor="#4d4d4d", label="+PA")
        axis.set_xticks(range(len(ABLATION)), [r"&$\theta$", r"&$s$", r"&$l_2$", "&AF"])
        if values:  # the paper's bars do not start at 0 either: differences are small
            spread = max(max(values) - min(values), 0.05 * max(values), 0.01)
            axis.set_ylim(max(0, min(values) - 0.5 * spread), max(values) + 0.2 * spread)
        cut = ", axis cut" if axis.get_ylim()[0] > 0 else ""
        axis.set(ylabel=f"mean FPR@95 (%){cut}\nlast checkpoint, all pairs")
        figure.legend(loc="outside upper center", ncols=4, columnspacing=1.0, handlelength=1.8)
        return save_print(figure, path)

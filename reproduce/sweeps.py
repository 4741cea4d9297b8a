"""`python -m reproduce fig6b | fig7`: the margin m and the attenuation α, one at a time, on one group."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.lines import Line2D

from reproduce.arguments import Fig6bArguments, Fig7Arguments
from reproduce.checkpoints import TOP_TEN
from reproduce.groups import Group
from reproduce.output import Table
from reproduce.results import Result, Way, concerns, last, last_ten, mean_of, number, top_ten
from reproduce.runs import Budget, Planned, plan_run
from sdgmnet.benchmarks.hpatches import TASKS, compare, gap, headline, note
from sdgmnet.data.hpatches.files import choose_sequences
from sdgmnet.descriptors import load_descriptor
from sdgmnet.errors import InputError
from sdgmnet.options import require_options
from sdgmnet.plots.style import COLOURS, COLUMN, PAGE, RELATIVE, new_figure, printed, save_print
from sdgmnet.report import Section, percent, progress_bars

# The paper gives its ranges in the figure only; its text names m = 0.6 and 0.7, α = 0.9 and 1.
SYMBOLS = {"margin": "m", "alpha": "α"}
WAYS: dict[str, Way] = {"top ten": top_ten, "last ten": last_ten, "last": last}
WAY_NAMES = {
    "top ten": "ten best checkpoints",
    "last ten": "last ten checkpoints",
    "last": "last checkpoint, all pairs",
}
Curve = dict[float, dict[str, list[float]]]  # value -> way -> FPR@95, per seed
Accuracy = dict[float, dict[str, dict[str, float | None]]]  # α -> task -> "map", "delta" as fractions


def fig6b(arguments: Fig6bArguments) -> None:
    require_options(arguments, seeds=1)
    groups, group = arguments.open_one_trained()
    values = {"margin": arguments.margins, "alpha": arguments.alphas}
    planned = [
        one
        for setting in SYMBOLS
        for one in sweep_runs(setting, values[setting], group, groups, arguments.budget(), arguments.seeds)
    ]
    done = arguments.carry_out(planned)
    if done is None:
        return
    curves = {setting: curve_of(setting, done.runs, done.results) for setting in SYMBOLS}
    caption = arguments.caption("Mean over the test groups.", groups, [group], done, arguments.seeds)
    text = f"{caption} Top ten: {TOP_TEN}."
    section = Section("Fig. 6 (b): margin and attenuation", text, *sweep_table(curves))
    results = {"caption": caption, "left_out": done.left_out, **content(curves)}
    arguments.deliver("fig6b", results, [section], partial(draw_fig6b, curves), concerns(done.results))


def sweep_runs(
    setting: str, values: Sequence[float], trained: Group, groups: Sequence[Group], budget: Budget, seeds: int
) -> list[Planned]:
    """SDGMNet with one setting varied; with the paper's value it is the run of Table 1."""
    for value in values:
        if not (0 <= value < 1 if setting == "margin" else value > 0):
            rule = "must be in [0, 1)" if setting == "margin" else "must be positive"
            raise InputError(f"--{setting}s: {SYMBOLS[setting]} {rule}, not {value}.")
    if len(set(values)) < 2:
        raise InputError(f"--{setting}s needs at least two different values.")

    def plan(value: float, seed: int) -> Planned:
        options = (f"{setting}={value!r}",)
        return plan_run(f"{setting}={value:g}", "sdgmnet", "sdgm", trained, groups, budget, seed, loss_options=options)

    return [plan(value, seed) for seed in range(seeds) for value in sorted(set(values))]


def curve_of(setting: str, runs: Sequence[Planned], results: Sequence[Result]) -> Curve:
    """Of the runs of that sweep; a run that diverged adds no number."""
    curve: Curve = {}
    for one, result in zip(runs, results, strict=True):
        if one.method.startswith(f"{setting}="):
            scores = curve.setdefault(float(one.config.loss_setting(setting)), {way: [] for way in WAYS})
            if result.diverged is None:
                for way, score in WAYS.items():
                    scores[way].append(mean_of(score(result, one.tests)))
    return dict(sorted(curve.items()))


def sweep_table(curves: Mapping[str, Curve]) -> Table:
    body = [
        [
            f"{SYMBOLS[setting]} = {value:g}",
            *(number(scores[way], diverged=True) for way in WAYS),
            str(len(scores["last"])),
        ]
        for setting, curve in curves.items()
        for value, scores in curve.items()
    ]
    return ["setting", *(f"{name} (%)" for name in WAY_NAMES.values()), "seeds"], body


def content(curves: Mapping[str, Curve]) -> dict[str, list[dict[str, object]]]:
    return {
        setting: [{"value": value, "fpr95": scores} for value, scores in curve.items()]
        for setting, curve in curves.items()
    }


def draw_fig6b(curves: Mapping[str, Curve], stem: Path) -> list[Path]:
    """Two panels on one scale: FPR@95 against m and against α, in the paper's way and on all pairs; dots are seeds."""
    drawn = (("top ten", COLOURS["sdgmnet"], "-"), ("last", "#7f7f7f", "--"))
    with printed():
        figure, axes = new_figure(1, len(curves), COLUMN, 2.2)
        for axis, (setting, curve) in zip(axes[0], curves.items(), strict=True):
            for way, colour, style in drawn:
                known = [(value, 100 * np.array(scores[way])) for value, scores in curve.items() if scores[way]]
                x, y = [value for value, _ in known], [one.mean() for _, one in known]
                axis.plot(x, y, style, marker="o", color=colour)
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
            Line2D([], [], color=colour, linestyle=style, marker="o", label=WAY_NAMES[way])  # type: ignore[arg-type]
            for way, colour, style in drawn
        ]
        figure.legend(handles=handles, loc="outside upper center", ncols=2)
        return save_print(figure, stem)


def fig7(arguments: Fig7Arguments) -> None:
    if arguments.hpatches is None or not arguments.hpatches.is_dir():
        raise InputError(
            "--hpatches needs a folder of HPatches strips: the release, or what sdgmnet data hpatches makes."
        )
    require_options(arguments, pairs=1)
    choose_sequences(arguments.hpatches, arguments.split)  # raises before anything is trained
    groups, group = arguments.open_one_trained()
    done = arguments.carry_out(sweep_runs("alpha", arguments.alphas, group, groups, arguments.budget(), 1))
    if done is None:
        return
    usable = [one for one, result in zip(done.runs, done.results, strict=True) if result.diverged is None]
    if not usable:
        raise InputError(f"all runs diverged, so there is nothing to measure ({'; '.join(concerns(done.results))}).")
    without = [one for one in usable if not one.weights(arguments.out).exists()]
    if without and not arguments.finished:
        file = without[0].weights(arguments.out)
        raise InputError(f"{file} does not exist: move its folder away, and the same command trains it again.")
    usable = [one for one in usable if one not in without]
    if not usable:
        raise InputError(f"{arguments.out}: no finished run has its weights: omit --finished to train them.")
    bare = f" Without weights, so not shown: {', '.join(one.method for one in without)}." if without else ""
    found, tasks = measure_alphas(arguments, arguments.hpatches, usable)
    caption = (
        f"mAP and ΔmAP (easy minus tough) in %, higher mAP is better; last checkpoints. {tasks} "
        f"{arguments.data_sentence(groups)} Trained on {group.name}. {arguments.budget().sentence()}.{done.notes}{bare}"
    )
    section = Section("Fig. 7: attenuation on HPatches", caption, *accuracy_table(found))
    results = {"caption": caption, "alphas": [{"alpha": alpha, **tasks} for alpha, tasks in found.items()]}
    arguments.deliver("fig7", results, [section], partial(draw_fig7, found), concerns(done.results))


def measure_alphas(arguments: Fig7Arguments, root: Path, runs: Sequence[Planned]) -> tuple[Accuracy, str]:
    """mAP by α, and a sentence about the tasks."""
    loaded = [load_descriptor(str(one.weights(arguments.out)))._replace(label=one.method) for one in runs]
    with progress_bars() as on_progress:
        report = compare(
            loaded,
            root,
            split=arguments.split,
            cache=arguments.out / "hpatches-cache",
            pairs=arguments.pairs,
            on_progress=on_progress,
        )
    found = {
        float(one.config.loss_setting("alpha")): {
            task: {"map": headline(rows, task), "delta": gap(rows, task)} for task in TASKS
        }
        for one, (_, rows) in zip(runs, report.lines, strict=True)
    }
    names = report.choice.names
    return found, f"HPatches' tasks: {note(report)}; sequences {', '.join(names) if len(names) <= 10 else len(names)}."


def accuracy_table(found: Accuracy) -> Table:
    body = [
        [f"{alpha:g}", *(percent(tasks[task][kind]) for kind in ("map", "delta") for task in TASKS)]
        for alpha, tasks in found.items()
    ]
    return ["α", *(f"{task} mAP (%)" for task in TASKS), *(f"{task} ΔmAP (%)" for task in TASKS)], body


def draw_fig7(found: Accuracy, stem: Path) -> list[Path]:
    """One panel per task: mAP on the left scale, ΔmAP = mAP(easy) - mAP(tough) on the right one."""
    with printed():
        figure, axes = new_figure(1, len(TASKS), PAGE, 2.2)
        for axis, task in zip(axes[0], TASKS, strict=True):
            right = axis.twinx()
            # Room below the one and above the other: two curves of the same shape would hide each other.
            for side, kind, colour, marker, below, above in (
                (axis, "map", COLOURS["sdgmnet"], "o", 0.3, 0.06),
                (right, "delta", RELATIVE, "s", 0.06, 0.3),
            ):
                known = {alpha: 100 * value for alpha, one in found.items() if (value := one[task][kind]) is not None}
                side.plot(list(known), list(known.values()), marker=marker, color=colour)
                side.tick_params(axis="y", colors=colour)
                if known:
                    low, high = min(known.values()), max(known.values())
                    room = max(high - low, 0.1)
                    side.set_ylim(low - below * room, high + above * room)
                else:
                    side.set_yticks([])
            if all(tasks[task]["map"] is None for tasks in found.values()):
                axis.text(0.5, 0.5, "not measured", transform=axis.transAxes, ha="center", va="center")
            axis.set(title=f"patch {task}" if task != "matching" else "image matching", xlabel=r"attenuation $\alpha$")
            axis.grid(axis="x", linestyle=":")
            if task == TASKS[-1]:
                right.set_ylabel(r"$\Delta$mAP (%)", color=RELATIVE)
        axes[0, 0].set_ylabel("mAP (%)", color=COLOURS["sdgmnet"])
        return save_print(figure, stem)

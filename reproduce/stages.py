"""`python -m reproduce table2-4`: the running statistics at five stages of training, next to the authors' logs."""

import itertools
import textwrap
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from reproduce.arguments import StagesArguments
from reproduce.output import caption_of_run, require_run
from reproduce.published import AUTHORS, AUTHORS_NOTE, PAPER_BATCH, STAGES, STATISTICS, Stages
from sdgmnet.errors import InputError
from sdgmnet.plots.style import NEGATIVE, PAGE, POSITIVE, RELATIVE, SMALL, new_figure, printed, save_print
from sdgmnet.report import Section, print_aside
from sdgmnet.training.config import EPOCHS, TrainConfig
from sdgmnet.training.log import read_log

MARKERS = {".": "•", "s": "■", "D": "◆", "^": "▲", "v": "▼"}  # of matplotlib, and as text


def table2_4(arguments: StagesArguments) -> None:
    if not arguments.runs:
        raise InputError("name at least one folder of a run that was trained with SDGMNet's loss.")
    print_aside(f"Tables 2-4: from the logs of {', '.join(map(str, arguments.runs))}.")
    ours: dict[str, Stages] = {}
    sections = []
    for folder in arguments.runs:
        require_run(folder)
        found, config = read_stages(folder)
        if found.label in ours:
            raise InputError(f"{folder}: two runs are named {found.label}; rename one of the folders.")
        ours[found.label] = found
        caption = (
            f"Running statistics of Eq. (14) at the ends of five of {min(EPOCHS, config.iterations)} epochs, decay "
            f"{config.loss_setting('decay'):g}; angles in radians. {caption_of_run(folder)}"
        )
        sections.append(Section(f"Tables 2-4: {found.label}", caption, *stage_table(found)))
    sections += [Section(one.label, AUTHORS_NOTE, *stage_table(one)) for one in AUTHORS]
    results = {
        "captions": [one.text for one in sections],
        "stages": STAGES,
        "here": {label: found._asdict() for label, found in ours.items()},
        "authors": {found.label: found.values for found in AUTHORS},
    }
    arguments.deliver("table2-4", results, sections, partial(draw_stages, ours), concerns=[])


def read_stages(folder: Path) -> tuple[Stages, TrainConfig]:
    """The running statistics of Eq. (14) at the ends of the five epochs of a run, from its log."""
    config = TrainConfig.load(folder / "config.json")
    epochs = read_log(folder / "log.jsonl", "epoch")
    if not epochs or f"running_{next(iter(STATISTICS))}" not in epochs[0]:
        raise InputError(
            f"{folder} has no running statistics in its log: give a run that was trained with the loss sdgm."
        )
    lines = []
    for stage in STAGES:
        wanted = (stage + 1) / EPOCHS * config.iterations
        lines.append(min(epochs, key=lambda one: abs(one["step"] - wanted)))
        if abs(lines[-1]["step"] - wanted) > max(1.0, config.iterations / EPOCHS):
            ended = f"{folder}/log.jsonl ends at step {epochs[-1]['step']} of {config.iterations}"
            raise InputError(f"{ended}: finish the run first.")
    values = {name: tuple(line[f"running_{name}"] for line in lines) for name in STATISTICS}
    return Stages(folder.resolve().name, config.batch_size, values), config


def stage_table(stages: Stages) -> tuple[list[str], list[list[str]]]:
    """Powers also scaled to the paper's batch of 1024, since they grow with it."""
    body = []
    for name, symbol in STATISTICS.items():
        numbers, pattern = stages.values[name], ".1f" if name.startswith("power") else ".4f"
        if name.startswith("power") and stages.batch_size != PAPER_BATCH:
            body.append([f"{symbol}, N = {stages.batch_size}", *(format(one, pattern) for one in numbers)])
            numbers = tuple(one * PAPER_BATCH / stages.batch_size for one in numbers)
            symbol = f"{symbol} × {PAPER_BATCH}/{stages.batch_size}"
        body.append([symbol, *(format(one, pattern) for one in numbers)])
    return ["epoch of 200", *(str(stage) for stage in STAGES)], body


def draw_stages(ours: Mapping[str, Stages], stem: Path) -> list[Path]:
    """Means of the angles, their stds, and the power per pair: runs solid, the authors' logs broken."""
    panels = (
        ({"theta_pos_mean": POSITIVE, "theta_neg_mean": NEGATIVE, "theta_rel_mean": RELATIVE}, "mean (rad)"),
        ({"theta_pos_std": POSITIVE, "theta_neg_std": NEGATIVE, "theta_rel_std": RELATIVE}, "std (rad)"),
        ({"power_pos": POSITIVE, "power_neg": NEGATIVE}, "power per pair"),
    )
    markers = dict(zip(ours, itertools.cycle(MARKERS), strict=False))
    lines = [(one, "-", markers[label]) for label, one in ours.items()]
    lines += zip(AUTHORS, (":", "--", "-."), "...", strict=True)
    with printed():
        figure, axes = new_figure(1, 3, PAGE, 2.4)
        for axis, (names, label) in zip(axes[0], panels, strict=True):
            for stages, style, marker in lines:
                for name, colour in names.items():
                    scale = stages.batch_size if name.startswith("power") else 1
                    shown = [one / scale for one in stages.values[name]]
                    axis.plot(STAGES, shown, style, color=colour, marker=marker)
            for name, colour in names.items():
                axis.plot([], [], color=colour, label=STATISTICS[name].split("[")[1].rstrip("]"))
            axis.set(xlabel="epoch of 200", ylabel=label, xticks=STAGES)
            low, high = axis.get_ylim()
            axis.set_ylim(low, high + 0.22 * (high - low))
            axis.legend(ncols=3, loc="upper center", columnspacing=0.8, handlelength=1.2)
        solid = ", ".join(f"{MARKERS[markers[label]]} {label}" for label in ours)
        note = f"solid: {solid}; the authors' logs: Liberty dotted, Notredame dashed, Yosemite dash-dotted"
        figure.supxlabel("\n".join(textwrap.wrap(note, 120)), fontsize=SMALL, parse_math=False)
        return save_print(figure, stem)

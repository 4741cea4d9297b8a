"""Tables 2-4: the running statistics at five stages of training, beside the authors' logs."""

import itertools
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from sdgmnet.errors import InputError
from sdgmnet.plots import NEGATIVE, PAGE, POSITIVE, RELATIVE, SMALL, new_figure, printed, save_print
from sdgmnet.training.config import EPOCHS, TrainConfig
from sdgmnet.training.log import read_log

STAGES = (30, 70, 110, 150, 190)  # epochs of 200, counted from 0
STATISTICS = {
    "theta_rel_mean": "E[θʳ]",
    "theta_rel_std": "Std[θʳ]",
    "theta_pos_mean": "E[θ⁺]",
    "theta_pos_std": "Std[θ⁺]",
    "theta_neg_mean": "E[θ⁻]",
    "theta_neg_std": "Std[θ⁻]",
    "power_pos": "E[P⁺]",
    "power_neg": "E[P⁻]",
}
PAPER_BATCH = 1024
GLYPHS = {".": "•", "s": "■", "D": "◆", "^": "▲", "v": "▼"}  # matplotlib's markers in words


class Stages(NamedTuple):
    """values: statistic -> its value at each of STAGES. Powers are those of a batch of `batch_size`."""

    label: str
    batch_size: int
    values: dict[str, tuple[float, ...]]


def _log(label: str, *rows: tuple[float, ...]) -> Stages:
    return Stages(label, PAPER_BATCH, dict(zip(STATISTICS, rows, strict=True)))


# From the training logs that the authors published with their code: epoch means over batches.
AUTHORS_NOTE = (
    "Epoch means over batches, from the training logs published with the authors' code. Tables 2-4 print nearly these: 111 of "
    "their 120 cells agree within one unit of the last digit, the others within two, but for one of three and a half."
)
AUTHORS = (
    _log(
        "authors' log, Liberty (Table 2)",
        (-0.28594, -0.31378, -0.33025, -0.33868, -0.34339),
        (0.23675, 0.23063, 0.22552, 0.22129, 0.21852),
        (0.85313, 0.83891, 0.83129, 0.82835, 0.82655),
        (0.22445, 0.21672, 0.20988, 0.20515, 0.20213),
        (1.13907, 1.15269, 1.16153, 1.16702, 1.16994),
        (0.07815, 0.07972, 0.08090, 0.08149, 0.08138),
        (281.19, 280.05, 280.33, 280.19, 279.16),
        (299.06, 296.84, 296.04, 295.13, 293.66),
    ),
    _log(
        "authors' log, Notredame (Table 3)",
        (-0.31369, -0.34019, -0.35673, -0.36494, -0.36908),
        (0.23287, 0.22457, 0.21836, 0.21494, 0.21249),
        (0.82627, 0.81348, 0.80554, 0.80253, 0.80072),
        (0.21804, 0.20830, 0.20083, 0.19665, 0.19388),
        (1.13996, 1.15367, 1.16227, 1.16747, 1.16980),
        (0.08658, 0.08601, 0.08602, 0.08599, 0.08614),
        (280.93, 281.43, 281.27, 281.24, 280.85),
        (297.50, 296.60, 295.36, 294.77, 293.90),
    ),
    _log(
        "authors' log, Yosemite (Table 4)",
        (-0.36148, -0.38580, -0.40007, -0.40728, -0.41066),
        (0.24632, 0.24129, 0.23613, 0.23286, 0.23089),
        (0.81012, 0.79696, 0.78931, 0.78551, 0.78365),
        (0.23573, 0.22976, 0.22427, 0.22073, 0.21870),
        (1.17160, 1.18276, 1.18937, 1.19278, 1.19430),
        (0.06502, 0.06656, 0.06813, 0.06900, 0.06970),
        (283.61, 281.75, 280.31, 279.54, 278.63),
        (304.22, 301.45, 299.15, 297.85, 296.54),
    ),
)


def stages_of(folder: Path) -> tuple[Stages, TrainConfig]:
    """The running statistics of Eq. (14) at the ends of the five epochs of a run, from its log."""
    config = TrainConfig.load(folder / "config.json")
    epochs = read_log(folder / "log.jsonl", "epoch")
    if not epochs or f"running_{next(iter(STATISTICS))}" not in epochs[0]:
        raise InputError(
            f"{folder} has no running statistics in its log: give a run that was trained with the loss sdgm."
        )
    values: dict[str, list[float]] = {name: [] for name in STATISTICS}
    for stage in STAGES:
        wanted = (stage + 1) / EPOCHS * config.iterations
        line = min(epochs, key=lambda one: abs(one["step"] - wanted))
        if abs(line["step"] - wanted) > max(1.0, config.iterations / EPOCHS):
            raise InputError(
                f"{folder}/log.jsonl ends at step {epochs[-1]['step']} of {config.iterations}: finish the run first."
            )
        for name in STATISTICS:
            values[name].append(line[f"running_{name}"])
    return Stages(
        folder.resolve().name, config.batch_size, {name: tuple(many) for name, many in values.items()}
    ), config


def stage_table(stages: Stages) -> tuple[list[str], list[list[str]]]:
    """Powers also for the paper's batch of 1024, since they grow with it."""
    body = []
    for name, symbol in STATISTICS.items():
        numbers = stages.values[name]
        if name.startswith("power") and stages.batch_size != PAPER_BATCH:
            body.append([f"{symbol}, N = {stages.batch_size}", *(f"{one:.1f}" for one in numbers)])
            numbers = tuple(one * PAPER_BATCH / stages.batch_size for one in numbers)
            symbol = f"{symbol} × {PAPER_BATCH}/{stages.batch_size}"
        body.append([symbol, *(f"{one:.1f}" if name.startswith("power") else f"{one:.4f}" for one in numbers)])
    return ["epoch of 200", *(str(stage) for stage in STAGES)], body


def draw_stages(ours: Mapping[str, Stages], path: Path) -> list[Path]:
    """Means of the angles, their stds and the powers a pair over training: runs here solid, the authors' logs broken."""
    with printed():
        figure, axes = new_figure(1, 3, PAGE, 2.4)
        panels = (
            ({"theta_pos_mean": POSITIVE, "theta_neg_mean": NEGATIVE, "theta_rel_mean": RELATIVE}, "mean (rad)"),
            ({"theta_pos_std": POSITIVE, "theta_neg_std": NEGATIVE, "theta_rel_std": RELATIVE}, "std (rad)"),
            ({"power_pos": POSITIVE, "power_neg": NEGATIVE}, "power a pair"),
        )
        markers = dict(zip(ours, itertools.cycle(GLYPHS), strict=False))
        for axis, (names, label) in zip(axes[0], panels, strict=True):
            lines = [(one, "-", markers[label]) for label, one in ours.items()] + list(
                zip(AUTHORS, (":", "--", "-."), "...", strict=True)
            )
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
        told = [f"{GLYPHS[markers[label]]} {label}" for label in ours]
        note = f"solid: {', '.join(told)}; the authors' logs: Liberty dotted, Notredame dashed, Yosemite dash-dotted"
        figure.supxlabel("\n".join(textwrap.wrap(note, 120)), fontsize=SMALL, parse_math=False)
        return save_print(figure, path)

"""The paper's figures, drawn from a run's own files."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib
import matplotlib.lines
import matplotlib.ticker
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sdgmnet.benchmarks.hpatches import TASKS, Row, headline
from sdgmnet.benchmarks.hpatches_tasks import POOLS
from sdgmnet.benchmarks.mutual import THRESHOLDS
from sdgmnet.benchmarks.published import Published, published
from sdgmnet.benchmarks.sampled import Shown
from sdgmnet.data.patchset import PatchSet
from sdgmnet.loss.weights import SELF_WEIGHTS, coupled_weight
from sdgmnet.storage import new_file
from sdgmnet.training.angles import Angles
from sdgmnet.training.log import read_log

# ---- paper.colours

COLOURS = {
    "sift": "#000000",
    "rootsift": "#7f7f7f",
    "tfeat": "#a6761d",
    "l2net": "#b3a500",
    "hardnet": "#56b4e9",
    "cdfdesc": "#e69f00",
    "sosnet": "#cc79a7",
    "hardnet+frn": "#0072b2",
    "hynet": "#009e73",
    "sdgmnet": "#d55e00",
    "keller": "#8da0cb",
    "exp-tl": "#66a61e",
    "sface": "#7570b3",
}
MARKERS = {
    "sift": "x",
    "rootsift": "+",
    "tfeat": "v",
    "l2net": "<",
    "hardnet": "^",
    "cdfdesc": ">",
    "sosnet": "D",
    "hardnet+frn": "s",
    "hynet": "P",
    "sdgmnet": "o",
    "keller": "h",
    "exp-tl": "p",
    "sface": "*",
}
# What a loss or a recipe is called otherwise.
SAME = {"sdgm": "sdgmnet", "cdf": "cdfdesc", "hardnet-original": "hardnet", "hardnetfrn": "hardnet+frn"}
# For everything else, by its place among the others.
FURTHER_COLOURS = ("#882255", "#44aa99", "#999933", "#332288", "#aa4466", "#117733", "#ddcc77")
FURTHER_MARKERS = ("d", "8", "X", "H", "1", "2", "3")
POSITIVE, NEGATIVE, RELATIVE = "#2166ac", "#b2182b", "#4d4d4d"  # θ⁺, θ⁻, θʳ


def method_of(label: str) -> str | None:
    """The known method that a label begins with, as "HardNet+FRN, 2 seeds" does, or None: the longest such name."""
    plain = label.lower().replace(" ", "").removeprefix("paper,").removeprefix("kornia")
    known = [name for name in (*COLOURS, *SAME) if plain.startswith(name)]
    longest = max(known, key=len, default=None)
    return None if longest is None else SAME.get(longest, longest)


def colour_of(label: str, place: int = 0) -> str:
    """The method's colour; that of `place` among unknown ones where the label names no known method."""
    method = method_of(label)
    return FURTHER_COLOURS[place % len(FURTHER_COLOURS)] if method is None else COLOURS[method]


def marker_of(label: str, place: int = 0) -> str:
    method = method_of(label)
    return FURTHER_MARKERS[place % len(FURTHER_MARKERS)] if method is None else MARKERS[method]


# ---- paper.printing


COLUMN, PAGE = 3.5, 7.16  # inches: one column and the whole width of a page
DPI = 300
SMALL = 7  # points: the smallest type that is still read with ease
SETTINGS: Any = {  # matplotlib types its keys one by one
    "font.size": SMALL + 1,
    "axes.titlesize": SMALL + 1,
    "axes.labelsize": SMALL + 1,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "grid.linewidth": 0.4,
    "patch.linewidth": 0.6,
    "pdf.fonttype": 42,  # letters as outlines that printers and search find, not as bitmaps
}


@contextmanager
def printed() -> Iterator[None]:
    """Everything drawn and saved inside has the sizes above."""
    with matplotlib.rc_context(SETTINGS):
        yield


def save_print(figure: Figure, stem: Path | str) -> list[Path]:
    """Write STEM.png and STEM.pdf; the same figure gives the same bytes."""
    paths = [Path(f"{stem}.{kind}") for kind in ("png", "pdf")]
    with printed():
        for path in paths:
            save_as_named(figure, path, DPI)
    return paths


def save_as_named(figure: Figure, path: Path | str, dpi: int) -> None:
    """In the format of the name's ending: .pdf, otherwise PNG."""
    is_pdf = Path(path).suffix == ".pdf"
    metadata = {"CreationDate": None} if is_pdf else None  # no clock in the file
    with new_file(path) as part:
        figure.savefig(part, format="pdf" if is_pdf else "png", dpi=dpi, metadata=metadata)


# ---- paper.figures


def new_figure(rows: int, columns: int, width: float, height: float) -> tuple[Figure, Any]:
    """A figure that needs no display: the object interface alone, no global state of pyplot."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def save_figure(figure: Figure, path: Path | str, dpi: int = 150) -> None:
    """PNG, or PDF where the name ends so."""
    save_as_named(figure, path, dpi)


def draw_fig2(
    angles_path: Path | str,
    path: Path | str,
    margin: float = 0.6,
    self_kind: str = "auto-focus",
    coupled_kind: str = "cdf",
) -> None:
    """Fig. 2: the weights as functions of the angles over the angles' distributions, and their product as a heat map."""
    angles = Angles.load(angles_path)
    pos, neg, rel = torch.from_numpy(angles.moments)
    theta = torch.linspace(0, np.pi / 2, 400, dtype=torch.float64)
    relative = torch.linspace(-np.pi / 2, np.pi / 4, 400, dtype=torch.float64)
    self_weight = SELF_WEIGHTS[self_kind]
    w_pos, w_neg = self_weight(theta, pos[0], pos[1]), self_weight(theta, neg[0], neg[1])
    w_rel = coupled_weight(relative, rel[0], rel[1], margin, coupled_kind)
    theta_rel = angles.theta_pos - angles.theta_neg
    with printed():
        figure, axes = new_figure(2, 2, COLUMN, 3.2)
        panels = (
            (axes[0, 0], theta, w_pos, angles.theta_pos, r"\theta^+", r"w_s^+", POSITIVE, "(a)"),
            (axes[0, 1], theta, w_neg, angles.theta_neg, r"\theta^-", r"w_s^-", NEGATIVE, "(b)"),
            (axes[1, 0], relative, w_rel, theta_rel, r"\theta^r", r"w_c", RELATIVE, f"(c) m = {margin:g},"),
        )
        for panel in panels:
            _weight_panel(*panel)
        _heat_panel(axes[1, 1], figure, theta, w_pos, w_neg, rel, margin, coupled_kind)
        save_figure(figure, path, dpi=DPI)


def _weight_panel(
    axis: Axes,
    x: torch.Tensor,
    weight: torch.Tensor,
    sample: np.ndarray,
    x_name: str,
    name: str,
    color: str,
    letter: str,
) -> None:
    density = axis.twinx()
    density.hist(sample, bins=60, range=(float(x[0]), float(x[-1])), density=True, color=color, alpha=0.2)
    density.set_yticks([])
    axis.plot(x.numpy(), weight.numpy(), color=color)
    axis.set(xlim=(float(x[0]), float(x[-1])), ylim=(0, 1.05), xlabel=f"${x_name}$ (rad)", title=f"{letter} ${name}$")


def _heat_panel(
    axis: Axes,
    figure: Figure,
    theta: torch.Tensor,
    w_pos: torch.Tensor,
    w_neg: torch.Tensor,
    rel: torch.Tensor,
    margin: float,
    coupled_kind: str,
) -> None:
    relative = theta[None, :] - theta[:, None]  # columns θ⁺, rows θ⁻
    product = w_neg[:, None] * w_pos[None, :] * coupled_weight(relative, rel[0], rel[1], margin, coupled_kind)
    extent = (0.0, float(theta[-1]), 0.0, float(theta[-1]))
    image = axis.imshow(
        product.numpy(), origin="lower", extent=extent, cmap=matplotlib.colormaps["YlOrRd"], aspect="auto"
    )
    axis.set(xlabel=r"$\theta^+$ (rad)", ylabel=r"$\theta^-$ (rad)", title=r"(d) $w_s^+ w_s^- w_c$")
    figure.colorbar(image, ax=axis)


def draw_training(log_path: Path | str, path: Path | str, references: dict[str, float] | None = None) -> None:
    """A run as curves: FPR@95 on held-out pairs (with horizontal references), then what the loss tells.

    SDGM tells angles and powers; a loss that keeps no statistics is drawn by its value.
    """
    epochs, evaluations = read_log(log_path, "epoch"), read_log(log_path, "evaluation")
    with_statistics = bool(epochs) and "running_theta_pos_mean" in epochs[0]
    figure, axes = new_figure(1, 3, 14, 3.6) if with_statistics else new_figure(1, 2, 9.5, 3.6)
    _fpr_panel(axes[0, 0], evaluations, references or {})
    if with_statistics:
        _statistics_panels(axes[0, 1], axes[0, 2], epochs)
    else:
        axes[0, 1].plot([line["step"] for line in epochs], [line["loss"] for line in epochs])
        axes[0, 1].set(xlabel="iteration", ylabel="loss", title="loss of the batches")
    save_figure(figure, path)


def _statistics_panels(angles: Axes, powers: Axes, epochs: list[dict[str, Any]]) -> None:
    step = [line["step"] for line in epochs]
    for name, label, color in (("theta_pos", r"$\theta^+$", POSITIVE), ("theta_neg", r"$\theta^-$", NEGATIVE)):
        mean = np.array([line[f"running_{name}_mean"] for line in epochs])
        std = np.array([line[f"running_{name}_std"] for line in epochs])
        angles.plot(step, mean, color=color, label=label)
        angles.fill_between(step, mean - std, mean + std, color=color, alpha=0.15, linewidth=0)
    angles.set(xlabel="iteration", ylabel="radians", title="running mean and std of the angles")
    angles.legend()
    for name, label, color in (("power_pos", r"$P^+$", POSITIVE), ("power_neg", r"$P^-$", NEGATIVE)):
        powers.plot(step, [line[name] for line in epochs], color=color, label=f"{label} of the batches")
        powers.plot(
            step, [line[f"running_{name}"] for line in epochs], color=color, linestyle="--", label=f"running {label}"
        )
    powers.set(xlabel="iteration", ylabel="power", title="powers", yscale="log")
    powers.legend(fontsize="small")


def _fpr_panel(axis: Axes, evaluations: list[dict[str, Any]], references: dict[str, float]) -> None:
    axis.set(xlabel="iteration", ylabel="FPR@95 (%)", title="held-out pairs", yscale="log")
    if not evaluations:
        axis.text(0.5, 0.5, "nothing held out", ha="center", va="center", transform=axis.transAxes)
        return
    found = [score for line in evaluations for score in line["fpr95"].values()]
    lowest = 50 * min((score for score in found if score > 0), default=1e-4)  # where 0 is drawn: it has no logarithm
    for name in evaluations[0]["fpr95"]:
        if name != "mean" or len(evaluations[0]["fpr95"]) > 2:
            scores = [max(100 * line["fpr95"][name], lowest) for line in evaluations]
            axis.plot([line["step"] for line in evaluations], scores, marker=".", label=name)
    if 0 in found:
        axis.set(ylabel="FPR@95 (%), 0 at the lower edge")
    for (name, score), style in zip(references.items(), ("--", ":", "-."), strict=False):
        axis.axhline(100 * score, color="black", linestyle=style, linewidth=1, label=name)
    axis.yaxis.set_major_formatter(matplotlib.ticker.FormatStrFormatter("%g"))
    axis.yaxis.set_minor_locator(matplotlib.ticker.LogLocator(subs=(2, 5)))
    axis.yaxis.set_minor_formatter(matplotlib.ticker.FormatStrFormatter("%g"))
    axis.legend(fontsize="small")


def draw_patches(patchset: PatchSet, path: Path | str, points: int = 8, most: int = 8) -> None:
    """Contact sheet: one row a point, its patches side by side, from points evenly spaced among those seen most often."""
    order, start, size = _rows_of_points(patchset)
    often = np.flatnonzero(size >= min(most, np.quantile(size, 0.9)))
    chosen = often[np.linspace(0, len(often) - 1, min(points, len(often)), dtype=np.int64)]
    rows = [order[start[point] : start[point] + min(size[point], most)] for point in chosen]
    _save_sheet(patchset, rows, most, f"{patchset.name}: each row one point, as the views show it", path)


def draw_easy_and_hard(patchset: PatchSet, path: Path | str, points: int = 12, most: int = 10, seed: int = 0) -> None:
    """Contact sheet of points, half of them easy and half hard, by how alike their patches are; the easiest on top.

    Easy is the upper, hard the lower tenth of the mean correlation of a point's patches, among points seen often.
    """
    order, start, size = _rows_of_points(patchset)
    rng = np.random.default_rng(seed)
    often = np.flatnonzero(size >= min(4, np.quantile(size, 0.9)))
    often = np.sort(rng.permutation(often)[:2000])
    alike = np.array([likeness(patchset.patches[order[start[p] : start[p] + min(size[p], most)]]) for p in often])
    ranked = often[np.argsort(-alike, kind="stable")]
    tenth = max(len(ranked) // 10, min(len(ranked), points))
    easy = np.sort(rng.permutation(tenth)[: points // 2])
    hard = len(ranked) - 1 - np.sort(rng.permutation(tenth)[: points - points // 2])[::-1]
    chosen = ranked[np.unique(np.concatenate([easy, hard]))]
    rows = [order[start[point] : start[point] + min(size[point], most)] for point in chosen]
    _save_sheet(patchset, rows, most, f"{patchset.name}: each row one point, easy ones above, hard ones below", path)


def likeness(patches: np.ndarray) -> float:
    """Mean correlation of all pairs of patches (N, 64, 64), N >= 2."""
    flat = patches.reshape(len(patches), -1).astype(np.float64)
    flat -= flat.mean(axis=1, keepdims=True)
    flat /= np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-9)
    return float((flat @ flat.T)[np.triu_indices(len(flat), 1)].mean())


def _rows_of_points(patchset: PatchSet) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Patches ordered by point, and where each point's begin and how many they are."""
    order = np.argsort(patchset.point_id, kind="stable")
    _, start, size = np.unique(patchset.point_id[order], return_index=True, return_counts=True)
    return order, start, size


def _save_sheet(patchset: PatchSet, rows: list[np.ndarray], most: int, title: str, path: Path | str) -> None:
    gap = 4
    cell = patchset.patches.shape[1] + gap
    sheet = np.full((len(rows) * cell - gap, most * cell - gap), 255, dtype=np.uint8)
    for row, patches in enumerate(rows):
        for column, patch in enumerate(patches):
            y, x = row * cell, column * cell
            sheet[y : y + cell - gap, x : x + cell - gap] = patchset.patches[patch]
    figure, axes = new_figure(1, 1, 7, 7 * sheet.shape[0] / sheet.shape[1] + 0.3)
    axes[0, 0].imshow(sheet, cmap="gray", vmin=0, vmax=255)
    axes[0, 0].set_axis_off()
    axes[0, 0].set_title(title, fontsize="small")
    save_figure(figure, path)


def draw_fpr(lines: list[tuple[str, dict[str, float | None]]], path: Path | str) -> None:
    """FPR@95 of every descriptor as bars, a group a test set; lower is better."""
    tests = list(lines[0][1])
    figure, axes = new_figure(1, 1, 1.5 + 1.2 * len(tests) + 0.5 * len(tests) * len(lines), 4)
    width = 0.8 / len(lines)
    for number, (label, scores) in enumerate(lines):
        places = [place for place, test in enumerate(tests) if scores[test] is not None]
        heights = [100 * float(scores[tests[place]] or 0) for place in places]
        bars = axes[0, 0].bar([place + (number + 0.5) * width - 0.4 for place in places], heights, width, label=label)
        axes[0, 0].bar_label(bars, fmt="%.2f", fontsize="x-small")
    axes[0, 0].set_xticks(range(len(tests)), tests)
    axes[0, 0].set(ylabel="FPR@95 (%), lower is better")
    axes[0, 0].legend(fontsize="small")
    save_figure(figure, path)


NOISE_COLOURS = {"easy": "#ffffff", "hard": "#9a9a9a", "tough": "#1a1a1a"}  # greys: colours are methods
POOL = str(POOLS[-1])
SUBSET_MARKERS = {"inter": "D", "intra": "o", "view": "s", "illum": "^", "unlabelled": "v", POOL: "o"}
SUBSET_NAMES = {"inter": "INTER", "intra": "INTRA", "view": "VIEWP", "illum": "ILLUM", "unlabelled": "unlabelled"}
MARK: Any = {"markersize": 3.2, "markeredgecolor": "#1a1a1a", "markeredgewidth": 0.5, "linestyle": ""}


def draw_fig4(lines: list[tuple[str, list[Row]]], path: Path | str, note: str) -> None:
    """Fig. 4: HPatches' three tasks side by side, a bar a descriptor, best on top, a mark a subtask."""
    with printed():
        figure, axes = new_figure(1, len(TASKS), PAGE, 1.35 + 0.22 * len(lines))
        for axis, task in zip(axes[0], TASKS, strict=True):
            _task_panel(axis, task, lines)
        _fig4_legend(figure, lines)
        figure.supxlabel("\n".join(textwrap.wrap(note, 130)), fontsize=SMALL - 1)
        save_figure(figure, path, dpi=DPI)


def _fig4_legend(figure: Figure, lines: list[tuple[str, list[Row]]]) -> None:
    handles = [
        matplotlib.lines.Line2D([], [], color=colour, marker="s", label=noise.upper(), **MARK)
        for noise, colour in NOISE_COLOURS.items()
    ]
    subsets = dict.fromkeys(row.subset for _, rows in lines for task in TASKS for row in marked_rows(rows, task))
    handles += [
        matplotlib.lines.Line2D([], [], color="#9a9a9a", marker=marker, label=SUBSET_NAMES[subset], **MARK)
        for subset, marker in SUBSET_MARKERS.items()
        if subset in subsets and subset in SUBSET_NAMES
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), handletextpad=0.1, columnspacing=1)


def _task_panel(axis: Axes, task: str, lines: list[tuple[str, list[Row]]]) -> None:
    scored = [(label, rows, score) for label, rows in lines if (score := headline(rows, task)) is not None]
    ranked = sorted(scored, key=lambda line: line[2])
    places = {label: number for number, (label, _) in enumerate(lines)}
    for place, (label, rows, score) in enumerate(ranked):
        colour = colour_of(label, places[label])
        axis.barh(place, 100 * score, height=0.7, color=colour, alpha=0.35, edgecolor=colour)
        for row in marked_rows(rows, task):
            marker, colour = SUBSET_MARKERS[row.subset], NOISE_COLOURS[row.noise]
            axis.plot(100 * row.value, place, marker=marker, color=colour, clip_on=False, zorder=3, **MARK)
        axis.text(105, place, f"{100 * score:.2f}", va="center", fontsize=SMALL, clip_on=False)
    axis.set_yticks(range(len(ranked)), [line[0] for line in ranked], parse_math=False)
    axis.set(xlim=(0, 100), title=f"patch {task}" if task != "matching" else "image matching", xlabel=f"{task} mAP (%)")
    axis.grid(axis="x", linestyle=":")
    axis.set_axisbelow(True)


def marked_rows(rows: list[Row], task: str) -> list[Row]:
    """The subtasks of Fig. 4: inter and intra, viewpoint and illumination, and retrieval in the full pool."""
    return [
        row
        for row in rows
        if row.task == task
        and row.metric == "ap"
        and row.subset != "all"
        and (task != "retrieval" or row.subset == POOL)
    ]


# ---- paper.matching


CROSS, LINE = "#e31a1c", "#22dd22"
STYLES: tuple[Literal["-", "--", ":", "-."], ...] = ("-", "--", ":", "-.")  # once the colours are used up

LEFT, TOP, GAP = 0.16, 0.15, 0.06  # inches: for a row's name, for a cell's title, between cells
BETWEEN = 0.03  # of the height: between the two images of a cell
NARROWEST = 1.6  # inches of a cell: with more than four descriptors the figure grows beyond the page


class PairOfPictures(NamedTuple):
    """A row of Fig. 5."""

    name: str
    images: tuple[np.ndarray, np.ndarray]  # (H, W) uint8: the reference, the other
    shown: Sequence[Shown]  # one a descriptor


def draw_fig5(labels: Sequence[str], rows: Sequence[PairOfPictures], path: Path | str) -> None:
    """Fig. 5: a row a pair, a column a descriptor; the reference left, the other image right.

    Red crosses are the keypoints that were drawn, green lines lead to the nearest descriptors that are correct.
    """
    page = PAGE if len(labels) > 1 else COLUMN
    width = max(NARROWEST, (page - LEFT - GAP * len(labels)) / len(labels))
    heights = [width / aspect(row.images) for row in rows]
    size = LEFT + len(labels) * (width + GAP), sum(heights) + len(rows) * (TOP + GAP)
    figure = Figure(figsize=size)
    bottom = size[1]
    for row, height in zip(rows, heights, strict=True):
        bottom -= TOP + height
        figure.text(
            LEFT / 2 / size[0],
            (bottom + height / 2) / size[1],
            fitting(row.name, height),
            rotation=90,
            fontsize=SMALL,
            ha="center",
            va="center",
            parse_math=False,
        )
        for number, (label, shown) in enumerate(zip(labels, row.shown, strict=True)):
            left = LEFT + number * (width + GAP)
            axis = figure.add_axes((left / size[0], bottom / size[1], width / size[0], height / size[1]))
            draw_cell(axis, row.images, shown)
            count = f": {int(shown.correct.sum())} of {len(shown.correct)}"
            title = fitting(label, width, len(count)) + count
            axis.set_title(title, fontsize=SMALL, pad=2, parse_math=False)
        bottom -= GAP
    save_figure(figure, path, dpi=DPI)


def fitting(text: str, inches: float, besides: int = 0) -> str:
    """The text, cut where it would not fit beside so many other letters."""
    letters = int(inches * 72 / (0.6 * SMALL)) - besides
    return text if len(text) <= letters else text[: max(letters - 1, 1)] + "…"


def aspect(images: tuple[np.ndarray, np.ndarray]) -> float:
    """Width over height of both side by side, as high as each other."""
    return sum(image.shape[1] / image.shape[0] for image in images) + BETWEEN


def draw_cell(axis: Axes, images: tuple[np.ndarray, np.ndarray], shown: Shown) -> None:
    """Both images in units of their height."""
    right = images[0].shape[1] / images[0].shape[0] + BETWEEN
    for image, left in zip(images, (0.0, right), strict=True):
        extent = (left, left + image.shape[1] / image.shape[0], 1.0, 0.0)
        axis.imshow(image, cmap="gray", vmin=0, vmax=255, extent=extent, interpolation="antialiased")
    here = (shown.keypoints + 0.5) / images[0].shape[0]
    there = (shown.nearest[shown.correct] + 0.5) / images[1].shape[0] + (right, 0)
    axis.scatter(here[:, 0], here[:, 1], s=6, c=CROSS, marker="+", linewidths=0.55, zorder=2)
    lines = np.stack([here[shown.correct], there], axis=1)
    axis.add_collection(LineCollection(list(lines), colors=LINE, linewidths=0.7, zorder=3))
    axis.set(xlim=(0, aspect(images)), ylim=(1, 0), aspect="auto")
    axis.axis("off")


def draw_mma(labels: Sequence[str], curves: Sequence[Mapping[str, Sequence[float]]], path: Path | str) -> None:
    """Mean matching accuracy over the threshold: a panel a kind of sequences, a colour a descriptor."""
    kinds = list(curves[0])
    rows = -(-len(labels) // 4)  # of the legend
    width = COLUMN if len(kinds) == 1 else PAGE
    figure, axes = new_figure(1, len(kinds), width, 2.2 + 0.18 * rows)
    lines: list[Line2D] = []
    for number, label in enumerate(labels):
        for axis, kind in zip(axes[0], kinds, strict=True):
            drawn = axis.plot(
                THRESHOLDS,
                curves[number][kind],
                color=colour_of(label, number),
                marker=marker_of(label, number),
                linestyle=STYLES[number // len(FURTHER_COLOURS) % len(STYLES)],
                label=label,
                linewidth=1,
                markersize=3,
                markerfacecolor="white",
                markeredgewidth=0.8,
                clip_on=False,
            )
        lines += drawn
    top = min(1.0, np.ceil(10 * max(max(curve) for one in curves for curve in one.values()) + 0.1) / 10)
    for axis, kind in zip(axes[0], kinds, strict=True):
        axis.set_title(kind, fontsize=SMALL + 1)
        axis.set(xlim=(0.7, THRESHOLDS[-1] + 0.3), ylim=(0, top), xticks=THRESHOLDS)
        axis.set_xlabel("threshold (px)", fontsize=SMALL + 1)
        axis.tick_params(labelsize=SMALL)
        axis.grid(color="0.9", linewidth=0.6)
        axis.set_axisbelow(True)
    axes[0, 0].set_ylabel("mean matching accuracy", fontsize=SMALL + 1)
    columns = min(len(labels), 4 if len(kinds) > 1 else 2)
    legend = figure.legend(handles=lines, loc="outside lower center", ncols=columns, fontsize=SMALL, frameon=False)
    for text in legend.get_texts():
        text.set_parse_math(False)
    save_figure(figure, path, dpi=DPI)


# ---- paper.reconstruction_bars


KNOWN = "#bdbdbd"
PANELS = (
    ("points", "sparse points"),
    ("track_length", "photos that see a point"),
    ("reprojection_error", "reprojection error in pixels"),
)


def draw_reconstruction(rows: Sequence[dict[str, Any]], path: Path | str) -> None:
    """A line of three panels for each set: one bar a descriptor in its colour, published results in grey."""
    names = list(dict.fromkeys(row["set"] for row in rows))
    bars = {name: bars_of(name, [row for row in rows if row["set"] == name]) for name in names}
    with printed():
        height = sum(0.45 + 0.17 * len(of_set) for of_set in bars.values())
        figure, axes = new_figure(len(names), len(PANELS), PAGE, height)
        for line, name in enumerate(names):
            for column, (key, title) in enumerate(PANELS):
                _panel(axes[line, column], bars[name], key, column == 0)
                axes[line, column].set_title(f"{name}: {title}" if column == 0 else title, parse_math=False)
        save_figure(figure, path, dpi=DPI)


def _panel(axis: Axes, bars: Sequence[dict[str, Any]], key: str, is_rank_zero: bool) -> None:
    values = [bar[key] for bar in bars]
    axis.barh(range(len(values)), values, color=[bar["color"] for bar in bars], height=0.75)
    axis.set_yticks(range(len(values)), [bar["label"] if is_rank_zero else "" for bar in bars], parse_math=False)
    axis.invert_yaxis()
    axis.set_xlim(0, 1.2 * max(values))
    axis.spines[["top", "right"]].set_visible(False)
    for place, value in enumerate(values):
        shown = f"{value:,.0f}".replace(",", " ") if key == "points" else f"{value:.2f}"
        axis.text(value, place, f" {shown}", va="center", fontsize=SMALL)


def bars_of(name: str, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    measured = [
        {**{key: row[key] for key, _ in PANELS}, "label": row["label"], "color": colour_of(row["label"], place)}
        for place, row in enumerate(rows)
    ]
    return measured + [
        {
            "points": number(one),
            "track_length": one.track_length,
            "reprojection_error": one.reprojection_error,
            "label": one.label,
            "color": KNOWN,
        }
        for one in published(name, rows[0]["photos"])
    ]


def number(one: Published) -> float:
    """16.3K is 16 300."""
    return 1000 * float(one.points[:-1]) if one.points.endswith("K") else float(one.points)

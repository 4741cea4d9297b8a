"""Figures of the benchmarks: FPR@95, HPatches (Fig. 4), matching (Fig. 5 and MMA), reconstruction."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sdgmnet.benchmarks.hpatches import TASKS, Row, headline
from sdgmnet.benchmarks.hpatches_tasks import POOLS
from sdgmnet.benchmarks.matching import FIG5_ROWS, Results, hardest_pairs
from sdgmnet.benchmarks.matching_measures import MMA_THRESHOLDS, Draw
from sdgmnet.benchmarks.published import published
from sdgmnet.data.sequences import ImageSequence
from sdgmnet.features.images import read_gray
from sdgmnet.plots.style import (
    COLUMN,
    DPI,
    FURTHER_COLOURS,
    PAGE,
    SMALL,
    colour_of,
    marker_of,
    new_figure,
    printed,
    save_figure,
)

NOISE_COLOURS = {"easy": "#ffffff", "hard": "#9a9a9a", "tough": "#1a1a1a"}  # greys: colours are methods
FULL_POOL = str(POOLS[-1])
SUBSET_MARKERS = {"inter": "D", "intra": "o", "view": "s", "illum": "^", "unlabelled": "v", FULL_POOL: "o"}
SUBSET_NAMES = {"inter": "INTER", "intra": "INTRA", "view": "VIEWP", "illum": "ILLUM", "unlabelled": "unlabelled"}
MARK: Any = {"markersize": 3.2, "markeredgecolor": "#1a1a1a", "markeredgewidth": 0.5, "linestyle": ""}

CROSS, LINE = "#e31a1c", "#22dd22"
LEFT, TOP, GAP = 0.16, 0.15, 0.06  # inches: for the name of a row, for the title of a cell, between cells
BETWEEN = 0.03  # of the height: between the two images of a cell
NARROWEST = 1.6  # inches per cell: with more than four descriptors the figure is wider than a page

LINE_STYLES: tuple[Literal["-", "--", ":", "-."], ...] = ("-", "--", ":", "-.")  # once the colours are used up

PUBLISHED_COLOUR = "#bdbdbd"
PANELS = {
    "points": "sparse points",
    "track_length": "photos that see a point",
    "reprojection_error": "reprojection error in pixels",
}


def draw_fpr(lines: list[tuple[str, dict[str, float | None]]], path: Path | str) -> None:
    """FPR@95 as bars: a group per test set, a bar per descriptor. lines: label, fraction by test set."""
    tests = list(lines[0][1])
    figure, axes = new_figure(1, 1, 1.5 + 1.2 * len(tests) + 0.5 * len(tests) * len(lines), 4)
    axis, width = axes[0, 0], 0.8 / len(lines)
    for number, (label, scores) in enumerate(lines):
        heights = {group: 100 * score for group, test in enumerate(tests) if (score := scores[test]) is not None}
        left = [group + (number + 0.5) * width - 0.4 for group in heights]
        bars = axis.bar(left, list(heights.values()), width, label=label)
        axis.bar_label(bars, fmt="%.2f", fontsize="x-small")
    axis.set_xticks(range(len(tests)), tests)
    axis.set(ylabel="FPR@95 (%), lower is better")
    axis.legend(fontsize="small")
    save_figure(figure, path)


def draw_fig4(lines: list[tuple[str, list[Row]]], path: Path | str, note: str) -> None:
    """Fig. 4: the three tasks of HPatches, a bar per descriptor, best on top, a mark per subtask. lines: label, rows."""
    with printed():
        figure, axes = new_figure(1, len(TASKS), PAGE, 1.35 + 0.22 * len(lines))
        for axis, task in zip(axes[0], TASKS, strict=True):
            _draw_task(axis, task, lines)
        _draw_subtask_legend(figure, lines)
        figure.supxlabel("\n".join(textwrap.wrap(note, 130)), fontsize=SMALL - 1)
        save_figure(figure, path, dpi=DPI)


def _draw_subtask_legend(figure: Figure, lines: list[tuple[str, list[Row]]]) -> None:
    drawn = {row.subset for _, rows in lines for task in TASKS for row in subtasks(rows, task)}
    marks = [("s", colour, noise.upper()) for noise, colour in NOISE_COLOURS.items()]
    marks += [(SUBSET_MARKERS[subset], "#9a9a9a", name) for subset, name in SUBSET_NAMES.items() if subset in drawn]
    handles = [Line2D([], [], color=colour, marker=marker, label=label, **MARK) for marker, colour, label in marks]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), handletextpad=0.1, columnspacing=1)


def _draw_task(axis: Axes, task: str, lines: list[tuple[str, list[Row]]]) -> None:
    colours = {label: colour_of(label, number) for number, (label, _) in enumerate(lines)}
    scored = [(label, rows, score) for label, rows in lines if (score := headline(rows, task)) is not None]
    ranked = sorted(scored, key=lambda line: line[2])
    for y, (label, rows, score) in enumerate(ranked):
        axis.barh(y, 100 * score, height=0.7, color=colours[label], alpha=0.35, edgecolor=colours[label])
        for row in subtasks(rows, task):
            marker, colour = SUBSET_MARKERS[row.subset], NOISE_COLOURS[row.noise]
            axis.plot(100 * row.value, y, marker=marker, color=colour, clip_on=False, zorder=3, **MARK)
        axis.text(105, y, f"{100 * score:.2f}", va="center", fontsize=SMALL, clip_on=False)
    axis.set_yticks(range(len(ranked)), [label for label, _, _ in ranked], parse_math=False)
    axis.set(xlim=(0, 100), title=f"patch {task}" if task != "matching" else "image matching", xlabel=f"{task} mAP (%)")
    axis.grid(axis="x", linestyle=":")
    axis.set_axisbelow(True)


def subtasks(rows: list[Row], task: str) -> list[Row]:
    """The marks of Fig. 4: inter and intra, viewpoint and illumination, and retrieval in the full pool."""
    of_task = [row for row in rows if row.task == task and row.metric == "ap" and row.subset != "all"]
    return [row for row in of_task if task != "retrieval" or row.subset == FULL_POOL]


class ImagePair(NamedTuple):
    """A row of Fig. 5."""

    name: str
    images: tuple[np.ndarray, np.ndarray]  # (H, W) uint8: the reference, the other
    draws: Sequence[Draw]  # one per descriptor


def fig5_rows(results: Results, sequences: Sequence[ImageSequence]) -> list[ImagePair]:
    """The pairs that Fig. 5 shows; none if there is no pair with a correct match."""
    by_name, rows = {one.name: one for one in sequences}, []
    for row in hardest_pairs(results, FIG5_ROWS):
        scores = [pairs[row] for pairs in results.values()]
        sequence, number = by_name[scores[0].sequence], scores[0].number
        images = read_gray(sequence.reference), read_gray(sequence.others[number - 2])
        rows.append(ImagePair(f"{sequence.name} 1-{number}", images, [one.sampled.shown for one in scores]))
    return rows


def draw_fig5(labels: Sequence[str], rows: Sequence[ImagePair], path: Path | str) -> None:
    """Fig. 5: a row per pair, a column per descriptor; the reference left, the other image right.

    Red crosses are the drawn keypoints, green lines the correct matches.
    """
    page = PAGE if len(labels) > 1 else COLUMN
    width = max(NARROWEST, (page - LEFT - GAP * len(labels)) / len(labels))
    heights = [width / aspect(row.images) for row in rows]
    total_width, total_height = LEFT + len(labels) * (width + GAP), sum(heights) + len(rows) * (TOP + GAP)
    figure = Figure(figsize=(total_width, total_height))
    bottom = total_height
    text: Any = {"fontsize": SMALL, "parse_math": False}
    for row, height in zip(rows, heights, strict=True):
        bottom -= TOP + height
        middle = LEFT / 2 / total_width, (bottom + height / 2) / total_height
        figure.text(*middle, shortened(row.name, height), rotation=90, ha="center", va="center", **text)
        for number, (label, drawn) in enumerate(zip(labels, row.draws, strict=True)):
            left = LEFT + number * (width + GAP)
            box = left / total_width, bottom / total_height, width / total_width, height / total_height
            axis = figure.add_axes(box)
            _draw_cell(axis, row.images, drawn)
            count = f": {int(drawn.correct.sum())} of {len(drawn.correct)}"
            axis.set_title(shortened(label, width, len(count)) + count, pad=2, **text)
        bottom -= GAP
    save_figure(figure, path, dpi=DPI)


def shortened(text: str, inches: float, reserved: int = 0) -> str:
    """The text, cut to fit the width next to so many reserved letters."""
    letters = int(inches * 72 / (0.6 * SMALL)) - reserved
    return text if len(text) <= letters else text[: max(letters - 1, 1)] + "…"


def aspect(images: tuple[np.ndarray, np.ndarray]) -> float:
    """Width over height of both images side by side at equal height."""
    return sum(image.shape[1] / image.shape[0] for image in images) + BETWEEN


def _draw_cell(axis: Axes, images: tuple[np.ndarray, np.ndarray], drawn: Draw) -> None:
    """Both images at height 1."""
    right = images[0].shape[1] / images[0].shape[0] + BETWEEN
    for image, left in zip(images, (0.0, right), strict=True):
        extent = (left, left + image.shape[1] / image.shape[0], 1.0, 0.0)
        axis.imshow(image, cmap="gray", vmin=0, vmax=255, extent=extent, interpolation="antialiased")
    here = (drawn.keypoints + 0.5) / images[0].shape[0]
    there = (drawn.nearest[drawn.correct] + 0.5) / images[1].shape[0] + (right, 0)
    axis.scatter(here[:, 0], here[:, 1], s=6, c=CROSS, marker="+", linewidths=0.55, zorder=2)
    lines = np.stack([here[drawn.correct], there], axis=1)
    axis.add_collection(LineCollection(list(lines), colors=LINE, linewidths=0.7, zorder=3))
    axis.set(xlim=(0, aspect(images)), ylim=(1, 0), aspect="auto")
    axis.axis("off")


def draw_mma(curves: Mapping[str, Mapping[str, Sequence[float]]], path: Path | str) -> None:
    """Mean matching accuracy over the threshold: a panel per kind of sequence. curves: MMA by label and kind."""
    kinds = list(next(iter(curves.values())))
    legend_rows = -(-len(curves) // 4)
    figure, axes = new_figure(1, len(kinds), COLUMN if len(kinds) == 1 else PAGE, 2.2 + 0.18 * legend_rows)
    for number, (label, by_kind) in enumerate(curves.items()):
        style: Any = {"linewidth": 1, "markersize": 3, "markerfacecolor": "white", "markeredgewidth": 0.8}
        style |= {"color": colour_of(label, number), "marker": marker_of(label, number)}
        style |= {"linestyle": LINE_STYLES[number // len(FURTHER_COLOURS) % len(LINE_STYLES)]}
        for axis, kind in zip(axes[0], kinds, strict=True):
            axis.plot(MMA_THRESHOLDS, by_kind[kind], label=label, clip_on=False, **style)
    highest = max(max(curve) for by_kind in curves.values() for curve in by_kind.values())
    top = min(1.0, np.ceil(10 * highest + 0.1) / 10)
    for axis, kind in zip(axes[0], kinds, strict=True):
        axis.set_title(kind, fontsize=SMALL + 1)
        axis.set(xlim=(0.7, MMA_THRESHOLDS[-1] + 0.3), ylim=(0, top), xticks=MMA_THRESHOLDS)
        axis.set_xlabel("threshold (px)", fontsize=SMALL + 1)
        axis.tick_params(labelsize=SMALL)
        axis.grid(color="0.9", linewidth=0.6)
        axis.set_axisbelow(True)
    axes[0, 0].set_ylabel("mean matching accuracy", fontsize=SMALL + 1)
    columns = min(len(curves), 4 if len(kinds) > 1 else 2)
    handles = axes[0, 0].get_lines()
    legend = figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize=SMALL, frameon=False)
    for text in legend.get_texts():
        text.set_parse_math(False)
    save_figure(figure, path, dpi=DPI)


def draw_reconstruction(rows: Sequence[dict[str, Any]], path: Path | str) -> None:
    """Three panels per photo set: a bar per descriptor in its colour, published results in grey."""
    names = list(dict.fromkeys(row["set"] for row in rows))
    bars = {name: reconstruction_bars(name, [row for row in rows if row["set"] == name]) for name in names}
    with printed():
        height = sum(0.45 + 0.17 * len(of_set) for of_set in bars.values())
        figure, axes = new_figure(len(names), len(PANELS), PAGE, height)
        for line, name in enumerate(names):
            labels = [bar["label"] for bar in bars[name]]
            for axis, (key, title) in zip(axes[line], PANELS.items(), strict=True):
                is_first = axis is axes[line, 0]
                _draw_bars(axis, bars[name], key, labels if is_first else [""] * len(labels))
                axis.set_title(f"{name}: {title}" if is_first else title, parse_math=False)
        save_figure(figure, path, dpi=DPI)


def _draw_bars(axis: Axes, bars: Sequence[dict[str, Any]], key: str, labels: Sequence[str]) -> None:
    values = [bar[key] for bar in bars]
    axis.barh(range(len(values)), values, color=[bar["colour"] for bar in bars], height=0.75)
    axis.set_yticks(range(len(values)), labels, parse_math=False)
    axis.invert_yaxis()
    axis.set_xlim(0, 1.2 * max(values))
    axis.spines[["top", "right"]].set_visible(False)
    for y, value in enumerate(values):
        shown = f"{value:,.0f}".replace(",", " ") if key == "points" else f"{value:.2f}"
        axis.text(value, y, f" {shown}", va="center", fontsize=SMALL)


def reconstruction_bars(name: str, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Label, colour and the values of the panels: measured rows of a photo set, then published ones."""
    bars = [{**row, "colour": colour_of(row["label"], number)} for number, row in enumerate(rows)]
    for one in published(name, rows[0]["photos"]):
        points = 1000 * float(one.points[:-1]) if one.points.endswith("K") else float(one.points)  # 16.3K is 16 300
        bars.append({**one._asdict(), "points": points, "colour": PUBLISHED_COLOUR})
    return bars

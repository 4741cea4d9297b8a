"""Fig. 5, matches of the hardest pairs of raw pictures, and the curves of mean matching accuracy; sized for a printed page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sdgmnet.benchmarks.mutual import THRESHOLDS
from sdgmnet.benchmarks.sampled import Shown
from sdgmnet.paper.colours import FURTHER_COLOURS, colour_of, marker_of
from sdgmnet.paper.figures import new_figure, save_figure
from sdgmnet.paper.printing import COLUMN, DPI, PAGE, SMALL

CROSS, LINE = "#e31a1c", "#22dd22"
STYLES: tuple[Literal["-", "--", ":", "-."], ...] = ("-", "--", ":", "-.")  # once the colours are used up

LEFT, TOP, GAP = 0.16, 0.15, 0.06  # inches: for a row's name, for a cell's title, between cells
BETWEEN = 0.03  # of the height: between the two pictures of a cell
NARROWEST = 1.6  # inches of a cell: with more than four descriptors the figure grows beyond the page


class PairOfPictures(NamedTuple):
    """A row of Fig. 5."""

    name: str
    images: tuple[np.ndarray, np.ndarray]  # (H, W) uint8: the reference, the other
    shown: Sequence[Shown]  # one a descriptor


def draw_fig5(labels: Sequence[str], rows: Sequence[PairOfPictures], path: Path | str) -> None:
    """Fig. 5: a row a pair, a column a descriptor; the reference left, the other picture right.

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
    """Both pictures in units of their height."""
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

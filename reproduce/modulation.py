"""The modulation of losses side by side, in the manner of Fig. 2: measured by `paper.microscope`, drawn, and in a table."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from torch import nn

from reproduce.microscope import Measured, Track, hidden_below, measure_at
from sdgmnet.errors import InputError
from sdgmnet.plots import NEGATIVE, PAGE, POSITIVE, SMALL, new_figure, printed, save_print
from sdgmnet.training.angles import Angles

RIGHT = np.pi / 2
LEAST = 1e-3  # radians: an angle of 0 has no direction to move along
QUANTILES = (0.1, 0.5, 0.9)  # of the other angle, for the curves
CURVE_POINTS = 40
NOTE = "Curves: the other angle at its 10 % (dotted), 50 % (solid) and 90 % quantile (dashed).\nShadows and dots: {}."
ALONG = 200  # triplets of the run that are measured
# The authors' log of the last epoch on Liberty (PROTOCOLS.md 2.4): mean and std of θ⁺, θ⁻, θʳ.
PAPER_MOMENTS = np.array([[0.827, 0.202], [1.170, 0.081], [-0.343, 0.218]])


@dataclass(frozen=True, eq=False)
class Modulation:
    """A loss under the microscope. All derivatives are of one triplet, times the rows of the batch."""

    label: str
    theta: np.ndarray  # (G,) of the plane, radians
    plane: Measured  # (G, G): rows θ⁻, columns θ⁺; NaN where the loss does not see the negative
    curve_theta: np.ndarray  # (C,)
    over_pos: np.ndarray  # (3, C): ∂L/∂θ⁺ over θ⁺, with θ⁻ at its quantiles
    over_neg: np.ndarray  # (3, C): -∂L/∂θ⁻ over θ⁻, with θ⁺ at its quantiles
    along_theta: np.ndarray  # (2, A): θ⁺ and θ⁻ of triplets of the run; those beyond a right angle are put at it
    along: Measured  # (A,)

    @property
    def largest(self) -> float:
        """The largest derivative on the plane."""
        return float(max(np.nanmax(np.abs(self.plane.positive)), np.nanmax(np.abs(self.plane.negative))))

    @property
    def scale(self) -> float:
        """What the image takes for 1."""
        return self.largest or 1.0


def paper_angles(count: int = 4096, seed: int = 0) -> Angles:
    """Angles to look along where there is no run: normal ones with the moments of the authors' last epoch on Liberty."""
    random = np.random.default_rng(seed)
    theta = [random.normal(mean, std, count).clip(0.02, RIGHT) for mean, std in PAPER_MOMENTS[:2]]
    return Angles(theta[0], theta[1], PAPER_MOMENTS)


def evaluations(angles: Angles, grid: int) -> int:
    """How often a loss is called."""
    return grid * grid + 2 * len(QUANTILES) * CURVE_POINTS + min(ALONG, len(angles.theta_pos))


def examine(loss: nn.Module, label: str, angles: Angles, grid: int, rows: int, track: Track = iter) -> Modulation:
    """The loss, already prepared, over the plane, along curves and along the run."""
    hidden = hidden_below(loss)
    if hidden >= RIGHT * (1 - 0.5 / CURVE_POINTS):
        raise InputError(
            f"{label}: min_negative_angle = {hidden:g} hides every negative of the plane; give less than 1.5."
        )
    theta = (np.arange(grid) + 0.5) * RIGHT / grid
    curve = (np.arange(CURVE_POINTS) + 0.5) * RIGHT / CURVE_POINTS
    pos, neg = np.quantile(angles.theta_pos, QUANTILES), np.quantile(angles.theta_neg, QUANTILES)
    chosen = np.linspace(0, len(angles.theta_pos) - 1, min(ALONG, len(angles.theta_pos)), dtype=np.int64)
    along_theta = np.stack([angles.theta_pos[chosen], angles.theta_neg[chosen]]).astype(np.float64).clip(LEAST, RIGHT)
    parts = [np.meshgrid(theta, theta), np.meshgrid(curve, neg), np.meshgrid(curve, pos)[::-1], list(along_theta)]
    places = np.concatenate([np.stack([one.ravel() for one in part]) for part in parts], axis=1).clip(LEAST, RIGHT)
    found = measure_at(loss, places[0], places[1], rows, track)
    seen = np.where(places[1] > hidden, float(rows), np.nan)
    ends = np.cumsum([part[0].size for part in parts])[:-1]
    positive, negative = (np.split(side * seen, ends) for side in found)
    shape = (len(QUANTILES), CURVE_POINTS)
    return Modulation(
        label,
        theta,
        Measured(positive[0].reshape(grid, grid), negative[0].reshape(grid, grid)),
        curve,
        positive[1].reshape(shape),
        -negative[2].reshape(shape),
        along_theta,
        Measured(positive[3], negative[3]),
    )


def summary(one: Modulation) -> dict[str, float | None]:
    """Along the run: what the whole distribution makes of the modulation."""
    w_pos, w_neg = np.nan_to_num(one.along.positive), np.nan_to_num(-one.along.negative)
    relative = one.along_theta[0] - one.along_theta[1]
    silent = np.maximum(abs(w_pos), abs(w_neg)) <= 1e-6 * one.scale
    energy = len(w_pos) * (w_pos**2).sum()
    nothing = 1e-6 * one.scale * len(w_pos)  # a ratio to what rounding leaves tells nothing, nor one of pushes to pulls
    balanced = w_neg.sum() > nothing and w_pos.sum() >= 0
    return {
        "largest": one.largest,
        "power_ratio": float(w_pos.sum() / w_neg.sum()) if balanced else None,
        "without_gradient": float(silent.mean()),
        "effective_share": float(w_pos.sum() ** 2 / energy) if energy > 0 else 0.0,
        "rank_correlation": rank_correlation(relative, w_pos),
    }


def rank_correlation(x: np.ndarray, y: np.ndarray) -> float | None:
    """Spearman's, equals sharing their mean rank; None where one of them is constant."""
    ranks = [ranks_of(one) for one in (x, y)]
    if min(one.std() for one in ranks) == 0:
        return None
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def ranks_of(values: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[inverse])


HEADER = (
    "loss",
    "largest ∂L/∂θ",
    "P⁺/P⁻",
    "triplets without gradient",
    "effective share of triplets",
    "rank correlation of ∂L/∂θ⁺ with θʳ",
)


def table(modulations: Sequence[Modulation]) -> tuple[tuple[str, ...], list[list[str]]]:
    def cell(value: float | None, pattern: str) -> str:
        return "-" if value is None else format(value, pattern)

    rows = []
    for one in modulations:
        told = summary(one)
        patterns = (".4g", ".3f", ".1%", ".1%", ".2f")
        rows.append([one.label, *(cell(v, p) for v, p in zip(told.values(), patterns, strict=True))])
    return HEADER, rows


def content(modulations: Sequence[Modulation], rows: int, source: str) -> dict[str, Any]:
    """Everything the image shows, for results.json; what the loss does not see is null."""

    def plain(values: np.ndarray) -> Any:
        told = values.astype(object)
        told[~np.isfinite(values)] = None
        return told.tolist()

    return {
        "angles": source,
        "rows": rows,
        "unit": "derivative of the loss by the angle of one triplet, times the rows of the batch",
        "losses": [
            {
                "loss": one.label,
                "theta": one.theta.tolist(),
                "plane_positive": plain(one.plane.positive),
                "plane_negative": plain(one.plane.negative),
                "quantiles": QUANTILES,
                "curve_theta": one.curve_theta.tolist(),
                "curves_positive": plain(one.over_pos),
                "curves_negative": plain(-one.over_neg),
                "along_theta": one.along_theta.tolist(),
                "along_positive": plain(one.along.positive),
                "along_negative": plain(one.along.negative),
                **summary(one),
            }
            for one in modulations
        ],
    }


def draw_modulations(modulations: Sequence[Modulation], angles: Angles, source: str, stem: Path | str) -> list[Path]:
    """A row a loss: its pull over θ⁺ and push over θ⁻ with the angles' distributions, then both over the plane.

    source: whose angles these are.
    """
    with printed():
        figure, axes = new_figure(len(modulations), 4, PAGE, 0.5 + 1.45 * len(modulations))
        figure.set_layout_engine("constrained", w_pad=0.02, h_pad=0.02, wspace=0.02, hspace=0.03)
        for line, one in enumerate(modulations):
            curves = ((one.over_pos, angles.theta_pos, POSITIVE), (one.over_neg, angles.theta_neg, NEGATIVE))
            for axis, (curve, sample, colour) in zip(axes[line, :2], curves, strict=True):
                curve_panel(axis, one, curve, sample, colour)
            images = [
                heat_panel(axis, one, values)
                for axis, values in zip(axes[line, 2:], (one.plane.positive, -one.plane.negative), strict=True)
            ]
            figure.colorbar(images[0], ax=list(axes[line, 2:]), aspect=14, pad=0.02)
            axes[line, 0].set_ylabel(f"{folded(one.label)}\n(1 = {one.scale:.3g})", parse_math=False)
            axes[line, 2].set_ylabel(r"$\theta^-$", labelpad=0)
            axes[line, 3].set_yticklabels([])
        titles = (
            r"(a) $\partial L/\partial\theta^+$",
            r"(b) $-\partial L/\partial\theta^-$",
            r"(c) $\partial L/\partial\theta^+$",
            r"(d) $-\partial L/\partial\theta^-$",
        )
        for axis, title in zip(axes[0], titles, strict=True):
            axis.set_title(title)
        for axis, name in zip(axes[-1], (r"\theta^+", r"\theta^-", r"\theta^+", r"\theta^+"), strict=True):
            axis.set_xlabel(f"${name}$ (rad)")
        for axis in axes[:-1].ravel():
            axis.set_xticklabels([])
        figure.supxlabel(NOTE.format(source), fontsize=SMALL, parse_math=False)
        return save_print(figure, stem)


def folded(label: str, letters: int = 20) -> str:
    """A name beside a panel, in lines that fit its height; of a file only the file's name."""
    name = label.rpartition("/")[2]
    if len(name) > letters:
        name = name.replace(":", ": ").replace(",", ", ")
    return "\n".join(textwrap.wrap(name, letters))


def curve_panel(axis: Axes, one: Modulation, curves: np.ndarray, sample: np.ndarray, colour: str) -> None:
    shadow = axis.twinx()
    shadow.hist(sample, bins=60, range=(0, RIGHT), density=True, color=colour, alpha=0.2)
    shadow.set_yticks([])
    styles = (":", "-", "--")  # the other angle small, in the middle, large
    for curve, style in zip(curves, styles, strict=True):
        axis.plot(one.curve_theta, curve / one.scale, color=colour, linestyle=style, linewidth=1)
    lowest = min(0.0, float(np.nanmin(curves)) / one.scale)
    axis.set(xlim=(0, RIGHT), ylim=(1.05 * lowest, 1.05), xticks=(0, 0.5, 1, 1.5), yticks=(0, 0.5, 1))
    axis.set_xticklabels(["0", "0.5", "1", "1.5"])


def heat_panel(axis: Axes, one: Modulation, values: np.ndarray) -> Any:
    colours = matplotlib.colormaps["YlOrRd"].with_extremes(bad="0.85")
    scaled = values / one.scale
    lowest = min(0.0, float(np.nanmin(one.plane.positive)), -float(np.nanmax(one.plane.negative))) / one.scale
    image = axis.imshow(
        scaled,
        origin="lower",
        extent=(0, RIGHT, 0, RIGHT),
        cmap=colours,
        vmin=lowest if lowest < -1e-3 else 0,
        vmax=1,
        aspect="auto",
        interpolation="nearest",
    )
    axis.scatter(one.along_theta[0], one.along_theta[1], s=0.6, c="0.25", linewidths=0, alpha=0.6)
    hidden = np.isnan(values).all(axis=1)
    if hidden.any():
        axis.text(RIGHT / 2, one.theta[hidden].max() / 2, "not seen", ha="center", va="center", fontsize=SMALL)
    axis.set(xlim=(0, RIGHT), ylim=(0, RIGHT), xticks=(0, 0.5, 1, 1.5), yticks=(0, 0.5, 1, 1.5))
    axis.set_xticklabels(["0", "0.5", "1", "1.5"])
    return image

"""`python -m reproduce fig2 | modulation`: the modulation functions of SDGM, and those of any loss."""

import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from scipy.stats import rankdata
from torch import nn

from reproduce.arguments import Fig2Arguments, ModulationArguments
from reproduce.output import Table, both_kinds, caption_of_run
from reproduce.published import LAST_MOMENTS
from sdgmnet.errors import InputError
from sdgmnet.loss.registry import loss_by_name
from sdgmnet.metrics import skewness
from sdgmnet.plots.style import NEGATIVE, PAGE, POSITIVE, SMALL, new_figure, printed, save_print
from sdgmnet.plots.training import draw_fig2
from sdgmnet.registry import is_loss_name, own_file, parse_options
from sdgmnet.report import Section, print_aside, progress_bars
from sdgmnet.training.angles import Angles
from sdgmnet.training.config import TrainConfig
from sdgmnet.training.microscope import Measured, Track, ignored_below, measure, measure_at, prepare
from sdgmnet.training.run import build_loss

RIGHT = np.pi / 2
SMALLEST = 1e-3  # radians: an angle of 0 has no direction to move along
QUANTILES = (0.1, 0.5, 0.9)  # of the other angle, for the curves
CURVE_POINTS = 40
ALONG = 200  # triplets of the run that are measured
TICKS = (0, 0.5, 1, 1.5)
NOTE = "Curves: the other angle at its 10 % (dotted), 50 % (solid) and 90 % quantile (dashed).\nShadows and dots: {}."


def read_angles(run: Path) -> Angles:
    """The recorded angles of a finished run, at least two triplets."""
    if not run.is_dir():
        raise InputError(f"{run} is not a folder: give the folder of a finished run.")
    if not (run / "angles.npz").is_file():
        raise InputError(f"{run} has no angles.npz: the run is not finished, or the file was not copied.")
    angles = Angles.load(run / "angles.npz")
    if len(angles.theta_pos) < 2:
        raise InputError(f"{run}/angles.npz has fewer than two triplets: train longer or with larger batches.")
    return angles


def kind_of_moments(config: TrainConfig) -> str:
    """What angles.npz contains: only SDGM's loss has running moments."""
    return "its running moments" if config.loss == "sdgm" else "the moments of these triplets"


def fig2(arguments: Fig2Arguments) -> None:
    angles = read_angles(arguments.run)
    config = TrainConfig.load(arguments.run / "config.json")
    settings = {name: config.sdgm_setting(name) for name in ("margin", "self_weight", "coupled_weight")}
    margin = settings["margin"]
    would = "" if config.loss == "sdgm" else " that SDGM's loss would give"
    caption = (
        f"{caption_of_run(arguments.run)} Angles of {len(angles.theta_pos)} triplets after its last step; weights{would} by "
        f"{kind_of_moments(config)}, m = {margin:g}: {100 * angles.active_share(margin):.1f} % of these triplets are beyond "
        "the margin."
    )
    samples = {"θ⁺": angles.theta_pos, "θ⁻": angles.theta_neg, "θʳ": angles.theta_pos - angles.theta_neg}
    rows = [
        [name, *(f"{value:.4f}" for value in (*moments, sample.mean(), sample.std(ddof=1), skewness(sample)))]
        for (name, sample), moments in zip(samples.items(), angles.moments, strict=True)
    ]
    results = {
        "caption": caption,
        "run": arguments.run.resolve().name,
        "settings": settings,
        "moments": dict(zip(("theta_pos", "theta_neg", "theta_rel"), angles.moments.tolist(), strict=True)),
        **angles.summary(config),
    }
    kinds = ("running mean", "running std") if config.loss == "sdgm" else ("mean of the weights", "std of the weights")
    header = ("angle (rad)", *kinds, "mean of the triplets", "std of the triplets", "skewness")

    def draw(path: Path) -> None:
        draw_fig2(arguments.run / "angles.npz", path, *settings.values())

    section = Section("Fig. 2", caption, header, rows)
    arguments.deliver("fig2", results, [section], partial(both_kinds, draw))


def modulation(arguments: ModulationArguments) -> None:
    if not arguments.losses:
        raise InputError("name at least one loss, as in python -m reproduce modulation sdgm hardnet -o FOLDER.")
    if len(set(arguments.losses)) < len(arguments.losses):
        raise InputError("a loss is given twice: name each once.")
    if arguments.grid < 2 or arguments.pairs < 4:
        raise InputError("--grid must be at least 2 and --pairs at least 4.")
    if arguments.run is None:
        angles, source = paper_angles(), "normal angles with the moments of the authors' last epoch on Liberty"
    else:
        angles = read_angles(arguments.run)
        source = f"{len(angles.theta_pos)} triplets at the end of the run {arguments.run.resolve().name}"
    losses = [prepare(make_loss(text, arguments.run), angles, arguments.pairs) for text in arguments.losses]
    calls = arguments.grid**2 + 2 * len(QUANTILES) * CURVE_POINTS + min(ALONG, len(angles.theta_pos))
    number = f"{len(losses)} losses" if len(losses) > 1 else "1 loss"
    seconds = calls * sum(seconds_per_batch(loss, arguments.pairs) for loss in losses)
    print_aside(f"{number}, {calls} batches of {arguments.pairs} pairs each; angles: {source}; about {seconds:.0f} s.")
    found = []
    with progress_bars() as on_progress:
        for text, loss in zip(arguments.losses, losses, strict=True):
            done = count(1)

            def track(iterable: Iterable[Any], stage: str = text, done: Iterator[int] = done) -> Iterator[Any]:
                for one in iterable:
                    yield one
                    on_progress(stage, next(done), calls)

            found.append(examine(loss, text, angles, arguments.grid, arguments.pairs, track))
    caption = (
        f"Derivatives of one triplet, times the {arguments.pairs} rows of its batch; along {source}, of which "
        f"{len(found[0].along_theta[0])} are measured."
        f"{'' if arguments.run is None else f' {caption_of_run(arguments.run)}'}"
    )
    results = {"caption": caption, **content(found, arguments.pairs, source)}
    section = Section("Modulation of losses", caption, *table(found))
    arguments.deliver("modulation", results, [section], lambda stem: draw_modulations(found, angles, source, stem))


def paper_angles() -> Angles:
    """Normally distributed angles with the moments of the authors' last epoch on Liberty."""
    random = np.random.default_rng(0)
    theta = [random.normal(mean, std, 4096).clip(0.02, RIGHT) for mean, std in LAST_MOMENTS[:2]]
    return Angles(theta[0], theta[1], LAST_MOMENTS)


def make_loss(text: str, run: Path | None) -> nn.Module:
    """NAME[,OPTION=VALUE...]. Without options, the run's own loss has the options of the run."""
    name, *options = text.split(",")
    if not is_loss_name(name):
        loss_by_name(name, {})  # raises and lists the losses
    config = TrainConfig() if run is None else TrainConfig.load(run / "config.json")
    own = own_file(name)
    saved_as = name if own is None else f"{own[0].resolve()}:{own[1]}"
    if saved_as == config.loss and not options:
        return build_loss(replace(config, orthogonality=0.0))
    return loss_by_name(name, parse_options(options), {"min_negative_angle": config.loss_setting("min_negative_angle")})


def seconds_per_batch(loss: nn.Module, pairs: int) -> float:
    measure(loss, 0.8, 1.2, pairs)
    start = time.perf_counter()
    for _ in range(3):
        measure(loss, 0.8, 1.2, pairs)
    return (time.perf_counter() - start) / 3


@dataclass(frozen=True, eq=False)
class Modulation:
    """The derivatives of a loss. All are of one triplet, times the rows of the batch."""

    label: str
    theta: np.ndarray  # (G,) of the plane, radians
    plane: Measured  # (G, G): rows θ⁻, columns θ⁺; NaN where the loss ignores the negative
    curve_theta: np.ndarray  # (C,)
    over_pos: np.ndarray  # (3, C): ∂L/∂θ⁺ over θ⁺, with θ⁻ at its quantiles
    over_neg: np.ndarray  # (3, C): -∂L/∂θ⁻ over θ⁻, with θ⁺ at its quantiles
    along_theta: np.ndarray  # (2, A): θ⁺ and θ⁻ of triplets of the run, at most a right angle
    along: Measured  # (A,)

    @property
    def largest(self) -> float:
        """The largest derivative on the plane."""
        return float(max(np.nanmax(np.abs(self.plane.positive)), np.nanmax(np.abs(self.plane.negative))))

    @property
    def scale(self) -> float:
        """Drawn as 1."""
        return self.largest or 1.0


def examine(loss: nn.Module, label: str, angles: Angles, grid: int, rows: int, track: Track = iter) -> Modulation:
    """A prepared loss over the plane, along curves and along the run."""
    ignored = ignored_below(loss)
    if ignored >= RIGHT * (1 - 0.5 / CURVE_POINTS):
        raise InputError(
            f"{label}: min_negative_angle = {ignored:g} ignores every negative of the plane; give less than 1.5."
        )
    theta = (np.arange(grid) + 0.5) * RIGHT / grid
    curve = (np.arange(CURVE_POINTS) + 0.5) * RIGHT / CURVE_POINTS
    pos, neg = np.quantile(angles.theta_pos, QUANTILES), np.quantile(angles.theta_neg, QUANTILES)
    chosen = np.linspace(0, len(angles.theta_pos) - 1, min(ALONG, len(angles.theta_pos)), dtype=np.int64)
    along_theta = (
        np.stack([angles.theta_pos[chosen], angles.theta_neg[chosen]]).astype(np.float64).clip(SMALLEST, RIGHT)
    )
    parts = [np.meshgrid(theta, theta), np.meshgrid(curve, neg), np.meshgrid(curve, pos)[::-1], list(along_theta)]
    places = np.concatenate([np.stack([one.ravel() for one in part]) for part in parts], axis=1).clip(SMALLEST, RIGHT)
    found = measure_at(loss, places[0], places[1], rows, track)
    seen = np.where(places[1] > ignored, float(rows), np.nan)
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
    """Statistics of the modulation over the triplets of the run."""
    w_pos, w_neg = np.nan_to_num(one.along.positive), np.nan_to_num(-one.along.negative)
    relative = one.along_theta[0] - one.along_theta[1]
    silent = np.maximum(abs(w_pos), abs(w_neg)) <= 1e-6 * one.scale
    energy = len(w_pos) * (w_pos**2).sum()
    # A ratio to rounding errors means nothing, nor one of pushes to pulls.
    balanced = w_neg.sum() > 1e-6 * one.scale * len(w_pos) and w_pos.sum() >= 0
    return {
        "largest": one.largest,
        "power_ratio": float(w_pos.sum() / w_neg.sum()) if balanced else None,
        "without_gradient": float(silent.mean()),
        "effective_share": float(w_pos.sum() ** 2 / energy) if energy > 0 else 0.0,
        "rank_correlation": rank_correlation(relative, w_pos),
    }


def rank_correlation(x: np.ndarray, y: np.ndarray) -> float | None:
    """Spearman's, ties with their mean rank; None if one of them is constant."""
    ranks = rankdata([x, y], axis=1)
    return None if min(ranks.std(axis=1)) == 0 else float(np.corrcoef(ranks)[0, 1])


COLUMNS = {  # of `summary`: title and format
    "largest ∂L/∂θ": ".4g",
    "P⁺/P⁻": ".3f",
    "triplets without gradient": ".1%",
    "effective share of triplets": ".1%",
    "rank correlation of ∂L/∂θ⁺ with θʳ": ".2f",
}


def table(modulations: Sequence[Modulation]) -> Table:
    rows = []
    for one in modulations:
        values = zip(summary(one).values(), COLUMNS.values(), strict=True)
        rows.append([one.label, *("-" if value is None else format(value, pattern) for value, pattern in values)])
    return ["loss", *COLUMNS], rows


def content(modulations: Sequence[Modulation], rows: int, source: str) -> dict[str, Any]:
    """Everything the figure shows; null where the loss ignores the negative."""

    def plain(values: np.ndarray) -> Any:
        cells = values.astype(object)
        cells[~np.isfinite(values)] = None
        return cells.tolist()

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
    """One row per loss: its pull over θ⁺ and push over θ⁻ with the angles' distributions, then both over the plane.

    source: where the angles are from.
    """
    with printed():
        figure, axes = new_figure(len(modulations), 4, PAGE, 0.5 + 1.45 * len(modulations))
        figure.set_layout_engine("constrained", w_pad=0.02, h_pad=0.02, wspace=0.02, hspace=0.03)
        for row, one in zip(axes, modulations, strict=True):
            _curve_panel(row[0], one, one.over_pos, angles.theta_pos, POSITIVE)
            _curve_panel(row[1], one, one.over_neg, angles.theta_neg, NEGATIVE)
            image = _heat_panel(row[2], one, one.plane.positive)
            _heat_panel(row[3], one, -one.plane.negative)
            figure.colorbar(image, ax=list(row[2:]), aspect=14, pad=0.02)
            row[0].set_ylabel(f"{_wrapped(one.label)}\n(1 = {one.scale:.3g})", parse_math=False)
            row[2].set_ylabel(r"$\theta^-$", labelpad=0)
            row[3].set_yticklabels([])
        pull, push = r"$\partial L/\partial\theta^+$", r"$-\partial L/\partial\theta^-$"
        for axis, letter, title in zip(axes[0], "abcd", (pull, push, pull, push), strict=True):
            axis.set_title(f"({letter}) {title}")
        for axis, name in zip(axes[-1], (r"\theta^+", r"\theta^-", r"\theta^+", r"\theta^+"), strict=True):
            axis.set_xlabel(f"${name}$ (rad)")
        for axis in axes[:-1].ravel():
            axis.set_xticklabels([])
        figure.supxlabel(NOTE.format(source), fontsize=SMALL, parse_math=False)
        return save_print(figure, stem)


def _wrapped(label: str, letters: int = 20) -> str:
    """In lines that fit the height of a panel; only the name of a file."""
    name = label.rpartition("/")[2]
    if len(name) > letters:
        name = name.replace(":", ": ").replace(",", ", ")
    return "\n".join(textwrap.wrap(name, letters))


def _curve_panel(axis: Axes, one: Modulation, curves: np.ndarray, sample: np.ndarray, colour: str) -> None:
    shadow = axis.twinx()
    shadow.hist(sample, bins=60, range=(0, RIGHT), density=True, color=colour, alpha=0.2)
    shadow.set_yticks([])
    for curve, style in zip(curves, (":", "-", "--"), strict=True):  # by QUANTILES
        axis.plot(one.curve_theta, curve / one.scale, color=colour, linestyle=style, linewidth=1)
    lowest = min(0.0, float(np.nanmin(curves)) / one.scale)
    axis.set(xlim=(0, RIGHT), ylim=(1.05 * lowest, 1.05), xticks=TICKS, yticks=(0, 0.5, 1))
    axis.set_xticklabels([f"{tick:g}" for tick in TICKS])


def _heat_panel(axis: Axes, one: Modulation, values: np.ndarray) -> Any:
    lowest = min(0.0, float(np.nanmin(one.plane.positive)), -float(np.nanmax(one.plane.negative))) / one.scale
    image = axis.imshow(
        values / one.scale,
        origin="lower",
        extent=(0, RIGHT, 0, RIGHT),
        cmap=matplotlib.colormaps["YlOrRd"].with_extremes(bad="0.85"),
        vmin=lowest if lowest < -1e-3 else 0,
        vmax=1,
        aspect="auto",
        interpolation="nearest",
    )
    axis.scatter(one.along_theta[0], one.along_theta[1], s=0.6, c="0.25", linewidths=0, alpha=0.6)
    ignored = np.isnan(values).all(axis=1)
    if ignored.any():
        axis.text(RIGHT / 2, one.theta[ignored].max() / 2, "ignored", ha="center", va="center", fontsize=SMALL)
    axis.set(xlim=(0, RIGHT), ylim=(0, RIGHT), xticks=TICKS, yticks=TICKS)
    axis.set_xticklabels([f"{tick:g}" for tick in TICKS])
    return image

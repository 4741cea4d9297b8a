"""`python -m reproduce learning-rate | margin-share | norms`: remarks of the paper, measured."""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np

from reproduce.arguments import LearningRateArguments, MarginShareArguments, NormsArguments
from reproduce.modulation import kind_of_moments, rank_correlation, read_angles
from reproduce.output import caption_of_run, require_run
from reproduce.published import MARGIN_SHARE
from reproduce.triplets import open_patchset
from sdgmnet.encoders import load_encoder
from sdgmnet.engine import feature_lengths
from sdgmnet.errors import InputError
from sdgmnet.loss.sdgm import PAPER_POWER_PER_PAIR
from sdgmnet.options import require_options
from sdgmnet.plots.style import COLUMN, NEGATIVE, POSITIVE, RELATIVE, new_figure, printed, save_print
from sdgmnet.report import Section, print_aside, progress_bars
from sdgmnet.training.angles import Angles
from sdgmnet.training.config import TrainConfig
from sdgmnet.training.log import read_log

ORANGE = "#d55e00"


def learning_rate(arguments: LearningRateArguments) -> None:
    require_run(arguments.run)
    config = TrainConfig.load(arguments.run / "config.json")
    if not config.loss_setting("power_adjustment"):
        raise InputError(f"{arguments.run} was trained without power adjustment: no power scaled its learning rate.")
    log = arguments.run / "log.jsonl"
    rates = read_factors(read_log(log, "epoch"), str(log))
    shown = np.unique(np.linspace(0, len(rates.step) - 1, 12, dtype=np.int64))
    patterns = (".0f", ".4g", ".3f", ".3f")
    rows = [[format(column[k], pattern) for column, pattern in zip(rates, patterns, strict=True)] for k in shown]
    caption = (
        f"{caption_of_run(arguments.run)} f = P / E_t[P]: mean power of an epoch's batches over the running power at its end; "
        "equivalent learning rate = learning rate · f."
    )
    warmup_end = config.loss_setting("warmup") * config.iterations
    results = {"caption": caption, "run": arguments.run.resolve().name, "warmup_end": warmup_end}
    results |= {name: values.tolist() for name, values in rates._asdict().items()}
    header = ("iteration", "learning rate", "f of P⁺", "f of P⁻")
    section = Section("Equivalent learning rate", caption, header, rows)
    initial = config.loss_setting("initial_power") or PAPER_POWER_PER_PAIR * config.batch_size
    steps = np.arange(1, int(warmup_end) + 1)
    formula = warm_up_factor(steps, config.batch_size, initial, config.loss_setting("decay"))
    arguments.deliver("learning_rate", results, [section], partial(draw_factors, rates, warmup_end, formula))


class Factors(NamedTuple):
    """One entry per epoch."""

    step: np.ndarray
    learning_rate: np.ndarray  # of the optimiser
    factor_pos: np.ndarray  # f of P⁺: P / E[P]
    factor_neg: np.ndarray


def read_factors(epochs: Sequence[dict[str, Any]], source: str) -> Factors:
    """f(t) = P_t / E_t[P] (docs/protocols.md 2.1): mean power of the epoch's batches over the running power at its end."""
    names = ("power_pos", "power_neg", "running_power_pos", "running_power_neg")
    if not epochs or any(name not in epochs[0] for name in names):
        raise InputError(f"{source} has no powers: only runs with SDGM's loss have an equivalent learning rate.")
    power_pos, power_neg, running_pos, running_neg = (np.array([line[name] for line in epochs]) for name in names)
    step, rate = (np.array([line[name] for line in epochs], dtype=np.float64) for name in ("step", "learning_rate"))
    return Factors(step, rate, power_pos / running_pos, power_neg / running_neg)


def warm_up_factor(step: np.ndarray, pairs: float, initial: float, decay: float) -> np.ndarray:
    """While all weights are 1: f(t) = N / (N + (E₀ - N) decay^t)."""
    return np.asarray(pairs / (pairs + (initial - pairs) * decay**step))


def draw_factors(rates: Factors, warmup_end: float, formula: np.ndarray, stem: Path | str) -> list[Path]:
    """formula (T,): the expected factor after iterations 1 to T of the warm-up."""
    with printed():
        figure, axes = new_figure(2, 1, COLUMN, 3.0)
        above, below = axes[:, 0]
        for factor, colour, sign in ((rates.factor_pos, POSITIVE, "+"), (rates.factor_neg, NEGATIVE, "-")):
            above.plot(rates.step, factor, color=colour, label=f"$P^{sign}/E_t[P^{sign}]$", linewidth=1)
        expected = np.arange(1, len(formula) + 1), formula
        above.plot(*expected, color="black", linestyle=":", linewidth=1, label="formula of the warm-up")
        above.set(ylabel="factor $f(t)$", ylim=(0, 1.1 * max(rates.factor_pos.max(), rates.factor_neg.max())))
        below.plot(rates.step, rates.learning_rate, color="0.6", linestyle="--", label="of the optimiser")
        equivalent = rates.learning_rate * (rates.factor_pos + rates.factor_neg) / 2
        below.plot(rates.step, equivalent, color="black", label="equivalent", linewidth=1)
        below.set(xlabel="iteration", ylabel="learning rate", ylim=(0, None))
        for axis in (above, below):
            axis.axvline(warmup_end, color="0.8", linewidth=0.8, zorder=0)
            axis.set_xlim(0, rates.step[-1])
            axis.legend(loc="lower right" if axis is above else "upper right")
        above.text(warmup_end, 0.03, " end of warm-up", transform=above.get_xaxis_transform(), color="0.4", fontsize=7)
        above.set_xticklabels([])
        return save_print(figure, stem)


MARGINS = np.round(np.arange(0, 0.96, 0.05), 2)


def margin_share(arguments: MarginShareArguments) -> None:
    angles = read_angles(arguments.run)
    config = TrainConfig.load(arguments.run / "config.json")
    shares = margin_shares(angles)
    margin, below = MARGIN_SHARE
    rows = [
        [f"{m:g}", f"{100 * share:.1f}", f"{100 * (1 - m):.0f}", f"< {100 * below:.0f}" if m == margin else ""]
        for m, share in zip(MARGINS, shares, strict=True)
    ]
    caption = (
        f"{caption_of_run(arguments.run)} Of {len(angles.theta_pos)} triplets after its last step, by "
        f"{kind_of_moments(config)}."
    )
    results = {
        "caption": caption,
        "run": arguments.run.resolve().name,
        "margins": MARGINS.tolist(),
        "shares": shares.tolist(),
    }
    header = ("m", "beyond the margin, %", "if θʳ were normal, %", "paper, %")
    section = Section("Triplets beyond the margin", caption, header, rows)
    draw = partial(draw_margin_shares, shares, config.sdgm_setting("margin"))
    arguments.deliver("margin_share", results, [section], draw)


def margin_shares(angles: Angles) -> np.ndarray:
    """(M,) shares of triplets with θʳ > iCDF_t(m), for `MARGINS`."""
    return np.array([angles.active_share(float(margin)) for margin in MARGINS])


def draw_margin_shares(shares: np.ndarray, margin: float, stem: Path | str) -> list[Path]:
    m, below = MARGIN_SHARE
    with printed():
        figure, axes = new_figure(1, 1, COLUMN, 2.3)
        axis = axes[0, 0]
        axis.plot(MARGINS, 100 * (1 - MARGINS), color="0.6", linestyle="--", label=r"if $\theta^r$ were normal: $1-m$")
        axis.plot(MARGINS, 100 * shares, color=RELATIVE, marker="o", label="triplets of the run")
        axis.plot(m, 100 * below, "v", color=ORANGE, label=f"the paper: below, at m = {m}")
        axis.axvline(margin, color="0.8", linewidth=0.8, zorder=0)
        axis.text(margin + 0.01, 98, f"m = {margin:g}", color="0.4", fontsize=7, va="top")
        axis.set(xlabel="probabilistic margin $m$", ylabel="triplets beyond it (%)", xlim=(0, 1), ylim=(0, 102))
        axis.legend(loc="lower left")
        axis.grid(color="0.9")
        axis.set_axisbelow(True)
        return save_print(figure, stem)


def norms(arguments: NormsArguments) -> None:
    require_options(arguments, patches=4)
    patchset, encoder = open_patchset(arguments.data), load_encoder(arguments.weights)[0]
    count = min(len(patchset), arguments.patches)
    print_aside(f"Lengths of features: {count} patches of {patchset.name}.")
    patches = patchset.patches[np.linspace(0, len(patchset) - 1, count, dtype=np.int64)]
    with progress_bars():
        contrast, length = contrast_of(patches), feature_lengths(encoder, patches)
    relation = relate(contrast, length)
    interval = f"[{relation.low:.3f}, {relation.high:.3f}]"
    row = [str(count), f"{relation.correlation:.3f}", interval, f"{relation.rank_correlation:.3f}"]
    caption = (
        f"{count} patches of {patchset.name}, evenly spread; weights {Path(arguments.weights).name}; contrast is the standard "
        "deviation of the grey levels."
    )
    results = {
        "caption": caption,
        "data": patchset.name,
        "weights": arguments.weights,
        **relation._asdict(),
        "contrast": contrast.tolist(),
        "length": length.tolist(),
    }
    section = Section("‖x‖ against contrast", caption, ("patches", "r", "95 % interval", "Spearman"), [row])
    arguments.deliver("norms", results, [section], partial(draw_norms, contrast, length, relation))


class Relation(NamedTuple):
    patches: int
    correlation: float  # Pearson's
    low: float  # its 95 % interval, by Fisher's transformation
    high: float
    rank_correlation: float  # Spearman's


def relate(contrast: np.ndarray, length: np.ndarray) -> Relation:
    count = len(contrast)
    if count < 4 or contrast.std() == 0 or length.std() == 0:
        raise InputError("a correlation needs at least four patches that differ in contrast.")
    correlation = float(np.corrcoef(contrast, length)[0, 1])
    spread = 1.96 / math.sqrt(count - 3)
    middle = math.atanh(max(-1 + 1e-12, min(1 - 1e-12, correlation)))
    ranks = rank_correlation(contrast, length) or 0.0
    return Relation(count, correlation, math.tanh(middle - spread), math.tanh(middle + spread), ranks)


def contrast_of(patches: np.ndarray) -> np.ndarray:
    """(N, S, S) -> (N,): standard deviation of the grey levels."""
    return np.asarray(patches.reshape(len(patches), -1).astype(np.float64).std(axis=1))


def draw_norms(contrast: np.ndarray, length: np.ndarray, relation: Relation, stem: Path | str) -> list[Path]:
    """Density of the patches, and a line through the means of the tenths of the contrast."""
    with printed():
        figure, axes = new_figure(1, 1, COLUMN, 2.5)
        axis, colours = axes[0, 0], matplotlib.colormaps["Blues"]
        image = axis.hexbin(contrast, length, gridsize=40, bins="log", mincnt=1, cmap=colours, linewidths=0.1)
        edges = np.quantile(contrast, np.linspace(0, 1, 11))
        tenth = np.clip(np.searchsorted(edges, contrast, side="right") - 1, 0, 9)
        parts = [tenth == k for k in range(10) if (tenth == k).any()]
        x, y = ([values[part].mean() for part in parts] for values in (contrast, length))
        axis.plot(x, y, color=ORANGE, marker="o", label="mean of a tenth")
        axis.set(xlabel="contrast of the patch (std of grey levels)", ylabel=r"$\|x\|$ before normalisation")
        axis.set_title(
            f"r = {relation.correlation:.2f} [{relation.low:.2f}, {relation.high:.2f}], "
            f"Spearman {relation.rank_correlation:.2f}, {relation.patches} patches"
        )
        axis.legend(loc="lower right")
        figure.colorbar(image, ax=axis, label="patches", pad=0.02)
        return save_print(figure, stem)

"""Whether good patches have long features (Section III-A): ‖x‖ before normalisation against the contrast of the patch."""

import math
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np

from reproduce.modulation import rank_correlation
from sdgmnet.errors import InputError
from sdgmnet.plots import COLUMN, new_figure, printed, save_print


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
    ranked = rank_correlation(contrast, length)
    return Relation(count, correlation, math.tanh(middle - spread), math.tanh(middle + spread), float(ranked or 0.0))


def contrast_of(patches: np.ndarray) -> np.ndarray:
    """(N, S, S) -> (N,): standard deviation of the grey levels."""
    return np.asarray(patches.reshape(len(patches), -1).astype(np.float64).std(axis=1))


def draw_norms(contrast: np.ndarray, length: np.ndarray, relation: Relation, stem: Path | str) -> list[Path]:
    """Density of the patches; a line through the means of tenths of the contrast."""
    with printed():
        figure, axes = new_figure(1, 1, COLUMN, 2.5)
        axis = axes[0, 0]
        image = axis.hexbin(
            contrast, length, gridsize=40, bins="log", mincnt=1, cmap=matplotlib.colormaps["Blues"], linewidths=0.1
        )
        edges = np.quantile(contrast, np.linspace(0, 1, 11))
        tenth = np.clip(np.searchsorted(edges, contrast, side="right") - 1, 0, 9)
        there = [k for k in range(10) if (tenth == k).any()]
        middles = [contrast[tenth == k].mean() for k in there]
        axis.plot(
            middles, [length[tenth == k].mean() for k in there], color="#d55e00", marker="o", label="mean of a tenth"
        )
        axis.set(xlabel="contrast of the patch (std of grey levels)", ylabel=r"$\|x\|$ before normalisation")
        axis.set_title(
            f"r = {relation.correlation:.2f} [{relation.low:.2f}, {relation.high:.2f}], "
            f"Spearman {relation.rank_correlation:.2f}, {relation.patches} patches"
        )
        axis.legend(loc="lower right")
        figure.colorbar(image, ax=axis, label="patches", pad=0.02)
        return save_print(figure, stem)

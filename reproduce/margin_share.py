"""How many triplets the probabilistic margin lets into training (Section V-B): the share with θʳ > iCDF_t(m), against m."""

from pathlib import Path

import numpy as np

from sdgmnet.plots import COLUMN, RELATIVE, new_figure, printed, save_print
from sdgmnet.training.angles import Angles

MARGINS = np.round(np.arange(0, 0.96, 0.05), 2)
PAPER = (0.7, 0.3)  # "fewer than 30 % with m = 0.7"


def released(angles: Angles) -> np.ndarray:
    """(M,) shares for `MARGINS`."""
    return np.array([angles.active_share(float(margin)) for margin in MARGINS])


def draw_release(shares: np.ndarray, margin: float, stem: Path | str) -> list[Path]:
    with printed():
        figure, axes = new_figure(1, 1, COLUMN, 2.3)
        axis = axes[0, 0]
        axis.plot(MARGINS, 100 * (1 - MARGINS), color="0.6", linestyle="--", label=r"were $\theta^r$ normal: $1-m$")
        axis.plot(MARGINS, 100 * shares, color=RELATIVE, marker="o", label="triplets of the run")
        axis.plot(PAPER[0], 100 * PAPER[1], "v", color="#d55e00", label=f"the paper: below, at m = {PAPER[0]}")
        axis.axvline(margin, color="0.8", linewidth=0.8, zorder=0)
        axis.text(margin + 0.01, 98, f"m = {margin:g}", color="0.4", fontsize=7, va="top")
        axis.set(xlabel="probabilistic margin $m$", ylabel="released triplets (%)", xlim=(0, 1), ylim=(0, 102))
        axis.legend(loc="lower left")
        axis.grid(color="0.9")
        axis.set_axisbelow(True)
        return save_print(figure, stem)

"""The equivalent learning rate of Section III-E: how the running power paces the first iterations of a run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sdgmnet.errors import InputError
from sdgmnet.plots import COLUMN, NEGATIVE, POSITIVE, new_figure, printed, save_print


class Pace(NamedTuple):
    """One entry an epoch."""

    step: np.ndarray
    learning_rate: np.ndarray  # of the optimiser
    factor_pos: np.ndarray  # f of P⁺: P / E[P]
    factor_neg: np.ndarray


def read_pace(epochs: Sequence[dict[str, Any]], where: str) -> Pace:
    """f(t) = P_t / E_t[P] (PROTOCOLS.md 2.1): mean power of the epoch's batches over the running power at its end."""
    names = ("power_pos", "power_neg", "running_power_pos", "running_power_neg")
    if not epochs or any(name not in epochs[0] for name in names):
        raise InputError(f"{where} records no powers: only runs with SDGM's loss have an equivalent learning rate.")
    power_pos, power_neg, running_pos, running_neg = (np.array([line[name] for line in epochs]) for name in names)
    step, rate = (np.array([line[name] for line in epochs], dtype=np.float64) for name in ("step", "learning_rate"))
    return Pace(step, rate, power_pos / running_pos, power_neg / running_neg)


def warm_up_factor(step: np.ndarray, pairs: float, initial: float, decay: float) -> np.ndarray:
    """While all weights are 1: f(t) = N / (N + (E₀ - N) decay^t)."""
    return np.asarray(pairs / (pairs + (initial - pairs) * decay**step))


def draw_pace(pace: Pace, warmup_end: float, formula: np.ndarray, stem: Path | str) -> list[Path]:
    """formula (T,): the factor after iterations 1 to T of the warm-up, as it must be."""
    with printed():
        figure, axes = new_figure(2, 1, COLUMN, 3.0)
        above, below = axes[:, 0]
        for factor, colour, name in ((pace.factor_pos, POSITIVE, "+"), (pace.factor_neg, NEGATIVE, "-")):
            above.plot(pace.step, factor, color=colour, label=f"$P^{name}/E_t[P^{name}]$", linewidth=1)
        expected = np.arange(1, len(formula) + 1), formula
        above.plot(*expected, color="black", linestyle=":", linewidth=1, label="formula of the warm-up")
        above.set(ylabel="factor $f(t)$", ylim=(0, 1.1 * max(pace.factor_pos.max(), pace.factor_neg.max())))
        below.plot(pace.step, pace.learning_rate, color="0.6", linestyle="--", label="of the optimiser")
        equivalent = pace.learning_rate * (pace.factor_pos + pace.factor_neg) / 2
        below.plot(pace.step, equivalent, color="black", label="equivalent", linewidth=1)
        below.set(xlabel="iteration", ylabel="learning rate", ylim=(0, None))
        for axis in (above, below):
            axis.axvline(warmup_end, color="0.8", linewidth=0.8, zorder=0)
            axis.set_xlim(0, pace.step[-1])
            axis.legend(loc="lower right" if axis is above else "upper right")
        above.text(warmup_end, 0.03, " end of warm-up", transform=above.get_xaxis_transform(), color="0.4", fontsize=7)
        above.set_xticklabels([])
        return save_print(figure, stem)

"""The tab Understand: Fig. 2 of the paper for any statistics, and the powers that they give."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from sdgmnet.errors import InputError
from sdgmnet.loss.registry import loss_by_name
from sdgmnet.loss.weights import COUPLED_WEIGHTS, SELF_WEIGHTS, coupled_weight
from sdgmnet.plots.style import NEGATIVE, POSITIVE, RELATIVE, new_figure
from sdgmnet.plots.training import draw_weight, draw_weight_product
from sdgmnet.training.angles import Angles
from sdgmnet.training.microscope import measure_at, prepare

BATCH = 1024  # the paper's
QUANTILES = 128  # per angle, of the distribution that the powers are computed from
ROWS = 16  # of the batches in which other losses are measured
MEASURED = 80  # angles at which they are
MEANS_AGREE = 0.01  # radians; the logged means are rounded, and running means of different batches


@dataclass(frozen=True)
class Modulation:
    """Running statistics in radians, and options of the loss. The defaults are those of the paper, epoch 190 on Liberty."""

    pos_mean: float = 0.82655
    pos_std: float = 0.20213
    neg_mean: float = 1.16994
    neg_std: float = 0.08138
    rel_mean: float = -0.34339
    rel_std: float = 0.21852
    margin: float = 0.6
    alpha: float = 0.9
    self_weight: str = "auto-focus"
    coupled_weight: str = "cdf"

    def __post_init__(self) -> None:
        if not (torch.isfinite(self.moments).all() and np.isfinite([self.margin, self.alpha]).all()):
            raise InputError("the statistics must be finite numbers.")
        if min(self.pos_std, self.neg_std, self.rel_std) <= 0 or self.alpha <= 0:
            raise InputError("standard deviations and alpha must be positive.")
        if not 0 <= self.margin < 1:
            raise InputError(f"the margin must lie in [0, 1), not {self.margin}.")
        if self.self_weight not in SELF_WEIGHTS or self.coupled_weight not in COUPLED_WEIGHTS:
            raise InputError(
                f"choose a self weight from {', '.join(SELF_WEIGHTS)} and a coupled weight from {', '.join(COUPLED_WEIGHTS)}."
            )

    @property
    def moments(self) -> Tensor:
        """(3, 2): rows θ⁺, θ⁻, θʳ; columns mean, std."""
        rows = [(self.pos_mean, self.pos_std), (self.neg_mean, self.neg_std), (self.rel_mean, self.rel_std)]
        return torch.tensor(rows, dtype=torch.float64)

    @property
    def implied_correlation(self) -> float:
        """Of θ⁺ and θ⁻, from the three standard deviations: that of θʳ = θ⁺ − θ⁻ depends on it. Beyond ±1: impossible."""
        shared = self.pos_std**2 + self.neg_std**2 - self.rel_std**2
        return shared / (2 * self.pos_std * self.neg_std)

    @property
    def correlation(self) -> float:
        """The nearest possible one."""
        return float(np.clip(self.implied_correlation, -1, 1))

    @property
    def contradictions(self) -> list[str]:
        """Why no angles have these statistics; empty if some do."""
        found = []
        if abs(self.implied_correlation) > 1:
            low, high = abs(self.pos_std - self.neg_std), self.pos_std + self.neg_std
            found.append(f"the standard deviation of θʳ must lie between {low:.3f} and {high:.3f}")
        if abs(self.rel_mean - (self.pos_mean - self.neg_mean)) > MEANS_AGREE:
            found.append(f"the mean of θʳ must be that of θ⁺ less that of θ⁻, {self.pos_mean - self.neg_mean:.3f}")
        return found


class Logged(NamedTuple):
    """Of one epoch: mean and std of θ⁺, of θ⁻ and of θʳ, and the powers of batches of 1024 pairs."""

    pos_mean: float
    pos_std: float
    neg_mean: float
    neg_std: float
    rel_mean: float
    rel_std: float
    power_pos: float
    power_neg: float


# Means over the batches of an epoch, from the training logs published with the authors' code; Tables 2-4 print nearly these.
PRESETS = {
    "Liberty, epoch 20 of 200": Logged(0.84858, 0.23989, 1.15796, 0.08012, -0.30938, 0.25237, 277.48, 297.51),
    "Liberty, epoch 190 (Table 2)": Logged(0.82655, 0.20213, 1.16994, 0.08138, -0.34339, 0.21852, 279.16, 293.66),
    "Notredame, epoch 190 (Table 3)": Logged(0.80072, 0.19388, 1.16980, 0.08614, -0.36908, 0.21249, 280.85, 293.90),
    "Yosemite, epoch 190 (Table 4)": Logged(0.78365, 0.21870, 1.19430, 0.06970, -0.41066, 0.23089, 278.63, 296.54),
}


class Powers(NamedTuple):
    """What a batch of 1024 triplets has on average."""

    positive: float  # P⁺, the sum of w⁺
    negative: float  # P⁻
    active_share: float  # of the triplets: w_c > 0


def sample(modulation: Modulation) -> tuple[Tensor, Tensor]:
    """θ⁺ and θ⁻ (M,) of a bivariate normal distribution with the means, stds and correlation: quantiles, nothing random."""
    normal = torch.special.ndtri((torch.arange(QUANTILES, dtype=torch.float64) + 0.5) / QUANTILES)
    first, second = (one.flatten() for one in torch.meshgrid(normal, normal, indexing="ij"))
    along = modulation.correlation
    theta_pos = modulation.pos_mean + modulation.pos_std * first
    theta_neg = modulation.neg_mean + modulation.neg_std * (along * first + (1 - along**2) ** 0.5 * second)
    return theta_pos, theta_neg


def powers(modulation: Modulation) -> Powers:
    """P⁺ and P⁻ of Eq. (12), if the angles are normal."""
    pos, neg, rel = modulation.moments
    theta_pos, theta_neg = sample(modulation)
    own = SELF_WEIGHTS[modulation.self_weight]
    theta_rel = theta_pos - theta_neg
    w_coupled = coupled_weight(theta_rel, rel[0], rel[1], modulation.margin, modulation.coupled_weight)
    w_pos, w_neg = own(theta_pos, pos[0], pos[1]) * w_coupled, own(theta_neg, neg[0], neg[1]) * w_coupled
    means = (one.mean().item() for one in (w_pos, w_neg, (w_coupled > 0).double()))
    positive, negative, active = means
    return Powers(BATCH * positive, BATCH * negative, active)


def panels(modulation: Modulation, other: str | None = None) -> dict[str, Figure]:
    """Description -> figure: the four of Fig. 2, the gradient of both angles, that of another loss, and the powers."""
    pos, neg, rel = modulation.moments
    theta_pos, theta_neg = sample(modulation)
    theta = torch.linspace(0, np.pi / 2, 300, dtype=torch.float64)
    relative = torch.linspace(-np.pi / 2, np.pi / 4, 300, dtype=torch.float64)
    own = SELF_WEIGHTS[modulation.self_weight]
    margin, coupled_kind = modulation.margin, modulation.coupled_weight
    w_pos, w_neg = own(theta, pos[0], pos[1]), own(theta, neg[0], neg[1])
    w_rel = coupled_weight(relative, rel[0], rel[1], margin, coupled_kind)
    curves = {
        "self weight of the positive": (theta, w_pos, theta_pos, r"\theta^+", r"$w_s^+$", POSITIVE),
        "self weight of the negative": (theta, w_neg, theta_neg, r"\theta^-", r"$w_s^-$", NEGATIVE),
        "coupled weight": (relative, w_rel, theta_pos - theta_neg, r"\theta^r", f"$w_c$, m = {margin:g}", RELATIVE),
    }
    found = {}
    for name, (x, weight, angles, x_name, title, color) in curves.items():
        figure, axis = new_panel()
        draw_weight(axis, x, weight, angles.numpy(), x_name, title, color)
        found[name] = figure
    figure, axis = new_panel()
    draw_weight_product(axis, theta, w_pos, w_neg, rel, margin, coupled_kind)
    axis.set(title=r"$w_s^+ w_s^- w_c$")
    found["product of the weights"] = figure
    names = (r"$\alpha w^+ / P^+$ over $\theta^+$", r"$w^- / P^-$ over $\theta^-$")
    found["gradient"] = draw_gradients(sdgm_gradients(modulation, theta), theta, "gradient of one triplet", names)
    if other is not None:
        some = torch.linspace(0.02, np.pi / 2, MEASURED, dtype=torch.float64)
        gradients = measured_gradients(modulation, other, some)
        names = (r"pull over $\theta^+$", r"push over $\theta^-$")
        found[f"gradient of {other}"] = draw_gradients(gradients, some, f"gradient of one triplet, {other}", names)
    found["powers"] = draw_powers(modulation)
    return found


def new_panel() -> tuple[Figure, Axes]:
    figure, axes = new_figure(1, 1, 3.8, 2.7)
    return figure, axes[0, 0]


class Gradients(NamedTuple):
    """How strongly one triplet of a batch of 1024 pulls its positive and pushes its negative, the other angle at its mean."""

    pull: np.ndarray  # (M,) over θ⁺
    push: np.ndarray  # (M,) over θ⁻


def sdgm_gradients(modulation: Modulation, theta: Tensor) -> Gradients:
    """Eq. (13)."""
    pos, neg, rel = modulation.moments
    own, found = SELF_WEIGHTS[modulation.self_weight], powers(modulation)

    def coupled(theta_rel: Tensor) -> Tensor:
        return coupled_weight(theta_rel, rel[0], rel[1], modulation.margin, modulation.coupled_weight)

    # No triplet is active only where both powers are 0, and then so are the weights.
    pull = modulation.alpha * own(theta, pos[0], pos[1]) * coupled(theta - neg[0]) / max(found.positive, 1e-12)
    push = own(theta, neg[0], neg[1]) * coupled(pos[0] - theta) / max(found.negative, 1e-12)
    return Gradients(pull.numpy(), push.numpy())


def measured_gradients(modulation: Modulation, name: str, theta: Tensor) -> Gradients:
    """Of any loss of the package with its default options, by autograd, after training on these angles."""
    pos, neg = (one.numpy() for one in sample(modulation))
    loss = prepare(loss_by_name(name, {}), Angles(pos, neg, modulation.moments.numpy()), ROWS)
    angles = theta.numpy()
    pull = measure_at(loss, angles, np.full(len(angles), modulation.neg_mean), ROWS).positive
    push = -measure_at(loss, np.full(len(angles), modulation.pos_mean), angles, ROWS).negative
    return Gradients(pull * ROWS / BATCH, push * ROWS / BATCH)


def draw_gradients(found: Gradients, theta: Tensor, title: str, labels: tuple[str, str]) -> Figure:
    figure, axis = new_panel()
    axis.plot(theta.numpy(), 1000 * found.pull, color=POSITIVE, label=labels[0])
    axis.plot(theta.numpy(), 1000 * found.push, "--", color=NEGATIVE, label=labels[1])
    axis.set(xlabel="angle (rad)", ylabel="gradient × 1000", title=title)
    axis.legend(fontsize="x-small")
    return figure


def draw_powers(modulation: Modulation) -> Figure:
    """P⁺ and P⁻: before and after the power adjustment, which makes them α and 1."""
    found = powers(modulation)
    figure, axis = new_panel()
    bars = axis.barh([r"$P^-$", r"$P^+$"], [found.negative, found.positive], color=[NEGATIVE, POSITIVE], alpha=0.7)
    adjusted = ("1", f"α = {modulation.alpha:g}")
    texts = [
        f" {power:.0f}, adjusted to {to}" for power, to in zip((found.negative, found.positive), adjusted, strict=True)
    ]
    axis.bar_label(bars, texts, padding=2, fontsize="small")
    axis.set(title=f"powers of {BATCH} triplets", xlim=(0, 2.4 * max(found.positive, found.negative, 1.0)))
    return figure


def summary(modulation: Modulation, preset: str | None) -> str:
    """The powers in words, with those of the authors' log where a preset was chosen."""
    found = powers(modulation)
    ratio = f", P⁺/P⁻ = {found.positive / found.negative:.3f}" if found.negative > 0 else ""
    text = (
        f"P⁺ = {found.positive:.1f}, P⁻ = {found.negative:.1f}{ratio}; "
        f"{found.active_share:.0%} of the triplets have w<sub>c</sub> > 0. "
        f"The three standard deviations imply a correlation of θ⁺ and θ⁻ of {modulation.correlation:.2f}."
    )
    if modulation.contradictions:
        text += f" **No angles have these statistics:** {'; '.join(modulation.contradictions)}."
    if preset in PRESETS:
        logged = PRESETS[preset]
        text += f" The authors' log of {preset} has P⁺ = {logged.power_pos} and P⁻ = {logged.power_neg}, with m = 0.6."
    return text

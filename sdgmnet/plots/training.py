"""Figures of a training run: its curves, and the paper's Fig. 2 of weights over angles."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.ticker
import numpy as np
import torch
from matplotlib.axes import Axes

from sdgmnet.loss.weights import SELF_WEIGHTS, coupled_weight
from sdgmnet.plots.style import COLUMN, DPI, NEGATIVE, POSITIVE, RELATIVE, new_figure, printed, save_figure
from sdgmnet.training.angles import Angles
from sdgmnet.training.log import read_log

WIDTHS = {2: 9.5, 3: 14.0}  # inches, by the number of curves


def draw_training(log_path: Path | str, path: Path | str, references: dict[str, float] | None = None) -> None:
    """FPR@95 on held-out pairs, with horizontal lines for the references; then angles and powers, or the loss.

    A loss without running statistics (any but SDGM) is drawn by its value.
    """
    curves = training_curves(log_path, references)
    figure, axes = new_figure(1, len(curves), WIDTHS[len(curves)], 3.6)
    for axis, draw in zip(axes[0], curves.values(), strict=True):
        draw(axis)
    save_figure(figure, path)


def training_curves(
    log_path: Path | str, references: dict[str, float] | None = None
) -> dict[str, Callable[[Axes], None]]:
    """The parts of `draw_training`: description -> what draws it."""
    epochs, evaluations = read_log(log_path, "epoch"), read_log(log_path, "evaluation")
    curves: dict[str, Callable[[Axes], None]] = {
        "FPR@95 on held-out pairs": lambda axis: _draw_fpr_curves(axis, evaluations, references or {})
    }
    if epochs and "running_theta_pos_mean" in epochs[0]:
        curves["angles"] = lambda axis: _draw_angles(axis, epochs)
        curves["powers"] = lambda axis: _draw_powers(axis, epochs)
    else:
        curves["loss"] = lambda axis: _draw_loss(axis, epochs)
    return curves


def _draw_fpr_curves(axis: Axes, evaluations: list[dict[str, Any]], references: dict[str, float]) -> None:
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


def _draw_loss(axis: Axes, epochs: list[dict[str, Any]]) -> None:
    axis.plot([line["step"] for line in epochs], [line["loss"] for line in epochs])
    axis.set(xlabel="iteration", ylabel="loss", title="loss of the batches")


def _draw_angles(axis: Axes, epochs: list[dict[str, Any]]) -> None:
    step = [line["step"] for line in epochs]
    for name, label, color in (("theta_pos", r"$\theta^+$", POSITIVE), ("theta_neg", r"$\theta^-$", NEGATIVE)):
        mean = np.array([line[f"running_{name}_mean"] for line in epochs])
        std = np.array([line[f"running_{name}_std"] for line in epochs])
        axis.plot(step, mean, color=color, label=label)
        axis.fill_between(step, mean - std, mean + std, color=color, alpha=0.15, linewidth=0)
    axis.set(xlabel="iteration", ylabel="radians", title="running mean and std of the angles")
    axis.legend()


def _draw_powers(axis: Axes, epochs: list[dict[str, Any]]) -> None:
    step = [line["step"] for line in epochs]
    for name, label, color in (("power_pos", r"$P^+$", POSITIVE), ("power_neg", r"$P^-$", NEGATIVE)):
        running = [line[f"running_{name}"] for line in epochs]
        axis.plot(step, [line[name] for line in epochs], color=color, label=f"{label} of the batches")
        axis.plot(step, running, color=color, linestyle="--", label=f"running {label}")
    axis.set(xlabel="iteration", ylabel="power", title="powers", yscale="log")
    axis.legend(fontsize="small")


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
        draw_weight(axes[0, 0], theta, w_pos, angles.theta_pos, r"\theta^+", r"(a) $w_s^+$", POSITIVE)
        draw_weight(axes[0, 1], theta, w_neg, angles.theta_neg, r"\theta^-", r"(b) $w_s^-$", NEGATIVE)
        draw_weight(axes[1, 0], relative, w_rel, theta_rel, r"\theta^r", f"(c) m = {margin:g}, $w_c$", RELATIVE)
        draw_weight_product(axes[1, 1], theta, w_pos, w_neg, rel, margin, coupled_kind)
        axes[1, 1].set(title=r"(d) $w_s^+ w_s^- w_c$")
        save_figure(figure, path, dpi=DPI)


def draw_weight(
    axis: Axes, x: torch.Tensor, weight: torch.Tensor, sample: np.ndarray, x_name: str, title: str, color: str
) -> None:
    """The weight as a curve over the histogram of the sampled angles."""
    first, last = float(x[0]), float(x[-1])
    density = axis.twinx()
    density.hist(sample, bins=60, range=(first, last), density=True, color=color, alpha=0.2)
    density.set_yticks([])
    axis.plot(x.numpy(), weight.numpy(), color=color)
    axis.set(xlim=(first, last), ylim=(0, 1.05), xlabel=f"${x_name}$ (rad)", title=title)


def draw_weight_product(
    axis: Axes,
    theta: torch.Tensor,
    w_pos: torch.Tensor,
    w_neg: torch.Tensor,
    relative_moments: torch.Tensor,
    margin: float,
    coupled_kind: str,
) -> None:
    """Heat map of the product of all three weights; the self weights are given at the angles `theta`."""
    relative = theta[None, :] - theta[:, None]  # columns θ⁺, rows θ⁻
    coupled = coupled_weight(relative, relative_moments[0], relative_moments[1], margin, coupled_kind)
    product, side = w_neg[:, None] * w_pos[None, :] * coupled, float(theta[-1])
    heat = axis.imshow(product.numpy(), origin="lower", extent=(0.0, side, 0.0, side), cmap="YlOrRd", aspect="auto")
    axis.set(xlabel=r"$\theta^+$ (rad)", ylabel=r"$\theta^-$ (rad)")
    axis.figure.colorbar(heat, ax=axis)

"""Weights of the gradient of each pair and triplet: pure functions of angles and statistics."""

import math

import torch
from torch import Tensor

BLUR = math.pi / 6  # lower bound of the blur radius in Eqs. (9)-(10)


def self_weight(theta: Tensor, mean: Tensor, std: Tensor, blur: float = BLUR) -> Tensor:
    r"""Auto-focus modulation, Eqs. (9)-(10): how statistically common an angle is.

    .. math:: w_s(\theta) = \exp(-(\theta - E_t[\theta])^2 / (2 (\pi/6 + Std_t[\theta])^2))

    theta (N,) in radians; mean, std scalars; returns (N,) in (0, 1].
    """
    return torch.exp(-((theta - mean) ** 2) / (2 * (blur + std) ** 2))


def angle_self_weight(theta: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """&θ of the ablation, Eq. (5) without 1/‖x‖: the gradient of the angle has the same norm everywhere."""
    return torch.ones_like(theta)


def cosine_self_weight(theta: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    r"""&s of the ablation, Eq. (6) without 1/‖x‖: :math:`\sqrt{1-s^2} = \sin\theta`."""
    return torch.sin(theta)


def l2_self_weight(theta: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    r"""&l₂ of the ablation, Eq. (7) without 1/‖x‖: :math:`\sqrt{4l^2-l^4}/(2l) = \cos(\theta/2)`."""
    return torch.cos(theta / 2)


SELF_WEIGHTS = {
    "auto-focus": self_weight,
    "angle": angle_self_weight,
    "cosine": cosine_self_weight,
    "l2": l2_self_weight,
}
COUPLED_WEIGHTS = ("cdf", "step")


def coupled_weight(theta_rel: Tensor, mean: Tensor, std: Tensor, margin: float, kind: str = "cdf") -> Tensor:
    r"""Probabilistic margin, Eq. (11): the easiest share `margin` of the triplets gets 0, harder ones their CDF.

    .. math:: w_c(\theta^r) = \mathrm{CDF}_t(\theta^r)\ \text{if}\ \theta^r > \mathrm{iCDF}_t(m)\ \text{else}\ 0

    under a normal distribution with the running mean and std of θʳ. theta_rel (N,) in radians; returns (N,) in [0, 1].
    kind "step" is the published code's variant: 1 where θʳ ≥ iCDF(m), else 0.
    """
    z = (theta_rel - mean) / std.clamp_min(1e-12)
    border = torch.special.ndtri(torch.tensor(margin, dtype=torch.float64)).item()
    if kind == "step":
        return (z >= border).to(theta_rel.dtype)
    return torch.where(z > border, torch.special.ndtr(z), 0)

r"""Unit descriptors on the hypersphere: the three metrics of Eqs. (3)-(4) and the size of their gradients, Eqs. (5)-(7).

All functions take rows of unit length, (..., D), and return (...,). In the backward pass each metric is a function of the
cosine alone, so the gradient for `a` is a multiple of `b`; the part of it along `a` vanishes in the normalisation that made
`a` a unit vector, which leaves exactly Eqs. (5)-(7).
"""

import torch
from torch import Tensor

# Nearer than this to 0 or pi, 1 - cos is written as half a squared distance: the plain inner product loses digits there.
_CLOSE = 0.05


def cosine(a: Tensor, b: Tensor) -> Tensor:
    r"""Inner product s of Eq. (4), exact to rounding of :math:`1 \mp s` even where the vectors nearly coincide or oppose."""
    difference, total = a - b, a + b
    squared_gap, squared_sum = difference.square().sum(-1), total.square().sum(-1)
    plain = (a * b).sum(-1)
    near_opposite = torch.where(squared_sum < _CLOSE**2, 0.5 * squared_sum - 1, plain)
    return torch.where(squared_gap < _CLOSE**2, 1 - 0.5 * squared_gap, near_opposite)


def l2_distance(a: Tensor, b: Tensor) -> Tensor:
    r"""Euclidean distance l of Eq. (4) for unit rows: :math:`l = \sqrt{2 - 2s}`; gradient 0 where the rows coincide."""
    distance = torch.linalg.vector_norm((a - b).detach(), dim=-1)
    return _follow_cosine(distance, torch.where(distance > 0, -1 / distance, 0), a, b)


def angle(a: Tensor, b: Tensor) -> Tensor:
    r"""Included angle θ of Eq. (3), in radians.

    The value is :math:`2\,\mathrm{atan2}(\|a-b\|, \|a+b\|)`, which keeps all digits where the arc cosine loses half of
    them. The gradient is that of the arc cosine, :math:`-\partial s / \sin\theta`, and 0 exactly at θ = 0 and θ = π.
    """
    gap = torch.linalg.vector_norm((a - b).detach(), dim=-1)
    total = torch.linalg.vector_norm((a + b).detach(), dim=-1)
    sine = 0.5 * gap * total
    return _follow_cosine(2 * torch.atan2(gap, total), torch.where(sine > 0, -1 / sine, 0), a, b)


def _follow_cosine(value: Tensor, slope: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """`value` as a constant, made to vary with the cosine of a and b by `slope` in the backward pass."""
    s = cosine(a, b)
    return value + slope * (s - s.detach())


def angle_gradient_norm(x_norm: Tensor) -> Tensor:
    r"""Eq. (5): :math:`\|\partial\theta/\partial x\| = 1/\|x\|`, the same for every angle."""
    return 1 / x_norm


def cosine_gradient_norm(s: Tensor, x_norm: Tensor) -> Tensor:
    r"""Eq. (6): :math:`\|\partial s/\partial x\| = \sqrt{1-s^2}/\|x\|`."""
    return (1 - s.square()).clamp_min(0).sqrt() / x_norm


def l2_gradient_norm(distance: Tensor, x_norm: Tensor) -> Tensor:
    r"""Eq. (7): :math:`\|\partial l/\partial x\| = \sqrt{4l^2-l^4}/(2l\|x\|)`, written without the division by l."""
    return (1 - 0.25 * distance.square()).clamp_min(0).sqrt() / x_norm

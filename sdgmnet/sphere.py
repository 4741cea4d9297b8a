r"""Unit descriptors on the hypersphere: the three metrics of Eqs. (3)-(4), and the norms of their gradients, Eqs. (5)-(7).

All functions take rows of unit length, (..., D), and return (...,). In the backward pass each metric is a function of the
cosine alone, so the gradient for `a` is a multiple of `b`; the part of it along `a` vanishes in the normalisation that made
`a` a unit vector, which leaves exactly Eqs. (5)-(7).
"""

from typing import Any

import torch
from torch import Tensor

# Distance to 0 or pi below which the gradient is computed from a - b or a + b: a multiple of b alone would lose digits.
_CLOSE = 0.05


def cosine(a: Tensor, b: Tensor) -> Tensor:
    r"""Inner product s of Eq. (4)."""
    gap, total = _gap_and_sum(a, b)
    return _FunctionOfCosine.apply(a, b, (a * b).sum(-1).detach(), torch.ones_like(gap), _correction(gap, total))


def l2_distance(a: Tensor, b: Tensor) -> Tensor:
    r"""Euclidean distance l of Eq. (4) for unit rows: :math:`l = \sqrt{2 - 2s}`; gradient 0 where the rows coincide."""
    gap, total = _gap_and_sum(a, b)
    slope = torch.where(gap > 0, -1 / gap, 0)
    return _FunctionOfCosine.apply(a, b, gap, slope, _correction(gap, total))


def angle(a: Tensor, b: Tensor) -> Tensor:
    r"""Included angle θ of Eq. (3), in radians.

    The value is :math:`2\,\mathrm{atan2}(\|a-b\|, \|a+b\|)`, which keeps all digits where the arc cosine loses half of
    them. The gradient is that of the arc cosine, :math:`-\partial s / \sin\theta`, and 0 exactly at θ = 0 and θ = π.
    """
    gap, total = _gap_and_sum(a, b)
    sine = 0.5 * gap * total
    slope = torch.where(sine > 0, -1 / sine, 0)
    return _FunctionOfCosine.apply(a, b, 2 * torch.atan2(gap, total), slope, _correction(gap, total))


@torch.no_grad()
def _gap_and_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return torch.linalg.vector_norm(a - b, dim=-1), torch.linalg.vector_norm(a + b, dim=-1)


def _correction(gap: Tensor, total: Tensor) -> Tensor:
    """How much of `a` to subtract from the gradient `b`: 1 near 0, -1 near pi, 0 elsewhere.

    The part along a vanishes in the normalisation of a; subtracted before, it costs the rest no digits.
    """
    return (gap < _CLOSE).to(gap.dtype) - (total < _CLOSE).to(gap.dtype)


class _FunctionOfCosine(torch.autograd.Function):
    """The given `value` as a function of a · b with derivative `slope`."""

    @staticmethod
    def forward(a: Tensor, b: Tensor, value: Tensor, slope: Tensor, correction: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:  # torch.func needs it apart
        a, b, _, slope, correction = inputs
        ctx.save_for_backward(a, b, slope, correction)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        a, b, slope, correction = ctx.saved_tensors
        weight = (upstream * slope)[..., None]
        off = weight * correction[..., None]
        return weight * b - off * a, weight * a - off * b, None, None, None


def angle_gradient_norm(x_norm: Tensor) -> Tensor:
    r"""Eq. (5): :math:`\|\partial\theta/\partial x\| = 1/\|x\|`, the same for every angle."""
    return 1 / x_norm


def cosine_gradient_norm(s: Tensor, x_norm: Tensor) -> Tensor:
    r"""Eq. (6): :math:`\|\partial s/\partial x\| = \sqrt{1-s^2}/\|x\|`."""
    return (1 - s.square()).clamp_min(0).sqrt() / x_norm


def l2_gradient_norm(distance: Tensor, x_norm: Tensor) -> Tensor:
    r"""Eq. (7): :math:`\|\partial l/\partial x\| = \sqrt{4l^2-l^4}/(2l\|x\|)`, written without the division by l."""
    return (1 - 0.25 * distance.square()).clamp_min(0).sqrt() / x_norm

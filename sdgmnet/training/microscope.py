r"""What a loss does to angles: ∂L/∂θ⁺ and ∂L/∂θ⁻ of one triplet, measured by autograd on any loss of the package.

The batch. One triplet (row 2) has the given angles; everything else is as far away as possible. All descriptors form one
walk, in which each step turns by its angle into a new dimension:

    a₀ -π/2- p₀ -(θ⁻-δ)- a₁ -θ⁺- p₁ -θ⁻- a₂ -θ⁺- p₂ -π/2- a₃ -π/2- p₃ ...

The cosine of two descriptors that are not neighbours in the walk is the product of the cosines between them, so they are
farther apart: the nearest negative of a₂ is p₁, at θ⁻. The row of p₁ is in the same situation as row 2, which matters for
losses that mine in both directions, but does not mine back: row 0 is nearer to it by δ = 1e-6 rad. Rows from 3 on are
orthogonal to all others. TFeat's negative, the positive of the row before, is p₁ as well.

The derivative. The descriptors are linearly independent, so each of their inner products can be changed alone: p₂ is moved
along the tangent v with v·a₂ = -sin θ⁺ and v·x = 0 for every other x, which changes θ⁺ at rate 1 and no other angle.
∂L/∂θ⁺ is the gradient at p₂ times v; the same with p₁, a₂ and θ⁻. For a loss of angles this is exactly the partial derivative,
whatever else the loss depends on. Features before normalisation and maps are given as constants.
"""

import math
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from sdgmnet.errors import InputError
from sdgmnet.loss import CDFLoss, ModulatedLoss, SDGMLoss
from sdgmnet.loss.cdf import vote
from sdgmnet.loss.mining import distance
from sdgmnet.loss.registry import call_loss
from sdgmnet.loss.weights import SELF_WEIGHTS, coupled_weight
from sdgmnet.training.angles import Angles

NEARER = 1e-6  # radians: δ above
ROW = 2  # the triplet that is measured
WARM_UP_BATCHES = 50  # for losses with buffers that are unknown here

Track = Callable[[Iterable[Any]], Iterable[Any]]


class Measured(NamedTuple):
    """Of one triplet among `rows`, in the units of the loss."""

    positive: np.ndarray  # ∂L/∂θ⁺
    negative: np.ndarray  # ∂L/∂θ⁻: negative if the loss pushes a negative away


def walk(steps: Tensor) -> Tensor:
    """Angles (K,) in radians -> unit descriptors (K + 1, K + 1), each at its angle from the one before."""
    count = len(steps) + 1
    points = torch.eye(count, dtype=torch.float64)
    for place, (cosine, sine) in enumerate(zip(steps.cos().tolist(), steps.sin().tolist(), strict=True), start=1):
        points[place] = cosine * points[place - 1]
        points[place, place] = sine
    return points


def triplet_batch(theta_pos: float, theta_neg: float, rows: int) -> Tensor:
    """(2 rows, 2 rows) descriptors a₀, p₀, a₁, p₁ ... as described above."""
    points = torch.eye(2 * rows, dtype=torch.float64)
    steps = (math.pi / 2, theta_neg - NEARER, theta_pos, theta_neg, theta_pos)
    points[:6, :6] = walk(torch.tensor(steps, dtype=torch.float64))
    return points


def measure(loss: nn.Module, theta_pos: float, theta_neg: float, rows: int) -> tuple[float, float]:
    """(∂L/∂θ⁺, ∂L/∂θ⁻) of one triplet at these angles, in radians within (0, π/2]."""
    points = triplet_batch(theta_pos, theta_neg, rows)
    gradient = gradient_of(loss, points)
    anchor, positive, other = 2 * ROW, 2 * ROW + 1, 2 * ROW - 1
    # The column of the inverse that belongs to a₂ has inner product 1 with it and 0 with all others.
    alone = torch.linalg.solve_triangular(points, torch.eye(len(points), dtype=torch.float64)[:, [anchor]], upper=False)
    along_pos = -math.sin(theta_pos) * (gradient[positive] @ alone[:, 0])
    along_neg = -math.sin(theta_neg) * (gradient[other] @ alone[:, 0])
    return along_pos.item(), along_neg.item()


def gradient_of(loss: nn.Module, points: Tensor) -> Tensor:
    leaves = points.clone().requires_grad_()
    value = call(loss, leaves[0::2], leaves[1::2])
    if not torch.isfinite(value):
        raise InputError(f"{type(loss).__name__} gives a value that is not finite, so it cannot be drawn.")
    if not value.requires_grad:  # no triplet is active
        return torch.zeros_like(points)
    return torch.autograd.grad(value, leaves)[0]


def call(loss: nn.Module, anchor: Tensor, positive: Tensor) -> Tensor:
    more: dict[str, Any] = {}
    if getattr(loss, "needs", None):  # constants, without influence on the derivative
        for name, one in (("anchor_encoded", anchor.detach()), ("positive_encoded", positive.detach())):
            more[name] = SimpleNamespace(raw=one, maps=(one[:, :, None, None],) * 2)
    return call_loss(loss, anchor, positive, progress=1.0, **more)


def measure_at(
    loss: nn.Module, theta_pos: np.ndarray, theta_neg: np.ndarray, rows: int, track: Track = iter
) -> Measured:
    """Triplets at angles of any shape, the same for both."""
    pairs = list(zip(theta_pos.ravel().tolist(), theta_neg.ravel().tolist(), strict=True))
    found = np.array([measure(loss, one, other, rows) for one, other in track(pairs)]).reshape(-1, 2)
    if not np.isfinite(found).all():
        raise InputError(f"{type(loss).__name__} gives gradients that are not finite, so it cannot be drawn.")
    return Measured(found[:, 0].reshape(theta_pos.shape), found[:, 1].reshape(theta_neg.shape))


def ignored_below(loss: nn.Module) -> float:
    """Radians: the loss ignores nearer negatives (the anti-noise threshold), 0 if it ignores none."""
    return float(getattr(loss, "min_negative_angle", 0.0))


def prepare(loss: nn.Module, angles: Angles, rows: int) -> nn.Module:
    """The loss in eval mode, with the state that training on these angles would have given it.

    SDGM and its relatives: the run's running moments, and the powers that batches of `rows` such triplets have on average.
    CDFDesc: the histogram of all triplets. Other losses with buffers are trained on batches made of the angles.
    """
    theta_pos, theta_neg = (torch.from_numpy(one).double() for one in (angles.theta_pos, angles.theta_neg))
    loss = loss.double()
    if isinstance(loss, SDGMLoss):
        _set_statistics(loss, torch.from_numpy(angles.moments), sdgm_weights(loss, angles, theta_pos, theta_neg), rows)
    elif isinstance(loss, ModulatedLoss):
        coupled = loss.coupled_weight(theta_pos - theta_neg).clamp_min(0)
        own = loss.self_weight(theta_pos), loss.negative_self_weight(theta_neg)
        weights = (coupled * own[0].clamp_min(0), coupled * own[1].clamp_min(0))
        _set_statistics(loss, torch.from_numpy(angles.moments), weights, rows)
    elif isinstance(loss, CDFLoss):
        relative = chord(theta_pos) - chord(theta_neg)
        place = ((relative + 2) * (loss.bins - 1) / 4).clamp(0, loss.bins - 1)
        loss.histogram.copy_(vote(place, torch.ones_like(place, dtype=torch.bool), loss.bins))
    elif next(loss.buffers(), None) is not None:
        warm_up(loss, angles, rows)
    return loss.eval()


def sdgm_weights(loss: SDGMLoss, angles: Angles, theta_pos: Tensor, theta_neg: Tensor) -> tuple[Tensor, Tensor]:
    pos, neg, rel = torch.from_numpy(angles.moments)
    weight = SELF_WEIGHTS[loss.self_weight]
    coupled = coupled_weight(theta_pos - theta_neg, rel[0], rel[1], loss.margin, loss.coupled_weight)
    return coupled * weight(theta_pos, pos[0], pos[1]), coupled * weight(theta_neg, neg[0], neg[1])


@torch.no_grad()
def _set_statistics(loss: SDGMLoss | ModulatedLoss, moments: Tensor, weights: tuple[Tensor, Tensor], rows: int) -> None:
    loss.statistics.moments.copy_(moments)
    loss.statistics.powers.copy_(rows * torch.stack([one.mean() for one in weights]))
    loss.statistics.steps.fill_(1)


def chord(theta: Tensor) -> Tensor:
    """CDFDesc's distance of unit descriptors at an angle."""
    right = torch.stack([theta.cos(), theta.sin()], dim=1)
    return distance(torch.tensor([[1.0, 0.0]], dtype=theta.dtype).expand_as(right), right, 2e-6)


def warm_up(loss: nn.Module, angles: Angles, rows: int) -> None:
    """Batches of triplets drawn from the angles: a walk of growing θ⁻, in which only the negative of row 0 is another row's."""
    random = np.random.default_rng(0)
    loss.train()
    for _ in range(WARM_UP_BATCHES):
        chosen = random.choice(len(angles.theta_pos), rows)
        chosen = chosen[np.argsort(angles.theta_neg[chosen], kind="stable")]
        steps = np.empty(2 * rows - 1)
        steps[0::2], steps[1::2] = angles.theta_pos[chosen], angles.theta_neg[chosen[1:]]
        points = walk(torch.from_numpy(steps))
        with torch.no_grad():
            call(loss, points[0::2], points[1::2])

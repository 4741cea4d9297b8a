"""The pseudo loss with any gradient modulation, given as functions of angles.

"It is a more general tool to guide the training with arbitrary gradient modulation strategies" (Section III-E). Below are the
modulations of related work as examples.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sdgmnet.errors import InputError
from sdgmnet.loss.checks import require_progress
from sdgmnet.loss.mining import hardest_in_batch, mine
from sdgmnet.loss.sdgm import PAPER_POWER_PER_PAIR, pseudo_loss, require_modulation
from sdgmnet.loss.statistics import RunningStatistics

Weight = Callable[[Tensor], Tensor]  # angles in radians (N,) -> weights (N,), not negative


class ModulatedLoss(nn.Module):
    r"""The pseudo loss of Eq. (15) with any weights :math:`w^\pm = w_s(\theta^\pm)\, w_c(\theta^r)`.

    Triplets and powers are SDGM's, also of collapsed batches. The functions get detached angles, so the weights are
    constants for autograd.

    Args:
        self_weight: function of :math:`\theta^+`, and of :math:`\theta^-` unless `negative_self_weight` is given.
        coupled_weight: function of :math:`\theta^r = \theta^+ - \theta^-`.
        negative_self_weight: function of :math:`\theta^-`.
        alpha, decay, warmup, initial_power, min_negative_angle: as in `SDGMLoss`.

    Shape:
        anchor, positive (N, D) of unit length -> scalar.

    Example:
        >>> loss = ModulatedLoss(self_weight=torch.sin, coupled_weight=lambda theta_rel: (theta_rel > -0.5).float())
        >>> a, p = torch.nn.functional.normalize(torch.randn(2, 8, 128), dim=2)
        >>> loss(a, p).shape
        torch.Size([])
    """

    def __init__(
        self,
        self_weight: Weight = torch.ones_like,
        coupled_weight: Weight = torch.ones_like,
        *,
        negative_self_weight: Weight | None = None,
        alpha: float = 0.9,
        decay: float = 0.999,
        warmup: float = 0.1,
        initial_power: float | None = None,
        min_negative_angle: float = 0.6,
    ) -> None:
        super().__init__()
        require_modulation(self, alpha, decay, warmup, initial_power, min_negative_angle)
        self.self_weight, self.coupled_weight = self_weight, coupled_weight
        self.negative_self_weight = negative_self_weight or self_weight
        self.alpha, self.warmup, self.initial_power = alpha, warmup, initial_power
        self.min_negative_angle = min_negative_angle
        self.statistics = RunningStatistics(decay)
        theta = torch.linspace(0.4, 1.2, 5)  # angles of any training: fail now, not after the warm-up
        _try(self.self_weight, theta, "self weight")
        _try(self.negative_self_weight, theta, "self weight of negatives")
        _try(self.coupled_weight, theta - theta.flip(0), "coupled weight")

    def forward(self, anchor: Tensor, positive: Tensor, *, progress: float = 1.0) -> Tensor:
        require_progress(progress)
        triplets = mine(self, partial(hardest_in_batch, anchor, positive), self.min_negative_angle)
        theta_pos, theta_neg, usable = triplets.theta_pos.detach(), triplets.theta_neg.detach(), triplets.usable
        w_coupled = usable.to(theta_pos.dtype)  # a row without a negative has weight 0
        w_pos = w_neg = w_coupled
        if progress >= self.warmup and not triplets.collapsed:
            w_coupled = w_coupled * _weigh(self.coupled_weight, theta_pos - theta_neg, "coupled weight")
            w_pos = w_coupled * _weigh(self.self_weight, theta_pos, "self weight")
            w_neg = w_coupled * _weigh(self.negative_self_weight, theta_neg, "self weight of negatives")
        power_pos, power_neg = self._running_powers(w_pos, w_neg, usable)
        return pseudo_loss(triplets, w_pos / power_pos, w_neg / power_neg, self.alpha)

    @torch.no_grad()
    def _running_powers(self, w_pos: Tensor, w_neg: Tensor, usable: Tensor) -> Tensor:
        """Eqs. (12) and (14): (2,), updated in training before they are used."""
        statistics = self.statistics
        initial_power = PAPER_POWER_PER_PAIR * len(w_pos) if self.initial_power is None else self.initial_power
        if self.training:
            powers = torch.stack([w_pos.double().sum(), w_neg.double().sum()])
            statistics.update_powers(powers, initial_power, usable=usable.any())
        running = torch.where(statistics.steps[1] > 0, statistics.powers, initial_power)
        return running.clamp_min(1e-12).to(w_pos.dtype)

    def running(self) -> dict[str, float]:
        """The running powers by name, for logging."""
        return dict(zip(("power_pos", "power_neg"), self.statistics.powers.tolist(), strict=True))


def _try(weight: Weight, theta: Tensor, name: str) -> None:
    if not callable(weight):
        raise InputError(f"the {name} must be a function of angles, not {weight!r}: see docs/guides/own_loss.md.")
    try:
        _weigh(weight, theta, name)
    except InputError:
        raise
    except Exception as error:  # a user's function can raise anything
        raise InputError(f"the {name} fails: {type(error).__name__}: {error}.") from error


@torch.no_grad()
def _weigh(weight: Weight, theta: Tensor, name: str) -> Tensor:
    made = weight(theta)
    if not isinstance(made, Tensor) or made.shape != theta.shape:
        shape = tuple(made.shape) if isinstance(made, Tensor) else type(made).__name__
        raise InputError(f"the {name} must return one number per angle, {tuple(theta.shape)}, not {shape}.")
    if not (torch.isfinite(made) & (made >= -1e-6)).all():  # rounding may make a 0 negative, as sin does at pi
        raise InputError(
            f"the {name} must be finite and not negative: modulation does not change the direction of a gradient."
        )
    return made.to(theta.dtype).clamp_min(0)


def _preset(summary: str, *weights: Weight, **options: Any) -> Callable[..., ModulatedLoss]:
    made = partial(ModulatedLoss, *weights, **options)
    made.__doc__ = summary
    return made


def soft_margin(theta_rel: Tensor, scale: float = 10.0) -> Tensor:
    """Derivative of the loss by Keller et al. with respect to θ⁺, and minus that to θ⁻. The scale is ours, for angles."""
    return torch.sigmoid(scale * theta_rel)


def exponential_of_nearness(theta_neg: Tensor) -> Tensor:
    return torch.exp(-theta_neg)


def sface_positive(theta_pos: Tensor) -> Tensor:
    """SFace modulates the gradient of the cosine, whose norm is sin θ."""
    return torch.sigmoid(80 * (theta_pos - 0.8)) * torch.sin(theta_pos)


def sface_negative(theta_neg: Tensor) -> Tensor:
    return torch.sigmoid(-80 * (theta_neg - 1.23)) * torch.sin(theta_neg)


keller_loss = _preset(
    "Keller et al. 2018: negative log of a softmax over both distances of a triplet, a soft margin.",
    coupled_weight=soft_margin,
)
exp_tl_loss = _preset(
    "Exp-TL (Wang et al. 2019): exponential losses of pairs, so that the hardest have most weight.",
    torch.exp,
    negative_self_weight=exponential_of_nearness,
)
sface_loss = _preset(
    "SFace (Zhong et al. 2021): sigmoids on the gradient of the cosine.",
    sface_positive,
    negative_self_weight=sface_negative,
)

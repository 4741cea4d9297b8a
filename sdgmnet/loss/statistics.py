"""Running statistics, Eq. (14), in float64 buffers."""

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from sdgmnet.errors import InputError


class Float64State(nn.Module):
    """A module whose buffers keep their dtype: `.half()` or `.to(dtype)` on a whole model must not round statistics."""

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        for name, buffer in self.named_buffers(recurse=False):
            device = fn(torch.empty(0, device=buffer.device)).device
            setattr(self, name, buffer.to(device))
        return self


class RunningStatistics(Float64State):
    r"""Running means of the statistics of each batch.

    .. math:: \beta_t = decay\,\beta_{t-1} + (1 - decay)\,\mu_t

    `moments` are mean and unbiased std of θ⁺, θ⁻ and θʳ, initialised by the first batch that has two triplets; a running std
    is the running mean of batch stds. `powers` are P⁺ and P⁻, initialised by the given initial power, since it sets the
    effective learning rate of the first iterations (Section III-E).
    """

    moments: Tensor  # (3, 2): rows θ⁺, θ⁻, θʳ; columns mean, std
    powers: Tensor  # (2,): P⁺, P⁻
    steps: Tensor  # batches of moments and of powers seen so far

    def __init__(self, decay: float) -> None:
        super().__init__()
        self.decay = decay
        self.register_buffer("moments", torch.zeros(3, 2, dtype=torch.float64))
        self.register_buffer("powers", torch.zeros(2, dtype=torch.float64))
        self.register_buffer("steps", torch.zeros(2, dtype=torch.int64))

    def update_moments(self, batch: Tensor, usable: Tensor) -> None:
        """batch (3, 2) as `moments`; usable (bool): False changes nothing (fewer than two triplets)."""
        _require_plain(batch)
        mixed = torch.where(self.steps[0] == 0, batch, self._mix(self.moments, batch))
        self.moments.copy_(torch.where(usable, mixed, self.moments))
        self.steps[0] += usable

    def update_powers(self, batch: Tensor, initial_power: float, usable: Tensor) -> None:
        """batch (2,) as `powers`; usable (bool): False changes nothing (no triplet)."""
        _require_plain(batch)
        before = torch.where(self.steps[1] == 0, initial_power, self.powers)
        self.powers.copy_(torch.where(usable, self._mix(before, batch), self.powers))
        self.steps[1] += usable

    @property
    def started(self) -> Tensor:
        """Whether there are moments yet."""
        return self.steps[0] > 0

    def _mix(self, running: Tensor, batch: Tensor) -> Tensor:
        return self.decay * running + (1 - self.decay) * batch


def _require_plain(batch: Tensor) -> None:
    """Refuse to run inside torch.func.grad and its like: they transform functions without side effects."""
    if not torch.compiler.is_compiling() and torch._C._functorch.is_functorch_wrapped_tensor(batch):
        raise InputError(
            "torch.func cannot transform a loss that updates its running statistics: call its eval() first, which leaves them "
            "as they are, or use torch.autograd.grad."
        )


def batch_moments(theta_pos: Tensor, theta_neg: Tensor, admissible: Tensor) -> Tensor:
    """Mean and unbiased std over the admissible rows of θ⁺, θ⁻ and θʳ: (3, 2) float64, 0 where there are too few rows."""
    angles = torch.stack([theta_pos, theta_neg, theta_pos - theta_neg]).double()
    inside = admissible.double()
    count = inside.sum()
    mean = (angles * inside).sum(1) / count.clamp_min(1)
    variance = ((angles - mean[:, None]).square() * inside).sum(1) / (count - 1).clamp_min(1)
    return torch.stack([mean, variance.sqrt()], dim=1)

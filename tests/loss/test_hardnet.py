"""HardNet's loss against loops written from its formula, values and gradients in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sdgmnet.errors import InputError
from sdgmnet.loss import LOSSES
from sdgmnet.loss.hardnet import HardNetLoss
from tests.loss.loops import hardnet_frn


def pairs(seed: int, count: int = 9, noise: float = 0.8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(count, 6, generator=generator, dtype=torch.float64)
    p = a + noise * torch.randn(count, 6, generator=generator, dtype=torch.float64)
    return F.normalize(a, dim=1).requires_grad_(), F.normalize(p, dim=1).requires_grad_()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("mean_over", ["active", "all"])
@pytest.mark.parametrize(("margin", "angle"), [(1.0, 0.6), (0.5, 0.6), (1.0, 1.2)])
def test_value_and_gradient_are_the_loops(seed: int, mean_over: str, margin: float, angle: float) -> None:
    a, p = pairs(seed)
    value = HardNetLoss(margin, angle, mean_over)(a, p)  # type: ignore[arg-type]
    expected = hardnet_frn(a, p, margin, angle, active_only=mean_over == "active")
    torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-12)
    gradients = torch.autograd.grad(value, (a, p)), torch.autograd.grad(expected, (a, p))
    for x, *both in zip((a, p), *gradients, strict=True):
        # Mining's angles live on the sphere: compare what moves a unit vector, not its length.
        mine, theirs = (gradient - (gradient * x).sum(1, keepdim=True) * x for gradient in both)
        assert (mine - theirs).norm() <= 1e-8 * theirs.norm() + 1e-10


def test_nothing_violated_is_zero_with_zero_gradient() -> None:
    a = torch.eye(4, dtype=torch.float64).requires_grad_()
    value = HardNetLoss(margin=0.5)(a, a.detach().clone())
    assert value.item() == 0
    assert not torch.autograd.grad(value, a)[0].any()


def test_a_batch_of_duplicates_is_left_alone() -> None:
    """All points within the threshold of each other: no triplet is left, and nothing is divided by zero."""
    a = F.normalize(torch.ones(3, 4) + 0.01 * torch.eye(3, 4), dim=1)
    assert HardNetLoss()(a, a).item() == 0


def test_bad_input_is_said() -> None:
    with pytest.raises(InputError, match="active or all"):
        HardNetLoss(mean_over="none")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="min_negative_angle is in radians"):
        HardNetLoss(min_negative_angle=9)
    with pytest.raises(InputError, match="at least 2 pairs"):
        HardNetLoss()(torch.eye(1, 4), torch.eye(1, 4))


def test_it_is_one_of_the_losses() -> None:
    assert LOSSES["hardnet"] is HardNetLoss

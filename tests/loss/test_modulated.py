"""The pseudo loss with weights of one's own against a loop, and those of related work against what they derive from."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sdgmnet.errors import InputError
from sdgmnet.loss import LOSSES, ModulatedLoss, modulated
from tests.loss.reference import SDGMReference

Number = Callable[[float], float]


def pairs(seed: int, count: int = 12, dim: int = 10) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, dim)).astype(np.float32).astype(np.float64)
    y = (x + 0.6 * rng.normal(size=(count, dim))).astype(np.float32).astype(np.float64)
    x[1] = x[0] + 0.1 * x[2]  # a negative within 0.6 rad
    return x.astype(np.float32).astype(np.float64), y


class Loop(SDGMReference):
    """Eq. (15) with w_s and w_c as plain functions of numbers."""

    def __init__(self, own_pos: Number, own_neg: Number, coupled: Number) -> None:
        super().__init__(decay=0.9)
        self.own, self.coupled = {"theta_pos": own_pos, "theta_neg": own_neg}, coupled

    def _self_weight(self, theta: float, name: str) -> float:
        return self.own[name](theta)

    def _coupled_weight(self, theta_rel: float) -> float:
        return self.coupled(theta_rel)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def one(theta: float) -> float:
    return 1.0


CASES = {
    "plain": (lambda: ModulatedLoss(decay=0.9), (one, one, one)),
    "own": (
        lambda: ModulatedLoss(torch.sin, lambda r: (r > -0.4).double(), decay=0.9),
        (math.sin, math.sin, lambda r: float(r > -0.4)),
    ),
    "keller": (lambda: LOSSES["keller"](decay=0.9), (one, one, lambda r: sigmoid(10 * r))),
    "exp-tl": (lambda: LOSSES["exp-tl"](decay=0.9), (math.exp, lambda t: math.exp(-t), one)),
    "sface": (
        lambda: LOSSES["sface"](decay=0.9),
        (lambda t: sigmoid(80 * (t - 0.8)) * math.sin(t), lambda t: sigmoid(80 * (1.23 - t)) * math.sin(t), one),
    ),
}


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient_are_the_loops(
    name: str, dtype: torch.dtype, tolerance: float, note_deviation: Callable[[str, float], None]
) -> None:
    make, functions = CASES[name]
    loss, loop = make(), Loop(*functions)
    for seed, progress in ((0, 0.05), (1, 0.1), (2, 0.5), (3, 1.0)):
        x, y = pairs(seed)
        expected, *sides = loop.step(x, y, progress)
        inputs = [torch.tensor(side, dtype=dtype, requires_grad=True) for side in (x, y)]
        value = loss(*(F.normalize(side, dim=1) for side in inputs), progress=progress)
        assert abs(value.item() - expected) <= tolerance
        gradient = torch.cat(torch.autograd.grad(value, inputs)).double().numpy()
        difference = float(np.linalg.norm(gradient - np.concatenate(sides)) / np.linalg.norm(sides))
        assert difference <= tolerance
        note_deviation(f"{name}, {dtype}", difference)
    with pytest.raises(InputError, match="progress"):
        loss(*(F.normalize(torch.tensor(side), dim=1) for side in (x, y)), progress=2.0)


def unit_pairs(seed: int) -> list[Tensor]:
    return [F.normalize(torch.from_numpy(side), dim=1) for side in pairs(seed)]


def derivative(function: Callable[[Tensor], Tensor], at: float) -> float:
    x = torch.tensor(at, dtype=torch.float64, requires_grad=True)
    return torch.autograd.grad(function(x), x)[0].item()


@pytest.mark.parametrize("theta", [0.3, 0.79, 0.81, 1.2, 1.25, 2.0])
def test_the_examples_are_derivatives_of_what_they_stand_for(theta: float) -> None:
    at = torch.tensor(theta, dtype=torch.float64)
    negative_log_softmax = derivative(lambda d: -torch.log_softmax(torch.stack([10 * at, 10 * d]), 0)[0], 1.0)
    assert modulated.soft_margin(1.0 - at).item() == pytest.approx(negative_log_softmax / 10, rel=1e-9)
    assert modulated.exponential_of_nearness(at).item() == pytest.approx(-derivative(lambda d: torch.exp(-d), theta))
    scale = 1 / (1 + math.exp(-80 * (theta - 0.8)))  # constant for autograd, on -cos of the matching pair
    assert modulated.sface_positive(at).item() == pytest.approx(derivative(lambda t: -scale * torch.cos(t), theta))
    scale = 1 / (1 + math.exp(80 * (theta - 1.23)))
    assert modulated.sface_negative(at).item() == pytest.approx(-derivative(lambda t: scale * torch.cos(t), theta))


def test_state_goes_on_and_eval_leaves_it() -> None:
    a, p = unit_pairs(0)
    first, second = LOSSES["exp-tl"](decay=0.5), LOSSES["exp-tl"](decay=0.5)
    first(a, p)
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(p, a), second(p, a))
    before = first.eval().running()
    first(a, p)
    assert first.running() == before and before["power_pos"] > 0


def broken(theta: Tensor) -> Tensor:
    raise KeyError("theta")


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (lambda theta: theta.mean(), r"\(5,\)"),
        (lambda theta: 1.0, "not float"),
        (lambda theta: theta - 10, "not negative"),
        (lambda theta: theta / 0, "finite"),
        (broken, "KeyError"),
    ],
)
def test_invalid_weights_are_refused_at_once(weight: Callable[[Tensor], Tensor], message: str) -> None:
    """Not only after the warm-up."""
    for option in ("self_weight", "coupled_weight", "negative_self_weight"):
        with pytest.raises(InputError, match=message):
            ModulatedLoss(**{option: weight})


def test_a_weight_may_be_negative_by_rounding() -> None:
    ModulatedLoss(lambda theta: torch.full_like(theta, -1e-6))
    with pytest.raises(InputError, match="self weight"):
        ModulatedLoss(lambda theta: torch.full_like(theta, -1.1e-6))


def test_invalid_weights_in_training_are_refused() -> None:
    loss = ModulatedLoss(self_weight=lambda theta: theta if len(theta) == 5 else theta.mean())
    with pytest.raises(InputError, match=r"\(12,\)"):
        loss(*unit_pairs(0))


@pytest.mark.parametrize("options", [{"alpha": 0.0}, {"decay": 1.0}, {"warmup": 2.0}, {"initial_power": 0.0}], ids=str)
def test_invalid_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(InputError, match=f"ModulatedLoss: {next(iter(options))}"):
        ModulatedLoss(**options)  # type: ignore[arg-type]


def test_weights_of_zero_leave_nothing() -> None:
    a, p = (side.requires_grad_() for side in unit_pairs(0))
    value = ModulatedLoss(coupled_weight=torch.zeros_like, decay=0.0)(a, p)
    assert value.item() == 0 and not torch.autograd.grad(value, a)[0].any()

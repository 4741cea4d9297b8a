"""The pseudo loss with weights of one's own against a loop, and those of related work against what they derive from."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sdgmnet.errors import InputError
from sdgmnet.loss import LOSSES, ModulatedLoss, SDGMLoss, modulated
from tests.loss.reference import angle, angle_gradient

Number = Callable[[float], float]


def pairs(seed: int, count: int = 12, dim: int = 10) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, dim)).astype(np.float32).astype(np.float64)
    y = (x + 0.6 * rng.normal(size=(count, dim))).astype(np.float32).astype(np.float64)
    x[1] = x[0] + 0.1 * x[2]  # a negative within 0.6 rad
    return x.astype(np.float32).astype(np.float64), y


class Loop:
    """Eq. (15) a triplet at a time: w_s and w_c are plain functions of numbers, the powers run as Eq. (14)."""

    def __init__(
        self, own_pos: Number, own_neg: Number, coupled: Number, alpha: float = 0.9, decay: float = 0.9
    ) -> None:
        self.own_pos, self.own_neg, self.coupled, self.alpha, self.decay = own_pos, own_neg, coupled, alpha, decay
        self.powers: tuple[float, float] | None = None

    def step(self, x: np.ndarray, y: np.ndarray, warming: bool = False) -> tuple[float, np.ndarray]:
        both, n = np.concatenate([x, y]), len(x)
        rows = []
        for i in range(n):
            candidates = []
            for j in range(n):
                four = [(angle(both[one], both[two]), one, two) for one in (i, i + n) for two in (j, j + n)]
                if j != i and min(four)[0] > 0.6:
                    candidates.append(min(four))
            if candidates:
                theta_neg, left, right = min(candidates)
                theta_pos = angle(x[i], y[i])
                w_c = 1.0 if warming else self.coupled(theta_pos - theta_neg)
                w_pos = w_c * (1.0 if warming else self.own_pos(theta_pos))
                w_neg = w_c * (1.0 if warming else self.own_neg(theta_neg))
                rows.append((i, i + n, theta_pos, w_pos, left, right, theta_neg, w_neg))
        before = self.powers or (n * 10000 / 1024,) * 2
        batch = sum(row[3] for row in rows), sum(row[7] for row in rows)
        self.powers = tuple(self.decay * b + (1 - self.decay) * p for b, p in zip(before, batch, strict=True))  # type: ignore[assignment]
        assert self.powers is not None
        factor_pos, factor_neg = self.alpha / self.powers[0], 1 / self.powers[1]
        value, gradient = 0.0, np.zeros_like(both)
        for i, j, theta_pos, w_pos, left, right, theta_neg, w_neg in rows:
            value += factor_pos * w_pos * theta_pos - factor_neg * w_neg * theta_neg
            gradient[i] += factor_pos * w_pos * angle_gradient(both[i], both[j])
            gradient[j] += factor_pos * w_pos * angle_gradient(both[j], both[i])
            gradient[left] -= factor_neg * w_neg * angle_gradient(both[left], both[right])
            gradient[right] -= factor_neg * w_neg * angle_gradient(both[right], both[left])
        return value, gradient


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient_are_the_loops(name: str, dtype: torch.dtype) -> None:
    make, functions = CASES[name]
    loss, loop, worst = make(), Loop(*functions), 0.0
    for seed, progress in ((0, 0.05), (1, 0.1), (2, 0.5), (3, 1.0)):
        x, y = pairs(seed)
        value, gradient = loop.step(x, y, warming=progress < 0.1)
        inputs = [torch.tensor(side, dtype=dtype, requires_grad=True) for side in (x, y)]
        found = loss(*(F.normalize(side, dim=1) for side in inputs), progress=progress)
        mine = torch.cat(torch.autograd.grad(found, inputs)).double().numpy()
        tolerance = 1e-10 if dtype == torch.float64 else 1e-5
        assert abs(found.item() - value) <= tolerance
        difference = np.linalg.norm(mine - gradient) / np.linalg.norm(gradient)
        assert difference <= tolerance
        worst = max(worst, float(difference))
    print(f"\n{name}, {dtype}: gradients differ by {worst:.1e} of their norm at most")


def test_it_is_sdgm_with_its_ablations_weights() -> None:
    """&θ, no coupled weight: what SDGM does in its warm-up."""
    general, special = ModulatedLoss(), SDGMLoss(self_weight="angle", warmup=1.0)
    for seed in range(3):
        a, p = (F.normalize(torch.from_numpy(side), dim=1) for side in pairs(seed))
        torch.testing.assert_close(general(a, p), special(a, p, progress=0.5), rtol=1e-12, atol=1e-12)
        assert general.running() == {name: special.running()[name] for name in ("power_pos", "power_neg")}


def derivative(function: Callable[[Tensor], Tensor], at: float) -> float:
    x = torch.tensor(at, dtype=torch.float64, requires_grad=True)
    return torch.autograd.grad(function(x), x)[0].item()


@pytest.mark.parametrize("theta", [0.3, 0.79, 0.81, 1.2, 1.25, 2.0])
def test_the_examples_are_derivatives_of_what_they_stand_for(theta: float) -> None:
    at = torch.tensor(theta, dtype=torch.float64)
    negative_log_softmax = derivative(lambda d: -torch.log_softmax(torch.stack([10 * at, 10 * d]), 0)[0], 1.0)
    assert modulated.soft_margin(1.0 - at).item() == pytest.approx(negative_log_softmax / 10, rel=1e-9)
    assert modulated.exponential_of_distance(at).item() == pytest.approx(derivative(torch.exp, theta))
    assert modulated.exponential_of_nearness(at).item() == pytest.approx(-derivative(lambda d: torch.exp(-d), theta))
    scale = 1 / (1 + math.exp(-80 * (theta - 0.8)))  # constant for autograd, on -cos of the matching pair
    assert modulated.sface_positive(at).item() == pytest.approx(derivative(lambda t: -scale * torch.cos(t), theta))
    scale = 1 / (1 + math.exp(80 * (theta - 1.23)))
    assert modulated.sface_negative(at).item() == pytest.approx(-derivative(lambda t: scale * torch.cos(t), theta))


def test_state_goes_on_and_eval_leaves_it() -> None:
    a, p = (F.normalize(torch.from_numpy(side), dim=1) for side in pairs(0))
    first, second = LOSSES["exp-tl"](decay=0.5), LOSSES["exp-tl"](decay=0.5)
    first(a, p)
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(p, a), second(p, a))
    before = first.eval().running()
    first(a, p)
    assert first.running() == before and before["power_pos"] > 0


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (lambda theta: theta.mean(), r"\(12,\)|\(5,\)"),
        (lambda theta: 1.0, "not float"),
        (lambda theta: theta - 10, "not negative"),
        (lambda theta: theta / 0, "finite"),
    ],
)
def test_invalid_weights_are_refused(weight: Callable[[Tensor], Tensor], message: str) -> None:
    a, p = (F.normalize(torch.from_numpy(side), dim=1) for side in pairs(0))
    for options in ({"self_weight": weight}, {"coupled_weight": weight}, {"negative_self_weight": weight}):
        with pytest.raises(InputError, match=message):
            ModulatedLoss(**options)(a, p)


def test_what_would_fail_after_the_warm_up_is_refused_before_it() -> None:
    def broken(theta: Tensor) -> Tensor:
        raise KeyError("theta")

    with pytest.raises(InputError, match="the coupled weight fails: KeyError"):
        ModulatedLoss(coupled_weight=broken)
    with pytest.raises(InputError, match=r"\(5,\)"):
        ModulatedLoss(self_weight=lambda theta: theta.sum())
    for options in ({"alpha": 0.0}, {"decay": 1.0}, {"warmup": 2.0}, {"initial_power": 0.0}):
        with pytest.raises(InputError, match=f"ModulatedLoss: {next(iter(options))}"):
            ModulatedLoss(**options)  # type: ignore[arg-type]


def test_weights_of_zero_leave_nothing() -> None:
    a, p = (F.normalize(torch.from_numpy(side), dim=1).requires_grad_() for side in pairs(0))
    value = ModulatedLoss(coupled_weight=torch.zeros_like, decay=0.0)(a, p)
    assert value.item() == 0 and not torch.autograd.grad(value, a)[0].any()

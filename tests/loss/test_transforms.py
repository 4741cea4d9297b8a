"""SDGMLoss under torch.compile and torch.func."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sdgmnet import SDGMLoss
from sdgmnet.errors import InputError
from sdgmnet.loss import ModulatedLoss

STEPS = 6


def batches(seed: int = 0) -> Tensor:
    """(STEPS, 2, 24, 64): anchors and positives."""
    generator = torch.Generator().manual_seed(seed)
    anchors, noise = torch.randn(2, STEPS, 24, 64, generator=generator)
    return torch.stack([anchors, anchors + 0.5 * noise], dim=1)


def value_of(loss: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    value: Tensor = loss(F.normalize(x, dim=1), F.normalize(y, dim=1))
    return value


def train(compiled: Callable[[Callable[..., Tensor]], Callable[..., Tensor]]) -> list[Tensor]:
    """Losses, parameters and statistics of a few training steps, through the warm-up."""
    torch.manual_seed(0)
    encoder, loss = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16)), SDGMLoss(decay=0.9, warmup=0.3)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)

    def step(sides: Tensor, progress: float) -> Tensor:
        anchor, positive = (F.normalize(encoder(side), dim=1) for side in sides)
        value: Tensor = loss(anchor, positive, progress=progress)
        value.backward()
        return value

    call, values = compiled(step), []
    for number, sides in enumerate(batches()):
        optimizer.zero_grad()
        values.append(call(sides, number / STEPS).detach())
        optimizer.step()
    return [torch.stack(values), *(one.detach() for one in encoder.parameters()), *loss.state_dict().values()]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_compiled_training_step_is_the_plain_one(backend: str) -> None:
    torch.compiler.reset()
    expected = train(lambda step: step)
    found = train(lambda step: torch.compile(step, backend=backend))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_gradients_by_torch_func() -> None:
    """Of a loss that leaves its statistics alone; what updates them is not a pure function."""
    loss, (first, second, *_) = SDGMLoss(decay=0.9), batches()
    value_of(loss, *first)
    x, y = second
    expected = torch.autograd.grad(value_of(copy.deepcopy(loss).eval(), x.requires_grad_(), y), x)[0]
    x = x.detach()
    found = torch.func.grad(lambda x: value_of(loss.eval(), x, y))(x)
    assert torch.equal(found, expected) and found.abs().sum() > 0
    before = copy.deepcopy(loss.state_dict())
    with pytest.raises(InputError, match=r"torch.func.*eval\(\)"):
        torch.func.grad(lambda x: value_of(loss.train(), x, y))(x)
    torch.testing.assert_close(dict(loss.state_dict()), dict(before), rtol=0, atol=0)
    with pytest.raises(InputError, match=r"torch.func"):
        torch.func.grad(lambda x: value_of(ModulatedLoss(), x, y))(x)

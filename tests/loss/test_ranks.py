"""Losses in a DistributedDataParallel loop on k ranks, against one process that has all pairs."""

from importlib.util import find_spec
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from sdgmnet.distributed import across_ranks, world_of
from sdgmnet.errors import InputError
from sdgmnet.loss import LOSSES, HardNetOriginalLoss, SDGMLoss, SOSNetLoss, mining
from sdgmnet.loss.orthogonal import WithOrthogonality
from sdgmnet.loss.pml import SDGMLossOfLabels
from sdgmnet.loss.registry import loss_by_name
from tests.ranks import run_ranks

PAIRS, STEPS = 24, 3
NAMES = [*LOSSES, *(["pml:CircleLoss"] if find_spec("pytorch_metric_learning") else [])]


class Encoded(NamedTuple):
    raw: Tensor
    maps: tuple[Tensor, ...]


class Encoder(nn.Module):
    """Samples (B, 12) -> descriptors (B, 8), what came before them, and maps (B, 3, 2, 2)."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second = nn.Linear(12, 12).double(), nn.Linear(12, 8).double()

    def forward(self, x: Tensor) -> tuple[Tensor, Encoded]:
        maps = torch.tanh(self.first(x))
        raw = self.second(maps)
        return F.normalize(raw, dim=1), Encoded(raw, (maps.unflatten(1, (3, 2, 2)),))


def data(step: int) -> Tensor:
    """(2, N, 12): both sides of N points."""
    random = torch.Generator().manual_seed(step)
    point = torch.randn(1, PAIRS, 12, generator=random, dtype=torch.float64)
    return point + 0.3 * torch.randn(2, PAIRS, 12, generator=random, dtype=torch.float64)


def make(name: str) -> nn.Module:
    if name == "labels":
        return SDGMLossOfLabels(decay=0.9, warmup=0.0)
    if name == "orthogonal":
        return WithOrthogonality(SDGMLoss(decay=0.9), 0.5)
    return loss_by_name(name, {}, {"decay": 0.9})


def descend(name: str, loss: nn.Module) -> dict[str, Any]:
    """A few steps of a loop as anyone would write it, with DistributedDataParallel where there are ranks."""
    encoder: nn.Module = Encoder()
    rows = slice(None)
    if dist.is_initialized():
        encoder = DistributedDataParallel(encoder)
        rows = world_of("world").rows(PAIRS)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.05)
    values = []
    for step in range(STEPS):
        (anchor, a), (positive, p) = (encoder(side[rows]) for side in data(step))
        if name == "labels":
            labels = torch.arange(PAIRS)[rows].repeat(2)
            value = loss(torch.cat([anchor, positive]), labels)
        elif getattr(loss, "needs", ()):
            value = loss(anchor, positive, progress=0.5, anchor_encoded=a, positive_encoded=p)
        elif step == 1:
            value = loss(anchor=anchor, positive=positive)
        else:
            value = loss(anchor, positive, progress=0.5)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        values.append(value.item())
    weights = [parameter.detach().clone() for parameter in encoder.parameters()]
    return {"values": values, "weights": weights, "state": loss.state_dict()}


def on_ranks(names: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in names:
        loss = make(name)
        if name == "labels":
            loss = SDGMLossOfLabels(decay=0.9, warmup=0.0, group="world")
        else:
            across_ranks(loss)
        found[name] = descend(name, loss)
    found["argument"] = descend("sdgm", SDGMLoss(decay=0.9, group="world"))
    unit = F.normalize(torch.randn(3 + dist.get_rank(), 8), dim=1)
    try:
        SDGMLoss(group="world")(unit, unit)
    except InputError as error:
        found["uneven"] = str(error)
    return found


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_every_loss_sees_the_pairs_of_all_ranks(size: int) -> None:
    names = [*NAMES, "labels", "orthogonal"]
    ranks = run_ranks(size, on_ranks, names)
    for name in [*names, "argument"]:
        alone = descend("sdgm" if name == "argument" else name, make("sdgm" if name == "argument" else name))
        for rank in ranks:
            assert rank[name]["values"] == pytest.approx(alone["values"], rel=1e-9), name
            for mine, expected in zip(rank[name]["weights"], alone["weights"], strict=True):
                torch.testing.assert_close(mine, expected, rtol=1e-9, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")
            for key, expected in alone["state"].items():
                torch.testing.assert_close(rank[name]["state"][key], expected, rtol=1e-9, atol=1e-12)
                assert torch.equal(rank[name]["state"][key], ranks[0][name]["state"][key]), name
    for rank in ranks:
        assert "(3, 4" in rank["uneven"]


def within_a_group() -> dict[str, Any] | str:
    """Ranks 1 and 2 of three train together, as ranks 0 and 1 of their group; rank 0 is not in it."""
    group = dist.new_group([1, 2])
    loss = SDGMLoss(decay=0.9, group=group)
    rank = dist.get_rank()
    if rank == 0:
        unit = F.normalize(torch.ones(2, 8), dim=1)
        with pytest.raises(InputError) as refusal:
            loss(unit, unit)
        return str(refusal.value)
    encoder = DistributedDataParallel(Encoder(), process_group=group)
    rows = slice(PAIRS // 2 * (rank - 1), PAIRS // 2 * rank)
    anchor, positive = (encoder(side[rows])[0] for side in data(0))
    value = loss(anchor, positive)
    value.backward()
    return {"value": value.item(), "gradient": [parameter.grad for parameter in encoder.parameters()]}


def test_a_group_need_not_be_all_ranks() -> None:
    refusal, *ranks = run_ranks(3, within_a_group)
    assert "not in the process group" in refusal
    encoder, loss = Encoder(), SDGMLoss(decay=0.9)
    value = loss(*(encoder(side)[0] for side in data(0)))
    value.backward()
    for rank in ranks:
        assert rank["value"] == pytest.approx(value.item(), rel=1e-12)
        for mine, parameter in zip(rank["gradient"], encoder.parameters(), strict=True):
            torch.testing.assert_close(mine, parameter.grad, rtol=1e-9, atol=1e-12)


def test_one_process_needs_no_group() -> None:
    unit = F.normalize(torch.randn(2, 6, 8), dim=2)
    assert torch.equal(SDGMLoss(group="world")(*unit), SDGMLoss()(*unit))


def test_a_group_is_given_once() -> None:
    """Twice, every pair would be gathered k times over."""
    with pytest.raises(InputError, match="SDGMLoss"):
        across_ranks(SDGMLoss(group="world"))


class Largest(TorchDispatchMode):
    """How many numbers the largest tensor has that is made meanwhile."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for one in made if isinstance(made, tuple | list) else [made]:
            self.numbers = max(self.numbers, one.numel()) if isinstance(one, Tensor) else self.numbers
        return made


@pytest.mark.parametrize(
    "loss", [SDGMLoss(), HardNetOriginalLoss(), SOSNetLoss()], ids=lambda loss: type(loss).__name__
)
def test_mining_works_in_blocks(loss: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """No tensor of N x N numbers, and the same result as in one block."""
    count = 512
    point = torch.randn(1, count, 16, dtype=torch.float64)
    anchor, positive = F.normalize(point + torch.randn(2, count, 16, dtype=torch.float64), dim=2)
    loss.eval()
    whole = loss(anchor, positive)
    monkeypatch.setattr(mining, "BLOCK_FLOATS", 4 * count * 8)
    with Largest() as watch:
        value = loss(anchor, positive)
    assert watch.numbers <= 16 * count * 16  # SOSNet has up to 16 neighbours of 16 numbers each
    assert watch.numbers < count**2
    torch.testing.assert_close(value, whole, rtol=1e-12, atol=1e-12)

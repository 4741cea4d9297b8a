"""What ranks tell each other, and BatchNorm over all of them, against one process that has everything."""

import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from sdgmnet import distributed
from sdgmnet.distributed import (
    ALONE,
    RankLost,
    SilentExit,
    World,
    open_world,
    share_of,
    synchronise_batchnorm,
    world_of,
)
from sdgmnet.errors import InputError
from tests.ranks import run_ranks


def test_shares_cover_everything_once_and_end_with_blocks() -> None:
    for count in (0, 1, 7, 8, 100, 1025):
        for size in (1, 2, 3, 8):
            parts = [share_of(count, rank, size, block=8) for rank in range(size)]
            assert [row for part in parts for row in range(count)[part]] == list(range(count))
            assert all(part.start % 8 == 0 or part.start == count for part in parts)
            assert max(part.stop - part.start for part in parts) <= 8 * -(-count // (8 * size)) + 8


def test_rows_of_a_batch_are_equal_shares() -> None:
    assert [World(rank, 4).rows(12) for rank in range(4)] == [slice(0, 3), slice(3, 6), slice(6, 9), slice(9, 12)]
    with pytest.raises(InputError, match="--batch-size 10 .* 4 ranks: use 8 or"):
        World(0, 4).rows(10)


def test_one_process_is_left_as_it_is() -> None:
    x = torch.ones(3, 2, requires_grad=True)
    assert ALONE.gather(x) is x and ALONE.gather_sides(x) is x and ALONE.sum(x) is x
    assert ALONE.any(True, False) == (True, False)
    assert ALONE.broadcast("a") == "a" and ALONE.all_gather_object("a") == ["a"]
    assert world_of("world") is ALONE
    with open_world() as world:
        assert world is ALONE


def test_ranks_that_cannot_be_reached_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InputError, match="start them with torchrun"), open_world():
        pass


def test_a_lost_rank_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = "Connection closed by peer [127.0.0.1]:7"

    def fail(*_: Any) -> None:
        raise RuntimeError(f"[/src/gloo/tcp/pair.cc:553] {reason}.\n This is typically ...")

    monkeypatch.setattr(dist, "all_reduce", fail)
    with pytest.raises(RankLost, match="^rank 1 of 2 cannot reach another rank") as caught:
        World(1, 2).any(True)
    assert reason in str(caught.value) and "pair.cc" not in str(caught.value)


def test_a_rank_with_nothing_to_say_ends_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun ends all ranks as soon as one has ended."""
    world, happened = World(1, 2), list[str]()
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(distributed, "rendezvous", lambda _: iter([(None, 1, 2)]))
    monkeypatch.setattr(distributed, "world_of", lambda _: world)
    monkeypatch.setattr(dist, "PrefixStore", lambda *_: None)
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: happened.append("opened"))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: happened.append("closed"))
    monkeypatch.setattr(time, "sleep", lambda _: happened.append("waited"))
    with pytest.raises(SilentExit), open_world():
        raise SilentExit(2)
    with pytest.raises(InputError), open_world():
        raise InputError("no such folder.")
    assert happened == ["opened", "waited", "closed", "opened", "closed"]


def network() -> nn.Module:
    torch.manual_seed(3)
    inner = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    return nn.Sequential(inner, nn.Linear(4 * 36, 5), nn.BatchNorm1d(5, momentum=None, affine=False)).double()


def batch() -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(5)
    return torch.rand(12, 1, 8, 8, generator=random).double(), torch.rand(12, 5, generator=random).double()


def step(world: World) -> dict[str, Any]:
    """Three passes through BatchNorm over all samples; a loss that couples all of them, and its gradient."""
    model, (x, weight) = synchronise_batchnorm(network(), world), batch()
    rows = world.rows(12)
    values = []
    for scale in (1.0, 3.0, 0.5):
        out = world.gather(model(scale * x[rows]))
        value = (weight * out).sum().square() + (out @ out.T).tanh().sum()
        value.backward()
        values.append(value.item())
    world.sum_gradients(model.parameters())
    return {
        "values": values,
        "gradients": [parameter.grad for parameter in model.parameters()],
        "buffers": dict(model.named_buffers()),
        "evaluated": model.eval()(x).detach(),
    }


def conversation() -> dict[str, Any]:
    """All else, on two ranks."""
    world = world_of("world")
    found: dict[str, Any] = {"step": step(world)}
    found["told"] = world.broadcast(f"rank {world.rank}")
    found["collected"] = world.all_gather_object(world.rank)
    found["any"] = world.any(world.rank == 1, False)
    sides = torch.tensor([[10 * world.rank], [10 * world.rank + 1]])[..., None]
    found["sides"] = world.gather_sides(sides).flatten(1).tolist()
    found["led"] = world.on_rank_zero(lambda: "done")

    def refuse() -> None:
        raise InputError("no such folder.")

    def refuse_on_the_second() -> int:
        if world.rank == 1:
            refuse()
        return world.rank

    for name, attempt in (
        ("lead", lambda: world.on_rank_zero(refuse)),
        ("alike", lambda: world.on_all_ranks(refuse)),
        ("second", lambda: world.on_all_ranks(refuse_on_the_second)),
        ("equal", lambda: world.require_equal(str(world.rank), "data", "give the same")),
    ):
        try:
            attempt()
        except (InputError, SilentExit) as error:
            found[name] = (type(error).__name__, str(error))
    found["in_turn"] = world.rank_zero_first(lambda: world.rank)
    return found


def test_ranks_compute_what_one_process_does() -> None:
    alone = step(ALONE)
    ranks = run_ranks(2, conversation)
    for one in (rank["step"] for rank in ranks):
        assert one["values"] == pytest.approx(alone["values"], rel=1e-12)
        for mine, expected in zip(one["gradients"], alone["gradients"], strict=True):
            torch.testing.assert_close(mine, expected, rtol=1e-9, atol=1e-12)
        assert one["buffers"].keys() == alone["buffers"].keys()
        for name, expected in alone["buffers"].items():
            torch.testing.assert_close(one["buffers"][name], expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(one["evaluated"], alone["evaluated"], rtol=1e-9, atol=1e-12)
    first, second = ranks
    for mine, theirs in zip(first["step"]["gradients"], second["step"]["gradients"], strict=True):
        assert torch.equal(mine, theirs)
    assert first["told"] == second["told"] == "rank 0"
    assert first["collected"] == second["collected"] == [0, 1]
    assert first["any"] == second["any"] == (True, False)
    assert first["sides"] == second["sides"] == [[0, 10], [1, 11]]
    assert (first["led"], second["led"]) == ("done", None)
    assert (first["in_turn"], second["in_turn"]) == (0, 1)
    silent = ("SilentExit", "")
    assert (first["lead"], second["lead"]) == (("InputError", "no such folder."), silent)
    assert (first["alike"], second["alike"]) == (("InputError", "no such folder."), silent)
    assert (first["second"], second["second"]) == (silent, ("InputError", "no such folder."))
    assert first["equal"][1] == "data of rank 0 and of rank 1 differ: give the same." and second["equal"] == silent


def test_plain_batchnorm_is_what_the_reference_is() -> None:
    """The reference above runs our BatchNorm alone: it must be torch's."""
    ours, theirs = synchronise_batchnorm(network(), ALONE), network()
    x, _ = batch()
    for model in (ours, theirs):
        model(x).square()[:, 0].sum().backward()
        model(2 * x)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x), rtol=1e-12, atol=1e-12)
    for mine, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, expected.grad, rtol=1e-8, atol=1e-12)
    assert ours.state_dict().keys() == theirs.state_dict().keys()


def test_a_command_that_ranks_cannot_share_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from sdgmnet.cli import main

    for name, value in (("TORCHELASTIC_RUN_ID", "none"), ("WORLD_SIZE", "2"), ("RANK", "0")):
        monkeypatch.setenv(name, value)
    assert main(["data", "demo"]) == 2
    assert "data demo runs in one process" in capsys.readouterr().err
    monkeypatch.setenv("RANK", "1")
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    assert main(["data", "demo"]) == 1
    assert waited, "or torchrun may end the first before it has said so"
    assert capsys.readouterr().err == ""

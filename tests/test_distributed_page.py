"""The block of docs/guides/distributed.md runs, on one rank and on two, to the same weights; and its numbers are the code's."""

import re
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from sdgmnet.encoders import L2Net, SDGMNet
from tests.ranks import run_ranks

PAGE = (Path(__file__).parent.parent / "docs" / "guides" / "distributed.md").read_text(encoding="utf-8")
(CODE,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def follow_the_page() -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "page"}
    exec(CODE, names)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    everything = torch.rand(3, 2, 8, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    encoder, loss = names["train"](everything[:, :, rank::ranks])
    return {**encoder.state_dict(), **loss.state_dict()}


def test_the_block_runs_on_one_rank_and_on_two() -> None:
    (alone,) = run_ranks(1, follow_the_page)
    first, second = run_ranks(2, follow_the_page)
    untrained = SDGMNet().state_dict()
    assert (alone["last.weight"] - untrained["last.weight"]).abs().max() > 1e-3
    for key, expected in alone.items():
        torch.testing.assert_close(first[key], expected, rtol=1e-5, atol=1e-5)
        assert torch.equal(first[key], second[key])


def test_the_numbers_of_the_page() -> None:
    parameters = sum(parameter.numel() for parameter in SDGMNet().parameters())
    assert f"{parameters:,}".replace(",", " ") in PAGE
    assert f"{2 * 1024 * 128 * 4 / 1e6:.2f} MB" in PAGE and f"{4 * parameters / 1e6:.2f} MB" in PAGE
    norms = [module for module in (L2Net().first.modules(), L2Net().middle.modules()) for module in module]
    channels = [one.num_features for one in norms if isinstance(one, torch.nn.BatchNorm2d)]
    assert f"{4 * 4 * (2 * sum(channels) + len(channels)) / 1e3:.0f} kB" in PAGE
    assert f"{2 * 1024 * 32 * 32 * 32 * 4 / 1e6:.0f} MB" in PAGE

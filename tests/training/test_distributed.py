"""k ranks with N / k pairs each are one process with N pairs: losses, weights, statistics, checkpoints, evaluations."""

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor, nn

from sdgmnet.data.patchset import PatchSet
from sdgmnet.data.synthetic.demo import read_demo
from sdgmnet.distributed import ALONE, world_of
from sdgmnet.encoders import ENCODERS
from sdgmnet.encoders.base import SevenConvolutions
from sdgmnet.encoders.l2net import plain_block, plain_convolution
from sdgmnet.encoders.sdgmnet import block
from sdgmnet.errors import InputError, Stopped
from sdgmnet.training import fit as loop
from sdgmnet.training.config import TrainConfig
from sdgmnet.training.fit import train
from sdgmnet.training.run import Run, iterate_once, start
from sdgmnet.training.step import dropout_masks
from tests.conftest import blob_patches
from tests.ranks import run_ranks

QUIET = Console(quiet=True)
STEPS = 20


class TinyNet(SevenConvolutions):
    """SDGMNet in small: FRN and TLU, dropout, a convolution over the map, BatchNorm."""

    descriptor_size = 16
    feature_shape = (6, 8, 8)

    def __init__(self, dropout: float = 0.3) -> None:
        super().__init__(dropout)
        self.first = block(1, 6, stride=2)
        self.middle: nn.Module = block(6, 6, stride=2)
        self.last = nn.Conv2d(6, self.descriptor_size, kernel_size=8, bias=False)
        self.norm = nn.BatchNorm1d(self.descriptor_size, affine=False)

    def trunk(self, patches: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        first = self.first(patches)
        return self.reduce(self.middle(first), keep), first


class TinyBatchNet(TinyNet):
    """L2Net in small: BatchNorm inside."""

    chunkable = False

    def __init__(self, dropout: float = 0.3) -> None:
        super().__init__(dropout)
        self.first = nn.Sequential(*plain_convolution(1, 6, stride=2))
        self.middle = nn.Sequential(nn.ReLU(), *plain_block(6, 6, stride=2))


COMMON = TrainConfig(iterations=100, batch_size=32, seed=5, threads=1, engine="eager", learning_rate=0.1)
SDGM = replace(COMMON, chunk_size=8, loss_options=("decay=0.9",))
OTHER = replace(COMMON, chunk_size=8, batch_size=16, learning_rate=0.001)  # for losses without a decay
L2NET: dict[str, Any] = {"encoder": "l2net", "chunk_size": None}
RUNS = {  # what it is made of, and how many steps
    "sdgm": (SDGM, STEPS),
    "sdgm, float32": (replace(SDGM, learning_rate=0.01), STEPS),
    "batchnorm inside": (replace(SDGM, learning_rate=0.05, **L2NET), STEPS),
    "joint, strong, hynet": (replace(OTHER, joint_batchnorm=True, augmentation="strong", loss="hynet"), 4),
    "maps, orthogonality, adam": (
        replace(OTHER, loss="l2net", orthogonality=1.0, optimizer="adam", augmentation="hardnet"),
        4,
    ),
    "batchnorm inside, maps, joint": (replace(OTHER, loss="l2net", joint_batchnorm=True, **L2NET), 4),
    "histogram": (replace(OTHER, learning_rate=0.1, loss="cdf", recompute=True), 6),
}


def in_float64(run: Run) -> Run:
    """Training amplifies rounding by half at each step, and mining turns it into jumps: where nothing is rounded, every
    difference would be a mistake."""
    run.encoder.double()
    draw = run.sampler.batch
    run.sampler.batch = lambda *arguments: draw(*arguments).double()  # type: ignore[method-assign]
    return run


def follow() -> dict[str, Any]:
    """Losses and final state of every run, by the processes that there are."""
    before = dict(ENCODERS)
    ENCODERS.update(sdgmnet=TinyNet, l2net=TinyBatchNet)  # type: ignore[dict-item]
    try:
        patchset, found = blob_patches(points=60, views=3, seed=1), {}
        for name, (config, steps) in RUNS.items():
            world = world_of("world")
            run = start(config, [patchset], world=world)
            run = run if "float32" in name else in_float64(run)
            losses = [iterate_once(run) for _ in range(steps)]
            state = {**run.encoder.state_dict(), **{f"loss.{key}": it for key, it in run.loss.state_dict().items()}}
            parameters = sum(parameter.numel() for parameter in run.encoder.parameters())
            traffic = (world.gathered_bytes / steps, world.summed_bytes / steps, parameters)
            found[name] = {"losses": losses, "state": state, "traffic": traffic}
        return found
    finally:
        ENCODERS.update(before)


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    torch.set_num_threads(1)
    return follow()


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def ranks(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return run_ranks(request.param, follow)


@pytest.mark.parametrize("name", RUNS)
def test_ranks_follow_the_single_process(alone: dict[str, Any], ranks: list[dict[str, Any]], name: str) -> None:
    expected = alone[name]
    tolerance = 1e-4 if "float32" in name else 1e-9  # steps enlarge rounding, which is the processor's own
    assert len(set(expected["losses"])) == len(expected["losses"])
    for rank in ranks:
        assert rank[name]["losses"] == pytest.approx(expected["losses"], rel=tolerance, abs=tolerance)
        for key, value in expected["state"].items():
            torch.testing.assert_close(
                rank[name]["state"][key], value, rtol=tolerance, atol=tolerance, msg=lambda m, k=key: f"{k}: {m}"
            )
            assert torch.equal(rank[name]["state"][key], ranks[0][name]["state"][key]), f"{key} differs between ranks"


def test_bytes_of_a_step_are_those_of_the_page(ranks: list[dict[str, Any]]) -> None:
    """docs/guides/distributed.md: features of both sides, 4 bytes each, gathered; a gradient of 4 bytes a parameter, summed."""
    gathered, summed, parameters = ranks[0]["sdgm, float32"]["traffic"]
    assert gathered == 2 * 32 * 16 * 4
    assert summed == 4 * parameters
    inside = ranks[0]["batchnorm inside"]["traffic"]
    channels, sides = 6 + 6, 2
    # In float64. A sum of channels and a count, then one of squares; the same back.
    assert inside[1] == 8 * inside[2] + sides * 2 * 8 * (channels + 2 + channels)


def test_rows_of_the_masks_are_the_same_bits() -> None:
    whole = dropout_masks(1, 2, 160, (3, 2), 0.3)
    assert whole is not None
    for rows in (slice(0, 40), slice(40, 80), slice(60, 70), slice(120, 160), slice(0, 160)):
        part = dropout_masks(1, 2, 160, (3, 2), 0.3, rows=rows)
        assert part is not None and torch.equal(part, whole[:, rows])


# ---- the whole command: files, checkpoints, evaluations


OWN_LOSS = """
from torch import nn

class Vector(nn.Module):
    def forward(self, anchor, positive, *, progress=1.0):
        return (anchor - positive).square().sum(dim=1)
"""


def command(folder: str) -> dict[str, Any]:
    """On two ranks: a run to its end, one that a signal to the second rank stops and one process began; and bad input."""
    out, found = Path(folder), dict[str, Any]()
    config = TrainConfig.load(out / "given.json")
    found["results"] = train(config, out / "ranks", console=QUIET)
    original, save, second = loop.iterate_once, loop.save_checkpoint, dist.get_rank() == 1

    def signalled(run: Any) -> float:
        if second and run.step == 4:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)  # once by the terminal or a scheduler, once by torchrun
        return original(run)

    def slow(*arguments: Any) -> Path:
        time.sleep(1)
        return save(*arguments)

    loop.iterate_once, loop.save_checkpoint = signalled, slow
    try:
        train(config, out / "stopped", console=QUIET)
    except Stopped as stopped:
        found["stopped"] = (stopped.exit_code, str(stopped))
        found["saved"] = (out / "stopped/checkpoints/checkpoint-000000005.pt").exists()
    finally:
        loop.iterate_once, loop.save_checkpoint = original, save
    with_threads = replace(TrainConfig.load(out / "alone-first/config.json"), threads=2)
    for _ in range(2):  # torchrun's restart types the same again
        train(with_threads, out / "alone-first", resume=True, console=QUIET)
    torch.set_num_threads(1)
    for name, wrong, where in (
        ("uneven", replace(config, batch_size=9), "new"),
        ("taken", config, "ranks"),
        ("too large", replace(config, batch_size=4000), "new"),
        ("other data", replace(config, seed=dist.get_rank()), "new"),
        ("no scalar", replace(config, loss=f"{out}/own.py:Vector", loss_options=()), "own"),
    ):
        try:
            train(wrong, out / where, console=QUIET)
        except (InputError, Stopped) as error:
            found[name] = (type(error).__name__, str(error))
    return found


def largest_difference(first: Path, second: Path) -> float:
    a, b = load_file(first), load_file(second)
    assert a.keys() == b.keys()
    return max((a[key].double() - b[key].double()).abs().max().item() for key in a)


def stop_after(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    original = loop.iterate_once

    def signalled(run: Any) -> float:
        if run.step == steps - 1:
            os.kill(os.getpid(), signal.SIGINT)
        return original(run)

    monkeypatch.setattr(loop, "iterate_once", signalled)


@pytest.mark.slow
def test_the_command_by_two_ranks(
    blobs: PatchSet, other_blobs: PatchSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for one in (blobs, other_blobs):
        one.save(tmp_path / one.name)
    folders = tuple(str(tmp_path / one.name) for one in (blobs, other_blobs))
    config = TrainConfig(
        data=folders, holdout=(other_blobs.name,), iterations=8, batch_size=8, seed=3, threads=1, evaluations=2,
        evaluation_pairs=60, checkpoint_every=3, learning_rate=0.005, loss_options=("decay=0.9",),
    )  # fmt: skip
    config.save(tmp_path / "given.json")
    (tmp_path / "own.py").write_text(OWN_LOSS)
    expected = train(config, tmp_path / "alone", console=QUIET)
    with monkeypatch.context() as patch:
        stop_after(5, patch)
        with pytest.raises(Stopped):
            train(config, tmp_path / "alone-first", console=QUIET)

    first, second = run_ranks(2, command, str(tmp_path))
    assert first["results"] == second["results"]
    assert first["results"]["fpr95_last"] == pytest.approx(expected["fpr95_last"], abs=0.02)
    assert json.loads((tmp_path / "ranks/results.json").read_text()) == first["results"]
    assert first["stopped"][0] == second["stopped"][0] == 130
    assert "step 5 of 8" in first["stopped"][1] and second["stopped"][1] == ""
    assert second["saved"], "a rank that ends while the first one saves has torchrun end that, too"
    text = (tmp_path / "ranks/log.jsonl").read_text().splitlines()
    assert len(text) == len((tmp_path / "alone/log.jsonl").read_text().splitlines())  # one rank writes

    resumed = TrainConfig.load(tmp_path / "stopped/config.json")
    checkpoint = loop.load_checkpoint(tmp_path / "stopped/checkpoints")[0]
    assert checkpoint["ranks"] == 2 and checkpoint["step"] == 5
    train(resumed, tmp_path / "stopped", resume=True, console=QUIET)
    for name in ("ranks", "stopped", "alone-first"):
        for weights in ("last.safetensors", "best.safetensors"):
            assert largest_difference(tmp_path / "alone" / weights, tmp_path / name / weights) < 1e-5
        assert (tmp_path / name / "angles.npz").exists()

    assert "not a multiple of the 2 ranks: use 8" in first["uneven"][1]
    assert "already holds a run" in first["taken"][1]
    assert "batch of 4000 pairs" in first["too large"][1]
    assert "data or configuration of rank 0 and of rank 1 differ" in first["other data"][1]
    assert "Vector returned a tensor (8,)" in first["no scalar"][1]
    for name in ("uneven", "taken", "too large", "other data", "no scalar"):
        assert first[name][0] == "InputError" and second[name] == ("SilentExit", "")
    assert not (tmp_path / "new/config.json").exists()


def test_threads_stay_where_ranks_stay(blobs: PatchSet, tmp_path: Path) -> None:
    blobs.save(tmp_path / "blobs")
    config = TrainConfig(data=(str(tmp_path / "blobs"),), iterations=1, batch_size=4, threads=1)
    train(config, tmp_path / "run", console=QUIET)
    saved = TrainConfig.load(tmp_path / "run/config.json")
    with pytest.raises(InputError, match="--threads"):
        train(replace(saved, threads=2), tmp_path / "run", resume=True, console=QUIET)
    assert world_of("world") is ALONE


# ---- the paper's encoder


def follow_sdgmnet(folder: Path, double: bool) -> dict[str, Any]:
    """Dropout 0.3, the paper's augmentation, 10 steps of warm-up and 10 after it, on real patches."""
    config = TrainConfig(
        iterations=100, batch_size=16, seed=5, threads=1, engine="native", learning_rate=0.01,
        chunk_size=64, loss_options=("decay=0.9",),
        init="sdgmnet",
    )  # fmt: skip
    if double:
        config = replace(config, batch_size=8, engine="eager", init=None)
    run = start(config, [PatchSet.open(folder)], world=world_of("world"))
    run = in_float64(run) if double else run
    losses = [iterate_once(run) for _ in range(STEPS)]
    return {
        "losses": losses,
        "weights": dict(run.encoder.named_parameters()),
        "buffers": dict(run.encoder.named_buffers()),
        "statistics": run.loss.state_dict(),
    }


@pytest.mark.slow
@pytest.mark.parametrize("double", [False, True], ids=["float32 from trained weights", "float64 from scratch"])
def test_the_papers_encoder_by_two_and_four_ranks(double: bool, tmp_path: Path) -> None:
    """Figures of docs/guides/distributed.md, with -s. In float32 from scratch one process with other chunks drifts as far."""
    torch.set_num_threads(1)
    read_demo()[0].save(tmp_path / "demo")
    alone = follow_sdgmnet(tmp_path / "demo", double)
    for size in (2, 4):
        ranks = run_ranks(size, follow_sdgmnet, tmp_path / "demo", double)
        losses = max(abs(one - other) for one, other in zip(alone["losses"], ranks[0]["losses"], strict=True))
        weights, buffers, statistics = (
            max((alone[part][key].double() - it.double()).abs().max().item() for key, it in ranks[0][part].items())
            for part in ("weights", "buffers", "statistics")
        )
        found = f"losses {losses:.1e}, weights {weights:.1e}, buffers {buffers:.1e}, statistics {statistics:.1e}"
        print(f"{'float64' if double else 'float32'}, k = {size}: {found}")
        assert max(losses, weights, statistics) < 1e-5
        assert buffers < 1e-4  # BatchNorm's: features of some size, over 16 patches a side
        for rank in ranks:
            assert rank["losses"] == ranks[0]["losses"]
            for part in ("weights", "buffers", "statistics"):
                assert all(torch.equal(it, ranks[0][part][key]) for key, it in rank[part].items())

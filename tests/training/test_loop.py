import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from sdgmnet.data.patchset import PatchSet
from sdgmnet.data.window import centre
from sdgmnet.encoders import L2Net, save_encoder
from sdgmnet.errors import InputError, Interrupted, TrainingStopped
from sdgmnet.loss import SDGMLoss
from sdgmnet.plots.patches import read_triplets
from sdgmnet.pretrained import read_weights, write_weights
from sdgmnet.storage import only_worker
from sdgmnet.training import fit as loop
from sdgmnet.training.angles import Angles
from sdgmnet.training.config import TrainConfig
from sdgmnet.training.fit import train
from sdgmnet.training.log import read_log
from sdgmnet.training.recipes import settings_of
from sdgmnet.training.run import Run

QUIET = Console(quiet=True)
SLOW = pytest.mark.slow
WINDOW = 10.0  # narrower than the sets'


def small_config(folder: Path, patchsets: tuple[PatchSet, PatchSet]) -> TrainConfig:
    """A short run on the first set, tested on the second; both are written to the folder."""
    train_on, test_on = (str(one.save(folder / one.name) and folder / one.name) for one in patchsets)
    return TrainConfig(
        data=(train_on, test_on), holdout=(patchsets[1].name,), iterations=12, batch_size=8, seed=3, threads=1,
        evaluations=3, evaluation_pairs=60, checkpoint_every=5, learning_rate=0.1, window=WINDOW,
    )  # fmt: skip


@pytest.fixture
def config(blobs: PatchSet, other_blobs: PatchSet, tmp_path: Path) -> TrainConfig:
    return small_config(tmp_path, (blobs, other_blobs))


@pytest.fixture(scope="module")
def whole(blobs: PatchSet, other_blobs: PatchSet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The uninterrupted run of `config`."""
    folder = tmp_path_factory.mktemp("whole")
    train(small_config(folder, (blobs, other_blobs)), folder / "run", console=QUIET)
    return folder / "run"


def same_weights(first: Path, second: Path) -> bool:
    a, b = load_file(first), load_file(second)
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def test_a_run_leaves_all_it_promises(whole: Path, other_blobs: PatchSet) -> None:
    run, results = whole, json.loads((whole / "results.json").read_text())
    for name in ("config.json", "log.jsonl", "best.safetensors", "best.json", "last.safetensors", "last.json",
                 "results.json", "angles.npz", "triplets.npz"):  # fmt: skip
        assert (run / name).exists(), name
    epochs, evaluations = read_log(run / "log.jsonl", "epoch"), read_log(run / "log.jsonl", "evaluation")
    assert [line["step"] for line in epochs] == list(range(1, 13))
    assert [line["step"] for line in evaluations] == [0, 4, 8, 12]
    for name in ("theta_rel_mean", "theta_rel_std", "theta_pos_mean", "theta_pos_std", "theta_neg_mean",
                 "theta_neg_std", "power_pos", "power_neg"):  # fmt: skip
        assert all(name in line and f"running_{name}" in line for line in epochs)
    assert epochs[0]["active_share"] == 1 and "learning_rate" in epochs[0] and "loss" in epochs[0]
    best = min(evaluations[1:], key=lambda line: line["fpr95"]["mean"])
    assert results["fpr95_best"]["step"] == best["step"]
    card = json.loads((run / "best.json").read_text())
    assert card["trained_on"] == ["blobs1"] and card["step"] == best["step"]
    triplets, seen = read_triplets(run / "triplets.npz"), centre(other_blobs.patches, WINDOW / other_blobs.window)
    away = abs(seen[:, None].astype(np.int16) - triplets.patches.reshape(-1, 64, 64)).max(axis=(2, 3))
    assert triplets.step == 12 and away.min(axis=0).max() <= 1  # each is a held-out patch, but for rounding


def test_same_seed_same_bits_and_another_seed_differs(config: TrainConfig, whole: Path, tmp_path: Path) -> None:
    for name, seed in (("same", config.seed), ("other", config.seed + 1)):
        train(replace(config, seed=seed), tmp_path / name, console=QUIET)
    assert_same_run(whole, tmp_path / "same")
    assert not same_weights(whole / "last.safetensors", tmp_path / "other/last.safetensors")


def test_it_learns(config: TrainConfig, tmp_path: Path) -> None:
    config = replace(config, iterations=40, batch_size=16, seed=0, evaluations=1, evaluation_pairs=None)
    train(config, tmp_path / "run", console=QUIET)
    before, after = (line["fpr95"]["mean"] for line in read_log(tmp_path / "run/log.jsonl", "evaluation"))
    assert after < 0.5 * before


def interrupted_after(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send this process SIGINT while the given step runs."""
    original, done = loop.iterate_once, []

    def counted(run: Run) -> float:
        done.append(1)
        if len(done) == steps:
            os.kill(os.getpid(), signal.SIGINT)
        return original(run)

    monkeypatch.setattr(loop, "iterate_once", counted)


def interrupt(config: TrainConfig, run: Path, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        interrupted_after(steps, patch)
        with pytest.raises(Interrupted, match=f"step {steps} of {config.iterations}.*--resume"):
            train(config, run, console=QUIET)


def test_a_second_process_is_refused(config: TrainConfig, tmp_path: Path) -> None:
    with (
        only_worker(tmp_path),
        pytest.raises(InputError, match="another process"),
    ):
        train(config, tmp_path, console=QUIET)
    train(replace(config, iterations=2), tmp_path, console=QUIET)
    saved = TrainConfig.load(tmp_path / "config.json")
    with only_worker(tmp_path), pytest.raises(InputError, match="another process"):
        train(saved, tmp_path, resume=True, console=QUIET)


def resume(run: Path, console: Console = QUIET) -> None:
    train(TrainConfig.load(run / "config.json"), run, resume=True, console=console)


def assert_same_run(first: Path, second: Path) -> None:
    """Weights, bit by bit, and log."""
    for name in ("last.safetensors", "best.safetensors"):
        assert same_weights(first / name, second / name)
    assert (first / "log.jsonl").read_text() == (second / "log.jsonl").read_text()


@pytest.mark.parametrize("steps", [3, pytest.param(8, marks=SLOW)])
def test_ctrl_c_then_resume_gives_the_same_bits(
    config: TrainConfig, whole: Path, tmp_path: Path, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(config, tmp_path / "parts", steps, monkeypatch)
    resume(tmp_path / "parts")
    assert_same_run(whole, tmp_path / "parts")


@pytest.mark.parametrize(
    "recipe", ["cdfdesc", "hynet", *(pytest.param(one, marks=SLOW) for one in ("sosnet", "tfeat"))]
)
def test_other_methods_resume_to_the_same_bits(
    config: TrainConfig, tmp_path: Path, recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adam's moments, a loss's histogram and BatchNorm inside the encoder are all in the checkpoint."""
    common = ("data", "holdout", "iterations", "batch_size", "seed", "threads", "evaluations", "evaluation_pairs",
              "checkpoint_every")  # fmt: skip
    config = replace(settings_of(recipe), **{name: getattr(config, name) for name in common})
    train(config, tmp_path / "whole", console=QUIET)
    interrupt(config, tmp_path / "parts", 7, monkeypatch)
    resume(tmp_path / "parts")
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_a_start_from_another_encoder_is_refused(config: TrainConfig, tmp_path: Path) -> None:
    save_encoder(L2Net(), tmp_path / "l2net.safetensors", {})
    with pytest.raises(InputError, match="L2Net.*sdgmnet"):
        train(replace(config, init=str(tmp_path / "l2net.safetensors")), tmp_path / "run", console=QUIET)


def test_an_addend_changes_the_run_and_ends_well(config: TrainConfig, tmp_path: Path) -> None:
    few = replace(config, iterations=2, evaluations=1)
    for name, weight in (("without", 0.0), ("with", 1.0)):
        train(replace(few, orthogonality=weight), tmp_path / name, console=QUIET)
    assert not same_weights(tmp_path / "with/last.safetensors", tmp_path / "without/last.safetensors")
    line = read_log(tmp_path / "with/log.jsonl", "epoch")[-1]
    assert "running_power_pos" in line and "theta_pos_mean" in line


def test_kill_9_then_resume_gives_the_same_bits(config: TrainConfig, whole: Path, tmp_path: Path) -> None:
    """A real process, really killed in the middle of a step, somewhere after its first checkpoint."""
    flags = ("--iterations", "--batch-size", "--seed", "--threads", "--evaluations", "--evaluation-pairs",
             "--checkpoint-every", "--learning-rate", "--window")  # fmt: skip
    settings = [word for flag in flags for word in (flag, str(getattr(config, flag[2:].replace("-", "_"))))]
    command = [sys.executable, "-m", "sdgmnet", "train"]
    process = subprocess.Popen(
        [*command, "--data", *config.data, "--holdout", *config.holdout, *settings, "-o", str(tmp_path / "parts")],
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while not (tmp_path / "parts/checkpoints/checkpoint-000000005.pt").exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "parts/last.safetensors").exists()
    resumed = subprocess.run(
        [*command, "-o", str(tmp_path / "parts"), "--resume"], capture_output=True, text=True, check=False
    )
    assert resumed.returncode == 0, resumed.stderr
    assert "Resuming at step" in resumed.stderr
    assert_same_run(whole, tmp_path / "parts")


def test_damaged_checkpoint_is_said_and_the_end_is_the_same(
    config: TrainConfig, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(config, tmp_path / "parts", 8, monkeypatch)
    newest = sorted((tmp_path / "parts/checkpoints").iterdir())[-1]
    newest.write_bytes(newest.read_bytes()[:1000])
    console = Console(file=io.StringIO(), width=200)
    resume(tmp_path / "parts", console)
    assert newest.name in console.file.getvalue()
    assert_same_run(whole, tmp_path / "parts")


def test_resume_refuses_another_configuration_or_other_data(
    config: TrainConfig, blobs: PatchSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="no run to resume"):
        train(config, tmp_path / "run", resume=True, console=QUIET)
    interrupt(config, tmp_path / "run", 2, monkeypatch)
    saved = TrainConfig.load(tmp_path / "run/config.json")
    with pytest.raises(InputError, match="already holds a run"):
        train(config, tmp_path / "run", console=QUIET)
    with pytest.raises(InputError, match="--learning-rate.*0.3"):
        train(replace(saved, learning_rate=0.3), tmp_path / "run", resume=True, console=QUIET)
    patches = np.lib.format.open_memmap(Path(config.data[0]) / "patches.npy", mode="r+")
    patches[0] = 255 - patches[0]
    patches.flush()
    with pytest.raises(InputError, match="data changed.*blobs1"):
        train(saved, tmp_path / "run", resume=True, console=QUIET)


def test_weights_that_break_after_the_last_step_are_not_kept(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = loop.iterate_once

    def poisoned(run: Run) -> float:
        value = original(run)
        if run.step == 12:
            with torch.no_grad():
                next(run.encoder.parameters()).fill_(float("nan"))
        return value

    monkeypatch.setattr(loop, "iterate_once", poisoned)
    with pytest.raises(TrainingStopped, match="step 12 of 12"):
        train(replace(config, data=config.data[:1], holdout=()), tmp_path / "run", console=QUIET)
    assert not (tmp_path / "run/last.safetensors").exists()
    assert max(path.name for path in (tmp_path / "run/checkpoints").iterdir()) == "checkpoint-000000010.pt"


def test_a_folder_with_old_checkpoints_is_refused(config: TrainConfig, whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "run")
    (tmp_path / "run/config.json").unlink()
    with pytest.raises(InputError, match="already holds a run"):
        train(config, tmp_path / "run", console=QUIET)


def test_resume_needs_neither_init_nor_the_same_working_folder(
    config: TrainConfig, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_from = tmp_path / "weights.safetensors"
    tensors, known = read_weights(whole / "last.safetensors")
    write_weights(tensors, start_from, {**known, "trained_on": ["elsewhere"], "scenes": ["there"]})
    monkeypatch.chdir(tmp_path)
    relative = replace(config, init=str(start_from), data=tuple(Path(name).name for name in config.data))
    interrupt(relative, tmp_path / "run", 2, monkeypatch)
    start_from.unlink()
    monkeypatch.chdir("/")
    resume(tmp_path / "run")
    card = json.loads((tmp_path / "run/last.json").read_text())
    assert card["trained_on"] == ["blobs1", "elsewhere"] and "there" in card["scenes"]


@pytest.mark.parametrize("how", ["loss", "descriptors"])
def test_nan_stops_the_run_and_keeps_the_checkpoint(
    config: TrainConfig, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = loop.iterate_once

    def poisoned(run: Run) -> float:
        if run.step == 7:
            with torch.no_grad():
                next(run.encoder.parameters()).fill_(float("nan"))
            if how == "loss":
                monkeypatch.setattr(
                    SDGMLoss, "forward", lambda *_, **__: torch.tensor(float("nan"), requires_grad=True)
                )
        return original(run)

    monkeypatch.setattr(loop, "iterate_once", poisoned)
    with pytest.raises(TrainingStopped, match=r"step 7 of 12.*running_power_pos"):
        train(config, tmp_path / "run", console=QUIET)
    assert max(path.name for path in (tmp_path / "run/checkpoints").iterdir()) == "checkpoint-000000005.pt"


def test_warm_start(config: TrainConfig, whole: Path, tmp_path: Path) -> None:
    train(replace(config, init=str(whole / "last.safetensors"), iterations=2), tmp_path / "second", console=QUIET)
    last = read_log(whole / "log.jsonl", "evaluation")[-1]
    assert read_log(tmp_path / "second/log.jsonl", "evaluation")[0]["fpr95"] == last["fpr95"]


def test_too_few_points_and_unusable_device(config: TrainConfig, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--batch-size 60"):
        train(replace(config, batch_size=61), tmp_path / "run", console=QUIET)
    with pytest.raises(InputError, match="--device"):
        train(replace(config, device="nonsense"), tmp_path / "run", console=QUIET)
    assert not (tmp_path / "run").exists()


def test_a_run_killed_before_its_first_checkpoint_resumes_from_the_start(
    config: TrainConfig, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(run: Run) -> float:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(loop, "iterate_once", killed)
        with pytest.raises(MemoryError):
            train(config, tmp_path / "parts", console=QUIET)
    resume(tmp_path / "parts")
    assert_same_run(whole, tmp_path / "parts")


def test_tensorboard(config: TrainConfig, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    train(replace(config, tensorboard=True, iterations=2), tmp_path / "run", console=QUIET)
    assert list((tmp_path / "run/tensorboard").glob("events*"))


def test_wandb_offline(config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    train(replace(config, wandb=True, iterations=2), tmp_path / "run", console=QUIET)
    (written,) = (tmp_path / "run/wandb").glob("offline-run-*/*.wandb")
    latest = time.monotonic() + 60  # another process of wandb writes the file, also after the run has ended
    while b"fpr95/mean" not in written.read_bytes() and time.monotonic() < latest:
        time.sleep(0.1)
    assert b"fpr95/mean" in written.read_bytes()


def test_a_run_killed_before_its_configuration_was_written_is_begun_again(
    config: TrainConfig, whole: Path, tmp_path: Path
) -> None:
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    (tmp_path / "run/checkpoints/checkpoint-000000000.pt").write_bytes(b"of a run that never began")
    (tmp_path / "run/log.jsonl").write_text("")
    train(config, tmp_path / "run", console=QUIET)
    assert_same_run(whole, tmp_path / "run")


def test_a_checkpoint_that_does_not_fit_the_run_is_refused(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "run")
    for path in (tmp_path / "run/checkpoints").glob("*.pt"):
        torch.save({"step": 3, "encoder": {}}, path)
    with pytest.raises(InputError, match="checkpoint of step"):
        resume(tmp_path / "run")


def test_what_one_should_know_before_using_the_weights() -> None:
    triplets, moments = np.full(8 * 16, 0.5), np.ones((3, 2))
    assert Angles(triplets, triplets + 0.2, moments).concern(16, 100) is None
    assert Angles(triplets[:13], triplets[:13] + 0.2, moments).concern(16, 100) is None
    assert "91% of the points" in str(Angles(triplets[:12], triplets[:12] + 0.2, moments).concern(16, 100))
    assert "100% of the points" in str(Angles(triplets[:0], triplets[:0], moments).concern(16, 100))
    assert "100% of the points, a patch of another" in str(Angles(triplets, triplets, moments).concern(16, 100))
    assert Angles(triplets, triplets, moments).concern(16, 2) is None  # nothing can be learned in two iterations

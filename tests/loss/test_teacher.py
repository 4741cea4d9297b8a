"""Distillation of angles: against a plain loop, and in training."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from safetensors.torch import load_file

from sdgmnet.cli import main
from sdgmnet.data.patchset import PatchSet
from sdgmnet.encoders import SDGMNet, save_encoder
from sdgmnet.errors import InputError
from sdgmnet.loss.teacher import angle_distillation
from sdgmnet.training.config import TrainConfig
from sdgmnet.training.fit import train

QUIET = Console(quiet=True)


def unit(*shape: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(*shape, generator=generator, dtype=torch.float64), dim=1)


def loop(student: list[torch.Tensor], teacher: list[torch.Tensor]) -> torch.Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for row in range(len(student[0])):
        for column in range(len(student[1])):
            mine, theirs = (torch.acos(a[row] @ p[column]) for a, p in (student, teacher))
            total = total + (mine - theirs) ** 2
    return total / (len(student[0]) * len(student[1]))


def test_value_and_gradient_are_those_of_the_loop() -> None:
    student = [unit(5, 4, seed=seed).requires_grad_() for seed in (0, 1)]
    teacher = [unit(5, 7, seed=seed) for seed in (2, 3)]
    value, expected = angle_distillation(*student, *teacher), loop(student, teacher)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(torch.autograd.grad(value, student), torch.autograd.grad(expected, student))


def test_a_student_like_its_teacher_has_nothing_to_learn() -> None:
    """Also turned by any rotation, and where an anchor is its positive."""
    a, turn = unit(6, 8, seed=0).requires_grad_(), torch.linalg.qr(torch.randn(8, 8, dtype=torch.float64))[0]
    value = angle_distillation(a, a, a.detach() @ turn, a.detach() @ turn)
    assert value.item() == pytest.approx(0, abs=1e-9)
    assert torch.autograd.grad(value, a)[0].abs().max() < 1e-4
    with pytest.raises(InputError, match="5 anchors"):
        angle_distillation(a, a, a[:5], a[:5])


def test_training_with_a_teacher(blobs: PatchSet, other_blobs: PatchSet, tmp_path: Path) -> None:
    """It changes the run, is resumed to the same bits with the same weights only, and must have the run's window."""
    torch.manual_seed(0)
    wide = SDGMNet()
    teacher, run = tmp_path / "teacher.safetensors", tmp_path / "taught"
    save_encoder(wide, teacher, {})
    wide.window = 20.0
    save_encoder(wide, tmp_path / "wide.safetensors", {})
    sets = [str(one.save(tmp_path / one.name) and tmp_path / one.name) for one in (blobs, other_blobs)]
    words = ["train", "--data", *sets, "--holdout", other_blobs.name, "--encoder", "fast", "--dropout", "0"]
    words += ["--iterations", "4", "--batch-size", "8", "--threads", "1", "--evaluations", "1"]
    assert main([*words, "--teacher", str(teacher), "--teacher-weight", "0.5", "-o", str(run)]) == 0
    taught = TrainConfig.load(run / "config.json")
    train(replace(taught, teacher=None), tmp_path / "alone", console=QUIET)
    assert not torch.equal(
        *(load_file(tmp_path / one / "last.safetensors")["last.weight"] for one in ("alone", "taught"))
    )
    parts = tmp_path / "parts"
    shutil.copytree(run, parts)
    for path in (parts / "results.json", parts / "last.safetensors", *sorted((parts / "checkpoints").iterdir())[1:]):
        path.unlink()
    train(taught, parts, resume=True, console=QUIET)
    assert (parts / "last.safetensors").read_bytes() == (run / "last.safetensors").read_bytes()
    (parts / "results.json").unlink()
    save_encoder(SDGMNet(), teacher, {})
    assert main(["train", "-o", str(parts), "--resume"]) == 2
    assert main([*words, "--teacher", str(tmp_path / "wide.safetensors"), "-o", str(tmp_path / "no")]) == 2
    assert not (tmp_path / "no").exists()

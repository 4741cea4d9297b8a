"""Distillation of angles: against a plain loop, and in training."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from sdgmnet.cli import main
from sdgmnet.data.patchset import PatchSet
from sdgmnet.encoders import SDGMNet, load_encoder, save_encoder
from sdgmnet.errors import InputError
from sdgmnet.loss.teacher import angle_distillation


def unit(*shape: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(*shape, generator=generator, dtype=torch.float64), dim=1)


def loop(student: list[np.ndarray], teacher: list[np.ndarray]) -> float:
    total = 0.0
    for row in range(len(student[0])):
        for column in range(len(student[1])):
            mine, theirs = (math.acos(float(a[row] @ p[column])) for a, p in (student, teacher))
            total += (mine - theirs) ** 2
    return total / len(student[0])


def test_value_and_gradient_are_those_of_the_loop() -> None:
    student = [unit(5, 4, seed=seed) for seed in (0, 1)]
    teacher = [unit(5, 7, seed=seed) for seed in (2, 3)]
    free = [one.clone().requires_grad_() for one in student]
    value = angle_distillation(*(F.normalize(one, dim=1) for one in free), *teacher)
    known = [one.numpy() for one in teacher]
    assert value.item() == pytest.approx(loop([one.numpy() for one in student], known), rel=1e-12)
    gradient = torch.autograd.grad(value, free[0])[0]
    for row, column in ((0, 0), (3, 2)):
        moved = []
        for step in (1e-6, -1e-6):
            changed = student[0].clone()
            changed[row, column] += step
            moved.append(loop([F.normalize(changed, dim=1).numpy(), student[1].numpy()], known))
        assert (moved[0] - moved[1]) / 2e-6 == pytest.approx(gradient[row, column].item(), abs=1e-6)


def test_a_student_like_its_teacher_has_nothing_to_learn() -> None:
    """Also turned by any rotation, and where an anchor is its positive."""
    a, turn = unit(6, 8, seed=0).requires_grad_(), torch.linalg.qr(torch.randn(8, 8, dtype=torch.float64))[0]
    value = angle_distillation(a, a, a.detach() @ turn, a.detach() @ turn)
    assert value.item() == pytest.approx(0, abs=1e-9)
    assert torch.autograd.grad(value, a)[0].abs().max() < 1e-4
    with pytest.raises(InputError, match="5 anchors and 5 positives"):
        angle_distillation(a, a, a[:5], a[:5])


def test_training_with_a_teacher(blobs: PatchSet, other_blobs: PatchSet, tmp_path: Path) -> None:
    """It changes the run, is resumed to the same bits with the same weights only, and must have the run's window."""
    torch.manual_seed(0)
    wide = SDGMNet()
    save_encoder(wide, tmp_path / "teacher.safetensors", {})
    wide.window = 20.0
    save_encoder(wide, tmp_path / "wide.safetensors", {})
    sets = [str(one.save(tmp_path / one.name) and tmp_path / one.name) for one in (blobs, other_blobs)]
    words = ["train", "--data", *sets, "--holdout", other_blobs.name, "--encoder", "fast", "--dropout", "0"]
    words += ["--iterations", "4", "--batch-size", "8", "--threads", "1", "--evaluations", "1"]
    taught = [*words, "--teacher", str(tmp_path / "teacher.safetensors"), "--teacher-weight", "0.5"]
    assert main([*words, "-o", str(tmp_path / "alone")]) == 0
    assert main([*taught, "-o", str(tmp_path / "taught")]) == 0
    alone, found = (load_encoder(tmp_path / run / "last.safetensors")[0] for run in ("alone", "taught"))
    assert not torch.equal(alone.last.weight, found.last.weight)  # type: ignore[attr-defined]
    run = tmp_path / "taught"
    for name in ("results.json", "last.safetensors", "best.safetensors"):
        (run / name).unlink()
    for path in sorted((run / "checkpoints").iterdir())[1:]:
        path.unlink()
    assert main(["train", "-o", str(run), "--resume"]) == 0
    again = load_encoder(run / "last.safetensors")[0]
    assert torch.equal(again.last.weight, found.last.weight)  # type: ignore[attr-defined]
    (run / "results.json").unlink()
    save_encoder(SDGMNet(), tmp_path / "teacher.safetensors", {})
    assert main(["train", "-o", str(run), "--resume"]) == 2
    assert main([*words, "--teacher", str(tmp_path / "wide.safetensors"), "-o", str(tmp_path / "no")]) == 2
    assert not (tmp_path / "no").exists()

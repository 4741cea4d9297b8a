"""Data never runs code: pickles that would run a function are refused by every reader of weights, checkpoints and arrays."""

import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sdgmnet.cli import main
from sdgmnet.data.patchset import PatchSet
from sdgmnet.descriptors import load_descriptor, load_kornia
from sdgmnet.encoders import load_encoder, load_tfeat
from sdgmnet.errors import InputError
from sdgmnet.features.compact import load_projection
from sdgmnet.features.keypoint_files import read_keypoints
from sdgmnet.storage import read_arrays
from sdgmnet.training.checkpoint import load_checkpoint, read_checkpoint
from tests.conftest import blob_patches


class Attack:
    """Makes a folder when unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = str(mark)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.mark,)


def plain(path: Path, mark: Path) -> None:
    path.write_bytes(pickle.dumps(Attack(mark)))


def by_torch(path: Path, mark: Path) -> None:
    torch.save({"step": 3, "encoder": Attack(mark)}, path)


def by_old_torch(path: Path, mark: Path) -> None:
    torch.save({"step": 3, "encoder": Attack(mark)}, path, _use_new_zipfile_serialization=False)


def by_hidden_global(path: Path, mark: Path) -> None:
    """A valid torch archive whose pickle is replaced, with valid checksums."""
    torch.save({"step": 3}, path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, pickle.dumps(Attack(mark), 2) if name.endswith("data.pkl") else content)


READERS: dict[str, Callable[[Path], Any]] = {
    "w.safetensors": load_encoder,
    "axes.safetensors": load_projection,
    "tfeat.params": load_tfeat,
    "tfeat.pt": lambda path: load_descriptor(f"tfeat:{path}"),
    "hardnet.pt": lambda path: load_kornia(f"HardNet:{path}"),
    "hardnet.pth": lambda path: load_descriptor(f"kornia:HardNet:{path}"),
    "w.onnx": lambda path: load_descriptor(str(path)),
    "checkpoint-000000003.pt": read_checkpoint,
    "checkpoints/checkpoint-000000003.pt": lambda path: load_checkpoint(path.parent),
    "keypoints.npz": lambda path: read_keypoints(path, "a.png"),
}


@pytest.mark.parametrize("write", [plain, by_torch, by_old_torch, by_hidden_global])
@pytest.mark.parametrize("name", READERS)
def test_malicious_pickle_is_refused(name: str, write: Callable[[Path, Path], None], tmp_path: Path) -> None:
    path, mark = tmp_path / name, tmp_path / "made-by-the-attack"
    path.parent.mkdir(exist_ok=True)
    write(path, mark)
    with pytest.raises(InputError):
        READERS[name](path)
    assert not mark.exists()


def test_the_attack_would_work_where_pickles_are_trusted(tmp_path: Path) -> None:
    plain(tmp_path / "w.pt", tmp_path / "mark")
    pickle.loads((tmp_path / "w.pt").read_bytes())
    assert (tmp_path / "mark").is_dir()


def test_malicious_arrays_are_refused(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    np.savez(tmp_path / "a.npz", keypoints=np.array([Attack(mark)], dtype=object))
    with pytest.raises(InputError):
        read_arrays(tmp_path / "a.npz")
    blob_patches(points=4, views=2, seed=1).save(tmp_path / "set")
    for name in ("patches", "point_id", "test_pairs", "conflicts", "observations"):
        path = tmp_path / "set" / f"{name}.npy"
        before = path.read_bytes() if path.exists() else None
        np.save(path, np.array([Attack(mark)] * 8, dtype=object), allow_pickle=True)
        with pytest.raises(InputError, match=name):
            PatchSet.open(tmp_path / "set")
        path.unlink() if before is None else path.write_bytes(before)
    PatchSet.open(tmp_path / "set")
    assert not mark.exists()


@pytest.mark.parametrize("write", [plain, by_torch, by_hidden_global])
def test_resuming_from_a_malicious_checkpoint(
    write: Callable[[Path, Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blob_patches(points=8, views=2, seed=1).save(tmp_path / "set")
    words = ["train", "--data", str(tmp_path / "set"), "--iterations", "1", "--batch-size", "4", "--engine", "eager"]
    assert main([*words, "-o", str(tmp_path / "run")]) == 0
    (tmp_path / "run/results.json").unlink()  # as if the run had not finished
    for path in (tmp_path / "run/checkpoints").glob("*.pt"):
        write(path, tmp_path / "mark")
    assert main(["train", "-o", str(tmp_path / "run"), "--resume"]) == 2
    assert "no checkpoint" in capsys.readouterr().err
    assert not (tmp_path / "mark").exists()


def test_a_resumed_run_does_not_run_a_file_that_only_its_configuration_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run folder from others may come with a Python file: it runs only if the user names it."""
    loss = tmp_path / "own.py"
    loss.write_text("from sdgmnet.loss import LOSSES\nMine = LOSSES['hardnet']\n")
    blob_patches(points=8, views=2, seed=1).save(tmp_path / "set")
    words = ["train", "--data", str(tmp_path / "set"), "--iterations", "1", "--batch-size", "4", "--engine", "eager"]
    assert main([*words, "-o", str(tmp_path / "run"), "--loss", f"{loss}:Mine"]) == 0
    loss.write_text(f"import os\nos.mkdir({str(tmp_path / 'mark')!r})\n")
    (tmp_path / "run/results.json").unlink()  # as if the run had not finished
    capsys.readouterr()
    assert main(["train", "-o", str(tmp_path / "run"), "--resume"]) == 2
    assert f"--loss {loss}:Mine" in capsys.readouterr().err
    assert not (tmp_path / "mark").exists()
    assert (
        main(["train", "-o", str(tmp_path / "run"), "--resume", "--loss", f"{loss}:Mine"]) == 2
    )  # the file runs, and fails
    assert (tmp_path / "mark").exists()

"""Adding a loss, encoder, descriptor, data set or benchmark is one file and one line, as CONTRIBUTING.md says.

Each is added to a copy of the package, then used from the command line.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from sdgmnet.data.patchset import PatchSet

PACKAGE = Path(__file__).parent.parent / "sdgmnet"


class Addition(NamedTuple):
    file: str
    content: str
    registry: str
    head: str  # the line of the registry after which `line` is added
    line: str
    imports: str = ""  # where the registry holds objects


ADDITIONS = {
    "loss": Addition(
        "loss/toyloss.py",
        '''
from torch import Tensor, nn


class ToyLoss(nn.Module):
    """Mean squared distance of matching descriptors."""

    def forward(self, anchor: Tensor, positive: Tensor, *, progress: float = 1.0) -> Tensor:
        return (anchor - positive).square().sum(dim=1).mean()
''',
        "loss/registry.py",
        "LOSSES:",
        '    "toyloss": ToyLoss,',
        "from sdgmnet.loss.toyloss import ToyLoss",
    ),
    "encoder": Addition(
        "encoders/toyencoder.py",
        '''
import torch.nn.functional as F
from torch import Tensor, nn

from sdgmnet.encoders.base import Encoder


class ToyEncoder(Encoder):
    """One linear layer."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__(dropout)
        self.linear = nn.Linear(16, self.descriptor_size)

    def trunk(self, patches: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        first = F.avg_pool2d(patches, 8)
        return self.linear(first.flatten(1)), first

    def normalise_batch(self, features: Tensor) -> Tensor:
        return features
''',
        "encoders/__init__.py",
        "ENCODERS:",
        '    "toyencoder": ToyEncoder,',
        "from sdgmnet.encoders.toyencoder import ToyEncoder",
    ),
    "descriptor": Addition(
        "features/toydescriptor.py",
        '''
import numpy as np

from sdgmnet.features.describe import Descriptor


def load_toy(spec: str) -> Descriptor:
    def describe(patches: np.ndarray) -> np.ndarray:
        return patches[:, ::16, ::16].reshape(len(patches), -1).astype(np.float32) / 255

    return Descriptor("toydescriptor", describe)
''',
        "descriptors.py",
        "DESCRIPTORS:",
        '    "toydescriptor": load_toy,',
        "from sdgmnet.features.toydescriptor import load_toy",
    ),
    "data set": Addition(
        "data/toyset.py",
        '''
from pathlib import Path

import numpy as np

from sdgmnet.data.patchset import PatchSet


def is_toyset(folder: str) -> bool:
    return (Path(folder) / "toy.npy").is_file()


def read_toyset(folder: str) -> PatchSet:
    patches = np.load(Path(folder) / "toy.npy")
    return PatchSet("toy", patches, np.arange(len(patches)) // 3)
''',
        "data/sources.py",
        "SOURCES =",
        '    "a toyset (toy.npy)": Source(is_toyset, lambda folder, on_progress: [read_toyset(folder)]),',
        "from sdgmnet.data.toyset import is_toyset, read_toyset",
    ),
    "benchmark": Addition(
        "benchmarks/toybench.py",
        '''
from collections.abc import Callable
from pathlib import Path

import numpy as np


def run(describe_fn: Callable[[np.ndarray], np.ndarray], root: Path) -> list[dict[str, object]]:
    """Distance of the first two patches of a folder."""
    first, second = describe_fn(np.load(root / "toy.npy")[:2])
    return [{"pair": "first", "distance": float(np.linalg.norm(first - second))}]
''',
        "benchmarks/__init__.py",
        "BENCHMARKS:",
        '    "toybench": ("sdgmnet.benchmarks.toybench:run", "A toy benchmark."),',
    ),
}  # fmt: skip

Run = Callable[..., str]


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory, blobs: PatchSet) -> tuple[Run, Path]:
    """The command line of a copy of the package with all additions, and a folder of data."""
    place = tmp_path_factory.mktemp("extended")
    shutil.copytree(PACKAGE, place / "sdgmnet", ignore=shutil.ignore_patterns("__pycache__", "weights"))
    (place / "sdgmnet/weights").symlink_to(PACKAGE / "weights")
    for one in ADDITIONS.values():
        (place / "sdgmnet" / one.file).write_text(one.content)
        registry = place / "sdgmnet" / one.registry
        lines = registry.read_text().splitlines()
        [head] = [number for number, line in enumerate(lines) if line.startswith(one.head)]
        assert lines[head].endswith("{")
        lines.insert(head + 1, one.line)
        if one.imports:
            lines.insert(next(n for n, line in enumerate(lines) if line.startswith("from sdgmnet.")), one.imports)
        registry.write_text("\n".join(lines) + "\n")
    blobs.save(place / "blobs")
    (place / "toyset").mkdir()
    np.save(place / "toyset/toy.npy", blobs.patches[:30])
    environment = {**os.environ, "PYTHONPATH": str(place), "OMP_NUM_THREADS": "1", "COLUMNS": "400"}

    def run(*words: object) -> str:
        command = [sys.executable, "-m", "sdgmnet", *map(str, words)]
        done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run, place


TRAIN = ("train", "--iterations", 2, "--batch-size", 4, "--engine", "eager", "--evaluations", 1, "--threads", 1)


def test_help_lists_every_addition(extended: tuple[Run, Path]) -> None:
    run, _ = extended
    training = run("train", "--help")
    assert all(name in training for name in ("toyloss", "toyencoder", "a toyset"))
    evaluation = run("evaluate", "phototour", "--help")
    assert "toydescriptor" in evaluation and "a toyset" in evaluation
    assert "evaluate toybench" in run("--help")


def test_loss_encoder_and_data_set_are_trained_with(extended: tuple[Run, Path]) -> None:
    run, place = extended
    run(*TRAIN, "--data", "toyset", "--loss", "toyloss", "--encoder", "toyencoder", "-o", "run")
    config = json.loads((place / "run/config.json").read_text())
    assert (config["loss"], config["encoder"]) == ("toyloss", "toyencoder")
    assert config["data"] == [str(place / "toyset")]
    results = run("evaluate", "phototour", "run", "toydescriptor", "--data", "blobs", "--json")
    assert [line["label"] for line in json.loads(results)["lines"]] == ["run", "toydescriptor"]


def test_descriptor_and_benchmark_are_evaluated(extended: tuple[Run, Path]) -> None:
    run, place = extended
    assert "Distance of the first two patches" in run("evaluate", "toybench", "--help")
    words = ("evaluate", "toybench", "toydescriptor", "root=rootsift", "--root", "toyset", "-o", "results")
    assert "toydescriptor" in run(*words)
    lines = json.loads((place / "results/results.json").read_text())["lines"]
    assert [line["label"] for line in lines] == ["toydescriptor", "root"]
    assert all(line["rows"][0]["distance"] > 0 for line in lines)
    assert "| descriptor | pair | distance |" in (place / "results/table.md").read_text()
    run("describe", "blobs", "--descriptor", "toydescriptor", "-o", "blobs.npy")
    assert np.load(place / "blobs.npy").shape == (180, 16)

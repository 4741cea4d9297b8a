"""Two thousand steps on degenerate data: every number stays finite, or the run reports why it stopped."""

import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from sdgmnet.data.patchset import PatchSet
from sdgmnet.errors import TrainingStopped
from sdgmnet.training.config import TrainConfig
from sdgmnet.training.fit import train
from sdgmnet.training.log import read_log
from tests.trust.reports import record

POINTS, VIEWS = 6, 2


def all_equal() -> np.ndarray:
    """All patches are equal: positives do not differ from negatives."""
    return np.tile(np.random.default_rng(0).integers(0, 256, (1, 64, 64), dtype=np.uint8), (POINTS * VIEWS, 1, 1))


def constant() -> np.ndarray:
    """Constant patches of different grays: the standard deviation is 0."""
    return np.full(
        (POINTS * VIEWS, 64, 64), np.arange(POINTS * VIEWS, dtype=np.uint8)[:, None, None] * 20, dtype=np.uint8
    )


def black() -> np.ndarray:
    return np.zeros((POINTS * VIEWS, 64, 64), dtype=np.uint8)


def one_outlier() -> np.ndarray:
    """Black, except one patch of maximal contrast."""
    patches = black()
    patches[3] = 255 * (np.indices((64, 64)).sum(axis=0) % 2)
    return patches


def identical_pairs() -> np.ndarray:
    """Both patches of a point are equal: positives at angle 0."""
    return np.repeat(np.random.default_rng(1).integers(0, 256, (POINTS, 64, 64), dtype=np.uint8), VIEWS, axis=0)


DATA = {one.__name__: one for one in (all_equal, constant, black, one_outlier, identical_pairs)}


def train_on(patches: np.ndarray, out: Path, steps: int, loss: str) -> str:
    """How the run ended; fails if a saved number is not finite."""
    made = PatchSet("degenerate", patches, np.repeat(np.arange(POINTS), VIEWS))
    made.save(out / "set")
    config = TrainConfig(
        data=(str(out / "set"),), iterations=steps, batch_size=4, threads=1, loss=loss, augmentation="hardnet",
        checkpoint_every=steps,
    )  # fmt: skip
    try:
        stream = io.StringIO()
        results = train(config, out / "run", console=Console(file=stream))
        ended = "to the end"
        json.dumps(results, allow_nan=False)  # raises where a number is not finite
        said = " ".join(stream.getvalue().split())
        if results["concern"]:
            assert "Warning: " in said
            ended += "; it says: " + results["concern"].partition(":")[0]
        weights = load_file(out / "run/last.safetensors")
        assert all(torch.isfinite(tensor).all() for tensor in weights.values())
    except TrainingStopped as stopped:
        assert "is kept; try a lower" in str(stopped)
        ended = f"stopped: {str(stopped).split(': ', 1)[1].split(' (')[0]}"
    for line in read_log(out / "run/log.jsonl", "epoch"):
        numbers = [value for value in line.values() if isinstance(value, (int, float))]
        assert all(math.isfinite(value) for value in numbers), line
    return ended


@pytest.mark.parametrize("name", ["all_equal", "black"])
def test_few_steps_on_degenerate_data(name: str, tmp_path: Path) -> None:
    """Augmented copies of one image can be distinguished, black patches cannot: the run warns."""
    ended = train_on(DATA[name](), tmp_path, 100 if name == "black" else 6, "sdgm")  # shorter runs do not warn
    assert ("it says" in ended) == (name == "black")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "name"), [*(("sdgm", name) for name in DATA), ("hardnet", "all_equal"), ("hynet", "one_outlier")]
)
def test_two_thousand_steps_on_degenerate_data(name: str, loss: str, tmp_path: Path) -> None:
    ended = train_on(DATA[name](), tmp_path, 2000, loss)
    record(f"2000 steps, {loss}", name.replace("_", " "), 1, 1, f"finite, {ended}")

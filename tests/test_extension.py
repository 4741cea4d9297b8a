"""Adding a loss, encoder, descriptor, data set or benchmark is one file and one line.

The examples of CONTRIBUTING.md are added to a copy of the package, and used from the command line.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sdgmnet.data.patchset import PatchSet
from tests.features.samples import some_features

REPOSITORY = Path(__file__).parent.parent
PACKAGE = REPOSITORY / "sdgmnet"
Run = Callable[..., str]


def add_lines(path: Path, changes: list[str]) -> None:
    """The import and the line in the registry, whose first line is given without a plus."""
    lines = path.read_text().splitlines()
    [head] = [line[1:] for line in changes if line.startswith(" ")]
    [added] = [line[1:] for line in changes if line.startswith("+ ")]
    lines.insert(lines.index(head) + 1, added)
    for line in changes:
        if line.startswith("+from "):
            lines.insert(next(n for n, one in enumerate(lines) if one.startswith("from sdgmnet.")), line[1:])
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory, blobs: PatchSet) -> tuple[Run, Path]:
    """The command line of a copy of the package with all additions, and a folder of data."""
    place = tmp_path_factory.mktemp("extended")
    shutil.copytree(PACKAGE, place / "sdgmnet", ignore=shutil.ignore_patterns("__pycache__", "weights"))
    (place / "sdgmnet/weights").symlink_to(PACKAGE / "weights")
    page = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for path, content in re.findall(r"```python\n# (sdgmnet/\S+)\n(.*?)```", page, re.DOTALL):
        assert not (place / path).exists()
        (place / path).write_text(content)
    for path, changes in re.findall(r"```diff\n# (sdgmnet/\S+)\n(.*?)```", page, re.DOTALL):
        add_lines(place / path, changes.splitlines())
    blobs.save(place / "blobs")
    (place / "toyset").mkdir()
    np.save(place / "toyset/toy.npy", blobs.patches[:30])
    environment = {**os.environ, "PYTHONPATH": str(place), "OMP_NUM_THREADS": "1", "COLUMNS": "400"}

    def run(*words: object, module: str = "sdgmnet") -> str:
        command = [sys.executable, "-m", module, *map(str, words)]
        done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run, place


TRAIN = ("train", "--iterations", 2, "--batch-size", 4, "--engine", "eager", "--evaluations", 1, "--threads", 1)


def test_help_lists_every_addition(extended: tuple[Run, Path]) -> None:
    run, _ = extended
    training = " ".join(run("train", "--help").split())
    assert all(name in training for name in ("toyloss", "toyencoder", "a toyset"))
    evaluation = " ".join(run("evaluate", "phototour", "--help").split())
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


@pytest.mark.slow
def test_the_tests_of_all_losses_and_the_reference_cover_the_additions(extended: tuple[Run, Path]) -> None:
    run, place = extended
    for name in ("tests", "reproduce", "bench", "pyproject.toml"):
        (place / name).symlink_to(REPOSITORY / name)
    shutil.copytree(REPOSITORY / "docs", place / "docs", ignore=shutil.ignore_patterns("*.png", "*.jpg"))
    files = [f"tests/loss/test_{name}.py" for name in ("baselines", "ranks", "registry")]
    assert " passed" in run("-q", "-p", "no:cacheprovider", *files, "-k", "toyloss", module="pytest")
    print_reference = place / "print_reference.py"
    print_reference.write_text("from docs.make_reference import command_line\nprint(command_line())\n")
    assert "### sdgmnet evaluate toybench" in run(module="print_reference")


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


def test_bridge(extended: tuple[Run, Path]) -> None:
    _, place = extended
    spec = importlib.util.spec_from_file_location("bridge", place / "sdgmnet/features/lightglue.py")
    assert spec is not None and spec.loader is not None
    bridge = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bridge)
    features = some_features(20)
    parts = bridge.to_lightglue(features)
    assert parts["keypoints"].shape == (1, 20, 2) and parts["descriptors"].shape == (1, 20, 128)
    for mine, back in zip(features.keypoints, bridge.from_lightglue(parts), strict=True):
        np.testing.assert_allclose(back, mine, rtol=1e-6)

"""Every block of docs/guides/own_loss.md runs: the files under their names, then the lines that train with them."""

import re
import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from sdgmnet.cli import main
from sdgmnet.data.patchset import PatchSet
from sdgmnet.training.config import TrainConfig
from sdgmnet.training.log import read_log

PAGE = Path(__file__).parent.parent / "docs" / "guides" / "own_loss.md"
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
LINES = [code.strip() for language, code in BLOCKS if language == "sh"]
CODE = [code for language, code in BLOCKS if language == "python"]


@pytest.fixture
def folder(tmp_path: Path, blobs: PatchSet, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the page's lines are typed, with a set that is there at once instead of the demo's."""
    blobs.save(tmp_path / "blobs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(line: str, folder: Path) -> TrainConfig:
    words = shlex.split(line.replace("--data demo", "--data blobs"))[1:]
    words += ["--evaluations", "1", "--evaluation-pairs", "50", "--threads", "1"]
    assert main(words) == 0
    out = folder / words[words.index("-o") + 1]
    assert (out / "best.safetensors").exists()
    return TrainConfig.load(out / "config.json")


@pytest.mark.parametrize(
    ("code", "line"), list(zip(CODE[:3], LINES[:3], strict=True)), ids=["loss", "needs", "weights"]
)
def test_one_file_and_one_line(code: str, line: str, folder: Path) -> None:
    loss = shlex.split(line)[shlex.split(line).index("--loss") + 1]
    name = loss.split(":")[0]
    (folder / name).write_text(code)
    config = run(line, folder)
    assert config.loss == f"{folder / name}:{loss.split(':')[1]}"  # found again from any folder
    if name == "my_loss.py":
        assert config.loss_options == ("margin=0.4",)
        log = read_log(folder / "runs/mine/log.jsonl", "epoch")
        first, last = (sum(step["loss"] for step in part) for part in (log[:5], log[-5:]))
        assert last < first
        assert '"my_loss.py:MyLoss"' in (folder / "runs/mine/best.json").read_text()


def test_a_run_is_resumed_by_the_words_that_began_it(folder: Path) -> None:
    (folder / "my_loss.py").write_text(CODE[0])
    words = "train --data blobs --loss my_loss.py:MyLoss --batch-size 4 --threads 1 -o run --iterations 1"
    assert main(words.split()) == 0
    assert main(["train", "-o", "run", "--resume", "--loss", "my_loss.py:MyLoss"]) == 0
    assert main(["train", "-o", "run", "--resume", "--loss", "hardnet"]) == 2


def test_the_library_trains_and_takes_ours(folder: Path) -> None:
    if find_spec("pytorch_metric_learning") is None:
        pytest.skip("needs pytorch-metric-learning: pip install 'sdgmnet[pml]'")
    assert run(LINES[3], folder).loss == "pml:CircleLoss"
    names: dict[str, Any] = {}
    exec(CODE[3], names)
    assert names["embeddings"].grad.abs().sum() > 0


def test_without_the_library_it_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if find_spec("pytorch_metric_learning") is not None:
        pytest.skip("pytorch-metric-learning is there")
    assert main(["train", "--loss", "pml:CircleLoss", "--data", "blobs", "--batch-size", "8", "-o", "run"]) == 2
    assert "pip install 'sdgmnet[pml]'" in capsys.readouterr().err
    assert not (folder / "run").exists()

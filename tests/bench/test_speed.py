import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch

from bench import speed
from sdgmnet import SDGMLoss
from sdgmnet.cli import main


def test_candidates_alternate() -> None:
    order: list[str] = []
    timings = speed.alternate({"a": (lambda: order.append("a"), 1.0), "b": (lambda: order.append("b"), 1.0)}, repeats=3)
    assert order == ["a", "b"] * 4  # one warm-up each, then three turns
    assert len(timings["a"].rates) == 3


def test_rates_and_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that the descriptors set themselves: whatever else the machine does."""
    now = [0.0]

    def takes(*seconds: float) -> Callable[[], None]:
        left = iter(seconds)
        return lambda: now.__setitem__(0, now[0] + next(left))

    monkeypatch.setattr(speed, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    candidates = {"slow": (takes(9, 2, 4, 1), 10.0), "fast": (takes(9, 1, 1, 0.25), 10.0)}  # the first is the warm-up
    timings = speed.alternate(candidates, 3)
    assert timings["slow"].rates == [5, 2.5, 10] and timings["slow"].median == 5
    assert timings["fast"].against(timings["slow"]) == 4  # the median of 2, 4 and 4


def test_the_plain_formulation_is_the_same_loss() -> None:
    """Values and gradients of the reference that speed is measured against are those of ours."""
    a, p = speed.unit_pairs(40)
    ours, plain = SDGMLoss(decay=0.5), SDGMLoss(decay=0.5)
    for _ in range(2):
        value, reference = ours(a, p), speed.plain_loss(plain, a, p)
        torch.testing.assert_close(value, reference, rtol=1e-4, atol=1e-6)
        for mine, theirs in zip(
            torch.autograd.grad(value, (a, p)), torch.autograd.grad(reference, (a, p)), strict=True
        ):
            assert (mine - theirs).norm() < 1e-4 * theirs.norm()


def test_fresh_process_reports_seconds_and_memory() -> None:
    result = speed.in_fresh_process("", "", "block = np.ones(50 * 2**20, dtype=np.uint8); time.sleep(0.1)")
    assert result["seconds"] > 0.1
    assert 45 < result["megabytes"] < 80


@pytest.mark.parametrize("pairs", [64])
def test_bench_data_writes_its_table(pairs: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "data", "--pairs", str(pairs), "--repeats", "2", "-o", str(tmp_path / "bench")]) == 0
    assert "making a batch, N = 64" in capsys.readouterr().out
    results = json.loads((tmp_path / "bench/results.json").read_text())
    assert results["rows"][0][1] == "ours"
    assert (tmp_path / "bench/table.md").read_text().startswith("| what |")


def test_training_bench_runs_small() -> None:
    timings = speed.training(8, repeats=1, engine="eager")
    assert set(timings) == {"ours", "plain", "limit"}
    assert all(timing.median > 0 for timing in timings.values())


def test_best_batch_is_the_quickest() -> None:
    calls = {16: lambda: time.sleep(0.02), 64: lambda: time.sleep(0.001), 256: lambda: time.sleep(0.01)}
    assert speed.best_batch(calls) == 64


def test_bench_match_compares_what_gives_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "match", "--descriptors", "300", "--repeats", "1", "-o", str(tmp_path / "bench")]) == 0
    assert "matching 300 x 300" in capsys.readouterr().out
    rows = json.loads((tmp_path / "bench/results.json").read_text())["rows"]
    assert [row[1] for row in rows] == ["ours", "product", "OpenCV", "ours"]


def test_bench_pictures_tells_the_stages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    names = [str(tmp_path / "a.png"), str(tmp_path / "b.png")]
    for name in names:
        picture = cv2.resize(rng.integers(0, 256, (20, 30), dtype=np.uint8), (180, 120), interpolation=cv2.INTER_CUBIC)
        cv2.imwrite(name, picture)
    assert main(["bench", "pictures", "--images", *names, "--repeats", "1", "-o", str(tmp_path / "bench")]) == 0
    rows = json.loads((tmp_path / "bench/results.json").read_text())["rows"]
    assert [row[1] for row in rows][:5] == list(speed.STAGES)
    assert rows[5][-1].endswith("x OpenCV") and float(rows[5][-1].split()[0]) > 0
    assert main(["bench", "pictures", "--images", names[0]]) == 2
    assert "two images" in capsys.readouterr().err

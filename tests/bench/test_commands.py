"""`python -m bench`: the timing itself, the methods that are compared, and small runs of the commands."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from bench import timing
from bench.__main__ import COMMANDS
from bench.hpatches import Size, precision_over_recall, time_tasks
from bench.inference import best_batch
from bench.matching import STAGES, TIMED_ENCODERS
from bench.training import plain_loss, time_training, unit_pairs
from sdgmnet import SDGMLoss
from sdgmnet.cli import main
from sdgmnet.metrics import average_precision
from sdgmnet.native.build import VARIABLE
from sdgmnet.native.targets import compiler
from tests.features.samples import noise_image, write_image


def bench_rows(tmp_path: Path, *words: str) -> list[list[str]]:
    assert main([*words, "--repeats", "1", "-o", str(tmp_path / "bench")], COMMANDS, "python -m bench") == 0
    assert (tmp_path / "bench/table.md").read_text().count("| what |") == 1
    rows: list[list[str]] = json.loads((tmp_path / "bench/results.json").read_text())["rows"]
    return rows


class Clock:
    """A clock that the timed calls set themselves."""

    def __init__(self) -> None:
        self.now, self.order = 0.0, list[str]()

    def takes(self, name: str, *seconds: float) -> Callable[[], None]:
        left = iter(seconds)

        def call() -> None:
            self.order.append(name)
            self.now += next(left)

        return call


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: made.now))
    return made


def test_rates_and_ratios(clock: Clock) -> None:
    # The first of each is the warm-up.
    methods = {"slow": (clock.takes("slow", 9, 2, 4, 1), 10.0), "fast": (clock.takes("fast", 9, 1, 1, 0.25), 10.0)}
    timings = timing.alternate(methods, 3)
    assert clock.order == ["slow", "fast"] * 4
    assert timings["slow"].rates == [5, 2.5, 10] and timings["slow"].median == 5
    assert timings["fast"].against(timings["slow"]) == 4  # the median of 2, 4 and 4


def test_best_batch_is_the_fastest(clock: Clock) -> None:
    calls = {16: clock.takes("16", 1, 3, 3), 64: clock.takes("64", 9, 8, 1), 256: clock.takes("256", 9, 2, 2)}
    assert best_batch(calls) == 64


@pytest.mark.slow
def test_fresh_process_reports_seconds_and_memory() -> None:
    result = timing.in_fresh_process("", "", "block = np.ones(50 * 2**20, dtype=np.uint8); time.sleep(0.1)")
    assert result["seconds"] > 0.1
    assert 45 < result["megabytes"] < 80


def test_the_plain_formulation_is_the_same_loss() -> None:
    """Values and gradients of the reference that speed is measured against are those of ours."""
    a, p = unit_pairs(40)
    ours, plain = SDGMLoss(decay=0.5), SDGMLoss(decay=0.5)
    for _ in range(2):
        value, reference = ours(a, p), plain_loss(plain, a, p)
        torch.testing.assert_close(value, reference, rtol=1e-4, atol=1e-6)
        gradients = (torch.autograd.grad(one, (a, p)) for one in (value, reference))
        for mine, theirs in zip(*gradients, strict=True):
            assert (mine - theirs).norm() < 1e-4 * theirs.norm()


@pytest.mark.slow
def test_training_is_timed() -> None:
    timings = time_training(8, repeats=1, engine="eager")
    assert set(timings) == {"ours", "plain", "limit"}
    assert all(one.median > 0 for one in timings.values())


def test_the_official_way_counts_as_ours() -> None:
    """HPatches' own algorithm gives our numbers."""
    random = np.random.default_rng(0)
    for _ in range(20):
        scores, labels = np.round(random.random(50), 1), random.random(50) < 0.4
        assert precision_over_recall(scores, labels.astype(float)) == pytest.approx(average_precision(scores, labels))


def test_all_tasks_are_timed() -> None:
    seconds = time_tasks(Size(sequences=3, patches=20, pairs=50, queries=6, distractors=20))
    assert set(seconds) == {"verification", "matching", "retrieval"}
    assert all(value > 0 for value in seconds.values())


def test_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [row] = bench_rows(tmp_path, "data", "--pairs", "64")
    assert row[:2] == ["making a batch, N = 64", "ours"]
    assert "making a batch, N = 64" in capsys.readouterr().out


@pytest.mark.slow
def test_match(tmp_path: Path) -> None:
    rows = bench_rows(tmp_path, "match", "--descriptors", "300")
    assert [row[1] for row in rows] == ["ours", "product", "OpenCV", "ours"]


def test_images(tmp_path: Path) -> None:
    names = [str(write_image(tmp_path / f"{number}.png", noise_image(180, 120, number))) for number in range(2)]
    rows = bench_rows(tmp_path, "images", "--images", *names)
    assert [row[1] for row in rows][:-1] == [f"{encoder}, {stage}" for encoder in TIMED_ENCODERS for stage in STAGES]
    assert rows[5][-1].endswith("x OpenCV") and float(rows[5][-1].split()[0]) > 0


@pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
def test_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.inference.runnable_targets", list)
    monkeypatch.delenv(VARIABLE, raising=False)
    assert [row[1] for row in bench_rows(tmp_path, "kernels", "--patches", "8")] == ["compile", "none"]
    assert not os.environ.get(VARIABLE)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("images --images {tmp}/a.png", "two images"),
        ("collection {tmp}/none", "{tmp}/none"),
        ("collection {tmp}", "{tmp}"),
        ("growth {tmp}/none", "{tmp}/none"),
        ("growth {tmp}", "{tmp}"),
        ("growth {tmp} --counts 1", "--counts"),
        ("reconstruct {tmp}/none", "{tmp}/none"),
        ("reconstruct {tmp}", "{tmp}"),
        ("retrieval {tmp} --neighbours 0", "--neighbours"),
        ("retrieval {tmp} --size 1", "size"),
        ("stability {tmp}", "{tmp}"),
        ("stability {tmp} --ratios 1.5", "--ratios"),
        ("stability {tmp} --ratios all", "--ratios"),
    ],
)
def test_bad_input(words: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if words.split()[0] in ("collection", "reconstruct", "stability"):
        pytest.importorskip("pycolmap", reason="pycolmap is not installed: pip install 'sdgmnet[sfm]'")
    assert main(words.replace("{tmp}", str(tmp_path)).split(), COMMANDS, "python -m bench") == 2
    assert said.replace("{tmp}", str(tmp_path)) in capsys.readouterr().err

"""`python -m reproduce everything` and `answer`: one plan end to end, interrupted, resumed and shared."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from reproduce import runner
from reproduce.answer import Records, interval, page, verdicts
from reproduce.everything import RATES, stages
from reproduce.measure import known_lines
from sdgmnet.descriptors import descriptor_fingerprint
from sdgmnet.errors import Interrupted
from sdgmnet.storage import write_json
from tests.conftest import blob_patches
from tests.reproduce.helpers import main

REPOSITORY = Path(__file__).parents[2]
RUNS = len(RATES) + 2  # the search, the row, and the same as in its paper


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sets")
    for seed, name in enumerate(("one", "two", "three", "four")):
        replace(blob_patches(30, 3, seed), name=name).save(root / name)
    return root


def words(sets: Path, out: Path, *more: object) -> list[str]:
    scenes = ["--data", sets, "--holdout", "three", "four", "--validation", "two", "-o", out]
    budget = ["--pairs", 16, "--search-pairs", 8, "--batch-size", 8, "--seeds", 1]
    return [str(word) for word in ("everything", *scenes, *budget, "--encoder", "fast", "--only", "hardnet+frn", *more)]


def results(out: Path) -> list[Path]:
    return sorted(out.glob("runs/*/result.json"))


def test_interrupted_three_times_and_nothing_is_trained_twice(
    sets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained: list[str] = []
    original = runner.train

    def interrupted(config, out, **options):  # type: ignore[no-untyped-def]
        if len(trained) in stops:
            stops.remove(len(trained))
            raise Interrupted("stopped here; continue")
        trained.append(Path(out).name)
        return original(config, out, **options)

    stops = [0, 2, 4]
    monkeypatch.setattr(runner, "train", interrupted)
    out = tmp_path / "out"
    assert main(*words(sets, out, "--plan")) == 0
    assert f"Plan: {RUNS} training runs, 0 of them done" in capsys.readouterr().err and not results(out)
    codes = [main(*words(sets, out)) for _ in range(5)]
    assert codes[-2:] == [0, 0] and 0 not in codes[:3]
    assert len(trained) == len(set(trained)) == len(results(out)) == RUNS
    records = out / "records"
    assert not list(records.rglob("*.safetensors")) and len(results(records)) == RUNS
    assert main("answer", records, "-o", tmp_path / "page") == 0
    text = (tmp_path / "page/comparison.md").read_text(encoding="utf-8")
    assert "| HardNet+FRN |" in text and "| HardNet+FRN, native |" in text and str(sets) not in text
    assert "2 of the 2 planned runs are finished" in text
    assert (tmp_path / "page/comparison.png").exists() and (tmp_path / "page/comparison_modulation.png").exists()


def test_two_processes_share_the_plan(sets: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "reproduce", *words(sets, tmp_path / "out")]
    both = [subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    shown = [one.communicate()[1] for one in both]
    assert [one.returncode for one in both] == [0, 0]
    begun = [line for text in shown for line in text.splitlines() if line.startswith("Training ")]
    assert len(begun) == RUNS == len(results(tmp_path / "out"))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--only", "hardnt"), "hardnt"),
        (("--pairs", 1), "--pairs"),
        (("--validation", "three"), "--validation"),
        (("--holdout", "nowhere"), "nowhere"),
        (("--finished",), "no finished row"),
    ],
)
def test_refused(
    more: Sequence[object], said: str, sets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(*words(sets, tmp_path / "out"), *more) == 2
    assert said in capsys.readouterr().err


def test_most_valuable_runs_come_first() -> None:
    plan = stages(3, ("sdgmnet", "hynet"))
    assert plan[0].methods == ("sdgmnet", "hynet") and list(plan[1].seeds) == [1, 2] and plan[-1].preset == "native"


def test_interval() -> None:
    values = np.array([[1.0], [2.0], [4.0]])  # one seed: the ordinary interval over cells
    known = ttest_1samp(values[:, 0], 0).confidence_interval()
    assert interval(values)[:3] == pytest.approx((values.mean(), known.low, known.high))
    assert interval(np.full((3, 2), 5.0))[:3] == (5, 5, 5)
    wider = interval(np.array([[1.0, 3.0], [2.0, 5.0], [4.0, 9.0]]))
    assert wider.high - wider.low > known.high - known.low and (wider.cells, wider.seeds) == (3, 2)


def test_lines_of_weights_that_are_gone_are_kept(tmp_path: Path) -> None:
    """A record outlives the weights; a label whose weights are here and differ is measured again."""
    path = tmp_path / "matching.json"
    same = descriptor_fingerprint("sift")
    write_json(
        path, {"data": "d", "lines": {"gone": {"weights": "x"}, "same": {"weights": same}, "new": {"weights": "y"}}}
    )
    lines, new = known_lines(path, {"same": "sift", "new": "rootsift"}, "d")
    assert set(lines) == {"gone", "same"} and new == {"new": "rootsift"}
    assert known_lines(path, {}, "other photos") == ({}, {})


COMMITTED = REPOSITORY / "reproduce/records/comparison"


@pytest.mark.skipif(not COMMITTED.exists(), reason="no committed records")
def test_the_committed_page_is_made_from_the_records() -> None:
    """All but the modulation, which autograd computes in the last digits of a machine."""
    committed = (REPOSITORY / "docs" / "paper" / "comparison.md").read_text(encoding="utf-8")
    made = page(Records(COMMITTED), "", [])
    tables = [line for line in made.splitlines() if line.startswith("|") and "effective share" not in line]
    assert set(tables) <= set(committed.splitlines())
    assert all(f"- {one}" in committed for one in verdicts(Records(COMMITTED)))
    assert not list(COMMITTED.rglob("*.safetensors"))

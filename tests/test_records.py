"""JSON that commands write for themselves and read again: what somebody changed is told in a sentence."""

import json
from pathlib import Path
from typing import Any

import pytest

from reproduce.__main__ import COMMANDS
from sdgmnet.cli import main
from sdgmnet.errors import InputError
from sdgmnet.registry import parse_options
from sdgmnet.sfm.photo_import import read_imported
from sdgmnet.sfm.stage_timer import PersistentStageTimer
from sdgmnet.storage import stays_below, write_json


@pytest.mark.parametrize("name", ["..", "../a", "/a", "a/../../b", "a//b", "", "a\\b", "a\0"])
def test_names_that_lead_out(name: str, tmp_path: Path) -> None:
    assert not stays_below(name) and stays_below("a/b c..png")
    photo = {"name": "a.png", "source": name, "width": 1, "height": 1, "focal": None}
    write_json(tmp_path / "photos.json", {"photos": [photo], "broken": []})
    with pytest.raises(InputError, match=r"photos\.json"):
        read_imported(tmp_path / "photos.json")


@pytest.mark.parametrize("content", [[1], {"seconds": 3}, {"seconds": {"a": "b"}}, {"peak_bytes": None}])
def test_times_that_are_none(content: Any, tmp_path: Path) -> None:
    write_json(tmp_path / "seconds.json", content)
    with pytest.raises(InputError, match=r"seconds\.json"):
        PersistentStageTimer(tmp_path / "seconds.json").add_peak(3, "a")


def test_options_of_a_loss_that_are_nested_without_end() -> None:
    assert parse_options([f"a={'[' * 100_000}"])["a"].startswith("[")
    assert parse_options(["a=1", "b=mean", "c=true"]) == {"a": 1, "b": "mean", "c": True}


@pytest.mark.parametrize("command", ["fig4", "table5"])
@pytest.mark.parametrize(
    "content",
    [{}, {"lines": [], "rows": []}, {"lines": 3, "rows": 3}, {"lines": [{"label": 1, "rows": []}], "rows": [{}]},
     {"lines": [], "sequences": 3, "rows": [{"track_length": 1}]}, {"rows": [{"track_length": "x", "set": []}]}],
)  # fmt: skip
def test_results_of_other_benchmarks(
    command: str, content: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "given").mkdir()
    (tmp_path / "given/results.json").write_text(json.dumps(content))
    words = [command, "--results", str(tmp_path / "given"), "-o", str(tmp_path / "out")]
    assert main(words, COMMANDS, "reproduce") == 2
    assert str(tmp_path / "given") in capsys.readouterr().err

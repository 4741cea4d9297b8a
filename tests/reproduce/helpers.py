"""Tiny groups and plans that the tests share."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from reproduce.__main__ import COMMANDS
from reproduce.groups import Group, make_group
from reproduce.results import Result
from reproduce.runner import run_plan
from reproduce.runs import Budget, Planned, plan_method
from sdgmnet import cli
from tests.conftest import blob_patches

TINY = Budget(iterations=3, batch_size=8, checkpoints=3, checkpoint_pairs=60)
CARD = {"source": "photos", "method": 2, "options": {"size": 1600}}


def main(*words: object) -> int:
    return cli.main([str(word) for word in words], COMMANDS, "python -m reproduce")


def three_groups() -> list[Group]:
    return [make_group(name, (f"somewhere/{name}",), [blob_patches(30, 3, seed)]) for seed, name in enumerate("ABC")]


def cut_from_photos(groups: list[Group], **changes: Any) -> list[Group]:
    """The same groups as if their sets were cut from photos, with `changes` to the first set."""
    sets = [replace(g.train[0], origin={**CARD, "photos": g.name}) for g in groups]
    sets[0] = replace(sets[0], **changes)
    return [make_group(g.name, g.folders, [one]) for g, one in zip(groups, sets, strict=True)]


def two(groups: list[Group]) -> list[Planned]:
    return [plan_method(name, groups[0], groups, TINY, 0) for name in ("sdgmnet", "tfeat")]


def scored(results: list[Result]) -> list[dict[str, object]]:
    """Everything but how long it took."""
    return [{**asdict(one), "seconds_per_iteration": None} for one in results]


def is_written(folder: Path, name: str) -> bool:
    """As tables, results and figure."""
    kinds = {".png": b"\x89PNG", ".pdf": b"%PDF-", ".md": b"", ".json": b""}
    return all((folder / f"{name}{kind}").read_bytes().startswith(begin) for kind, begin in kinds.items())


def assert_fails(words: list[str], said: str, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, one sentence, nothing written."""
    assert main(*words) == 2
    shown = capsys.readouterr().err
    assert said in shown and "Traceback" not in shown
    assert not out.exists()


__all__ = ["TINY", "assert_fails", "cut_from_photos", "is_written", "main", "run_plan", "scored", "three_groups", "two"]

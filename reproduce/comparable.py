"""Runs of a table are compared on the test scenes that were the same for all of them, patch by patch and pair by pair.

A scene that was cut from its photos again, on another machine or at another time, has other patches and so other test pairs.
Its FPR@95 then differs by chance about as much as methods do.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from reproduce.plan import Planned
from reproduce.progress import say
from reproduce.results import Result
from sdgmnet.errors import InputError


def compared(runs: Sequence[Planned], results: Sequence[Result]) -> tuple[list[Result], str]:
    """The results on the scenes they have in common, and a sentence for the caption where some are not."""
    scenes = scenes_left_out(results)
    _require_some(runs, scenes)
    return [_without(one, scenes) for one in results], _sentence(scenes)


def scenes_left_out(results: Sequence[Result]) -> list[str]:
    return differing(result.data["test"] for result in results if result.diverged is None)


def require_comparable(runs: Sequence[Planned], out: Path, console: Console) -> None:
    """Before anything is trained: what is finished, and what the others will be tested on."""
    known = [one.result(out) for one in runs]
    tests = [
        one.fingerprints()["test"] if result is None else result.data["test"]
        for one, result in zip(runs, known, strict=True)
        if result is None or result.diverged is None
    ]
    scenes = differing(tests)
    _require_some(runs, scenes)
    if scenes:
        say(console, f"Note:{_sentence(scenes)}")


def differing(tests: Iterable[Mapping[str, str]]) -> list[str]:
    """Scenes that are not the same set in all of these, each from names to fingerprints."""
    known: dict[str, set[str]] = {}
    for one in tests:
        for name, fingerprint in one.items():
            known.setdefault(name, set()).add(fingerprint)
    return [name for name, fingerprints in known.items() if len(fingerprints) > 1]


def _without(result: Result, scenes: Collection[str]) -> Result:
    def kept(values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in values.items() if name not in scenes}

    return replace(
        result,
        checkpoints=[{**line, "fpr95": kept(line["fpr95"])} for line in result.checkpoints],
        checkpoint_pairs=kept(result.checkpoint_pairs),
        last=kept(result.last),
        pairs=kept(result.pairs),
    )


def _require_some(runs: Sequence[Planned], scenes: Collection[str]) -> None:
    for group in {group.name: group for one in runs for group in one.tests}.values():
        if all(one.name in scenes for one in group.test):
            raise InputError(
                f"the runs were not tested on the same sets of {group.name} ({', '.join(one.name for one in group.test)}: cut "
                "from the photos more than once), so they cannot be compared: give another -o, and all are trained on the sets "
                "that are there now."
            )


def _sentence(scenes: Sequence[str]) -> str:
    if not scenes:
        return ""
    what = "a test" if len(scenes) == 1 else "tests"
    return (
        f" Left out as {what}: {', '.join(scenes)}, cut from the photos more than once, so that not all runs saw the same test "
        "pairs."
    )

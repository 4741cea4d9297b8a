"""What a finished run leaves behind (result.json), how one number is made of its checkpoints, and which runs are comparable."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from reproduce.groups import Group
from sdgmnet.errors import InputError
from sdgmnet.storage import read_record, write_json

FILE = "result.json"
TEN = 10
COLLAPSED = 0.9  # FPR@95 of descriptors that distinguish nothing is 0.95
RATE = {"config": {"encoder": str, "batch_size": int}, "seconds_per_iteration": int | float, "diverged": str | None}
SHAPE = {
    **RATE, "name": str, "digest": str, "trained_on": [str], "checkpoints": [{"step": int, "fpr95": dict}],
    "checkpoint_pairs": dict, "last": dict, "pairs": dict, "powers": [(int, int | float, int | float)],
    "data": {"train": dict, "test": dict},
}  # fmt: skip


@dataclass(frozen=True)
class Result:
    """FPR@95 is a fraction, by the names of the test sets.

    Everything else in the run's folder may be deleted, except that fig7 tests last.safetensors.
    """

    name: str
    digest: str  # of configuration and data
    config: dict[str, Any]
    trained_on: list[str]
    checkpoints: list[dict[str, Any]]  # step, fpr95: on a subset of the pairs, the same at each
    checkpoint_pairs: dict[str, int]
    last: dict[str, float]  # at the end, on all pairs
    pairs: dict[str, int]
    seconds_per_iteration: float  # evaluations included; 0 if unknown
    diverged: str | None = None  # the reason why it did not finish
    # Step, P⁺ and P⁻ at the end of each epoch, if the loss has any.
    powers: list[list[float]] = field(default_factory=list)
    # Fingerprints of the sets.
    data: dict[str, dict[str, str]] = field(default_factory=lambda: {"train": {}, "test": {}})

    def save(self, folder: Path) -> None:
        write_json(folder / FILE, asdict(self))


def read_result(folder: Path, digest: str) -> Result | None:
    """The result of a finished run, None if there is none yet."""
    path = folder / FILE
    if not path.exists():
        return None
    content = read_record(path, dict)
    if set(content) != {one.name for one in fields(Result)}:
        raise InputError(f"{path} is not a result of this version: move {folder} away to train the run again.")
    read_record(path, SHAPE)
    if content["digest"] != digest:
        raise InputError(f"{path} belongs to another run: move {folder} away to train this one.")
    result = Result(**content)
    if result.diverged is None and not _is_complete(result):
        raise InputError(f"{path} has missing or invalid scores: remove it to repeat the last evaluation.")
    return result


def _is_complete(result: Result) -> bool:
    """Every test scene at the end and at each checkpoint, as fractions."""
    scores = [result.last, *(line["fpr95"] for line in result.checkpoints)]
    return len(scores) > 1 and all(
        set(one) == set(result.data["test"])
        and all(isinstance(value, int | float) and 0 <= value <= 1 for value in one.values())
        for one in scores
    )


def concerns(results: Sequence[Result]) -> list[str]:
    """A sentence per run whose numbers say nothing about its method."""
    found = []
    for one in results:
        if one.diverged is not None:
            found.append(f"{one.name}: {one.diverged}")
        elif (score := mean_of(one.last)) >= COLLAPSED:
            found.append(f"{one.name}: finished with {100 * score:.1f} % (chance is 95 %): it has learned nothing.")
    return list(dict.fromkeys(found))


# One number from a run's checkpoints.

Cells = dict[str, float]  # test group -> FPR@95


def by_group(scores: Mapping[str, float], groups: Sequence[Group]) -> Cells:
    """A group's FPR@95 is the mean over those of its scenes that have a score."""
    return {
        group.name: float(np.mean([scores[one.name] for one in group.test if one.name in scores])) for group in groups
    }


def mean_of(cells: Cells) -> float:
    return float(np.mean(list(cells.values())))


def curve(result: Result, tests: Sequence[Group]) -> list[tuple[int, Cells]]:
    """Step and FPR@95 of each checkpoint."""
    return [(line["step"], by_group(line["fpr95"], tests)) for line in result.checkpoints]


def best(result: Result, tests: Sequence[Group]) -> Cells:
    """The paper's way: at the checkpoint whose mean over the test groups is lowest, chosen on the test pairs."""
    return min((cells for _, cells in curve(result, tests)), key=mean_of)


def last_ten(result: Result, tests: Sequence[Group]) -> Cells:
    return _average([cells for _, cells in curve(result, tests)[-TEN:]])


def top_ten(result: Result, tests: Sequence[Group]) -> Cells:
    """Mean of the ten checkpoints that are best in the mean over the test groups (Section V-A, V-B)."""
    return _average(sorted((cells for _, cells in curve(result, tests)), key=mean_of)[:TEN])


def last(result: Result, tests: Sequence[Group]) -> Cells:
    """At the end, on all test pairs."""
    return by_group(result.last, tests)


def _average(many: Sequence[Cells]) -> Cells:
    return {name: float(np.mean([cells[name] for cells in many])) for name in many[0]}


Way = Callable[[Result, Sequence[Group]], Cells]
WAYS: dict[str, Way] = {"best": best, "last ten": last_ten, "last": last}
WAY_NAMES = {
    "best": "best checkpoint, chosen on the test pairs (the paper's way)",
    "last ten": "mean of the last ten checkpoints",
    "last": "last checkpoint, all test pairs",
}


def number(values: Sequence[float], diverged: bool) -> str:
    """In per cent, with the standard deviation if there are several seeds."""
    if not values:
        return "diverged" if diverged else "-"
    spread = f" ± {100 * np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
    return f"{100 * np.mean(values):.2f}{spread}"


# Runs are compared on the test scenes that were identical for all of them, patch by patch and pair by pair. A scene that was
# cut from its photos again has other patches and test pairs; its FPR@95 then differs by chance about as much as methods do.


def differing_scenes(tests: Iterable[Mapping[str, str]]) -> list[str]:
    """Scenes with more than one fingerprint in these, each from names to fingerprints."""
    known: dict[str, set[str]] = {}
    for one in tests:
        for name, fingerprint in one.items():
            known.setdefault(name, set()).add(fingerprint)
    return [name for name, fingerprints in known.items() if len(fingerprints) > 1]


def scenes_left_out(results: Sequence[Result]) -> list[str]:
    return differing_scenes(result.data["test"] for result in results if result.diverged is None)


def compared(groups: Sequence[Group], results: Sequence[Result]) -> list[Result]:
    """The results on the scenes they have in common; InputError if a test group has none. groups: all that were tested on."""
    scenes = scenes_left_out(results)
    require_common(groups, scenes)

    def kept(values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in values.items() if name not in scenes}

    return [
        replace(
            result,
            checkpoints=[{**line, "fpr95": kept(line["fpr95"])} for line in result.checkpoints],
            checkpoint_pairs=kept(result.checkpoint_pairs),
            last=kept(result.last),
            pairs=kept(result.pairs),
        )
        for result in results
    ]


def require_common(groups: Sequence[Group], left_out: Collection[str]) -> None:
    for group in groups:
        if all(one.name in left_out for one in group.test):
            names = ", ".join(one.name for one in group.test)
            raise InputError(
                f"the runs were tested on different versions of all scenes of {group.name} ({names}; each was cut from its "
                "photos more than once), so they cannot be compared: give another -o to train all runs on the present sets."
            )


def left_out_note(scenes: Sequence[str]) -> str:
    """For a caption."""
    if not scenes:
        return ""
    return (
        f" Left out of the tests: {', '.join(scenes)}. These were cut from their photos more than once, so not all runs saw "
        "the same test pairs."
    )

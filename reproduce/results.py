"""What a finished run of a plan leaves behind (result.json), and the ways to make one number of its checkpoints."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from reproduce.groups import Group
from sdgmnet.errors import InputError
from sdgmnet.storage import read_record, write_json

TEN = 10
COLLAPSED = 0.9  # FPR@95 of descriptors that tell nothing apart is 0.95
FILE = "result.json"
RATED = {"config": {"encoder": str, "batch_size": int}, "seconds_per_iteration": int | float, "diverged": str | None}
SHAPE = {
    **RATED, "name": str, "digest": str, "trained_on": [str], "checkpoints": [{"step": int, "fpr95": dict}],
    "checkpoint_pairs": dict, "last": dict, "pairs": dict, "powers": [(int, int | float, int | float)],
    "data": {"train": dict, "test": dict},
}  # fmt: skip


@dataclass(frozen=True)
class Result:
    """FPR@95 is a fraction, by the names of the test sets.

    All else of the run's folder may be deleted, but that fig7 tests last.safetensors.
    """

    name: str
    digest: str  # of configuration and data
    config: dict[str, Any]
    trained_on: list[str]
    checkpoints: list[dict[str, Any]]  # step, fpr95: on a part of the pairs, the same at each
    checkpoint_pairs: dict[str, int]
    last: dict[str, float]  # at the end, on all pairs
    pairs: dict[str, int]
    seconds_per_iteration: float  # evaluations included; 0 where it is not known
    diverged: str | None = None  # why it did not get to its end
    powers: list[list[float]] = field(
        default_factory=list
    )  # step, P⁺ and P⁻ at the end of each epoch, where the loss has any
    data: dict[str, dict[str, str]] = field(
        default_factory=lambda: {"train": {}, "test": {}}
    )  # fingerprints of the sets

    def save(self, folder: Path) -> None:
        write_json(folder / FILE, asdict(self))


def read_result(folder: Path, digest: str) -> Result | None:
    """The result of a finished run; None where there is none yet."""
    path = folder / FILE
    if not path.exists():
        return None
    content = read_record(path, dict)
    if set(content) != {one.name for one in fields(Result)}:
        raise InputError(f"{path} is not a result of this version: move {folder} away to train the run again.")
    read_record(path, SHAPE)
    if content["digest"] != digest:
        raise InputError(f"{path} is of another run: move {folder} away to train this one.")
    result = Result(**content)
    if result.diverged is None and not _is_whole(result):
        raise InputError(
            f"{path} lacks scores, or holds some that are none: remove it, and the last evaluation is repeated."
        )
    return result


def _is_whole(result: Result) -> bool:
    """Every test scene at the end and at each checkpoint, as shares."""
    scores = [result.last, *(line["fpr95"] for line in result.checkpoints)]
    return len(scores) > 1 and all(
        set(one) == set(result.data["test"])
        and all(isinstance(value, int | float) and 0 <= value <= 1 for value in one.values())
        for one in scores
    )


Cells = dict[str, float]  # test group -> FPR@95


def by_group(scores: Mapping[str, float], groups: Sequence[Group]) -> Cells:
    """A group's FPR@95 is the mean over its scenes, but those that are left out of the scores (`comparable.py`)."""
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


def concern(result: Result) -> str | None:
    """Why a run's numbers do not tell of its method; None where they do."""
    if result.diverged is not None:
        return f"{result.name}: {result.diverged}"
    ends = float(np.mean(list(result.last.values())))
    if ends >= COLLAPSED:
        return (
            f"{result.name}: came to its end, but with {100 * ends:.1f} % (chance is 95 %), so it has learned nothing."
        )
    return None


def number(values: Sequence[float], diverged: bool) -> str:
    """In per cent, with the standard deviation where there are several seeds."""
    if not values:
        return "diverged" if diverged else "-"
    spread = f" ± {100 * np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
    return f"{100 * np.mean(values):.2f}{spread}"


def _average(many: Sequence[Cells]) -> Cells:
    return {name: float(np.mean([cells[name] for cells in many])) for name in many[0]}


WAYS: dict[str, Callable[[Result, Sequence[Group]], Cells]] = {"best": best, "last ten": last_ten, "last": last}
WAY_NAMES = {
    "best": "best checkpoint, chosen on the test pairs (the paper's way)",
    "last ten": "mean of the last ten checkpoints",
    "last": "last checkpoint, all test pairs",
}

import io
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from reproduce.comparable import compared, differing, require_comparable
from reproduce.groups import Group, make_group
from reproduce.plan import Planned, plan_method
from reproduce.results import Result, last
from sdgmnet.data.patchset import PatchSet
from sdgmnet.errors import InputError
from tests.conftest import blob_patches
from tests.reproduce.test_plan import TINY, run

CARD = {"source": "photos", "method": 2, "options": {"size": 1600}}


def cut(name: str, seed: int, patches: slice = slice(None)) -> PatchSet:
    """A set that says it was cut from photos; fewer patches are another cut of the same ones."""
    made = blob_patches(30, 3, seed)
    return replace(
        made,
        name=name,
        patches=made.patches[patches],
        point_id=made.point_id[patches],
        origin={**CARD, "photos": name},
        test_pairs=None,
    )


def groups_with(*tests: PatchSet) -> list[Group]:
    return [make_group("A", ("a",), [cut("one", 1)]), make_group("B", ("b",), tests)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Planned], list[Result], Path]:
    """Two runs on A: the second one was tested on another cut of the scene three."""
    out = tmp_path_factory.mktemp("runs")
    groups = groups_with(cut("two", 2), cut("three", 3))
    other = groups_with(cut("two", 2), cut("three", 3, slice(75)))
    planned = [
        plan_method("tfeat", groups[0], groups, TINY, 0),
        plan_method("tfeat", other[0], other, TINY, 1),
    ]
    return planned, run(planned, out), out


def test_scenes_that_differ_are_found() -> None:
    assert differing([{"a": "1", "b": "2"}, {"b": "2", "c": "3"}, {"c": "4", "a": "1"}]) == ["c"]
    assert differing([]) == differing([{"a": "1"}]) == []


def test_runs_are_compared_on_what_they_have_in_common(runs: tuple[list[Planned], list[Result], Path]) -> None:
    planned, results, _ = runs
    assert results[0].data["test"]["three"] != results[1].data["test"]["three"]
    found, remark = compared(planned, results)
    assert remark.startswith(" Left out as a test: three, cut from the photos more than once")
    for one, before, after in zip(planned, results, found, strict=True):
        assert last(after, one.tests) == {"B": before.last["two"]} != last(before, one.tests)
        assert [set(line["fpr95"]) for line in after.checkpoints] == [{"two"}] * 3
        assert set(after.pairs) == set(after.checkpoint_pairs) == {"two"}
    assert planned[0].tests[0].pairs_without(["three"]) == results[0].pairs["two"]
    assert compared(planned[:1], results[:1]) == (results[:1], "")
    stopped = replace(results[1], diverged="at step 2")  # has no score that another's would stand beside
    assert compared(planned, [results[0], stopped])[1] == ""


def test_what_has_nothing_in_common_is_refused_before_training(
    runs: tuple[list[Planned], list[Result], Path], tmp_path: Path
) -> None:
    planned, _, out = runs
    said = io.StringIO()
    require_comparable(planned, out, Console(file=said, width=300))
    assert "Note: Left out as a test: three" in said.getvalue()
    again = groups_with(cut("two", 2, slice(75)), cut("three", 3, slice(75)))
    missing = plan_method("tfeat", again[0], again, TINY, 2)
    with pytest.raises(InputError, match=r"not tested on the same sets of B \(two, three: cut .* give another -o"):
        require_comparable([*planned, missing], out, Console(quiet=True))
    shutil.copytree(out, tmp_path, dirs_exist_ok=True)
    with pytest.raises(InputError, match="not tested on the same sets of B"):
        compared([*planned, missing], [*runs[1], *run([missing], tmp_path)])


def test_means_are_over_the_scenes_that_are_left(runs: tuple[list[Planned], list[Result], Path]) -> None:
    planned, results, _ = runs
    both = last(results[0], planned[0].tests)["B"]
    assert both == pytest.approx(np.mean([results[0].last["two"], results[0].last["three"]]))

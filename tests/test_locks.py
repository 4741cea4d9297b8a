"""locks/: every file has a hash, and versions are those of constraints.txt."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.lock import LOCKS

ROOT = Path(__file__).parent.parent
PINNED = re.compile(r"([a-z0-9.-]+)==(\S+) --hash=sha256:[0-9a-f]{64}")


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {plain(name): version for name, _, version in (line.partition("==") for line in lines if line[0] != "#")}


def locked(name: str) -> dict[str, str]:
    lines = (ROOT / "locks" / name).read_text().splitlines()[1:]
    pinned = [PINNED.fullmatch(line) for line in lines]
    assert all(pinned), (name, lines)
    return {plain(one[1]): one[2].partition("+")[0] for one in pinned if one}


@pytest.mark.parametrize("name", LOCKS)
def test_versions_are_those_of_the_constraints(name: str) -> None:
    pinned, wanted = locked(name), constraints()
    common = pinned.keys() & wanted.keys()
    assert {one: pinned[one] for one in common} == {one: wanted[one] for one in common}


def test_the_wheel_is_tested_with_all_that_it_requires() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = [*project["dependencies"], *project["optional-dependencies"]["demo"]]
    names = {plain(re.split(r"[<>=;\[ ]", one)[0]) for one in required}
    assert names <= locked("wheel.txt").keys() <= constraints().keys()

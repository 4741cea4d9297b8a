"""Everything in this folder is the suite `trust`: `make trust` at a reduced count, `pytest -m trust tests/trust` in full."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trust.jobs import JOBS, Job
from tests.trust.nursery import Nursery, nursery

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.trust)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    with nursery(tmp_path_factory.mktemp("nursery")) as opened:
        yield opened


@pytest.fixture
def job(name: str, tmp_path: Path) -> Job:
    """The job of a name, with its inputs in tmp_path / "inputs"."""
    if name == "data photos":
        pytest.importorskip("pycolmap", reason="photos are reconstructed by pycolmap")
    (tmp_path / "inputs").mkdir()
    JOBS[name].prepare(tmp_path / "inputs")
    return JOBS[name]

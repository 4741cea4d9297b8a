"""Everything in this folder is the suite `trust`: `make trust` at a reduced count, `pytest -m trust tests/trust` in full."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.trust)

from collections.abc import Callable, Iterator

import pytest


@pytest.fixture(scope="module")
def note_deviation() -> Iterator[Callable[[str, float], None]]:
    """Collects the deviations of gradients from their loops; with `pytest -s` the largest of each name is printed."""
    worst: dict[str, float] = {}

    def note(name: str, deviation: float) -> None:
        worst[name] = max(worst.get(name, 0.0), deviation)

    yield note
    for name, deviation in worst.items():
        print(f"\n{name}: gradients differ from the loop's by {deviation:.1e} of their norm at most", end="")

"""Ctrl-C and termination without losing a step."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def stop_signals(same_within: float = 0.0) -> Iterator[Callable[[], bool]]:
    """Yields a function: whether SIGINT or SIGTERM came, so that the step can be finished and saved. A second ends at once.

    same_within: seconds in which a second one is the first again. Where a scheduler signals every process of a job, torchrun
    does, too.
    """
    received: list[float] = []

    def remember(number: int, frame: Any) -> None:
        received.append(time.monotonic())
        if len(received) > 1 and received[-1] - received[0] >= same_within:
            raise KeyboardInterrupt

    before = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, remember)
    except ValueError:  # not the main thread: nobody sends it signals
        pass
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

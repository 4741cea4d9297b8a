"""Long jobs, which a user can cancel and which end with the page that started them."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event

from sdgmnet.errors import Interrupted
from sdgmnet.report import OnProgress


class Jobs:
    """The jobs that run, each by the session that started it."""

    def __init__(self) -> None:
        self._session_of: dict[Event, str | None] = {}

    @contextmanager
    def started(self, session: str | None) -> Iterator[Event]:
        """An event that is set when the job should stop."""
        stop = Event()
        self._session_of[stop] = session
        try:
            yield stop
        finally:
            del self._session_of[stop]

    def stop(self, session: str | None) -> None:
        for stop, owner in list(self._session_of.items()):
            if owner == session:
                stop.set()

    def stop_all(self, seconds: float) -> bool:
        """Wait so long for them to end; whether they did."""
        for stop in list(self._session_of):
            stop.set()
        end = time.monotonic() + seconds
        while self._session_of and time.monotonic() < end:
            time.sleep(0.1)
        return not self._session_of


def stopped_by(stop: Event, on_progress: OnProgress) -> OnProgress:
    """Report progress, or raise Interrupted once the event is set."""

    def report(stage: str, done: int, total: int) -> None:
        if stop.is_set():
            raise Interrupted("Cancelled.")
        on_progress(stage, done, total)

    return report

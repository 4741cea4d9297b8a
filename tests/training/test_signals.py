"""How often one must ask to stop."""

import os
import signal

import pytest

from sdgmnet.training.fit import stop_signals


def ask() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_second_signal_ends_at_once() -> None:
    with stop_signals() as stopping:
        assert not stopping()
        ask()
        assert stopping()
        with pytest.raises(KeyboardInterrupt):
            ask()


def test_a_schedulers_and_torchruns_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    with stop_signals(same_within=5) as stopping:
        ask()
        now = 104.0
        ask()
        assert stopping()
        now = 105.0
        with pytest.raises(KeyboardInterrupt):
            ask()

"""kill -9 at random moments, then the same command again: no incomplete file, nothing lost, the same result."""

import re
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.trust.jobs import JOBS, STEPS, Job, newest_step, unfinished
from tests.trust.nursery import Ended, Nursery
from tests.trust.reports import record

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are watched through /proc"),
]
KILLS = 20
MOST_TRIES = 3 * KILLS


class Trial:
    """A job with its inputs and its undisturbed result."""

    def __init__(self, job: Job, runner: Nursery, folder: Path) -> None:
        self.job, self.runner, self.inputs, self.folder = job, runner, folder / "inputs", folder
        undisturbed = runner.run(self.job.start(self.inputs, folder / "undisturbed"))
        assert undisturbed.code == 0, undisturbed.said
        self.seconds = undisturbed.seconds
        self.result = self.job.result(folder / "undisturbed")
        assert self.result

    def kill_and_go_on(self, number: int, kill_when: Callable[[float], bool], helpers_too: bool = True) -> Ended | None:
        """None if the job ended before the kill."""
        out = self.folder / f"out{number}"
        ended = self.runner.run(self.job.start(self.inputs, out), kill_when, helpers_too=helpers_too)
        if not ended.killed:
            assert ended.code == 0, ended.said
            self.seconds = (self.seconds + ended.seconds) / 2
            return None
        if not helpers_too:
            time.sleep(0.2)  # helpers notice that their parent is gone
        if out.exists():
            self.job.whole(out)
        newest = newest_step(out) if (out / "config.json").exists() and (out / "checkpoints").exists() else None
        second = self.runner.run(self.job.again(self.inputs, out))
        assert second.code == 0, second.said
        assert self.job.result(out) == self.result
        assert unfinished(out) == []
        if newest is not None and "is finished" not in second.said:
            resumed = re.search(r"Resuming at step (\d+)", second.said)
            assert resumed is not None and int(resumed[1]) == newest, second.said
        return second


@pytest.mark.parametrize("name", JOBS)
def test_killed_at_twenty_random_moments(name: str, job: Job, runner: Nursery, tmp_path: Path) -> None:
    trial, rng, killed, tried = Trial(job, runner, tmp_path), Random(f"kills {name}"), 0, 0
    try:
        while killed < KILLS and tried < MOST_TRIES:
            moment, tried = rng.random() * trial.seconds, tried + 1
            went_on = trial.kill_and_go_on(tried, lambda so_far, at=moment: so_far >= at, helpers_too=bool(tried % 2))
            killed += went_on is not None
    finally:
        remark = f"job of {trial.seconds:.1f} s; {tried - killed} of {tried} tries ended before their kill"
        record(name, "kill -9 at random moments", killed, KILLS, remark)
    assert killed == KILLS


@pytest.mark.parametrize("name", ["train"])
def test_killed_while_a_checkpoint_is_written(job: Job, runner: Nursery, tmp_path: Path) -> None:
    trial, rng, killed, tried = Trial(job, runner, tmp_path), Random("checkpoints"), 0, 0
    try:
        while killed < KILLS and tried < MOST_TRIES:
            step, pause, tried = rng.randrange(0, STEPS + 1, 2), rng.random() * 0.01, tried + 1
            place = tmp_path / f"out{tried}" / "checkpoints"

            def is_writing(so_far: float, place: Path = place, step: int = step, pause: float = pause) -> bool:
                if not place.is_dir() or not any(place.glob(f".checkpoint-{step:09d}.pt.*.part")):
                    return False
                time.sleep(pause)
                return True

            killed += trial.kill_and_go_on(tried, is_writing) is not None
    finally:
        record("train", "kill -9 while a checkpoint is written", killed, KILLS, f"{tried} tries")
    assert killed == KILLS

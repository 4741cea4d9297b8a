"""Progress over a whole plan: one bar for all runs, with what the present one is doing and when all will be done."""

import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from sdgmnet.data.sources import Sources
from sdgmnet.training.config import TrainConfig
from sdgmnet.training.display import Display

WIDE = 120  # columns of a terminal


def duration(seconds: float) -> str:
    minutes = int(seconds // 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes} min {int(seconds % 60):02d} s" if minutes else f"{int(seconds)} s"


def counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def say(console: Console, sentence: str) -> None:
    """As it is: no colours by guess, no folding where the output goes to a file."""
    console.print(sentence, highlight=False, markup=False, soft_wrap=True)


@dataclass
class Work:
    """One run of a plan."""

    title: str
    iterations: int
    each: float  # seconds that an iteration is expected to take
    done: int = 0  # iterations

    @property
    def seconds(self) -> float:
        return (self.iterations - self.done) * self.each


class Board:
    """work: by a key of one's own. The order does not matter, and a run may be finished by another process."""

    def __init__(self, console: Console, work: dict[str, Work]) -> None:
        self.left, self.count = dict(work), len(work)
        self.key, self.steps = "", 0
        self.took, self.expected = 0.0, 0.0  # seconds of the finished runs
        # In a narrow terminal the loss and the time gone give way, so that the time left is not cut.
        self.wide = console.width >= WIDE
        self.bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30 if self.wide else 8),
            TextColumn("{task.fields[news]}", markup=False),
            *([TimeElapsedColumn()] if self.wide else []),
            TextColumn("{task.fields[left]}", markup=False),
            console=console,
        )
        self.total = self._seconds()
        self.task = self.bar.add_task("", total=self.total, news="", left="")

    def __enter__(self) -> "Board":
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.bar.stop()

    def _seconds(self) -> float:
        """Expected from here to the end of the plan, were it all for this process."""
        return sum(one.seconds for one in self.left.values())

    def state(self) -> str:
        return f"run {self.count - len(self.left)} of {self.count} done, about {self._time_left()} left"

    def _time_left(self) -> str:
        """Corrected by how much longer than expected the finished runs took."""
        correction = self.took / self.expected if self.expected > 0 else 1.0
        return duration(correction * self._seconds())

    def begin_run(self, key: str) -> None:
        self.key, self.steps = key, 0

    def show(self, console: Console, config: TrainConfig, out: Path, step: int) -> Display:
        self.left[self.key].done, self.steps = step, 0
        return RunInPlan(self, config)

    def advance(self, step: int, news: str) -> None:
        run = self.left[self.key]
        self.steps += step - run.done
        run.done = step
        self.bar.update(
            self.task,
            description=f"{self.count - len(self.left) + 1}/{self.count} {run.title}",
            completed=self.total - self._seconds(),
            news=f"{step}/{run.iterations}{news}",
            left=f"{self._time_left()} left",
        )

    def measured(self, seconds: float) -> None:
        """How long the steps of the present run took, evaluations included."""
        self.took += seconds
        self.expected += self.steps * self.left[self.key].each

    def finish_run(self, key: str) -> None:
        del self.left[key]


class RunInPlan(Display):
    """What the loop tells, shown in the plan's bar."""

    def __init__(self, board: Board, config: TrainConfig) -> None:
        self.board, self.config, self.score = board, config, ""
        self.rate, self.ready = 0.0, time.monotonic()

    def __enter__(self) -> "RunInPlan":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None

    def introduce(self, sources: Sources, device: torch.device, left_out: dict[str, int], ranks: int = 1) -> None:
        return None

    def advance(self, step: int, value: float, report: Any) -> None:
        loss = f"  loss {value:+.3f}" if self.board.wide else ""
        self.board.advance(step, f"{loss}{self.score}")

    def scalars(self, step: int, line: dict[str, float]) -> None:
        return None

    def evaluated(self, step: int, scores: dict[str, float]) -> None:
        self.score = f"  FPR@95 {100 * scores['mean']:.1f} %"

    def finished(self, out: Path, results: dict[str, Any]) -> None:
        return None

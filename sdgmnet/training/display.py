"""The progress of a run: a bar in a terminal, a line per evaluation, TensorBoard and Weights & Biases on request."""

import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from rich.console import Console

from sdgmnet.data.patchset import PatchSet, some_pairs
from sdgmnet.data.sources import Sources
from sdgmnet.errors import InputError
from sdgmnet.report import FIRST_LINE, WIDE, ProgressLines, counting_bar
from sdgmnet.training.config import TrainConfig


class Display:
    def __init__(self, console: Console, config: TrainConfig, out: Path, step: int) -> None:
        self.console, self.config = console, config
        self.rate, self.ready = 0.0, time.monotonic()
        self.bar, self.lines = counting_bar(console), ProgressLines()
        self.task = self.bar.add_task("training", total=config.iterations, completed=step, news="")
        self.evaluation_began = self.evaluation_seconds = 0.0
        self.writer = _tensorboard(out, step) if config.tensorboard else None
        self.wandb_run = _wandb(out, config) if config.wandb else None

    def __enter__(self) -> "Display":
        if self.console.is_terminal:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.console.is_terminal:  # otherwise it was not started, and stopping would print an empty line
            self.bar.stop()
        if self.writer is not None:
            self.writer.close()
        if self.wandb_run is not None:
            self.wandb_run.finish(exit_code=0 if kind is None else 1)

    def introduce(
        self, sources: Sources, window: float, device: torch.device, left_out: dict[str, int], ranks: int = 1
    ) -> None:
        patches = sum(len(patchset) for patchset in sources.train)
        trained, threads = ", ".join(patchset.name for patchset in sources.train), torch.get_num_threads()
        self.console.print(
            f"Training {self.config.encoder} with the loss {self.config.loss} on {trained} ({patches} patches, "
            f"{window:g} sigma): {self.config.iterations} iterations of {self.config.batch_size} pairs, {device}, "
            f"{threads} thread{'' if threads == 1 else 's'}, {self.config.engine}{f', {ranks} ranks' if ranks > 1 else ''}."
        )
        for remark in sources.remarks:
            self.console.print(remark, markup=False)
        for scene, count in left_out.items():
            self.console.print(
                f"{scene}: {count} of its parts (images, models) have too few points for their share of a batch and are not "
                "used; a smaller --batch-size uses them."
            )
        for patchset in sources.test:
            pairs = len(some_pairs(patchset, self.config.most_evaluation_pairs))
            narrow = f", of {patchset.window:g} sigma only" if patchset.window < window else ""
            self.console.print(f"Held out: {patchset.name}, {pairs} pairs{narrow}.")
        if not sources.test:
            self.console.print("No set is held out (--holdout): best.safetensors will be the last weights.")

    def advance(self, step: int, value: float, report: Any) -> None:
        seconds = max(time.monotonic() - self.ready, 1e-9)
        rate = self.config.batch_size / seconds
        self.rate = rate if self.rate == 0 else 0.9 * self.rate + 0.1 * rate
        self.ready = time.monotonic()
        news = f"{self.rate:.0f} pairs/s, loss {value:+.3f}"
        if hasattr(report, "theta_pos_mean") and self.console.width >= WIDE:
            news += f", θ⁺ {report.theta_pos_mean.item():.2f}, θ⁻ {report.theta_neg_mean.item():.2f}"
        self.bar.update(self.task, completed=step, news=news)
        if not self.console.is_terminal and not self.console.quiet:
            self.lines.update("training", step, self.config.iterations, news)

    def scalars(self, step: int, line: dict[str, float]) -> None:
        self._record(step, {f"train/{name}": value for name, value in line.items()})

    def _record(self, step: int, values: dict[str, float]) -> None:
        if self.writer is not None:
            for name, value in values.items():
                self.writer.add_scalar(name, value, step)
        if self.wandb_run is not None:
            self.wandb_run.log(values, step=step)

    def evaluating(self, step: int, tests: Sequence[PatchSet]) -> None:
        """The time left of training does not include evaluations: the first, the last and slow ones are announced."""
        self.bar.update(self.task, description="evaluating")
        self.evaluation_began = time.monotonic()
        at_an_end = step in (0, self.config.iterations)
        if not self.console.is_terminal and (at_an_end or self.evaluation_seconds > FIRST_LINE):
            pairs = sum(len(some_pairs(one, self.config.most_evaluation_pairs)) for one in tests)
            self.console.print(f"step {step}: evaluating on {pairs} pairs ...")

    def measuring(self) -> None:
        """After the last step."""
        self.bar.update(self.task, description="measuring angles")
        if not self.console.is_terminal:
            self.console.print("Measuring the angles of the trained descriptors ...")

    def evaluated(self, step: int, scores: dict[str, float]) -> None:
        self.bar.update(self.task, description="training")
        self.evaluation_seconds = time.monotonic() - self.evaluation_began
        parts = [f"{name} {100 * score:.2f} %" for name, score in scores.items() if name != "mean" or len(scores) > 2]
        rate = f", {self.rate:.0f} pairs/s" if self.rate else ""
        self.console.print(f"step {step:>{len(str(self.config.iterations))}}: FPR@95 {', '.join(parts)}{rate}")
        self._record(step, {f"fpr95/{name}": score for name, score in scores.items()})
        self.ready = time.monotonic()  # the time of the evaluation does not count

    def finished(self, out: Path, results: dict[str, Any]) -> None:
        best, last = results["fpr95_best"], results["fpr95_last"]
        if best:
            self.console.print(
                f"FPR@95: best {100 * best['mean']:.2f} % at step {best['step']}, last {100 * last['mean']:.2f} %."
            )
        if results["concern"]:
            self.console.print(f"Warning: {results['concern']}")
        self.console.print(f"Weights, log and results are in {out}.")


def _tensorboard(out: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InputError("--tensorboard needs the package tensorboard: pip install 'sdgmnet[tensorboard]'.") from None
    return SummaryWriter(str(out / "tensorboard"), purge_step=step)


def _wandb(out: Path, config: TrainConfig) -> Any:
    """A run in OUT/wandb. Nothing is sent unless the user sets WANDB_MODE; `wandb sync` sends it later."""
    try:
        import wandb
    except ImportError:
        raise InputError("--wandb needs the package wandb: pip install 'sdgmnet[wandb]'.") from None
    mode: Any = os.environ.get("WANDB_MODE", "offline")
    settings = wandb.Settings(silent=True, console="off")
    return wandb.init(
        project="sdgmnet", name=out.name, dir=str(out), mode=mode, config=asdict(config), settings=settings
    )

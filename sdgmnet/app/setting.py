"""What the tabs of one app share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

import gradio as gr

from sdgmnet.app.jobs import Jobs
from sdgmnet.errors import InputError, Stopped
from sdgmnet.pretrained import ALIAS, shipped_names
from sdgmnet.report import OnProgress


@dataclass(frozen=True)
class Setting:
    """Of one app."""

    folder: Path  # of uploads and results, removed at the end
    runs: Path  # folder of training runs
    descriptors: tuple[str, ...] = ()  # offered besides SIFT, RootSIFT and the shipped weights
    is_public: bool = False  # then users cannot name paths of this machine
    jobs: Jobs = field(default_factory=Jobs)

    @property
    def offered(self) -> list[str]:
        return list(dict.fromkeys(["sift", "rootsift", ALIAS, *shipped_names(), *self.descriptors]))


def reported(call: Callable[..., tuple[Any, ...]], outputs: int) -> Callable[..., tuple[Any, ...]]:
    """The outputs after an empty message; or the message of an error, and no outputs."""

    @wraps(call)
    def answer(*inputs: Any, **more: Any) -> tuple[Any, ...]:
        try:
            return "", *call(*inputs, **more)
        except (InputError, Stopped) as error:
            return str(error), *([None] * outputs)

    return answer


def shown_by(progress: gr.Progress) -> OnProgress:
    return lambda stage, done, total: progress((done, total) if total else 0, desc=stage)

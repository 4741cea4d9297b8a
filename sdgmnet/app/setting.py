"""What the tabs of one app share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

import gradio as gr

from sdgmnet.app.jobs import Jobs
from sdgmnet.errors import InputError, Stopped
from sdgmnet.pretrained import ALIAS, shipped_names
from sdgmnet.report import OnProgress

CLEAR = "() => ''"  # in JavaScript: the message of the job before; events run in the order of their definition


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
        others = shipped_names()[1:]  # the first one is what ALIAS stands for
        return list(dict.fromkeys(["sift", "rootsift", ALIAS, *others, *self.descriptors]))


def hidden() -> dict[str, Any]:
    """An empty output that is not shown. A new one each time: gradio changes what it is given."""
    return gr.update(value=None, visible=False)


def reported(
    call: Callable[..., tuple[Any, ...]], empty: Callable[[], Sequence[Any]]
) -> Callable[..., tuple[Any, ...]]:
    """The outputs after an empty message; or the message of an error, and empty outputs."""

    @wraps(call)
    def answer(*inputs: Any, **more: Any) -> tuple[Any, ...]:
        try:
            return "", *call(*inputs, **more)
        except (InputError, Stopped) as error:
            return str(error), *empty()

    return answer


def shown_by(progress: gr.Progress) -> OnProgress:
    return lambda stage, done, total: progress((done, total) if total else 0, desc=stage)

"""The tab Train: the log of a run, drawn and summed up while the run goes on."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from sdgmnet.errors import InputError
from sdgmnet.features.images import read_color
from sdgmnet.plots import draw_training
from sdgmnet.report import markdown, percent
from sdgmnet.training.log import read_log

LOG = "log.jsonl"
MAX_RUNS = 200  # in the list


def find_runs(folder: Path) -> list[str]:
    """Names of the runs below a folder, by their logs, newest first."""
    logs = [path for depth in ("*", "*/*") for path in folder.glob(f"{depth}/{LOG}") if path.is_file()]
    logs.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    return [path.parent.relative_to(folder).as_posix() for path in logs[:MAX_RUNS]]


def run_log(folder: Path, name: str | None) -> Path:
    """The log of a run that `find_runs` has listed: whoever calls the app's API could name any folder of this machine."""
    if not name:
        raise InputError(f"{folder} has no run yet: start one with sdgmnet train -o {folder}/NAME.")
    if name not in find_runs(folder):
        raise InputError(f"{name!r} is not a run below {folder}: choose one from the list.")
    return folder / name / LOG


def draw_run(log: Path) -> np.ndarray:
    """The curves so far: (H, W, 3) uint8."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "training.png"
        draw_training(log, path)
        return read_color(path)


def run_summary(log: Path) -> str:
    """The last epoch and evaluation, in Markdown."""
    epochs, evaluations = read_log(log, "epoch"), read_log(log, "evaluation")
    if not epochs and not evaluations:
        return "The run has logged nothing yet."
    rows = [
        [f"FPR@95 of {name} (%)", percent(score)]
        for name, score in (evaluations or [{"fpr95": {}}])[-1]["fpr95"].items()
    ]
    last = epochs[-1] if epochs else {}
    rows += [
        [name.replace("_", " "), f"{value:.4g}"]
        for name, value in last.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and name != "step"
    ]
    step = max(line["step"] for line in [*epochs, *evaluations])
    return f"Iteration {step}\n\n{markdown(['', 'last value'], rows)}"

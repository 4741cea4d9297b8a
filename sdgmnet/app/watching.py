"""The tab Train: the log of a run, drawn and summed up while the run goes on."""

from pathlib import Path

from matplotlib.figure import Figure

from sdgmnet.app.html import patch_html, patches_html
from sdgmnet.errors import InputError
from sdgmnet.plots.patches import read_triplets
from sdgmnet.plots.style import new_figure
from sdgmnet.plots.training import training_curves
from sdgmnet.report import markdown, percent
from sdgmnet.storage import read_record
from sdgmnet.training.log import read_log
from sdgmnet.training.triplets import TRIPLETS

LOG = "log.jsonl"
MAX_RUNS = 200  # in the list
RUNNING = "running_"  # of values that the loss also keeps as running means
SYMBOLS = {"theta_pos": "θ⁺", "theta_neg": "θ⁻", "theta_rel": "θʳ", "power_pos": "P⁺", "power_neg": "P⁻"}
NAMES = {
    "active_share": "share of triplets with weights above 0",
    "no_negative_share": "share of anchors without a valid negative",
}


def find_runs(folder: Path) -> list[str]:
    """Names of the runs below a folder, by their logs, newest first."""
    logs = [path for depth in ("*", "*/*") for path in folder.glob(f"{depth}/{LOG}") if path.is_file()]
    logs.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    return [path.parent.relative_to(folder).as_posix() for path in logs[:MAX_RUNS]]


def run_log(folder: Path, name: str | None) -> Path:
    """The log of a run that `find_runs` has listed: whoever calls the app's API could name any folder of this machine."""
    if not name:
        raise InputError(
            f"{folder} has no run yet: start one with sdgmnet train --data demo --iterations 1000 --batch-size 64 "
            f"-o {folder}/small."
        )
    if name not in find_runs(folder):
        raise InputError(f"{name!r} is not a run below {folder}: choose one from the list.")
    return folder / name / LOG


def run_progress(log: Path) -> str:
    """The iteration and the last evaluation, in words."""
    epochs, evaluations = read_log(log, "epoch"), read_log(log, "evaluation")
    if not epochs and not evaluations:
        return "The run has logged nothing yet."
    step, config = max(line["step"] for line in [*epochs, *evaluations]), log.with_name("config.json")
    total = read_record(config, {"iterations": int})["iterations"] if config.is_file() else None
    text = f"Iteration {step}" + (f" of {total}." if total else ".")
    if evaluations:
        text += (
            f" FPR@95 at iteration {evaluations[-1]['step']}: {percent(evaluations[-1]['fpr95']['mean'])} %. This is the share "
            "of non-matching held-out pairs that are accepted when 95 % of the matching ones are: lower is better."
        )
    return text


def run_curves(log: Path) -> dict[str, Figure]:
    """The curves so far: title -> figure."""
    found = {}
    for title, draw in training_curves(log).items():
        figure, axes = new_figure(1, 1, 4.4, 3.2)
        draw(axes[0, 0])
        found[title] = figure
    return found


def hardest_html(log: Path) -> str:
    """The hardest triplets of the last evaluation; empty for a run without a held-out set."""
    path = log.with_name(TRIPLETS)
    if not path.is_file():
        return ""
    saved = read_triplets(path)
    cells = []
    for patches, (theta_pos, theta_neg) in zip(saved.patches, saved.angles, strict=True):
        sides = ("anchor", f"positive, θ⁺ = {theta_pos:.2f}", f"negative, θ⁻ = {theta_neg:.2f}")
        cells.append(patches_html(patch_html(patch, side) for patch, side in zip(patches, sides, strict=True)))
    head = (
        f"<p>Hardest held-out triplets at iteration {saved.step}, by θʳ = θ⁺ − θ⁻ (radians). Above 0, the negative, "
        "a patch of another point, is nearer to the anchor than the positive, another view of the anchor's point.</p>"
    )
    return f'{head}<div class="triplets">{"".join(cells)}</div>'


def run_summary(log: Path) -> str:
    """The last epoch and evaluation, in Markdown."""
    epochs, evaluations = read_log(log, "epoch"), read_log(log, "evaluation")
    if not epochs and not evaluations:
        return ""
    scores = evaluations[-1]["fpr95"] if evaluations else {}
    rows = [
        [f"FPR@95 of {name} (%)", percent(score), ""]
        for name, score in scores.items()
        if name != "mean" or len(scores) > 2
    ]
    last = {
        name: f"{value:.4g}"
        for name, value in (epochs[-1] if epochs else {}).items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and name != "step"
    }
    names = dict.fromkeys(name.removeprefix(RUNNING) for name in last)  # some losses log running means alone
    rows += [[in_symbols(name), last.get(name, ""), last.get(RUNNING + name, "")] for name in names]
    return markdown(["", "last epoch", "running mean"], rows)


def in_symbols(name: str) -> str:
    """Of a value in the log: θ⁺ mean for theta_pos_mean."""
    for prefix, symbol in SYMBOLS.items():
        if name.startswith(prefix):
            return symbol + name.removeprefix(prefix).replace("_", " ")
    return NAMES.get(name, name.replace("_", " "))

"""`python -m reproduce fig6b | fig7`: the margin and the attenuation, one at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import tyro

from reproduce import sweeps
from reproduce.output import deliver_paper
from reproduce.plan import Planned
from reproduce.runs import TOP_TEN, RunsArguments, carried_out, concerns, require_seeds
from sdgmnet.benchmarks.hpatches import TASKS, compare, gap, headline, note
from sdgmnet.data.hpatches.files import choose_sequences
from sdgmnet.data.hpatches.tasks import PAIRS
from sdgmnet.descriptors import descriptor_fingerprint, load_descriptor
from sdgmnet.errors import InputError
from sdgmnet.report import Section, progress_bars


@dataclass(frozen=True)
class Fig6bArguments(RunsArguments):
    """Fig. 6 (b): SDGMNet with other margins m and other attenuations α, one at a time.

    python -m reproduce fig6b --groups A=sets/castle B=sets/rock C=sets/temple -o paper
    """

    margins: tuple[float, ...] = sweeps.MARGINS
    """Values of m, with α = 0.9."""
    alphas: tuple[float, ...] = sweeps.ALPHAS
    """Values of α, with m = 0.6."""
    train: tuple[str, ...] = ()
    """The group to train on, tested on all others; left out: the first one."""
    seeds: int = 1
    """Trainings of each value."""


def fig6b(words: list[str]) -> None:
    arguments = tyro.cli(Fig6bArguments, prog="python -m reproduce fig6b", args=words)
    require_seeds(arguments.seeds)
    groups, group = arguments.opened_with_one_trained()
    budget = arguments.budget()
    planned = [
        one
        for setting, values in (("margin", arguments.margins), ("alpha", arguments.alphas))
        for one in sweeps.sweep_runs(setting, values, group, groups, budget, arguments.seeds)
    ]
    done = carried_out(arguments, planned)
    if done is None:
        return
    runs, results, remarks, left_out = done
    curves = {setting: sweeps.curve_of(setting, runs, results) for setting in ("margin", "alpha")}
    caption = arguments.caption("Mean over the test groups.", groups, [group], arguments.seeds, left_out)
    caption += remarks
    section = Section(
        "Fig. 6 (b): margin and attenuation", f"{caption} Top ten: {TOP_TEN}.", *sweeps.sweep_table(curves)
    )
    content = {"caption": caption, "left_out": left_out, **sweeps.content(curves)}
    draw = partial(sweeps.draw_fig6b, curves)
    deliver_paper(arguments.out, "fig6b", content, [section], draw, arguments.json, concerns(results))


@dataclass(frozen=True)
class Fig7Arguments(RunsArguments):
    """Fig. 7: the attenuation α against HPatches' mAP and ΔmAP = mAP(easy) - mAP(tough), of the last checkpoints.

    The runs are those of fig6b; strips of own sequences come from sdgmnet data hpatches.

        python -m reproduce fig7 --groups A=sets/castle B=sets/rock C=sets/temple --hpatches strips -o paper
    """

    hpatches: Annotated[Path | None, tyro.conf.arg(aliases=["--root"])] = None
    """Folder of sequences, each with ref.png, e1.png ... t5.png."""
    split: Literal["a", "b", "c", "full", "illum", "view", "all"] = "all"
    """Official split (the paper: a), or all sequences that are there."""
    pairs: int = PAIRS
    """Pairs to draw for each cell of verification."""
    alphas: tuple[float, ...] = sweeps.ALPHAS
    """Values of α, with m = 0.6."""
    train: tuple[str, ...] = ()
    """The group to train on; left out: the first one."""


def fig7(words: list[str]) -> None:
    arguments = tyro.cli(Fig7Arguments, prog="python -m reproduce fig7", args=words)
    if arguments.hpatches is None or not arguments.hpatches.is_dir():
        raise InputError(
            "--hpatches needs a folder of HPatches' strips: the release, or what sdgmnet data hpatches makes."
        )
    if arguments.pairs < 1:
        raise InputError(f"--pairs must be at least 1, not {arguments.pairs}.")
    choose_sequences(arguments.hpatches, arguments.split)  # what is not there is said before anything is trained
    groups, group = arguments.opened_with_one_trained()
    planned = sweeps.sweep_runs("alpha", arguments.alphas, group, groups, arguments.budget(), 1)
    done = carried_out(arguments, planned)
    if done is None:
        return
    runs, results, remarks, _ = done
    usable = [one for one, result in zip(runs, results, strict=True) if result.diverged is None]
    if arguments.finished:  # of a run that was copied there may be its record alone
        bare = [one.method for one in usable if not weights_of(one, arguments.out).exists()]
        remarks += f" Without weights, so not here: {', '.join(bare)}." if bare else ""
        usable = [one for one in usable if weights_of(one, arguments.out).exists()]
        if bare and not usable:
            raise InputError(f"{arguments.out}: no finished run has its weights any more: leave --finished out.")
    if not usable:
        raise InputError(f"no run came to its end, so there is nothing to measure ({'; '.join(concerns(results))}).")
    found, tasks = measure_alphas(arguments, arguments.hpatches, usable)
    caption = (
        f"mAP and ΔmAP (easy less tough) in %, higher mAP is better; last checkpoints. {tasks} "
        f"{arguments.data_sentence(groups)} Trained on {group.name}. {arguments.budget().sentence()}."
        f"{remarks}"
    )
    section = Section("Fig. 7: attenuation on HPatches", caption, *sweeps.accuracy_table(found))
    content = {"caption": caption, "alphas": [{"alpha": alpha, **tasks} for alpha, tasks in found.items()]}
    draw = partial(sweeps.draw_fig7, found)
    deliver_paper(arguments.out, "fig7", content, [section], draw, arguments.json, concerns(results))


def weights_of(run: Planned, out: Path) -> Path:
    return run.find(out) / "last.safetensors"


def measure_alphas(arguments: Fig7Arguments, root: Path, runs: Sequence[Planned]) -> tuple[sweeps.Accuracy, str]:
    files = [weights_of(one, arguments.out) for one in runs]
    for file in files:
        if not file.exists():
            raise InputError(f"{file} is gone: move its folder away, and the same command trains it again.")
    with progress_bars() as on_progress:
        report = compare(
            [load_descriptor(str(file))._replace(label=one.method) for one, file in zip(runs, files, strict=True)],
            root,
            fingerprints=[descriptor_fingerprint(str(file)) for file in files],
            split=arguments.split,
            cache=arguments.out / "hpatches-cache",
            pairs=arguments.pairs,
            on_progress=on_progress,
        )
    found = {
        float(one.config.loss_setting("alpha")): {
            task: {"map": headline(rows, task), "delta": gap(rows, task)} for task in TASKS
        }
        for one, (_, rows) in zip(runs, report.lines, strict=True)
    }
    sequences = ", ".join(report.choice.names) if len(report.choice.names) <= 10 else f"{len(report.choice.names)}"
    return found, f"HPatches' tasks: {note(report)}; sequences {sequences}."

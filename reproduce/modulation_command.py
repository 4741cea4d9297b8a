"""`python -m reproduce modulation`."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from rich.console import Console
from torch import nn

from reproduce import modulation
from reproduce.captions import caption_of_run
from reproduce.microscope import measure, prepare
from reproduce.output import FILES, print_written, require_folder
from sdgmnet.errors import InputError
from sdgmnet.loss.registry import is_loss_name, loss_by_name, own_file, parse_options
from sdgmnet.report import Section, counting_bar, deliver, print_aside
from sdgmnet.training.angles import Angles
from sdgmnet.training.config import TrainConfig
from sdgmnet.training.run import build_loss


@dataclass(frozen=True)
class ModulationArguments:
    """The modulation microscope: what each loss does to the angles of a triplet, measured on the loss itself.

        python -m reproduce modulation sdgm hardnet cdf hynet pml:CircleLoss,m=0.4,gamma=80 --run runs/one -o modulation

    A batch is built in which one triplet lies at (θ⁺, θ⁻) and everything else is orthogonal; the derivatives of the loss by
    these two angles alone are read off by autograd, over the whole plane, along curves and at the angles of a real run. Drawn
    as the paper's Fig. 2, a row a loss, each relative to its own largest value. Losses that keep statistics have the run's.
    """

    losses: tyro.conf.Positional[tuple[str, ...]]
    """Any that sdgmnet train --loss takes, with options after commas: sdgm | hardnet | hardnet-original | tfeat,margin=1 |
    l2net | cdf | sosnet | hynet | keller | exp-tl | sface | pml:CircleLoss | my_loss.py:MyLoss"""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """Folder for modulation.png, modulation.pdf, results.json and table.md."""
    run: Path | None = None
    """Folder of a finished run, whose angles are looked along and whose settings its own loss has; without it, normally
    distributed angles with the moments of the authors' last epoch on Liberty."""
    grid: int = 32
    """Cells a side of the plane."""
    pairs: int = 24
    """Rows of the batch: losses that sum over all negatives depend on it."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print JSON instead of a table."""


def main(words: list[str]) -> None:
    arguments = tyro.cli(ModulationArguments, prog="python -m reproduce modulation", args=words)
    if not arguments.losses:
        raise InputError("name at least one loss, as in python -m reproduce modulation sdgm hardnet -o FOLDER.")
    if len(set(arguments.losses)) < len(arguments.losses):
        raise InputError("a loss stands there twice: name each once.")
    if arguments.grid < 2 or arguments.pairs < 4:
        raise InputError("--grid must be at least 2 and --pairs at least 4.")
    require_folder(arguments.out)
    angles, source = angles_of(arguments.run)
    losses = [prepare(loss_of(text, arguments.run), angles, arguments.pairs) for text in arguments.losses]
    calls = modulation.evaluations(angles, arguments.grid)
    number = f"{len(losses)} losses" if len(losses) > 1 else "1 loss"
    print_aside(
        f"{number}, {calls} batches of {arguments.pairs} pairs each; angles: {source}; "
        f"about {cost(losses, arguments.pairs, calls):.0f} s."
    )
    found = []
    with counting_bar(Console(stderr=True)) as bar:
        task = bar.add_task("", total=calls * len(losses))

        def track(iterable: Iterable[Any]) -> Iterator[Any]:
            for one in iterable:
                yield one
                bar.advance(task)

        for text, loss in zip(arguments.losses, losses, strict=True):
            bar.update(task, description=text)
            found.append(modulation.examine(loss, text, angles, arguments.grid, arguments.pairs, track))
    caption = (
        f"Derivatives of one triplet, times the {arguments.pairs} rows of its batch; along {source}, of which "
        f"{len(found[0].along_theta[0])} are measured."
        f"{'' if arguments.run is None else f' {caption_of_run(arguments.run)}'}"
    )
    results = {"caption": caption, **modulation.content(found, arguments.pairs, source)}
    section = Section("Modulation of losses", caption, *modulation.table(found))
    deliver(results, [section], arguments.out, arguments.json)
    modulation.draw_modulations(found, angles, source, arguments.out / "modulation")
    print_written(arguments.out, (*FILES, "modulation.png", "modulation.pdf"))


def angles_of(run: Path | None) -> tuple[Angles, str]:
    if run is None:
        return modulation.paper_angles(), "normal angles with the moments of the authors' last epoch on Liberty"
    angles = angles_of_run(run)
    return angles, f"{len(angles.theta_pos)} triplets at the end of the run {run.resolve().name}"


def angles_of_run(run: Path) -> Angles:
    """The recorded angles of a finished run, of two triplets at least."""
    if not run.is_dir():
        raise InputError(f"{run} is not a folder: give the folder of a finished run.")
    if not (run / "angles.npz").is_file():
        raise InputError(
            f"{run} holds no angles.npz: the run has not ended, or was made elsewhere; train it to its end."
        )
    angles = Angles.load(run / "angles.npz")
    if len(angles.theta_pos) < 2 or len(angles.theta_pos) != len(angles.theta_neg) or angles.moments.shape != (3, 2):
        raise InputError(f"{run}/angles.npz holds fewer than two triplets: train longer or with larger batches.")
    if not all(np.isfinite(one).all() for one in (angles.theta_pos, angles.theta_neg, angles.moments)):
        raise InputError(f"{run}/angles.npz holds angles that are not finite: the run broke down; train it anew.")
    return angles


def config_of_run(run: Path) -> TrainConfig:
    return TrainConfig.load(run / "config.json")


def loss_of(text: str, run: Path | None) -> nn.Module:
    """NAME[,OPTION=VALUE...]; without options a run's own loss is made as the run made it."""
    name, *options = text.split(",")
    if not is_loss_name(name):
        loss_by_name(name, {})  # says which there are
    config = TrainConfig() if run is None else config_of_run(run)
    own = own_file(name)
    settled = name if own is None else f"{own[0].resolve()}:{own[1]}"  # as a run keeps it
    if settled == config.loss and not options:
        return build_loss(replace(config, orthogonality=0.0))
    return loss_by_name(name, parse_options(options), {"min_negative_angle": config.loss_setting("min_negative_angle")})


def cost(losses: list[nn.Module], pairs: int, calls: int) -> float:
    """Seconds, from a few batches of each."""
    total = 0.0
    for loss in losses:
        measure(loss, 0.8, 1.2, pairs)
        start = time.perf_counter()
        for _ in range(3):
            measure(loss, 0.8, 1.2, pairs)
        total += (time.perf_counter() - start) / 3 * calls
    return total

"""`sdgmnet data hpatches`."""

from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console

from sdgmnet.data.hpatches.regions import DETECTORS, JITTERS
from sdgmnet.data.hpatches.strips import StripOptions, make_strips
from sdgmnet.errors import InputError
from sdgmnet.report import Out, counting_bar, print_table

MOST = 16000  # patches: the strip would be higher than a million pixels, which OpenCV does not read


@dataclass(frozen=True)
class StripsArguments:
    """HPatches strips from image sequences with homographies, in the layout of the official set.

        sdgmnet data hpatches hpatches-sequences-release -o strips

    A sequence is a folder with images 1.png ... 6.png (or ppm, pgm, jpg) and H_1_2 ... H_1_6, which lead from the first
    image to each of the others. Regions are detected in the first (DoG, Hessian, Harris), disturbed there a little, more and
    much (e, h, t), carried by the homographies and cut from each image, 65 x 65 pixels. Only regions that lie wholly
    inside of all images are taken. set.json tells what was made and how, sheet.png shows some of it. Started again after a
    stop, the work goes on where it was.
    """

    sequences: tyro.conf.Positional[Path]
    """Folder of the sequences, or of one."""
    out: Out
    """A folder of sixteen strips a sequence, set.json and sheet.png."""
    patches: int = StripOptions.patches
    """Of a sequence, at most: the strongest of each detector, in equal parts."""
    seed: int = StripOptions.seed
    """Of the disturbances and of the choice among regions that overlap."""
    only: tuple[str, ...] = ()
    """Names of the sequences to take; all by default."""
    force: tuple[str, ...] = ()
    """Names of sequences to make anew though they are there."""


def main(words: list[str]) -> None:
    arguments = tyro.cli(StripsArguments, prog="sdgmnet data hpatches", args=words)
    if not 1 <= arguments.patches <= MOST:
        raise InputError(f"--patches must be from 1 to {MOST}, not {arguments.patches}.")
    if arguments.seed < 0:
        raise InputError(f"--seed must not be negative, not {arguments.seed}.")
    errors = Console(stderr=True, highlight=False, soft_wrap=True)
    with counting_bar(errors) as bar:
        task = bar.add_task("strips", total=None)
        made, skipped = make_strips(
            arguments.sequences,
            arguments.out,
            StripOptions(arguments.patches, arguments.seed),
            only=arguments.only,
            force=arguments.force,
            tell=lambda done, total, what: bar.update(task, completed=done, total=total, description=what),
        )
    for one in skipped:
        errors.print(f"{one.sequence} skipped: {one.reason}", markup=False)
    if not made:
        raise InputError("no sequence gave strips; the reasons stand above.")
    rows = [
        [
            row["sequence"],
            f"{row['patches']}",
            *(f"{row['detected_by'][name]}" for name in DETECTORS),
            *(f"{row['median_overlap'][noise]:.3f}" for noise in JITTERS),
        ]
        for row in made
    ]
    print_table(["sequence", "patches", *DETECTORS, *(f"overlap {noise}" for noise in JITTERS)], rows)

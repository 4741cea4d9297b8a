"""`sdgmnet evaluate phototour`."""

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro
from tyro.conf import Positional, arg

from sdgmnet.benchmarks import phototour
from sdgmnet.data.sources import accepted, open_tests
from sdgmnet.descriptors import COMPARED, load_descriptors
from sdgmnet.plots import draw_fpr
from sdgmnet.report import Flag, OptionalOut, deliver


@dataclass(frozen=True)
class Arguments:
    """False positive rate at 95 % recall (FPR@95) on labelled pairs of patches. Lower is better.

    For example:

        sdgmnet evaluate phototour sift rootsift mine=runs/liberty --data ubc -o results

    A descriptor is not tested on a set that it was trained on. Give several trainings of one method
    the same label, and the table has a row with their mean.
    """

    descriptors: Annotated[Positional[tuple[str, ...]], arg(metavar="DESCRIPTOR ...", help=COMPARED)]
    data: Annotated[tuple[str, ...], arg(help=f"Test sets: {accepted()}.")] = ("demo",)
    out: OptionalOut = None
    """Folder for results.json, table.md and fpr95.png; default: only print."""
    convention: Literal["hardnet", "exact"] = "hardnet"
    """How to count FPR@95. hardnet: as the code of HardNet and of the paper. exact: equal distances are false positives."""
    json: Flag = False
    """Print JSON instead of a table."""


def main(words: list[str]) -> None:
    arguments = tyro.cli(Arguments, prog="sdgmnet evaluate phototour", args=words)
    descriptors = load_descriptors(arguments.descriptors, unique_labels=False)
    lines = phototour.compare(descriptors, open_tests(arguments.data), arguments.convention)
    results = phototour.content(lines, arguments.convention)
    deliver(results, [phototour.section(lines)], arguments.out, arguments.json)
    if arguments.out is not None:
        scores = [(line.label, {row.test: row.fpr95 for row in line.rows}) for line in lines]
        draw_fpr(scores, arguments.out / "fpr95.png")

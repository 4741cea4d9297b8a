"""`sdgmnet evaluate phototour`."""

from dataclasses import dataclass
from typing import Annotated, Literal

from sdgmnet.data.sources import accepted, open_tests, require_sources
from sdgmnet.descriptors import COMPARED, load_descriptors, require_descriptors
from sdgmnet.options import AsJson, Option, OptionalOut, Positional
from sdgmnet.report import deliver, print_aside, progress_bars


@dataclass(frozen=True)
class Arguments:
    """False positive rate at 95 % recall (FPR@95) on labelled pairs of patches. Lower is better.

    For example:

        sdgmnet evaluate phototour sift rootsift mine=runs/liberty --data ubc -o results

    A descriptor is not tested on a set that it was trained on. Test pairs are drawn for sets that have none. Give several
    trainings of one method the same label, and the table has a row with their mean.
    """

    descriptors: Annotated[Positional[tuple[str, ...]], Option(metavar="DESCRIPTOR", help=COMPARED)]
    data: Annotated[tuple[str, ...], Option(help=f"Test sets: {accepted()}.")] = ("demo",)
    out: OptionalOut = None
    """Folder for results.json, table.md and fpr95.png; default: only print."""
    convention: Literal["hardnet", "exact"] = "hardnet"
    """How to count FPR@95. hardnet: as the code of HardNet and of the paper. exact: equal distances are false positives."""
    json: AsJson = False


def main(arguments: Arguments) -> None:
    require_descriptors(arguments.descriptors, of_patches=True)
    require_sources(arguments.data)
    descriptors = load_descriptors(arguments.descriptors, unique_labels=False)
    from sdgmnet.benchmarks import phototour
    from sdgmnet.plots.benchmarks import draw_fpr

    with progress_bars() as on_progress:
        tests, remarks = open_tests(arguments.data, on_progress)
        for remark in remarks:
            print_aside(remark)
        lines = phototour.compare(descriptors, tests, arguments.convention, on_progress)
    results = phototour.content(lines, arguments.convention)
    deliver(results, [phototour.section(lines)], arguments.out, arguments.json)
    if arguments.out is not None:
        scores = [(line.label, {row.test: row.fpr95 for row in line.rows}) for line in lines]
        draw_fpr(scores, arguments.out / "fpr95.png")

"""`sdgmnet evaluate hpatches`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from sdgmnet.data.hpatches.files import choose_sequences
from sdgmnet.data.hpatches.tasks import PAIRS
from sdgmnet.descriptors import COMPARED, load_descriptors, require_descriptors
from sdgmnet.errors import InputError
from sdgmnet.options import AsJson, Option, OptionalOut, Positional
from sdgmnet.report import Section, deliver, print_aside, progress_bars, write_page


@dataclass(frozen=True)
class Arguments:
    """The HPatches benchmark: patch verification, image matching and patch retrieval. Mean average precision, higher is better.

    The results equal those of the official Python code on the same descriptors. The paper's Fig. 4 uses split a:

        sdgmnet evaluate hpatches sift rootsift sdgmnet --root hpatches-release --tasks hpatches-benchmark/tasks -o results

    A folder of official descriptor files (SEQUENCE/ref.csv ...) can also be given as a descriptor; --root is needed then, too.
    Use sdgmnet data hpatches to cut strips from your own image sequences, and --split all to evaluate them.
    """

    descriptors: Annotated[Positional[tuple[str, ...]], Option(metavar="DESCRIPTOR", help=COMPARED)]
    root: Path
    """Folder of HPatches sequences, each with the strips ref.png, e1.png ... t5.png."""
    split: Literal["a", "b", "c", "full", "illum", "view", "all"] = "a"
    """Official split, or all: every sequence in the folder."""
    tasks: Path | None = None
    """Folder of official task files (verif_*.csv, retr_*.csv). Missing ones are drawn at random as the official code does."""
    pairs: int = PAIRS
    """Without official task files: number of verification pairs to draw per noise level and kind of negatives."""
    cache: Path | None = None
    """Folder in which descriptors and drawn tasks are kept for the next run; default: cache in --out."""
    csv: Path | None = None
    """Folder for the descriptors as official files, LABEL/SEQUENCE/ref.csv ...; default: not written."""
    out: OptionalOut = None
    """Folder for results.json, table.md, fig4.png and index.html, which shows all; default: only print."""
    json: AsJson = False


def main(arguments: Arguments) -> None:
    require_descriptors(arguments.descriptors, of_patches=True)
    if arguments.tasks is not None and not arguments.tasks.is_dir():
        raise InputError(f"--tasks {arguments.tasks} does not exist: give a folder of task files.")
    choose_sequences(arguments.root, arguments.split)
    descriptors = load_descriptors(arguments.descriptors)
    from sdgmnet.benchmarks import hpatches
    from sdgmnet.plots.benchmarks import draw_fig4

    out = arguments.out
    with progress_bars() as on_progress:
        report = hpatches.compare(
            descriptors,
            arguments.root,
            split=arguments.split,
            tasks=arguments.tasks,
            cache=arguments.cache or (None if out is None else out / "cache"),
            pairs=arguments.pairs,
            csv=arguments.csv,
            on_progress=on_progress,
        )
    remarks = hpatches.remarks(report)
    for sentence in remarks:
        print_aside(f"sdgmnet: {sentence}")
    tables = hpatches.sections(report)
    deliver(hpatches.content(report), tables, out, arguments.json)
    if out is not None:
        draw_fig4(report.lines, out / "fig4.png", hpatches.note(report))
        text = "The paper's Fig. 4: a bar per descriptor, a mark per subtask."
        figure = Section("The three tasks", text, image=out / "fig4.png")
        left_out = [Section("Left out", " ".join(remarks))] if remarks else []
        write_page(out / "index.html", "HPatches", [figure, *tables, *left_out])

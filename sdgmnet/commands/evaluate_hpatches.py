"""`sdgmnet evaluate hpatches`."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console

from sdgmnet.benchmarks import hpatches as benchmark
from sdgmnet.benchmarks.hpatches import TASKS, Report, Row, gap, headline, mean_of
from sdgmnet.benchmarks.hpatches_tasks import POOLS
from sdgmnet.commands.evaluate import parse_descriptors, require_labels
from sdgmnet.data.hpatches.files import NOISES
from sdgmnet.data.hpatches.tasks import PAIRS
from sdgmnet.descriptors import descriptor_fingerprint
from sdgmnet.errors import InputError
from sdgmnet.features.sift import SIFT_VARIANT
from sdgmnet.plots import draw_fig4
from sdgmnet.report import Section, counting_bar, deliver, tracker, write_page


@dataclass(frozen=True)
class HPatchesArguments:
    """HPatches' patch benchmark: verification, matching and retrieval, in mean average precision; higher is better.

    The numbers are those of the official Python code on the same descriptors. The paper's Fig. 4 is split a:

        sdgmnet evaluate hpatches sift rootsift sdgmnet --root hpatches-release --tasks hpatches-benchmark/tasks -o results

    A folder of official descriptor files (SEQUENCE/ref.csv ...) is a descriptor too; the strips are needed all the same. Strips
    of own image sequences come from sdgmnet data hpatches, and are --split all.
    """

    contenders: tyro.conf.Positional[tuple[str, ...]]
    """What to compare: [label=]sift | rootsift | sdgmnet | FILE.safetensors | RUN_FOLDER | tfeat:FILE | CSV_FOLDER ..."""
    root: Path
    """Folder of sequences, each with ref.png, e1.png ... t5.png."""
    split: Literal["a", "b", "c", "full", "illum", "view", "all"] = "a"
    """Official split, or all sequences that are there."""
    tasks: Path | None = None
    """Folder of official task files (verif_*.csv, retr_*.csv); what is not there is drawn by the official rule."""
    pairs: int = PAIRS
    """Pairs to draw for each cell of verification where no files are given."""
    cache: Path | None = None
    """Folder in which descriptors and drawn tasks are kept for next time; FOLDER/cache with -o FOLDER."""
    csv: Path | None = None
    """Also write the descriptors as official files: CSV/LABEL/SEQUENCE/ref.csv ..."""
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    """Folder for results.json, table.md, fig4.png and index.html, a page with all of it."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print JSON instead of tables."""


def main(words: list[str]) -> None:
    arguments = tyro.cli(HPatchesArguments, prog="sdgmnet evaluate hpatches", args=words)
    if arguments.pairs < 5:
        raise InputError(f"--pairs must be at least 5, not {arguments.pairs}: a fifth of them are positives.")
    if arguments.tasks is not None and not arguments.tasks.is_dir():
        raise InputError(f"{arguments.tasks} is not a folder: give the folder with the official task files.")
    contenders = parse_descriptors(arguments.contenders)
    require_labels(contenders)
    cache = arguments.cache or (arguments.out / "cache" if arguments.out is not None else None)
    with counting_bar(Console(stderr=True)) as bars:
        report = benchmark.compare(
            contenders,
            [descriptor_fingerprint(text) for text in arguments.contenders],
            arguments.root,
            split=arguments.split,
            tasks=arguments.tasks,
            cache=cache,
            pairs=arguments.pairs,
            csv=arguments.csv,
            track=tracker(bars),
        )
    for sentence in remarks(report):
        print(f"sdgmnet: {sentence}", file=sys.stderr)
    tables = sections(report)
    deliver(content(report), tables, arguments.out, arguments.json)
    if arguments.out is not None:
        draw_fig4(report.lines, arguments.out / "fig4.png", note(report))
        picture = Section(
            "The three tasks",
            "The paper's Fig. 4: a bar a descriptor, a mark a subtask.",
            image=arguments.out / "fig4.png",
        )
        left_out = [Section("Left out", " ".join(remarks(report)))] if remarks(report) else []
        write_page(arguments.out / "index.html", "HPatches", [picture, *tables, *left_out])


def remarks(report: Report) -> list[str]:
    """What was not there, and what could not be used."""
    sentences = [f"left out: {complaint}" for complaint in report.complaints]
    if report.missing:
        few = ", ".join(report.missing[:5]) + (" ..." if len(report.missing) > 5 else "")
        sentences.append(f"{len(report.missing)} sequences of split {report.choice.split} are not there ({few}).")
    return sentences


def note(report: Report) -> str:
    return (
        f"{report.choice.label}, {report.patches} patches a type; verification: {report.origin['verification']}; "
        f"retrieval: {report.origin['retrieval']}, {report.queries} queries, {report.pool} distractors"
    )


def content(report: Report) -> dict[str, Any]:
    return {
        "split": report.choice.split,
        "sequences": list(report.choice.names),
        "of": report.choice.of,
        "missing": report.missing,
        "left_out": report.complaints,
        "patches": report.patches,
        "tasks": report.origin,
        "queries": report.queries,
        "distractors": report.pool,
        "sift": SIFT_VARIANT.replace("64", "65"),
        "lines": [
            {
                "label": label,
                "map": {task: headline(rows, task) for task in TASKS},
                "delta_map": {task: gap(rows, task) for task in TASKS},
                "rows": [row._asdict() for row in rows],
            }
            for label, rows in report.lines
        ],
    }


def sections(report: Report) -> list[Section]:
    lines = report.lines
    summary = [
        [label, *(percent(headline(rows, task)) for task in TASKS), *(percent(gap(rows, task)) for task in TASKS)]
        for label, rows in lines
    ]
    return [
        Section(
            f"HPatches, mAP in % ({report.choice.label})",
            note(report)[:1].upper() + note(report)[1:] + ".",
            ["descriptor", *TASKS, *(f"{task}: easy - tough" for task in TASKS)],
            summary,
        ),
        Section(
            "Verification: AP in % (balanced ROC AUC in %)",
            "AP: all negatives and a fifth of the positives. AUC: as many of each.",
            ["descriptor", *(f"{noise} {subset}" for noise in NOISES for subset in ("inter", "intra"))],
            [[label, *verification_cells(rows)] for label, rows in lines],
        ),
        Section(
            "Matching: mAP in %",
            "Each patch of the reference and its nearest in the other image.",
            ["descriptor", *(f"{noise} {subset}" for subset in subsets(lines) for noise in NOISES)],
            [
                [
                    label,
                    *(percent(mean_of(rows, "matching", noise=n, subset=s)) for s in subsets(lines) for n in NOISES),
                ]
                for label, rows in lines
            ],
        ),
        Section(
            f"Retrieval: mAP in % by the entries of the list ({report.pool} distractors in all)",
            "Mean of easy, hard and tough. The five positives count among the entries; distractors of the query's own sequence "
            "are left out, so the longest lists hold all that there are.",
            ["descriptor", *(str(pool) for pool in POOLS), "mean"],
            [
                [
                    label,
                    *(percent(mean_of(rows, "retrieval", subset=str(pool))) for pool in POOLS),
                    percent(mean_of(rows, "retrieval")),
                ]
                for label, rows in lines
            ],
        ),
    ]


def verification_cells(rows: Sequence[Row]) -> list[str]:
    return [
        f"{percent(mean_of(rows, 'verification', noise=noise, subset=subset))} "
        f"({percent(mean_of(rows, 'verification', noise=noise, subset=subset, metric='auc'))})"
        for noise in NOISES
        for subset in ("inter", "intra")
    ]


def subsets(lines: Sequence[tuple[str, list[Row]]]) -> list[str]:
    return list(dict.fromkeys(row.subset for row in lines[0][1] if row.task == "matching"))


def percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{100 * fraction:.2f}"

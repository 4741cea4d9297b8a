"""`python -m reproduce fig4`, `fig5` and `table5`: the benchmarks, run once and reused, beside the paper's numbers."""

import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from sdgmnet.paper import table5 as paper_table5

from reproduce import hpatches_table
from reproduce.output import print_written, require_folder
from sdgmnet.benchmarks.hpatches import Row
from sdgmnet.benchmarks.reconstruction import COLMAP, Detector
from sdgmnet.commands import evaluate_hpatches as hpatches
from sdgmnet.commands import evaluate_matching as matching
from sdgmnet.commands import evaluate_reconstruction
from sdgmnet.data.hpatches.tasks import PAIRS
from sdgmnet.descriptors import descriptor_fingerprint, split_label
from sdgmnet.errors import InputError
from sdgmnet.features.images import IMAGE_SUFFIXES
from sdgmnet.plots import draw_fig4, draw_reconstruction
from sdgmnet.report import Out, markdown, print_aside, print_table
from sdgmnet.storage import read_json, reason_of, write_json, write_text


@dataclass(frozen=True)
class Fig4Arguments:
    """Fig. 4: HPatches' three tasks, with what has been published beside them.

        python -m reproduce fig4 SIFT=sift RootSIFT=rootsift sdgmnet --root hpatches-release -o fig4

    Runs sdgmnet evaluate hpatches, or reuses what -o holds of the same descriptors, options and data. From results that are
    there already:

        python -m reproduce fig4 --results results -o fig4
    """

    out: Out
    """Folder for fig4.png, fig4.pdf, fig4.md, fig4.json, and all that the benchmark writes."""
    contenders: tyro.conf.Positional[tuple[str, ...]] = ()
    """What to compare: [label=]sift | rootsift | sdgmnet | FILE.safetensors | RUN_FOLDER | tfeat:FILE | CSV_FOLDER ..."""
    root: Path | None = None
    """Folder of sequences, each with ref.png, e1.png ... t5.png."""
    split: str = "a"
    """Official split, or all sequences that are there."""
    tasks: Path | None = None
    """Folder of official task files."""
    pairs: int = PAIRS
    """Pairs to draw for each cell of verification where no files are given."""
    results: Path | None = None
    """Folder that sdgmnet evaluate hpatches -o has written: nothing is run."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print JSON instead of tables."""


def fig4(words: list[str]) -> None:
    arguments = tyro.cli(Fig4Arguments, prog="python -m reproduce fig4", args=words)
    more = ["--split", arguments.split, "--pairs", str(arguments.pairs)]
    more += [] if arguments.tasks is None else ["--tasks", str(arguments.tasks)]
    results = run_or_reuse("Fig. 4: HPatches", hpatches.main, arguments, more)
    with results_by("evaluate hpatches", arguments.results or arguments.out):
        lines, note = lines_of(results), note_of(results)
        body, stated = hpatches_table.table(lines), hpatches_table.differences(lines)
        for kind in ("png", "pdf"):
            draw_fig4(lines, arguments.out / f"fig4.{kind}", note)
    difference_header = ("difference of mAP in points", "measured", "the paper, split a")
    told = (
        f"HPatches, mAP in %. {note}. Published values are of the full set; the paper's Fig. 4 prints no numbers.\n\n"
    )
    tables = markdown(hpatches_table.HEADER, body) + "\n" + markdown(difference_header, stated)
    write_text(arguments.out / "fig4.md", told + tables)
    everything = {"note": note, "header": hpatches_table.HEADER, "table": body, "differences": stated}
    write_json(arguments.out / "fig4.json", everything)
    if arguments.json:
        print(json.dumps(everything, indent=2))
    else:
        print_table(hpatches_table.HEADER[:7], [row[:7] for row in body], "HPatches, mAP in %")
        print_table(difference_header, stated)
    print_written(arguments.out, ("fig4.md", "fig4.json", "fig4.png", "fig4.pdf"))


def lines_of(results: dict[str, Any]) -> list[tuple[str, list[Row]]]:
    return [(line["label"], [Row(**row) for row in line["rows"]]) for line in results["lines"]]


@contextmanager
def results_by(command: str, folder: Path) -> Iterator[None]:
    """A sentence where results that were given are not what the command writes, however that shows."""
    try:
        yield
    except InputError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{folder} holds no results of sdgmnet {command} ({reason_of(error)}).") from error


def note_of(results: dict[str, Any]) -> str:
    there, of = len(results["sequences"]), results["of"]
    return (
        f"split {results['split']}, {there} of {of} sequences, {results['patches']} patches a type; verification: "
        f"{results['tasks']['verification']}; retrieval: {results['tasks']['retrieval']}, {results['queries']} queries, "
        f"{results['distractors']} distractors"
    )


@dataclass(frozen=True)
class Fig5Arguments:
    """Fig. 5: matches of the hardest pairs of raw images, 200 random keypoints against all.

        python -m reproduce fig5 SIFT=sift HardNet=kornia:HardNet sdgmnet --root hpatches-sequences-release -o fig5

    Runs sdgmnet evaluate matching, or reuses what -o holds of the same descriptors, options and data. The paper prints no
    numbers with this figure; how many matches are correct stands in fig5.md.
    """

    contenders: tyro.conf.Positional[tuple[str, ...]]
    """What to compare: [label=]sift | rootsift | sdgmnet | FILE.safetensors | RUN_FOLDER | tfeat:FILE ..."""
    out: Out
    """Folder for fig5.png, fig5.pdf, fig5.md, fig5.json, and all that the benchmark writes."""
    root: Path
    """Folder of sequences: 1.png ... 6.png and H_1_2 ... H_1_6 each."""
    sequences: tuple[str, ...] = ()
    """Names of the sequences to use; all where none is given."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print JSON instead of tables."""


def fig5(words: list[str]) -> None:
    arguments = tyro.cli(Fig5Arguments, prog="python -m reproduce fig5", args=words)
    more = ["--sequences", *arguments.sequences] if arguments.sequences else []
    results = run_or_reuse("Fig. 5: matching of images", matching.main, arguments, more, needs=("fig5.pdf",))
    with results_by("evaluate matching", arguments.out):
        _write_fig5(results, arguments)


def _write_fig5(results: dict[str, Any], arguments: Fig5Arguments) -> None:
    near = [f"{one:g} px" for one in results["sampled"]["near"]]
    rows = [[line["label"], *(f"{value:.1f}" for value in line["sampled"])] for line in results["lines"]]
    header = ("descriptor", *(f"correct within {one}" for one in near))
    drawn, draws = results["sampled"]["drawn"], results["sampled"]["draws"]
    pairs = results["lines"][0]["pairs"]
    names = list(dict.fromkeys(pair["sequence"] for pair in pairs))
    which = f": {', '.join(names)}" if len(names) <= 10 else ""
    caption = (
        f"Correct nearest neighbours of {drawn} random keypoints, mean over {len(pairs)} pairs of {len(names)} "
        f"sequences{which}; {draws} draws of each."
    )
    write_text(arguments.out / "fig5.md", f"{caption}\n\n{markdown(header, rows)}")
    everything = {"caption": caption, "header": header, "table": rows}
    write_json(arguments.out / "fig5.json", everything)
    if arguments.json:
        print(json.dumps(everything, indent=2))
    else:
        print_table(header, rows, "Fig. 5")
    print_written(arguments.out, ("fig5.md", "fig5.json", "fig5.png", "fig5.pdf"))


@dataclass(frozen=True)
class Table5Arguments:
    """Table 5: what COLMAP reconstructs from each descriptor's matches, the paper's methods in columns beside.

        python -m reproduce table5 SIFT=sift sdgmnet --root sets -o table5

    Runs sdgmnet evaluate reconstruction (which goes on where it was stopped), or reuses what -o holds of the same descriptors,
    options and data. From results that are there already:

        python -m reproduce table5 --results results -o table5
    """

    out: Out
    """Folder for table5.md, table5.json, table5.png, table5.pdf, and all that the benchmark writes."""
    contenders: tyro.conf.Positional[tuple[str, ...]] = ()
    """What to compare: [label=]sift | rootsift | sdgmnet | tfeat:FILE | FILE.safetensors | RUN_FOLDER | colmap ..."""
    root: Path | None = None
    """Folder of sets of photos, or a set."""
    sets: tuple[str, ...] = ()
    """Names of the sets to use; all where none is given."""
    detector: Detector = evaluate_reconstruction.DEFAULT.detector
    """Whose keypoints all descriptors describe: COLMAP's or OpenCV's."""
    dense: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Also dense points."""
    threads: int = evaluate_reconstruction.DEFAULT.threads
    """Threads to work with."""
    results: Path | None = None
    """Folder that sdgmnet evaluate reconstruction -o has written, whole or in part: nothing is run."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print JSON instead of tables."""


def table5(words: list[str]) -> None:
    arguments = tyro.cli(Table5Arguments, prog="python -m reproduce table5", args=words)
    more = ["--detector", arguments.detector, "--threads", str(arguments.threads)]
    more += ["--dense"] * arguments.dense + (["--sets", *arguments.sets] if arguments.sets else [])
    results = run_or_reuse("Table 5: reconstruction", evaluate_reconstruction.main, arguments, more, summaries)
    with results_by("evaluate reconstruction", arguments.results or arguments.out):
        _write_table5(results, arguments)


def _write_table5(results: dict[str, Any], arguments: Table5Arguments) -> None:
    rows = [row for row in results.get("rows", ()) if not arguments.sets or row["set"] in arguments.sets]
    if not rows or "track_length" not in rows[0]:
        raise InputError(f"{arguments.results or arguments.out} holds no results of sdgmnet evaluate reconstruction.")
    header, body = paper_table5.table(rows)
    detector = results.get("options", {}).get("detector")  # what is not finished does not tell
    keypoints = "" if detector is None else f" All describe the keypoints of {detector}'s detector."
    told = f"Measured, and the paper's Table 5 for sets of the benchmark.{keypoints} Dense points are of different engines."
    everything = {"caption": told, "header": header, "table": body, "rows": rows}
    write_text(arguments.out / "table5.md", f"{told}\n\n{markdown(header, body)}")
    write_json(arguments.out / "table5.json", everything)
    if arguments.json:
        print(json.dumps(everything, indent=2))
    else:
        print_table(header, body, "Table 5")
    for kind in ("png", "pdf"):
        draw_reconstruction(rows, arguments.out / f"table5.{kind}")
    print_written(arguments.out, ("table5.md", "table5.json", "table5.png", "table5.pdf"))


def summaries(folder: Path) -> dict[str, Any]:
    """What an unfinished benchmark has so far: SET/LABEL/summary.json."""
    found = sorted(folder.glob("*/*/summary.json"), key=lambda path: (path.parts[-3], path.stat().st_mtime))
    return {"rows": [read_json(path) for path in found]}


def run_or_reuse(
    what: str,
    run: Callable[[list[str]], None],
    arguments: Any,
    more: Sequence[str],
    unfinished: Callable[[Path], dict[str, Any]] | None = None,
    needs: Sequence[str] = (),
) -> dict[str, Any]:
    """results.json of a folder that was given, of the same benchmark run earlier into -o, or of running it now."""
    require_folder(arguments.out)
    given: Path | None = getattr(arguments, "results", None)
    if given is not None:
        if not given.is_dir():
            raise InputError(f"{given} is not a folder: give the folder that the benchmark has written.")
        if unfinished is not None and not (given / "results.json").exists():
            print_aside(f"{what}: from what {given} holds so far; seconds.")
            return unfinished(given)
        print_aside(f"{what}: from {given}/results.json; seconds.")
        return results_of(given)
    if not arguments.contenders:
        raise InputError("name at least one descriptor, or a folder of results with --results.")
    if arguments.root is None or not arguments.root.is_dir():
        raise InputError("--root must name the benchmark's folder, or --results a folder of results.")
    plan = {
        "contenders": [[split_label(text)[0], identity_of(text)] for text in arguments.contenders],
        "options": list(more),
        "data": fingerprint(arguments.root),
    }
    kept, out = arguments.out / "plan.json", arguments.out
    if kept.exists() and read_json(kept) == plan and all((out / name).exists() for name in ("results.json", *needs)):
        print_aside(f"{what}: the same descriptors, options and data are in {out} already; nothing is run.")
        return results_of(out)
    print_aside(
        f"Plan: {what}, {len(arguments.contenders)} descriptors on {arguments.root} ({extent(arguments.root)}); nothing is "
        "trained, and the bars below tell how long it takes."
    )
    kept.unlink(missing_ok=True)
    with redirect_stdout(sys.stderr) if arguments.json else nullcontext():
        run([*arguments.contenders, "--root", str(arguments.root), *more, "-o", str(out)])
    write_json(kept, plan)
    return results_of(out)


def extent(root: Path) -> str:
    """How much there is to work on."""
    files = [one for one in root.rglob("*") if one.suffix.lower() in IMAGE_SUFFIXES]
    folders = len({one.parent for one in files})
    return f"{len(files)} image{'s' if len(files) != 1 else ''} in {folders} folder{'s' if folders != 1 else ''}"


def results_of(folder: Path) -> dict[str, Any]:
    results = read_json(folder / "results.json")
    if not isinstance(results, dict):
        raise InputError(f"{folder}/results.json is not of this benchmark.")
    return results


def identity_of(text: str) -> str:
    """A descriptor and its weights; folders of files by their path."""
    spec = split_label(text)[1]
    return (
        spec
        if spec == COLMAP or (Path(spec).is_dir() and not (Path(spec) / "config.json").exists())
        else descriptor_fingerprint(text)
    )


def fingerprint(root: Path) -> str:
    """Names, sizes and times of all files below: changed data are not taken for the same."""
    told = hashlib.sha256()
    for path in sorted(one for one in root.rglob("*") if one.is_file()):
        state = path.stat()
        told.update(f"{path.relative_to(root)} {state.st_size} {state.st_mtime_ns}\n".encode())
    return told.hexdigest()[:12]

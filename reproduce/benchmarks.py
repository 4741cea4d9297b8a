"""`python -m reproduce fig4 | fig5 | table5`: the benchmarks, run once and reused, next to the paper's numbers."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from reproduce.arguments import BenchmarkArguments, Fig4Arguments, Fig5Arguments, Table5Arguments
from reproduce.output import Table, both_kinds
from reproduce.published import HARDNET_REPOSITORY, HPATCHES_ARTICLE, HPATCHES_DIFFERENCES
from sdgmnet.benchmarks import hpatches, matching, reconstruction
from sdgmnet.benchmarks.hpatches import TASKS, Row, gap, headline
from sdgmnet.benchmarks.photo_sets import read_photo_sets
from sdgmnet.benchmarks.published import published
from sdgmnet.benchmarks.reconstruction import COLMAP, BenchmarkOptions
from sdgmnet.descriptors import descriptor_fingerprint, load_descriptors, split_label
from sdgmnet.engine import use_threads
from sdgmnet.errors import InputError
from sdgmnet.features.images import IMAGE_SUFFIXES
from sdgmnet.plots.benchmarks import draw_fig4, draw_fig5, draw_reconstruction, fig5_rows
from sdgmnet.plots.style import method_of
from sdgmnet.report import Section, percent, print_aside, progress_bars, sections_markdown
from sdgmnet.sfm.colmap import require_pycolmap
from sdgmnet.sfm.workspace import require_apart
from sdgmnet.storage import read_json, reason_of, write_json, write_text

Results = dict[str, Any]  # of a benchmark, as results.json has them


def run_once(
    arguments: BenchmarkArguments,
    title: str,
    options: dict[str, Any],
    run: Callable[[Path], tuple[Results, Sequence[Section]]],
) -> Results:
    """Results of the same benchmark run earlier into -o, otherwise of `run(root)`, written as results.json and table.md."""
    if not arguments.descriptors:
        raise InputError("name at least one descriptor.")
    if arguments.root is None or not arguments.root.is_dir():
        raise InputError("--root must be the folder of the benchmark's data.")
    plan = {
        "descriptors": [[split_label(text)[0], fingerprint_of(text)] for text in arguments.descriptors],
        "options": options,
        "data": data_fingerprint(arguments.root),
    }
    kept = arguments.out / "plan.json"
    if kept.exists() and (arguments.out / "results.json").exists() and read_json(kept) == plan:
        print_aside(f"{title}: {arguments.out} has results of the same descriptors, options and data; nothing is run.")
        return read_results(arguments.out)
    print_aside(f"{title}: {len(arguments.descriptors)} descriptors on {arguments.root} ({extent(arguments.root)}).")
    kept.unlink(missing_ok=True)
    results, sections = run(arguments.root)
    write_json(arguments.out / "results.json", results)
    write_text(arguments.out / "table.md", sections_markdown(sections))
    write_json(kept, plan)
    return read_results(arguments.out)


def read_results(folder: Path) -> Results:
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder: give the folder that the benchmark wrote.")
    results = read_json(folder / "results.json")
    if not isinstance(results, dict):
        raise InputError(f"{folder}/results.json is not of this benchmark.")
    return results


@contextmanager
def results_of(command: str, folder: Path) -> Iterator[None]:
    """InputError if the content of results.json is not what the command writes."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{folder} has no results of sdgmnet {command} ({reason_of(error)}).") from error


def extent(root: Path) -> str:
    files = [one for one in root.rglob("*") if one.suffix.lower() in IMAGE_SUFFIXES]
    folders = len({one.parent for one in files})
    return f"{len(files)} image{'s' if len(files) != 1 else ''} in {folders} folder{'s' if folders != 1 else ''}"


def fingerprint_of(text: str) -> str:
    """Of a descriptor and its weights; folders of descriptor files by their path."""
    spec = split_label(text)[1]
    is_files = Path(spec).is_dir() and not (Path(spec) / "config.json").exists()
    return spec if spec == COLMAP or is_files else descriptor_fingerprint(text)


def data_fingerprint(root: Path) -> str:
    """Of names, sizes and times of all files."""
    digest = hashlib.sha256()
    for path in sorted(one for one in root.rglob("*") if one.is_file()):
        state = path.stat()
        digest.update(f"{path.relative_to(root)} {state.st_size} {state.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:12]


def fig4(arguments: Fig4Arguments) -> None:
    if arguments.results is not None:
        results = read_results(arguments.results)
    else:
        options = {"split": arguments.split, "tasks": str(arguments.tasks), "pairs": arguments.pairs}
        results = run_once(arguments, "Fig. 4, HPatches", options, partial(run_hpatches, arguments))
    with results_of("evaluate hpatches", arguments.results or arguments.out):
        lines = [(line["label"], [Row(**row) for row in line["rows"]]) for line in results["lines"]]
        note, measured = hpatches_note(results), measured_table(lines)
        published_maps, differences = published_table(lines), difference_table(lines)
    caption = f"{note}. Published values are of the full set; the paper's Fig. 4 prints no numbers."
    sections = [
        Section("Fig. 4: HPatches, mAP in %", caption, *measured),
        Section("Published mAP in %, full set", "", *published_maps),
        Section("Differences stated in the paper", "", *differences),
    ]
    content = {
        "note": note,
        "header": [*measured[0], *published_maps[0][1:]],
        "table": [[*ours, *theirs[1:]] for ours, theirs in zip(measured[1], published_maps[1], strict=True)],
        "differences": differences[1],
    }
    arguments.deliver(
        "fig4", content, sections, partial(both_kinds, partial(draw_fig4, lines, note=note)), latest=False
    )


def run_hpatches(arguments: Fig4Arguments, root: Path) -> tuple[Results, Sequence[Section]]:
    with progress_bars() as on_progress:
        report = hpatches.compare(
            load_descriptors(arguments.descriptors),
            root,
            split=arguments.split,
            tasks=arguments.tasks,
            cache=arguments.out / "cache",
            pairs=arguments.pairs,
            on_progress=on_progress,
        )
    for sentence in hpatches.remarks(report):
        print_aside(sentence)
    return hpatches.content(report), hpatches.sections(report)


def hpatches_note(results: Results) -> str:
    return (
        f"split {results['split']}, {len(results['sequences'])} of {results['of']} sequences, {results['patches']} patches per "
        f"type; verification: {results['tasks']['verification']}; retrieval: {results['tasks']['retrieval']}, "
        f"{results['queries']} queries, {results['distractors']} distractors"
    )


def measured_table(lines: Sequence[tuple[str, list[Row]]]) -> Table:
    body = [
        [label, *(percent(headline(rows, task)) for task in TASKS), *(percent(gap(rows, task)) for task in TASKS)]
        for label, rows in lines
    ]
    return ["descriptor", *TASKS, *(f"ΔmAP {task}" for task in TASKS)], body


def published_table(lines: Sequence[tuple[str, list[Row]]]) -> Table:
    body = []
    for label, _ in lines:
        method = method_of(label) or ""
        body.append([label, *HPATCHES_ARTICLE.get(method, ("",) * 3), *HARDNET_REPOSITORY.get(method, ("",) * 2)])
    article = (f"article, full set: {task}" for task in TASKS)
    repository = (f"HardNet's repository, full set: {task}" for task in TASKS[1:])
    return ["descriptor", *article, *repository], body


def difference_table(lines: Sequence[tuple[str, list[Row]]]) -> Table:
    """The differences that the paper's text states, and those of the first descriptors of these methods."""
    of_method = {method_of(label): rows for label, rows in reversed(lines)}
    body = []
    for task, better, worse, stated in HPATCHES_DIFFERENCES:
        first, second = (headline(of_method[name], task) if name in of_method else None for name in (better, worse))
        ours = "-" if first is None or second is None else f"{100 * (first - second):+.2f}"
        body.append([f"{task}: {better} - {worse}", ours, f"{stated:+.2f}"])
    return ["difference of mAP in points", "measured", "the paper, split a"], body


def fig5(arguments: Fig5Arguments) -> None:
    options = {"sequences": list(arguments.sequences)}
    results = run_once(arguments, "Fig. 5, matching of images", options, partial(run_matching, arguments))
    with results_of("evaluate matching", arguments.out):
        caption, header, rows = sampled_table(results)
    content = {"caption": caption, "header": header, "table": rows}
    arguments.deliver("fig5", content, [Section("Fig. 5", caption, header, rows)], existing_images, latest=False)


def existing_images(stem: Path) -> list[Path]:
    """Drawn while the benchmark ran, since they need its matches."""
    return [path for kind in ("png", "pdf") if (path := Path(f"{stem}.{kind}")).exists()]


def run_matching(arguments: Fig5Arguments, root: Path) -> tuple[Results, Sequence[Section]]:
    sequences, left_out = matching.read_sequences(root, arguments.sequences)
    with progress_bars() as on_progress:
        results, errors = matching.compare(load_descriptors(arguments.descriptors), sequences, on_progress=on_progress)
    if not results:
        raise InputError(f"no sequence could be evaluated. {' '.join([*left_out, *errors])}")
    for error in [*left_out, *errors]:
        print_aside(f"{error} This sequence is left out.")
    for path in existing_images(arguments.out / "fig5"):
        path.unlink()  # of an earlier run, if there is no pair to show now
    if pairs := fig5_rows(results, sequences):
        both_kinds(partial(draw_fig5, list(results), pairs), arguments.out / "fig5")
    return matching.content(results, [*left_out, *errors]), matching.sections(results)


def sampled_table(results: Results) -> tuple[str, list[str], list[list[str]]]:
    """Caption, header and rows."""
    sampled, pairs = results["sampled"], results["lines"][0]["pairs"]
    names = list(dict.fromkeys(pair["sequence"] for pair in pairs))
    which = f": {', '.join(names)}" if len(names) <= 10 else ""
    caption = (
        f"Correct nearest neighbours of {sampled['drawn']} random keypoints, mean over {len(pairs)} pairs of {len(names)} "
        f"sequences{which}; {sampled['draws']} draws of each."
    )
    rows = [[line["label"], *(f"{value:.1f}" for value in line["sampled"])] for line in results["lines"]]
    return caption, ["descriptor", *(f"correct within {one:g} px" for one in sampled["near"])], rows


def table5(arguments: Table5Arguments) -> None:
    folder = arguments.results or arguments.out
    if arguments.results is not None:
        unfinished = arguments.results.is_dir() and not (arguments.results / "results.json").exists()
        results = read_summaries(arguments.results) if unfinished else read_results(arguments.results)
    else:
        options = {name: getattr(arguments, name) for name in ("detector", "dense", "threads")}
        plan = {**options, "sets": list(arguments.sets)}
        results = run_once(arguments, "Table 5, reconstruction", plan, partial(run_reconstruction, arguments, options))
    with results_of("evaluate reconstruction", folder):
        rows = [row for row in results["rows"] if not arguments.sets or row["set"] in arguments.sets]
        if not rows:
            raise InputError(f"{folder} has no results of sdgmnet evaluate reconstruction.")
        header, body = reconstruction_table(rows)
    detector = results.get("options", {}).get("detector")  # unknown if the benchmark is not finished
    keypoints = "" if detector is None else f" All describe the keypoints of {detector}'s detector."
    caption = f"Measured, and the paper's Table 5 for sets of the benchmark.{keypoints} Dense points are of different engines."
    content = {"caption": caption, "header": header, "table": body, "rows": rows}
    draw = partial(both_kinds, partial(draw_reconstruction, rows))
    arguments.deliver("table5", content, [Section("Table 5", caption, header, body)], draw, latest=False)


def run_reconstruction(
    arguments: Table5Arguments, options: dict[str, Any], root: Path
) -> tuple[Results, Sequence[Section]]:
    settings = BenchmarkOptions(**options)
    require_pycolmap()
    use_threads(arguments.threads)
    entries = reconstruction.parse_entries(arguments.descriptors)
    sets = read_photo_sets(root, without=[arguments.out], names=arguments.sets)
    for photos in sets:
        require_apart(arguments.out / photos.name, photos.images)
    with progress_bars() as on_progress:
        rows, failed = reconstruction.run(entries, sets, arguments.out, settings, on_progress)
    for one in failed:
        print_aside(f"{one['set']}, {one['label']}: {one['reason']}")
    if not rows:
        raise InputError("no descriptor gave a model; see the reasons above.")
    results = {"options": asdict(settings), "rows": rows, "failed": failed}
    return results, [Section("Reconstruction", "", *reconstruction.table(rows, failed))]


def read_summaries(folder: Path) -> Results:
    """What an unfinished benchmark has so far: SET/LABEL/summary.json."""
    found = sorted(folder.glob("*/*/summary.json"), key=lambda path: (path.parts[-3], path.stat().st_mtime))
    return {"rows": [read_json(path) for path in found]}


MEASURES = {
    "registered": "registered photos",
    "points": "sparse points",
    "dense": "dense points",
    "track_length": "track length",
    "reprojection_error": "reprojection error, px",
}


def reconstruction_table(rows: Sequence[dict[str, Any]]) -> Table:
    """A line per set and measure; the paper's numbers if the set is one of the benchmark's and has as many photos."""
    labels = list(dict.fromkeys(row["label"] for row in rows))
    photos = {row["set"]: row["photos"] for row in rows}
    known = {name: {one.label: one._asdict() for one in published(name, count)} for name, count in photos.items()}
    papers = list(dict.fromkeys(label for of_set in known.values() for label in of_set if label.startswith("paper, ")))
    by_set = {(row["set"], row["label"]): row for row in rows}
    body = []
    for name, count in photos.items():
        for key, title in MEASURES.items():
            ours = [_cell(by_set.get((name, label)), key, "no model") for label in labels]
            theirs = [_cell(known[name].get(label), key, "") for label in papers]
            if key != "dense" or any(ours):
                body.append([f"{name} ({count} photos)", title, *ours, *theirs])
    return ["set", "measure", *labels, *papers], body


def _cell(row: dict[str, Any] | None, key: str, missing: str) -> str:
    if row is None:
        return missing
    value = row.get("dense", {"points": ""})["points"] if key == "dense" and "photos" in row else row[key]
    return f"{value:.2f}" if isinstance(value, float) else str(value)

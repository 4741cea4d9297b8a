"""Measure trained rows with every benchmark, and keep what the tables need as small records, without weights."""

import json
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from reproduce.benchmarks import data_fingerprint
from reproduce.groups import Group
from reproduce.modulation import read_angles
from reproduce.output import both_kinds
from reproduce.published import METHODS
from reproduce.results import FILE, Result
from reproduce.runs import Planned
from reproduce.table1 import sift_cells
from sdgmnet.benchmarks import hpatches, matching, reconstruction
from sdgmnet.benchmarks.hpatches_describe import cache_name
from sdgmnet.benchmarks.hpatches_tasks import Descriptors
from sdgmnet.benchmarks.hpatches_tasks import matching as match_strips
from sdgmnet.benchmarks.photo_sets import read_photo_sets
from sdgmnet.benchmarks.reconstruction import BenchmarkOptions
from sdgmnet.data.hpatches.strips import StripOptions, make_strips
from sdgmnet.descriptors import descriptor_fingerprint, load_descriptors
from sdgmnet.plots.benchmarks import draw_fig5, fig5_rows
from sdgmnet.report import print_aside, progress_bars
from sdgmnet.storage import read_json, write_json, write_text

KEPT_TRIPLETS = 400  # of a run's angles, for the modulation
HAND_CRAFTED = {"SIFT": "sift", "RootSIFT": "rootsift"}
MODEL = ("set", "label", "photos", "registered", "points", "track_length", "reprojection_error", "observations")

Records = dict[str, Any]


def label_of(run: Planned) -> str:
    """ "SDGMNet, seed 0" for the preset sdgm, "HyNet, native" for a method as in its own paper."""
    name = run.method.removesuffix("-native")
    label = METHODS[name].label
    return f"{label}, native" if run.method.endswith("-native") else f"{label}, seed {run.config.seed}"


def first_seeds(labels: Mapping[str, str]) -> dict[str, str]:
    return {
        label: spec for label, spec in labels.items() if not label.endswith(tuple(f"seed {n}" for n in range(1, 10)))
    }


def keep_runs(runs: Sequence[Planned], out: Path, records: Path) -> None:
    """result.json of each run, and its statistics at the end of training; known ones stay where only the record is left."""
    path = records / "statistics.json"
    statistics = read_json(path) if path.exists() else {}
    for run in runs:
        folder = run.find(out)
        write_text(records / "runs" / folder.name / FILE, (folder / FILE).read_text(encoding="utf-8"))
        if run.train.name != "search" and (folder / "angles.npz").exists():
            statistics[folder.name] = statistics_of(folder)
    write_rows(path, {name: statistics[name] for name in sorted(statistics)})


def statistics_of(folder: Path) -> Records:
    angles = read_angles(folder)
    chosen = np.linspace(0, len(angles.theta_pos) - 1, min(KEPT_TRIPLETS, len(angles.theta_pos)), dtype=np.int64)
    return {
        "moments": angles.moments.tolist(),
        "theta_pos": [round(float(one), 4) for one in angles.theta_pos[chosen]],
        "theta_neg": [round(float(one), 4) for one in angles.theta_neg[chosen]],
    }


def write_rows(path: Path, rows: Mapping[str, Any]) -> None:
    """One line per entry: small, and readable in a diff."""
    lines = (f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in rows.items())
    write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")


def measure_sift(tests: Sequence[Group], found: Sequence[Result], out: Path, records: Path) -> None:
    write_rows(records / "sift.json", sift_cells(tests, found, out)[0])


def known_lines(path: Path, specs: Mapping[str, str], data: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Measured earlier on the same data, by label: with the same weights, or with weights of which only records are left; and
    the specs that are not among them."""
    known: dict[str, Any] = read_json(path) if path.exists() else {"data": data, "lines": {}}
    fingerprints = {label: descriptor_fingerprint(spec) for label, spec in specs.items()}
    lines = {
        label: line
        for label, line in known["lines"].items()
        if known["data"] == data and line["weights"] == fingerprints.get(label, line["weights"])
    }
    return lines, {label: spec for label, spec in specs.items() if label not in lines}


def measure_hpatches(specs: Mapping[str, str], sequences: Path, out: Path, records: Path) -> None:
    """Fig. 4: mAP of the three tasks on strips cut from the sequences, and of matching per sequence."""
    strips, cache, path = out / "strips", out / "hpatches-cache", records / "hpatches.json"
    data = data_fingerprint(sequences)
    lines, new = known_lines(path, specs, data)
    if not new:
        return
    descriptors = load_descriptors([f"{label}={spec}" for label, spec in new.items()])
    with progress_bars() as on_progress:
        if not strips.exists():
            make_strips(sequences, strips, StripOptions(), on_progress=on_progress)
        report = hpatches.compare(descriptors, strips, split="all", cache=cache, on_progress=on_progress)
    for (label, rows), descriptor in zip(report.lines, descriptors, strict=True):
        folder = cache / cache_name(descriptor.fingerprint)
        files = [(name, np.load(next(folder.glob(f"{name}-*.npy")), mmap_mode="r")) for name in report.choice.names]
        each: dict[str, list[float]] = {}
        for one in match_strips(Descriptors.gather(files, [array.shape[1] for _, array in files])):
            each.setdefault(one.sequence, []).append(one.ap)
        lines[label] = {
            "weights": descriptor.fingerprint,
            "map": {task: hpatches.headline(rows, task) for task in hpatches.TASKS},
            "delta_map": {task: hpatches.gap(rows, task) for task in hpatches.TASKS},
            "matching": {name: float(np.mean(values)) for name, values in each.items()},
        }
    write_json(path, {"data": data, "note": hpatches.note(report), "lines": lines})


def measure_matching(specs: Mapping[str, str], sequences: Path, out: Path, records: Path) -> None:
    """Fig. 5: correct matches of 200 random keypoints, per sequence; the figure shows the first seeds."""
    data, path = data_fingerprint(sequences), records / "matching.json"
    lines, new = known_lines(path, specs, data)
    if not new:
        return
    found, left_out = matching.read_sequences(sequences, ())
    with progress_bars() as on_progress:
        described = load_descriptors([f"{label}={spec}" for label, spec in new.items()])
        results, errors = matching.compare(described, found, on_progress=on_progress)
    for error in [*left_out, *errors]:
        print_aside(f"{error} This sequence is left out.")
    shown = {label: results[label] for label in first_seeds(new)}
    pairs = fig5_rows(shown, found)
    if pairs and not lines:  # the figure needs the matches of all
        both_kinds(partial(draw_fig5, list(shown), pairs), out / "fig5")
    for label, scores in results.items():
        each: dict[str, list[float]] = {}
        for one in scores:
            each.setdefault(one.sequence, []).append(one.sampled.mean(1))
        lines[label] = {
            "weights": descriptor_fingerprint(specs[label]),
            "sampled": matching.sampled_means(scores),
            "score": float(np.mean(list(matching.sequence_scores(scores).values()))),
            "correct": {name: float(np.mean(values)) for name, values in each.items()},
        }
    write_json(path, {"data": data, "lines": lines})


def measure_reconstruction(specs: Mapping[str, str], photos: Path, out: Path, records: Path) -> None:
    """Table 5: sparse models of each set; a line is kept as soon as it is measured."""
    data, path = data_fingerprint(photos), records / "reconstruction.json"
    lines, new = known_lines(path, specs, data)
    for label, spec in new.items():
        sets, entries = read_photo_sets(photos), reconstruction.parse_entries([f"{label}={spec}"])
        with progress_bars() as on_progress:
            rows, failed = reconstruction.run(entries, sets, out / "reconstruction", BenchmarkOptions(), on_progress)
        kept = [{key: row[key] for key in MODEL} | ({"pose": row["pose"]} if "pose" in row else {}) for row in rows]
        lines[label] = {"weights": descriptor_fingerprint(spec), "rows": kept, "failed": failed}
        write_json(path, {"data": data, "lines": lines})
        for photo_set in sets:  # features and matches are large; the numbers are kept
            shutil.rmtree(out / "reconstruction" / photo_set.name / label, ignore_errors=True)

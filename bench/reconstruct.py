"""Time and memory of a sparse model, against COLMAP's own SIFT pipeline on the same photos, alternating."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from bench.options import ReconstructOptions as BenchOptions
from bench.study import deliver_study, folder_or_temporary, source_of
from sdgmnet.engine import use_threads
from sdgmnet.errors import InputError
from sdgmnet.features.images import find_photos
from sdgmnet.report import Section, progress_bars, track
from sdgmnet.sfm.colmap import require_pycolmap
from sdgmnet.sfm.feature_sources import ColmapSift, FeatureSource, ReconstructOptions
from sdgmnet.sfm.pairs import PairSelection
from sdgmnet.sfm.reconstruct import Photos, reconstruct, summarise
from sdgmnet.sfm.workspace import Workspace

HEADER = ["descriptor", "registered", "points", "track length", "error (px)", "seconds", "range", "ratio", "memory, MB"]
COLMAP = "colmap"  # its whole pipeline, by its defaults


def reconstruct_command(options: BenchOptions) -> None:
    require_pycolmap()
    names = tuple(find_photos(options.photos))
    if not names:
        raise InputError(f"{options.photos} contains no photos.")
    use_threads(options.threads)
    sources: dict[str, FeatureSource] = {COLMAP: ColmapSift({"descriptor": "COLMAP's SIFT, by its defaults"})}
    sources |= {name: source_of(name, options.keypoints) for name in options.descriptors}
    turns = [(turn, name) for turn in range(options.repeats) for name in sources]
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in sources}
    with progress_bars() as on_progress, folder_or_temporary(options.out) as place:
        for turn, name in track(turns, "models", on_progress):
            folder = place / f"{name.replace('/', '_')}-{turn}"
            shutil.rmtree(folder, ignore_errors=True)  # a continued run would count the time of what was left
            results[name].append(model_of(folder, Photos(options.photos, names), sources[name], options.threads))
    note = "ratio: median of the seconds over those of COLMAP in the same round."
    section = Section(f"Sparse models of {len(names)} photos", note, HEADER, table(results))
    deliver_study(options, {"models": results}, [section])


def model_of(folder: Path, photos: Photos, source: FeatureSource, threads: int) -> dict[str, Any]:
    workspace, options = Workspace(folder), ReconstructOptions(threads=threads)
    workspace.records.mkdir(parents=True)
    summary = summarise(workspace, photos, source, reconstruct(workspace, photos, source, PairSelection(), options))
    kept = ("registered", "points", "track_length", "reprojection_error", "peak_bytes")
    return {
        **{key: summary[key] for key in kept},
        "stages": summary["seconds"],
        "seconds": sum(summary["seconds"].values()),
    }


def table(results: dict[str, list[dict[str, Any]]]) -> list[list[str]]:
    reference = np.array([one["seconds"] for one in results[COLMAP]])
    rows = []
    for name, models in results.items():
        seconds, last = np.array([one["seconds"] for one in models]), models[-1]
        figures = [f"{last['registered']}", f"{last['points']}", f"{last['track_length']:.3f}"]
        times = [f"{np.median(seconds):.1f}", f"{seconds.min():.1f} - {seconds.max():.1f}"]
        ratio, peak = np.median(seconds / reference), max(one["peak_bytes"] for one in models)
        error = f"{last['reprojection_error']:.3f}"
        rows.append([name, *figures, error, *times, f"{ratio:.2f} x", f"{peak / 1e6:.0f}"])
    return rows

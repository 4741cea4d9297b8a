"""Time and memory of a sparse model, against COLMAP's own SIFT pipeline on the same photos, alternating."""

import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from bench.options import ReconstructOptions as BenchOptions
from bench.stability import folder_or_temporary
from sdgmnet.engine import use_threads
from sdgmnet.errors import InputError
from sdgmnet.features.images import find_photos
from sdgmnet.report import Section, deliver, progress_bars, track
from sdgmnet.sfm.colmap import require_pycolmap
from sdgmnet.sfm.feature_sources import ColmapSift, FeatureSource, ReconstructOptions, descriptor_source
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
    for name in options.descriptors:
        sources[name] = descriptor_source(name, options.keypoints, contrast=0.02, size=3200)
    turns = [(turn, name) for turn in range(options.repeats) for name in sources]
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in sources}
    with progress_bars() as on_progress, folder_or_temporary(options.out) as place:
        for turn, name in track(turns, "models", on_progress):
            folder = place / f"{name.replace('/', '_')}-{turn}"
            shutil.rmtree(folder, ignore_errors=True)  # a continued run would count the time of what was left
            results[name].append(model_of(folder, Photos(options.photos, names), sources[name], options.threads))
    settings = {key: value for key, value in asdict(options).items() if key not in ("photos", "out", "json")}
    note = "ratio: median of the seconds over those of COLMAP in the same round."
    section = Section(f"Sparse models of {len(names)} photos", note, HEADER, table(results))
    deliver({"options": settings, "models": results}, [section], options.out, options.json)


def model_of(folder: Path, photos: Photos, source: FeatureSource, threads: int) -> dict[str, Any]:
    workspace, options = Workspace(folder), ReconstructOptions(threads=threads)
    workspace.records.mkdir(parents=True)
    summary = summarise(workspace, photos, source, reconstruct(workspace, photos, source, PairSelection(), options))
    kept = ("registered", "points", "track_length", "reprojection_error", "peak_bytes")
    return {**{key: summary[key] for key in kept}, "stages": summary["seconds"], "seconds": total(summary["seconds"])}


def total(stages: dict[str, float]) -> float:
    return sum(stages.values())


def table(results: dict[str, list[dict[str, Any]]]) -> list[list[str]]:
    reference = np.array([one["seconds"] for one in results[COLMAP]])
    return [row(name, models, reference) for name, models in results.items()]


def row(name: str, models: Sequence[dict[str, Any]], reference: np.ndarray) -> list[str]:
    seconds, last = np.array([one["seconds"] for one in models]), models[-1]
    return [
        name,
        str(last["registered"]),
        str(last["points"]),
        f"{last['track_length']:.3f}",
        f"{last['reprojection_error']:.3f}",
        f"{np.median(seconds):.1f}",
        f"{seconds.min():.1f} - {seconds.max():.1f}",
        f"{np.median(seconds / reference):.2f} x",
        f"{max(one['peak_bytes'] for one in models) / 1e6:.0f}",
    ]

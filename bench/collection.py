"""Photos of many scenes in one folder: models by retrieval against those of each scene alone, with time and memory."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.options import CollectionOptions
from bench.study import deliver_study, folder_or_temporary, source_of
from sdgmnet.engine import use_threads
from sdgmnet.errors import InputError
from sdgmnet.features.images import find_photos
from sdgmnet.report import OnProgress, Section, progress_bars
from sdgmnet.sfm.colmap import require_pycolmap
from sdgmnet.sfm.feature_sources import ReconstructOptions
from sdgmnet.sfm.pairs import PairSelection, select_pairs
from sdgmnet.sfm.reconstruct import NoModel, Photos, reconstruct, summarise
from sdgmnet.sfm.workspace import Workspace
from sdgmnet.storage import read_record, write_json

SCENES = ["scene", "photos", "models together", "alone", "registered together", "alone", "points together", "alone"]
SCENES += ["ratio"]
COSTS = ["pairs", "compared", "matching and verifying, s", "all stages, s", "peak memory, MB"]
OF_PAIRS = ("matching", "verifying")  # stages whose time grows with the number of pairs


def collection(options: CollectionOptions) -> None:
    require_pycolmap()
    scenes = {path.name: find_photos(path) for path in sorted(options.photos.iterdir()) if path.is_dir()}
    scenes = {name: photos for name, photos in scenes.items() if photos}
    if len(scenes) < 2:
        raise InputError(f"{options.photos} needs two or more sub-folders of photos, one per scene.")
    use_threads(options.threads)
    with progress_bars() as on_progress, folder_or_temporary(options.out) as place:
        everything = tuple(f"{scene}/{name}" for scene, names in scenes.items() for name in names)
        by_retrieval = PairSelection("retrieval", options.neighbours)
        together = models_of(place / "together", Photos(options.photos, everything), by_retrieval, options, on_progress)
        alone = {}
        for scene, names in scenes.items():
            photos = Photos(options.photos / scene, tuple(names))
            alone[scene] = models_of(
                place / "alone" / scene, photos, select_pairs(None, None, names), options, on_progress
            )
    rows = [compare_scene(scene, len(names), together, alone[scene]) for scene, names in scenes.items()]
    costs, mixed = cost(together), mixed_models(together)
    results = {"scenes": rows, "mixed_models": mixed, "costs": costs}
    note = f"Models with photos of two or more scenes: {len(mixed)}."
    sections = [
        Section(f"{len(everything)} photos of {len(scenes)} scenes, together and alone", note, SCENES, table(rows)),
        Section("Cost of the photos together", "All pairs: extrapolated.", COSTS, cost_table(costs)),
    ]
    deliver_study(options, results, sections)


def models_of(
    folder: Path, photos: Photos, pairs: PairSelection, options: CollectionOptions, on_progress: OnProgress
) -> dict[str, Any]:
    """The summary of a reconstruction, kept in its folder."""
    workspace = Workspace(folder)
    workspace.records.mkdir(parents=True, exist_ok=True)
    summary = folder / "summary.json"
    if not summary.exists():
        source = source_of(options.descriptor, options.keypoints, options.size)
        try:
            found = reconstruct(
                workspace, photos, source, pairs, ReconstructOptions(threads=options.threads), on_progress
            )
            write_json(summary, summarise(workspace, photos, source, found))
        except NoModel:
            write_json(summary, {"photos": len(photos.names), "models": [], "pairs": 0, **workspace.timer.read()})
    known: dict[str, Any] = read_record(summary, dict)
    return known


def scenes_of(model: dict[str, Any]) -> set[str]:
    return {name.split("/")[0] for name in model["photos"]}


def mixed_models(together: dict[str, Any]) -> list[list[str]]:
    """The scenes of each model that has photos of more than one."""
    return [sorted(scenes_of(model)) for model in together["models"] if len(scenes_of(model)) > 1]


def compare_scene(scene: str, photos: int, together: dict[str, Any], alone: dict[str, Any]) -> dict[str, Any]:
    def largest(models: Sequence[dict[str, Any]]) -> dict[str, Any]:
        one = max(models, key=lambda model: (model["registered"], model["points"]), default=None)
        counts = {"registered": 0, "points": 0} if one is None else {key: one[key] for key in ("registered", "points")}
        return {"models": len(models), **counts}

    return {
        "scene": scene,
        "photos": photos,
        "together": largest([model for model in together["models"] if scene in scenes_of(model)]),
        "alone": largest(alone["models"]),
    }


def cost(together: dict[str, Any]) -> list[dict[str, Any]]:
    """Of the pairs by retrieval, and of all pairs: their stages are taken to grow with the number of pairs."""
    seconds, compared, every = together["seconds"], together["pairs"], math.comb(together["photos"], 2)
    of_pairs = sum(seconds.get(stage, 0.0) for stage in OF_PAIRS)
    whole, more = sum(seconds.values()), of_pairs * (every / max(compared, 1) - 1)
    peak = together["peak_bytes"]
    return [
        {"pairs": "retrieval", "compared": compared, "of_pairs": of_pairs, "seconds": whole, "peak_bytes": peak},
        {"pairs": "all", "compared": every, "of_pairs": of_pairs + more, "seconds": whole + more, "peak_bytes": None},
    ]


def table(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    cells = []
    for row in rows:
        two = row["together"], row["alone"]
        counted = [str(one[key]) for key in ("models", "registered", "points") for one in two]
        ratio = two[0]["points"] / two[1]["points"] if two[1]["points"] else math.nan
        cells.append([row["scene"], str(row["photos"]), *counted, f"{ratio:.3f}"])
    return cells


def cost_table(costs: Sequence[dict[str, Any]]) -> list[list[str]]:
    return [
        [
            one["pairs"],
            str(one["compared"]),
            f"{one['of_pairs']:.0f}",
            f"{one['seconds']:.0f}",
            "" if one["peak_bytes"] is None else f"{one['peak_bytes'] / 1e6:.0f}",
        ]
        for one in costs
    ]

"""Photos of one scene -> posed images without lens distortion, by COLMAP's SIFT: what dense stereo works from."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from sdgmnet.options import pick
from sdgmnet.report import OnProgress, no_progress
from sdgmnet.sfm import colmap_steps
from sdgmnet.sfm.feature_sources import ColmapSift, ReconstructOptions
from sdgmnet.sfm.pairs import PairSelection
from sdgmnet.sfm.plausibility import implausibilities
from sdgmnet.sfm.reconstruct import Photos, read_facts, reconstruct
from sdgmnet.sfm.workspace import Workspace
from sdgmnet.storage import read_json


@dataclass(frozen=True)
class SparseOptions:
    size: int = 1600
    """Longest side of the photos in pixels; larger ones are reduced."""
    features: int = 8192
    """Maximum number of SIFT keypoints per photo."""
    cameras: Literal["auto", "one", "each"] = "auto"
    """Which photos share a camera: equal size, folder and EXIF focal length (auto), equal size (one), none (each)."""
    all_pairs: int = 40
    """Up to so many photos, every pair is compared; beyond, neighbours by name, then photos that share points."""
    neighbours: int = 8
    """In large scenes: photos before and after in the order of names that are compared."""
    smallest_model: int = 5
    """Models with fewer photos are dropped."""
    seed: int = 0
    threads: int = 2
    """For extraction and matching, whose results do not depend on it."""


class UndistortedModels(NamedTuple):
    models: list[Path]  # workspaces for dense stereo, the largest model first
    pairs: str  # which pairs were compared
    broken: list[list[str]]  # name and reason of each photo that cannot be read
    sources: dict[str, str]  # original name of each copy
    peak_bytes: int
    implausible: dict[str, str]  # names of the models that are left out, and why


def reconstruct_undistorted(
    workspace: Workspace,
    folder: Path,
    names: Sequence[str],
    options: SparseOptions,
    on_progress: OnProgress = no_progress,
) -> UndistortedModels:
    """Reconstruct the named photos of a folder and undistort each plausible model into models/0, 1, ... of the workspace."""
    found = reconstruct(
        workspace,
        Photos(folder, tuple(names), max_size=options.size),
        ColmapSift({"descriptor": "COLMAP's SIFT", "features": options.features}, options.features),
        PairSelection("shared points", options.neighbours, options.all_pairs),
        pick(ReconstructOptions, options, smallest=options.smallest_model),
        on_progress,
    )
    photos = found.imported["photos"]
    models = [workspace.folder / "models" / str(number) for number in range(len(found.models))]
    implausible = {}
    for number, (model, figures) in enumerate(zip(models, found.models, strict=True)):
        on_progress("undistorting", number, len(models))
        if why := implausibilities(read_facts(figures["facts"])):
            implausible[model.name] = f"the model is implausible: {'; '.join(why)}."
        else:
            undistort(workspace, number, model, options.size, tracks=True)
    first, *later = found.rounds
    pairs = f"{first} neighbours in order, {' + '.join(map(str, later)) or '0'} by shared points"
    return UndistortedModels(
        [model for model in models if model.name not in implausible],
        f"all {first}" if len(photos) <= options.all_pairs else pairs,
        found.imported["broken"],
        {photo["name"]: photo["source"] for photo in photos},
        workspace.timer.read()["peak_bytes"],
        implausible,
    )


def undistort(workspace: Workspace, model: int, target: Path, size: int, *, tracks: bool = False) -> None:
    """A workspace for dense stereo from sparse/MODEL, unless `target` is one of this size.

    tracks: also tracks.npz, the SIFT keypoints of the sparse points.
    """
    record = target / colmap_steps.UNDISTORTED
    if record.exists() and read_json(record) == {"size": size}:
        return
    workspace.run(
        "undistorting",
        colmap_steps.undistort,
        model=workspace.sparse / str(model),
        images=workspace.images,
        target=target,
        size=size,
        database=workspace.database if tracks else None,
    )

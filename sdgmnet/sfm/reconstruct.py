"""Photos -> sparse models in a COLMAP workspace, with features from any source.

    photos -> upright copies -> features -> pairs -> matches -> verified matches -> sparse models -> summary

Every finished stage stays: the copies, the features of each photo, the matches of each pair, what COLMAP verified. After a
stop, the same call continues there and gives the same model.
"""

from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sdgmnet.errors import InputError
from sdgmnet.features.images import photo_digests, plain_name
from sdgmnet.report import OnProgress, no_progress
from sdgmnet.sfm import colmap_steps, photo_import
from sdgmnet.sfm.database import (
    count_keypoints,
    count_pairs,
    count_verified,
    image_ids,
    open_database,
    read_matches,
)
from sdgmnet.sfm.feature_sources import FeatureSource, ReconstructOptions, Run
from sdgmnet.sfm.pairs import Pair, PairSelection
from sdgmnet.sfm.photo_import import ImportedPhotos, read_imported
from sdgmnet.sfm.workspace import INPUTS, Workspace
from sdgmnet.storage import read_record, require_same_inputs, write_json
from sdgmnet.version import __version__

METHOD = 1  # increased when the same photos and options would give another model
IMPORTED = "photos.json"
PAIRS, MODELS = "pairs.json", "models.json"  # made from the database: invalid without it


class NoModel(InputError):
    """These photos give no model with these features; another descriptor or another set may."""


class Photos(NamedTuple):
    folder: Path
    names: tuple[str, ...]  # relative to it
    max_size: int | None = None  # of the longest side of the copies, in pixels


class SparseModels(NamedTuple):
    imported: ImportedPhotos
    rounds: list[int]  # number of pairs compared per round
    models: list[dict[str, Any]]  # `colmap_steps.figures` of sparse/0, 1, ..., the largest first
    settings: dict[str, Any]


def reconstruct(
    workspace: Workspace,
    photos: Photos,
    source: FeatureSource,
    pairs: PairSelection,
    options: ReconstructOptions,
    on_progress: OnProgress = no_progress,
) -> SparseModels:
    settings = {"cameras": options.cameras, **pairs.described(), **asdict(options)}
    require_same_inputs(workspace.records / INPUTS, _inputs(photos, source, settings), workspace.folder)
    imported = import_photos(workspace, photos, options.smallest, on_progress)
    run = Run(workspace, imported["photos"], options, on_progress)
    if not workspace.database.exists():  # removed by somebody, or never made
        for record in (PAIRS, MODELS):
            (workspace.records / record).unlink(missing_ok=True)
    source.extract(run)
    rounds = match_and_verify(run, source, pairs)
    models = map_photos(run)
    return SparseModels(imported, rounds, models, settings)


def _inputs(photos: Photos, source: FeatureSource, settings: dict[str, Any]) -> dict[str, Any]:
    return {
        "method": METHOD,
        "photos": [[plain_name(name), digest] for name, digest in photo_digests(photos.folder, photos.names)],
        **({} if photos.max_size is None else {"max_size": photos.max_size}),
        **source.described,
        **{key: value for key, value in settings.items() if key != "threads"},
    }


def import_photos(workspace: Workspace, photos: Photos, min_photos: int, on_progress: OnProgress) -> ImportedPhotos:
    """Copy the photos upright, since COLMAP does not apply EXIF orientation."""
    record, total = workspace.records / IMPORTED, len(photos.names)
    if not (record.exists() and workspace.images.is_dir()):
        on_progress("photos", 0, total)

        def watch() -> None:
            copies = workspace.folder.glob(f".{workspace.images.name}.*.part/**/*.*")
            on_progress("photos", sum(1 for path in copies if path.is_file()), total)

        imported = workspace.run(
            "photos",
            photo_import.import_photos,
            watch=watch,
            folder=photos.folder,
            names=list(photos.names),
            target=workspace.images,
            max_size=photos.max_size,
        )
        write_json(record, imported)
    on_progress("photos", total, total)
    found = read_imported(record)
    if len(found["photos"]) < min_photos:
        reasons = "".join(f" {name} {reason}." for name, reason in found["broken"])
        raise NoModel(
            f"{photos.folder}: {len(found['photos'])} readable photo(s), but a model needs at least {min_photos} that "
            f"overlap.{reasons}"
        )
    return found


def match_and_verify(run: Run, source: FeatureSource, pairs: PairSelection) -> list[int]:
    """The number of pairs compared per round."""
    workspace, photos = run.workspace, run.photos
    record = workspace.records / PAIRS
    if not record.exists():
        rounds = []
        for chosen in pairs.rounds(photos, lambda: read_inliers(workspace)):
            source.match(run, chosen)
            if not source.verifies:
                verify_matches(run)
            rounds.append(chosen.total)
        with open_database(workspace.database) as database:
            write_json(record, {"rounds": rounds, "verified": count_verified(database).pairs})
    found = read_record(record, {"rounds": [int], "verified": int})
    if not found["verified"]:
        raise NoModel(
            f"{workspace.folder}: no two of the {len(photos)} photos have verified matches. A model needs photos that "
            "overlap."
        )
    rounds_found: list[int] = found["rounds"]
    return rounds_found


def read_inliers(workspace: Workspace) -> dict[Pair, np.ndarray]:
    with open_database(workspace.database) as database:
        rows = read_matches(database, image_ids(database), "two_view_geometries")
        return {(first, second): matches for first, second, matches in rows}


def verify_matches(run: Run) -> None:
    workspace, _, options, on_progress = run
    with open_database(workspace.database) as database:
        total = count_pairs(database, "matches", with_matches=True)

    def watch() -> None:
        with open_database(workspace.database) as database:
            on_progress("verifying", min(count_pairs(database, "two_view_geometries"), total), total)

    workspace.run(
        "verifying",
        colmap_steps.verify_matches,
        watch=watch,
        path=workspace.database,
        seed=options.seed,
        threads=options.threads,
    )
    on_progress("verifying", total, total)


def map_photos(run: Run) -> list[dict[str, Any]]:
    """Figures of the models in sparse/0, 1, ..., the largest first."""
    workspace, photos, options, on_progress = run
    count = len(photos)
    record, heartbeat = workspace.records / MODELS, workspace.folder / ".registered"
    if not (record.exists() and workspace.sparse.is_dir()):

        def watch() -> None:
            on_progress("mapping", min(heartbeat.stat().st_size if heartbeat.exists() else 0, count), count)

        heartbeat.unlink(missing_ok=True)
        try:
            models = workspace.run(
                "mapping",
                colmap_steps.map_images,
                watch=watch,
                path=workspace.database,
                images=workspace.images,
                target=workspace.sparse,
                scene=workspace.scene,
                heartbeat=heartbeat,
                min_model_size=options.smallest,
                seed=options.seed,
            )
        finally:
            heartbeat.unlink(missing_ok=True)
        if not models:
            raise NoModel(
                f"{workspace.folder}: the {count} photos do not form a model of {options.smallest} or more. They need to "
                "show the same scene from viewpoints not too far apart."
            )
        write_json(record, models)
    on_progress("mapping", count, count)
    found: list[dict[str, Any]] = read_record(record, [{"photos": [str], "registered": int}])
    if not found:
        raise InputError(f"{record} names no model: remove it.")
    return found


def summarise(workspace: Workspace, photos: Photos, source: FeatureSource, found: SparseModels) -> dict[str, Any]:
    """The figures of the largest model that the ETH benchmark reports (docs/protocols.md 7.3), and what it was made from."""
    with open_database(workspace.database) as database:
        inliers, keypoints = count_verified(database), count_keypoints(database)
    largest = found.models[0]
    return {
        "photos": len(photos.names),
        **{key: value for key, value in largest.items() if key != "photos"},
        "inlier_pairs": inliers.pairs,
        "inlier_matches": inliers.matches,
        "pairs": sum(found.rounds),
        "keypoints": round(float(np.mean(list(keypoints.values()))), 1),
        "models": [model["registered"] for model in found.models],
        "unregistered": [one["source"] for one in found.imported["photos"] if one["name"] not in largest["photos"]],
        "broken": found.imported["broken"],
        "options": found.settings,
        "features": source.described,
        "versions": {"sdgmnet": __version__, "pycolmap": version("pycolmap")},
        **workspace.timer.read(),
    }

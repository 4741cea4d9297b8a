"""Photos -> sparse models in a COLMAP workspace, with features from any source.

    photos -> upright copies -> features -> pairs -> matches -> verified matches -> [refined keypoints ->] models -> summary

The largest model is judged (`plausibility`). While it is implausible, matches and models are made again by the next of its
ATTEMPTS. Every finished stage stays: the copies, the features of each photo, the matches of each pair, what COLMAP
verified, the outcome of each attempt. After a stop, the same call continues there and gives the same model.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import lru_cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sdgmnet.errors import InputError
from sdgmnet.features.h5 import read_features
from sdgmnet.features.images import photo_digests, plain_name, read_gray
from sdgmnet.features.keypoints import Keypoints
from sdgmnet.features.pairs import Pair
from sdgmnet.features.retrieval import retrieve_pairs
from sdgmnet.report import OnProgress, no_progress
from sdgmnet.sfm import colmap_steps, photo_import
from sdgmnet.sfm.colmap import to_colmap
from sdgmnet.sfm.database import (
    clear_matches,
    count_keypoints,
    count_pairs,
    count_verified,
    image_ids,
    open_database,
    read_matches,
    write_keypoints,
)
from sdgmnet.sfm.feature_sources import FeatureSource, ReconstructOptions, Run
from sdgmnet.sfm.pairs import PairSelection
from sdgmnet.sfm.photo_import import ImportedPhotos, read_imported
from sdgmnet.sfm.plausibility import ATTEMPTS, Attempt, ModelFacts, PhotoFacts, distinct_attempts, implausibilities
from sdgmnet.sfm.refine import refine_keypoints
from sdgmnet.sfm.workspace import INPUTS, Workspace
from sdgmnet.storage import read_record, require_same_inputs, write_json
from sdgmnet.version import __version__

METHOD = 2  # increased when the same photos and options would give another model
PAIRS, MODELS, RATIO, OUTCOMES = "pairs.json", "models.json", "ratio.json", "attempts.json"
RETRIEVED, REFINED = "retrieved.json", "refined.json"
# So that folders of earlier versions, which had no other, can be continued.
UNRECORDED = (("matcher", "nearest"), ("mapper", "incremental"), ("refine", False))
FROM_DATABASE = (PAIRS, MODELS, RATIO, OUTCOMES, REFINED)  # invalid without it

CACHED_IMAGES = 16


class NoModel(InputError):
    """These photos give no model with these features; another descriptor or another set may."""


class Photos(NamedTuple):
    folder: Path
    names: tuple[str, ...]  # relative to it
    max_size: int | None = None  # of the longest side of the copies, in pixels


class SparseModels(NamedTuple):
    imported: ImportedPhotos
    rounds: list[int]  # number of pairs compared per round
    models: list[dict[str, Any]]  # `colmap_steps.map_images` of sparse/0, 1, ..., the largest first
    settings: dict[str, Any]
    outcomes: list[dict[str, Any]]  # `judge` of each attempt
    attempt: str  # the one that gave the models

    @property
    def implausible(self) -> list[str]:
        """Why the largest model is implausible; empty if it is plausible."""
        return next(one for one in self.outcomes if one["attempt"] == self.attempt)["implausible"]


def reconstruct(
    workspace: Workspace,
    photos: Photos,
    source: FeatureSource,
    pairs: PairSelection,
    options: ReconstructOptions,
    on_progress: OnProgress = no_progress,
    attempts: tuple[Attempt, ...] | None = None,
) -> SparseModels:
    """The models of the first attempt whose largest model is plausible, otherwise of the best attempt.

    attempts: by default those of the mapper.
    """
    attempts = ATTEMPTS[options.mapper] if attempts is None else attempts
    settings = {"cameras": options.cameras, **pairs.described(), **asdict(options)}
    ladder = distinct_attempts(attempts, options.ratio, ratio_test=source.ratio_test)
    inputs = _inputs(photos, source, {**settings, "attempts": [asdict(attempt) for attempt in ladder]})
    require_same_inputs(workspace.records / INPUTS, inputs, workspace.folder)
    imported = import_photos(workspace, photos, options.smallest, on_progress)
    run = Run(workspace, imported["photos"], options, on_progress)
    if not workspace.database.exists():  # removed by somebody, or never made
        for record in FROM_DATABASE:
            (workspace.records / record).unlink(missing_ok=True)
    source.extract(run)
    outcomes = try_attempts(run, source, pairs, ladder)
    merits = [(not one["implausible"], one["matches_in_tracks"]) for one in outcomes]
    best = ladder[merits.index(max(merits))]
    rounds, models = make_models(run, source, pairs, best)
    if not models:
        raise NoModel(
            f"{workspace.folder}: the {len(run.photos)} photos do not form a model of {options.smallest} or more. They need to "
            "show the same scene from viewpoints not too far apart."
        )
    return SparseModels(imported, rounds, models, settings, outcomes, best.what)


def try_attempts(
    run: Run, source: FeatureSource, pairs: PairSelection, attempts: Sequence[Attempt]
) -> list[dict[str, Any]]:
    """The outcome of each attempt, up to the first that is plausible."""
    record = run.workspace.records / OUTCOMES
    outcomes: list[dict[str, Any]] = []
    if record.exists():
        outcomes = read_record(record, [{"attempt": str, "matches_in_tracks": int, "implausible": [str]}])
    while not outcomes or (outcomes[-1]["implausible"] and len(outcomes) < len(attempts)):
        attempt = attempts[len(outcomes)]
        try:
            _, models = make_models(run, source, pairs, attempt)
        except NoModel:  # no verified matches: a stricter ratio test does not find more
            if not outcomes:
                raise
            models = []
        outcomes.append(judge(attempt, models))
        write_json(record, outcomes)
    return outcomes


def judge(attempt: Attempt, models: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What an attempt gave, and why its largest model is implausible."""
    if not models:
        counts = {"registered": 0, "points": 0, "matches_in_tracks": 0}
        return {"attempt": attempt.what, **counts, "implausible": ["the photos do not form a model"]}
    largest, facts = models[0], read_facts(models[0]["facts"])
    return {
        "attempt": attempt.what,
        "registered": largest["registered"],
        "points": largest["points"],
        "matches_in_tracks": facts.matches_in_tracks,
        "implausible": implausibilities(facts),
    }


def read_facts(record: dict[str, Any]) -> ModelFacts:
    return ModelFacts(**{**record, "photos": tuple(PhotoFacts(**photo) for photo in record["photos"])})


def make_models(
    run: Run, source: FeatureSource, pairs: PairSelection, attempt: Attempt
) -> tuple[list[int], list[dict[str, Any]]]:
    """Number of pairs per round, and the models of an attempt; nothing is repeated if they are those on disk."""
    if source.ratio_test:
        run = run._replace(options=replace(run.options, ratio=attempt.ratio(run.options.ratio)))
    rounds = match_and_verify(run, source, pairs)
    if refines(run, source):
        refine_photos(run)
    return rounds, map_photos(run, attempt)


def _inputs(photos: Photos, source: FeatureSource, settings: dict[str, Any]) -> dict[str, Any]:
    return {
        "method": METHOD,
        "photos": [[plain_name(name), digest] for name, digest in photo_digests(photos.folder, photos.names)],
        **({} if photos.max_size is None else {"max_size": photos.max_size}),
        **source.described,
        **{key: value for key, value in settings.items() if key != "threads" and (key, value) not in UNRECORDED},
    }


def import_photos(workspace: Workspace, photos: Photos, min_photos: int, on_progress: OnProgress) -> ImportedPhotos:
    """Copy the photos upright, since COLMAP does not apply EXIF orientation."""
    record, total = workspace.imported, len(photos.names)
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
        workspace.remove_import()
        reasons = "".join(f" {name} {reason}." for name, reason in found["broken"])
        raise NoModel(
            f"{photos.folder}: a model needs at least {min_photos} overlapping photos: {len(found['photos'])} of {total} can "
            f"be read.{reasons}"
        )
    return found


def match_and_verify(run: Run, source: FeatureSource, pairs: PairSelection) -> list[int]:
    """The number of pairs compared per round."""
    workspace, photos = run.workspace, run.photos
    record = workspace.records / PAIRS
    drop_other_matches(run, source)
    if not record.exists():
        rounds = []
        for chosen in pairs.rounds(photos, lambda: read_inliers(workspace), partial(retrieve, run, source)):
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
    return found["rounds"]


def retrieve(run: Run, source: FeatureSource, neighbours: int) -> list[Pair]:
    """Pairs of photos that look alike, kept in a record: they do not change with the ratio test."""
    workspace, record = run.workspace, run.workspace.records / RETRIEVED
    if not record.exists():
        names = [photo["name"] for photo in run.photos]
        with workspace.timer.stage("retrieval"):
            descriptors_of = partial(source.read_descriptors, workspace)
            seed, on_progress = run.options.seed, run.on_progress
            found = retrieve_pairs(names, descriptors_of, neighbours, seed=seed, on_progress=on_progress)
        write_json(record, found)
    return [(first, second) for first, second in read_record(record, [(str, str)])]


def drop_other_matches(run: Run, source: FeatureSource) -> None:
    """Remove matches of another ratio from the database, and all that was made from them."""
    workspace, ratio = run.workspace, run.options.ratio
    record = workspace.records / RATIO
    matched = record.exists()
    if matched and read_record(record, {"ratio": int | float | None})["ratio"] == ratio:
        return
    for made in (PAIRS, MODELS, REFINED):
        (workspace.records / made).unlink(missing_ok=True)
    with open_database(workspace.database) as database:
        clear_matches(database)
    if matched and refines(run, source):  # the new matches are verified by the detected keypoints
        replace_keypoints(run, detected_keypoints(run))
    write_json(record, {"ratio": ratio})


def refines(run: Run, source: FeatureSource) -> bool:
    """Not the keypoints of COLMAP's own SIFT, which verifies its matches itself."""
    return run.options.refine and not source.verifies


def detected_keypoints(run: Run) -> list[Keypoints]:
    return [read_features(run.workspace.features, photo["name"]).keypoints for photo in run.photos]


def replace_keypoints(run: Run, keypoints: Sequence[Keypoints]) -> None:
    with open_database(run.workspace.database) as database:
        ids = image_ids(database)
        for photo, found in zip(run.photos, keypoints, strict=True):
            write_keypoints(database, ids[photo["name"]], to_colmap(found))
        database.commit()


def refine_photos(run: Run) -> None:
    """Refined keypoints instead of the detected ones in the database; features.h5 keeps those."""
    workspace, names = run.workspace, [photo["name"] for photo in run.photos]
    record = workspace.records / REFINED
    if record.exists():
        return

    @lru_cache(CACHED_IMAGES)
    def read_image(number: int) -> np.ndarray:
        return read_gray(workspace.images / names[number], exif_orientation=False)

    number = {name: index for index, name in enumerate(names)}
    matches = [(number[first], number[second], pairs) for (first, second), pairs in read_inliers(workspace).items()]
    with workspace.timer.stage("refining"):
        detected = detected_keypoints(run)
        refined = refine_keypoints(read_image, detected, matches, run.on_progress)
    replace_keypoints(run, refined)
    moved = [int((one.xy != other.xy).any(axis=1).sum()) for one, other in zip(detected, refined, strict=True)]
    write_json(record, {"moved": sum(moved)})


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


def map_photos(run: Run, attempt: Attempt) -> list[dict[str, Any]]:
    """Figures of the models in sparse/0, 1, ..., the largest first; none if the photos do not form one."""
    workspace, photos, options, on_progress = run
    count = len(photos)
    record, heartbeat = workspace.records / MODELS, workspace.folder / ".registered"
    shape = {"attempt": str, "models": [{"photos": [str], "facts": dict}]}
    found = read_record(record, shape) if record.exists() else {}
    if found.get("attempt") != attempt.what or (found["models"] and not workspace.sparse.is_dir()):

        def watch() -> None:
            on_progress("mapping", min(heartbeat.stat().st_size if heartbeat.exists() else 0, count), count)

        record.unlink(missing_ok=True)  # the models on disk are about to be replaced
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
                method=options.mapper,
                mapper=asdict(attempt.mapper),
            )
        finally:
            heartbeat.unlink(missing_ok=True)
        found = {"attempt": attempt.what, "models": models}
        write_json(record, found)
    on_progress("mapping", count, count)
    return found["models"]


def summarise(workspace: Workspace, photos: Photos, source: FeatureSource, found: SparseModels) -> dict[str, Any]:
    """The figures of the largest model that the ETH benchmark reports (docs/protocols.md 7.3), what it was made from, and all
    models."""
    with open_database(workspace.database) as database:
        inliers, keypoints = count_verified(database), count_keypoints(database)
    largest = found.models[0]
    source_of = {photo["name"]: photo["source"] for photo in found.imported["photos"]}
    in_models = {name for model in found.models for name in model["photos"]}
    return {
        "photos": len(photos.names),
        **{key: value for key, value in largest.items() if key not in ("photos", "facts")},
        "implausible": found.implausible,
        "attempt": found.attempt,
        "attempts": found.outcomes,
        "inlier_pairs": inliers.pairs,
        "inlier_matches": inliers.matches,
        "pairs": sum(found.rounds),
        "keypoints": round(float(np.mean(list(keypoints.values()))), 1),
        "models": [
            {
                **{key: model[key] for key in ("registered", "points", "track_length", "reprojection_error")},
                "implausible": implausibilities(read_facts(model["facts"])),
                "photos": sorted(source_of[name] for name in model["photos"]),
            }
            for model in found.models
        ],
        "unregistered": [source for name, source in source_of.items() if name not in in_models],
        "broken": found.imported["broken"],
        "options": found.settings,
        "features": source.described,
        "versions": {"sdgmnet": __version__, "pycolmap": version("pycolmap")},
        **workspace.timer.read(),
    }

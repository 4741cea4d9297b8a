"""COLMAP's own SIFT: its keypoints alone, or its whole pipeline in a workspace like ours, to compare with."""

import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sdgmnet.features.keypoints import Keypoints
from sdgmnet.sfm import database as tables
from sdgmnet.sfm.colmap import read_keypoints
from sdgmnet.sfm.reconstruct import (
    MATCHED,
    ModelOptions,
    Photos,
    Place,
    Tell,
    copy_photos,
    forget_matches,
    map_models,
    same_inputs_or_error,
    summarise,
    verify_pairs,
)
from sdgmnet.sfm.sparse import alone, camera_groups, import_group
from sdgmnet.storage import new_file, write_json

DESCRIBED = {"descriptor": "COLMAP's SIFT and matching, by its defaults"}


def detect_with_colmap(folder: Path, names: Sequence[str], most: int, threads: int) -> dict[str, Keypoints]:
    """By name, in the pixels of the upright photos; what cannot be read is missing. `most` counts places: where several
    orientations are as strong, there are several keypoints."""
    with tempfile.TemporaryDirectory() as work:
        log, size = Path(work) / "log.txt", {"size": sys.maxsize}
        copies = alone(
            "sdgmnet.sfm.photo_import:prepare_photos",
            log,
            folder=str(folder),
            names=list(names),
            work=work,
            options=size,
        ).result
        if not copies["photos"]:
            return {}
        write_json(Path(work) / "photos.json", copies)
        options = {"features": most, "cameras": "each", "smallest_model": 1, "threads": threads}
        alone("sdgmnet.sfm.sparse:extract", log, work=work, options=options)
        sources = {photo["name"]: photo["source"] for photo in copies["photos"]}
        return {sources[name]: found for name, found in read_keypoints(Path(work) / "features.db").items()}


def build_with_colmap(place: Place, photos: Photos, options: ModelOptions, tell: Tell) -> dict[str, Any]:
    """As `model.build_model`; of the options cameras, seed and threads count.

    COLMAP's defaults: 8192 places at most, the largest first; mutual nearest neighbours with a ratio test at 0.8.
    """
    same_inputs_or_error(place, photos, options, DESCRIBED)
    copies = copy_photos(place, photos, options, tell)
    given: dict[str, Any] = {"images": str(place.images), "threads": options.threads}
    if not place.database.exists():
        forget_matches(place)
        tell("features", 0, 1)
        with place.times.of("features"), new_file(place.database) as part:
            step = alone(
                f"{__name__}:_extract",
                place.log,
                path=str(part),
                photos=copies["photos"],
                sharing=options.cameras,
                **given,
            )
        place.times.peak(step.peak_bytes, "features")
    tell("features", 1, 1)
    pairs = math.comb(len(copies["photos"]), 2)
    record = place.notes / MATCHED
    if not record.exists():

        def watch() -> None:
            with tables.opened(place.database) as database:
                tell("matching", tables.count_judged(database), pairs)

        with place.times.of("matching"):
            step = alone(
                f"{__name__}:_match",
                place.log,
                watch=watch,
                path=str(place.database),
                seed=options.seed,
                threads=options.threads,
            )
        place.times.peak(step.peak_bytes, "matching")
        write_json(record, {"pairs": pairs})
    tell("matching", pairs, pairs)
    verify_pairs(place, len(copies["photos"]), options, tell)
    models = map_models(place, len(copies["photos"]), options, tell)
    return summarise(place, photos, copies, pairs, models, options, DESCRIBED)


def _extract(path: str, images: str, photos: list[dict[str, Any]], sharing: str, threads: int) -> None:
    import pycolmap

    with pycolmap.Database.open(path):
        pass
    for group in camera_groups(photos, sharing):
        import_group(Path(path), Path(images), group)
    extraction = pycolmap.FeatureExtractionOptions()
    extraction.num_threads, extraction.use_gpu = threads, False
    names = [photo["name"] for photo in photos]
    pycolmap.extract_features(
        path, images, names, pycolmap.CameraMode.AUTO, extraction_options=extraction, device=pycolmap.Device.cpu
    )


def _match(path: str, seed: int, threads: int) -> None:
    import pycolmap

    matching, verification = pycolmap.FeatureMatchingOptions(), pycolmap.TwoViewGeometryOptions()
    matching.num_threads, matching.use_gpu = threads, False
    verification.ransac.random_seed = seed
    pycolmap.match_exhaustive(path, matching, verification_options=verification, device=pycolmap.Device.cpu)

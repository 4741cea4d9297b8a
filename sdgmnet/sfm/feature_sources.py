"""Where the features and matches of a reconstruction come from: any descriptor or files, or COLMAP's own SIFT."""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from sdgmnet.descriptors import descriptor_fingerprint, load_descriptor
from sdgmnet.errors import InputError
from sdgmnet.features.describe import Features, describe_located, locate, overlapped
from sdgmnet.features.h5 import features_to_arrays, read_features
from sdgmnet.features.h5_store import open_store
from sdgmnet.features.images import read_gray
from sdgmnet.features.keypoints import Keypoints
from sdgmnet.features.masks import mask_digests, read_mask
from sdgmnet.features.match import RATIO, MatcherName, match
from sdgmnet.report import OnProgress
from sdgmnet.sfm import colmap_steps, photo_import
from sdgmnet.sfm.colmap import read_keypoints, to_colmap
from sdgmnet.sfm.database import (
    count_keypoints,
    count_pairs,
    image_ids,
    is_matched,
    open_database,
    pair_id,
    read_sift,
    write_keypoints,
    write_matches,
)
from sdgmnet.sfm.pairs import MIN_INLIERS, Pairs
from sdgmnet.sfm.photo_import import Photo
from sdgmnet.sfm.plausibility import MapperName
from sdgmnet.sfm.process import run_in_process
from sdgmnet.sfm.workspace import MIN_PHOTOS, Workspace
from sdgmnet.storage import new_file

CACHED_FEATURES = 32  # photos whose features stay in memory while pairs are matched

# Name of the original photo, its upright copy -> a function that describes it, which runs while the next photo is prepared.
Prepare = Callable[[str, Path], Callable[[], Features]]
GivenMatches = Callable[[str, str], np.ndarray | None]  # names of two originals -> (M, 2), or None to match them here


@dataclass(frozen=True)
class ReconstructOptions:
    cameras: Literal["auto", "one", "each"] = "auto"
    """Which photos share a camera: equal size, folder and EXIF focal length (auto), equal size (one), none (each)."""
    mutual: bool = True
    ratio: float | None = RATIO
    matcher: MatcherName = "nearest"
    mapper: MapperName = "incremental"
    refine: bool = False
    """Keypoints are aligned by their pixels (refine.py). Not those of COLMAP's own SIFT."""
    smallest: int = MIN_PHOTOS
    """Models with fewer photos are dropped."""
    seed: int = 0
    threads: int = 2


class Run(NamedTuple):
    """A reconstruction under way."""

    workspace: Workspace
    photos: Sequence[Photo]
    options: ReconstructOptions
    on_progress: OnProgress


class FeatureSource(Protocol):
    @property
    def described(self) -> dict[str, Any]:
        """All that features and matches depend on."""

    @property
    def verifies(self) -> bool:
        """Whether `match` also verifies the matches."""

    @property
    def ratio_test(self) -> bool:
        """Whether the ratio of the options applies to its matches."""

    def extract(self, run: Run) -> None:
        """Write the database with cameras, images and keypoints, unless it is there."""

    def match(self, run: Run, pairs: Pairs) -> None:
        """Write the matches of the pairs that are not in the database yet."""

    def read_descriptors(self, workspace: Workspace, name: str) -> np.ndarray:
        """Of one photo (N, D), after `extract`."""


@dataclass(frozen=True)
class DescribedPhotos:
    """Features from a function, kept in features.h5, and nearest neighbours; or matches that are given."""

    prepare: Prepare
    described: dict[str, Any]
    given_matches: GivenMatches | None = None
    verifies: bool = field(default=False, init=False)

    @property
    def ratio_test(self) -> bool:
        return self.given_matches is None

    def extract(self, run: Run) -> None:
        workspace, photos, options, on_progress = run
        with workspace.timer.stage("features"), open_store(workspace.features, "features", self.described) as store:
            missing = [photo for photo in photos if photo["name"] not in store]
            before = len(photos) - len(missing)
            on_progress("features", before, len(photos))
            described = overlapped(
                missing,
                lambda photo: self.prepare(photo["source"], workspace.images / photo["name"]),
                lambda describe: describe(),
            )
            with closing(described):
                for done, (photo, future) in enumerate(described, start=before + 1):
                    store.add(photo["name"], features_to_arrays(future.result()))
                    on_progress("features", done, len(photos))
        if not workspace.database.exists():
            with workspace.timer.stage("database"), new_file(workspace.database) as part:
                step = run_in_process(
                    colmap_steps.create_database,
                    workspace.log,
                    path=part,
                    images=workspace.images,
                    photos=photos,
                    cameras=options.cameras,
                )
                with open_database(part) as database:
                    ids = image_ids(database)
                    for photo in photos:
                        keypoints = read_features(workspace.features, photo["name"]).keypoints
                        write_keypoints(database, ids[photo["name"]], to_colmap(keypoints))
                    database.commit()
            workspace.timer.add_peak(step.peak_bytes, "database")

    def match(self, run: Run, pairs: Pairs) -> None:
        """Pairs with fewer than 15 matches are stored without any, as in the ETH benchmark: they are not verified."""
        workspace, photos, options, on_progress = run
        source_of = {photo["name"]: photo["source"] for photo in photos}
        features_of = lru_cache(maxsize=CACHED_FEATURES)(partial(read_features, workspace.features))
        with workspace.timer.stage("matching"), open_database(workspace.database) as database:
            ids, counts = image_ids(database), count_keypoints(database)
            for number, (first, second) in enumerate(pairs.names):
                if is_matched(database, pair_id(ids[first], ids[second])):
                    continue
                on_progress("matching", number, pairs.total)
                found = None if self.given_matches is None else self.given_matches(source_of[first], source_of[second])
                if found is None:
                    two = features_of(first), features_of(second)
                    found = match(*two, mutual=options.mutual, ratio=options.ratio, matcher=options.matcher).pairs
                else:
                    require_keypoints(found, (first, second), (counts[ids[first]], counts[ids[second]]))
                kept = found if len(found) >= MIN_INLIERS else found[:0]
                write_matches(database, ids[first], ids[second], kept)
            on_progress("matching", pairs.total, pairs.total)

    def read_descriptors(self, workspace: Workspace, name: str) -> np.ndarray:
        return read_features(workspace.features, name).descriptors


def descriptor_source(
    descriptor: str,
    keypoints: int,
    *,
    contrast: float,
    size: int,
    upright: bool = False,
    masks: Path | None = None,
) -> DescribedPhotos:
    """DoG keypoints described by a descriptor given by its name or path.

    Args:
        keypoints: the maximum per photo, strongest first.
        contrast: the minimum contrast of a keypoint, in OpenCV's units.
        size: of the longest side; larger photos are reduced before detection.
        upright: keypoints have no angle.
        masks: folder of masks by the names of the original photos (features/masks.py).
    """
    loaded = load_descriptor(descriptor)

    def prepare(name: str, path: Path) -> Callable[[], Features]:
        gray = read_gray(path, exif_orientation=False)
        mask = None if masks is None else read_mask(masks, name, (gray.shape[1], gray.shape[0]))
        located = locate(gray, limit=keypoints, upright=upright, size=size, contrast=contrast, mask=mask)
        return partial(describe_located, located, loaded)

    settings: dict[str, Any] = {"keypoints": keypoints, "contrast": contrast, "size": size, "upright": upright}
    settings |= {} if masks is None else {"masks": mask_digests(masks)}
    return DescribedPhotos(prepare, {"descriptor": descriptor_fingerprint(descriptor), **settings})


def require_keypoints(pairs: np.ndarray, names: tuple[str, str], counts: tuple[int, int]) -> None:
    """COLMAP does not check the indices in its database: it would read past the end of its tables."""
    if len(pairs) and (pairs.max(axis=0) >= counts).any():
        raise InputError(
            f"the matches of {names[0]} and {names[1]} refer to keypoints that do not exist: up to "
            f"{pairs[:, 0].max()} of {counts[0]} and {pairs[:, 1].max()} of {counts[1]}, counted from 0."
        )


@dataclass(frozen=True)
class ColmapSift:
    """COLMAP's SIFT, its mutual nearest neighbours with a ratio test at 0.8, and its verification.

    max_features: locations, the largest first; None is COLMAP's default, 8192. A location with several orientations
    gives several keypoints.
    """

    described: dict[str, Any]
    max_features: int | None = None
    verifies: bool = field(default=True, init=False)
    ratio_test: bool = field(default=False, init=False)

    def extract(self, run: Run) -> None:
        workspace, photos, options, on_progress = run
        if not workspace.database.exists():
            on_progress("features", 0, 1)
            with new_file(workspace.database) as part:
                workspace.run(
                    "features",
                    colmap_steps.extract_sift,
                    path=part,
                    images=workspace.images,
                    photos=photos,
                    cameras=options.cameras,
                    max_features=self.max_features,
                    threads=options.threads,
                )
        on_progress("features", 1, 1)

    def match(self, run: Run, pairs: Pairs) -> None:
        workspace, _, options, on_progress = run
        with open_database(workspace.database) as database:
            before = count_pairs(database, "two_view_geometries")

        def watch() -> None:
            with open_database(workspace.database) as database:
                done = count_pairs(database, "two_view_geometries") - before
            on_progress("matching", min(done, pairs.total), pairs.total)

        workspace.run(
            "matching",
            colmap_steps.match_sift,
            watch=watch,
            path=workspace.database,
            pairs=None if pairs.exhaustive else list(pairs.names),
            seed=options.seed,
            threads=options.threads,
        )
        on_progress("matching", pairs.total, pairs.total)

    def read_descriptors(self, workspace: Workspace, name: str) -> np.ndarray:
        with open_database(workspace.database) as database:
            return read_sift(database, image_ids(database)[name])


def detect_sift(folder: Path, names: Sequence[str], max_features: int, threads: int) -> dict[str, Keypoints]:
    """Keypoints of COLMAP's SIFT in the upright photos at full size, by name; photos that cannot be read are left out."""
    with tempfile.TemporaryDirectory() as work:
        log, images, database = (Path(work) / name for name in ("log.txt", "images", "database.db"))
        imported = run_in_process(
            photo_import.import_photos, log, folder=folder, names=list(names), target=images, max_size=None
        ).result
        if not imported["photos"]:
            return {}
        run_in_process(
            colmap_steps.extract_sift,
            log,
            path=database,
            images=images,
            photos=imported["photos"],
            cameras="each",
            max_features=max_features,
            threads=threads,
        )
        source_of = {photo["name"]: photo["source"] for photo in imported["photos"]}
        return {source_of[name]: found for name, found in read_keypoints(database).items()}

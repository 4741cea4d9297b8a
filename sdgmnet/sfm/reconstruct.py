"""Photos and a way to describe them -> a COLMAP workspace with a sparse model, step by step.

What is finished stays: copies of the photos, the features of each, the matches of each pair, what COLMAP verified. Started
again after whatever end, nothing of it is repeated, and the model is the same.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from sdgmnet.errors import InputError
from sdgmnet.features.describe import Features
from sdgmnet.features.h5 import features_to_arrays, read_features
from sdgmnet.features.h5_store import open_store
from sdgmnet.features.images import plain_name
from sdgmnet.features.match import match
from sdgmnet.sfm import database as tables
from sdgmnet.sfm.colmap import to_colmap
from sdgmnet.sfm.mapping import map_photos, verify
from sdgmnet.sfm.photo_import import read_copies
from sdgmnet.sfm.sparse import COPYING, FEWEST_MATCHES, alone, neighbours_in_order
from sdgmnet.sfm.stage_timer import Times
from sdgmnet.storage import read_record, require_plain, write_json

METHOD = 1  # raised when the same photos and options would give another model
ANY_SIZE = 1_000_000  # pixels of a side: photos are copied as large as they are
KEPT_FEATURES = 32  # photos whose features are kept in memory while pairs are matched
INPUTS, SCENE = "inputs.json", "scene.npz"
MATCHED, VERIFIED, MODELS = "matched.json", "verified.json", "models.json"  # made of the database: nothing without it

Tell = Callable[[str, int, int], None]  # stage, done, of how many
Describe = Callable[[str, Path], Features]  # name of a photo as its owner calls it, its upright copy
Matched = Callable[[str, str], np.ndarray | None]  # names of two photos -> pairs (M, 2) that others found, or None


class NoModel(InputError):
    """The matches do not join the photos: bad luck with these photos or this descriptor, while all else is well."""


class Photos(NamedTuple):
    folder: Path
    names: tuple[str, ...]  # relative to it


@dataclass(frozen=True)
class ModelOptions:
    cameras: Literal["auto", "one", "each"] = "auto"
    """Who shares a lens: photos of equal size, folder and noted focal length (auto), all of equal size (one), nobody (each)."""
    pairs: str = "all"
    """all, sequential, or the digest of a list."""
    neighbours: int = 10
    """sequential: photos before and after in the order of names that are compared."""
    mutual: bool = True
    ratio: float | None = None
    smallest: int = 3
    """Models with fewer photos are dropped."""
    seed: int = 0
    threads: int = 2


@dataclass(frozen=True)
class Place:
    """Where the parts of a model lie: a workspace as COLMAP makes them."""

    folder: Path

    @property
    def images(self) -> Path:
        return self.folder / "images"

    @property
    def features(self) -> Path:
        return self.folder / "features.h5"

    @property
    def database(self) -> Path:
        return self.folder / "database.db"

    @property
    def sparse(self) -> Path:
        return self.folder / "sparse"

    @property
    def dense(self) -> Path:
        return self.folder / "dense"

    @property
    def log(self) -> Path:
        return self.folder / "log.txt"

    @property
    def notes(self) -> Path:
        """What a later start needs to know."""
        return self.folder / ".work"

    @property
    def times(self) -> Times:
        return Times(self.notes / "seconds.json")


def build_model(
    place: Place,
    photos: Photos,
    options: ModelOptions,
    describe: Describe,
    described_by: dict[str, Any],
    *,
    listed: Sequence[tuple[str, str]] = (),
    matched: Matched | None = None,
    tell: Tell,
) -> dict[str, Any]:
    """All steps from photos to sparse models; the figures of the largest, and what happened on the way.

    described_by: all that features depend on. listed: pairs of names, where the options say so. matched: matches that are
    taken as they are.
    """
    same_inputs_or_error(place, photos, options, described_by)
    copies = copy_photos(place, photos, options, tell)
    names = [photo["name"] for photo in copies["photos"]]
    describe_photos(place, copies["photos"], describe, described_by, tell)
    make_database(place, copies["photos"], options)
    pairs = choose_pairs(copies["photos"], options, listed)
    called = {photo["name"]: photo["source"] for photo in copies["photos"]}
    given = None if matched is None else lambda first, second: matched(called[first], called[second])
    match_pairs(place, pairs, options, tell, given)
    verify_pairs(place, len(names), options, tell)
    models = map_models(place, len(names), options, tell)
    return summarise(place, photos, copies, pairs.total, models, options, described_by)


def summarise(
    place: Place,
    photos: Photos,
    copies: dict[str, Any],
    pairs: int,
    models: Sequence[dict[str, Any]],
    options: ModelOptions,
    described_by: dict[str, Any],
) -> dict[str, Any]:
    """The benchmark's figures of the largest model (PROTOCOLS.md 7.3), and what they were made from."""
    with tables.opened(place.database) as database:
        inliers, keypoints = tables.count_verified(database), tables.count_keypoints(database)
    return {
        "photos": len(photos.names),
        **{key: value for key, value in models[0].items() if key != "photos"},
        "inlier_pairs": inliers.pairs,
        "inlier_matches": inliers.matches,
        "pairs": pairs,
        "keypoints": round(float(np.mean(list(keypoints.values()))), 1),
        "models": [model["registered"] for model in models],
        "unregistered": [one["source"] for one in copies["photos"] if one["name"] not in models[0]["photos"]],
        "broken": copies["broken"],
        "options": asdict(options),
        "features": described_by,
        "versions": versions(),
        **place.times.read(),
    }


def versions() -> dict[str, str]:
    from importlib.metadata import version

    from sdgmnet.version import __version__

    return {"sdgmnet": __version__, "pycolmap": version("pycolmap")}


def same_inputs_or_error(place: Place, photos: Photos, options: ModelOptions, described_by: dict[str, Any]) -> None:
    """Work goes on only with the photos and the options that it was begun with."""
    now: dict[str, Any] = {
        "method": METHOD,
        "photos": [[plain_name(name), content(photos.folder / name)] for name in photos.names],
        **described_by,
        **{key: value for key, value in asdict(options).items() if key != "threads"},
    }
    path = place.notes / INPUTS
    if not path.exists():
        write_json(path, now)
        return
    before = read_record(path, dict)
    changed = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    if changed:
        raise InputError(
            f"{place.folder} holds a model made with another {', '.join(changed)}: choose another -o, or remove it."
        )


def content(path: Path) -> str:
    try:
        require_plain(path)
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha1").hexdigest()
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def copy_photos(place: Place, photos: Photos, options: ModelOptions, tell: Tell) -> dict[str, Any]:
    """Upright copies, since COLMAP does not follow the camera's note how to turn a photo; what cannot be read is named."""
    record = place.notes / "photos.json"
    if not (record.exists() and place.images.is_dir()):
        tell("photos", 0, len(photos.names))

        def watch() -> None:
            copied = place.folder.glob(f".{place.images.name}.*.part/**/*.*")
            tell("photos", sum(1 for path in copied if path.is_file()), len(photos.names))

        with place.times.of("photos"):
            step = alone(
                COPYING,
                place.log,
                watch=watch,
                folder=str(photos.folder),
                names=list(photos.names),
                work=str(place.folder),
                options={"size": ANY_SIZE},
                into=place.images.name,
            )
        place.times.peak(step.peak_bytes, "photos")
        write_json(record, step.result)
    tell("photos", len(photos.names), len(photos.names))
    copies = read_copies(record)
    readable = len(copies["photos"])
    if readable < options.smallest:
        left_out = "".join(f" {name} {reason}." for name, reason in copies["broken"])
        raise NoModel(
            f"{readable} readable photo{'' if readable == 1 else 's'} in {photos.folder}: a model needs at least "
            f"{options.smallest} that overlap.{left_out}"
        )
    return copies


def describe_photos(
    place: Place, photos: Sequence[dict[str, Any]], describe: Describe, described_by: dict[str, Any], tell: Tell
) -> None:
    with place.times.of("features"), open_store(place.features, "features", described_by) as store:
        for number, photo in enumerate(photos):
            tell("features", number, len(photos))
            if photo["name"] not in store:
                features = describe(photo["source"], place.images / photo["name"])
                store.add(photo["name"], features_to_arrays(features))
        tell("features", len(photos), len(photos))


def make_database(place: Place, photos: Sequence[dict[str, Any]], options: ModelOptions) -> None:
    if place.database.exists():
        return
    forget_matches(place)

    def keypoints() -> Iterator[tuple[str, np.ndarray]]:
        for photo in photos:
            yield photo["name"], to_colmap(read_features(place.features, photo["name"]).keypoints)

    with place.times.of("database"):
        step = tables.create(place.database, place.images, photos, options.cameras, keypoints(), place.log)
    place.times.peak(step.peak_bytes, "database")


def forget_matches(place: Place) -> None:
    """Where somebody removed the database, what is known of its matches went with it."""
    for note in (MATCHED, VERIFIED, MODELS):
        (place.notes / note).unlink(missing_ok=True)


class Pairs(NamedTuple):
    """Of copies, in order of names; those of many photos are never in memory all at once."""

    total: int
    each: Iterable[tuple[str, str]]


def choose_pairs(photos: Sequence[dict[str, Any]], options: ModelOptions, listed: Sequence[tuple[str, str]]) -> Pairs:
    """A listed pair with a photo that cannot be read is left out."""
    names = [photo["name"] for photo in photos]
    if options.pairs == "all":
        return Pairs(math.comb(len(names), 2), combinations(names, 2))
    if options.pairs == "sequential":
        near = sorted(neighbours_in_order(len(names), options.neighbours))
        return Pairs(len(near), ((names[first], names[second]) for first, second in near))
    copy = {photo["source"]: photo["name"] for photo in photos}
    readable = [(copy[first], copy[second]) for first, second in listed if first in copy and second in copy]
    return Pairs(len(readable), sorted((min(pair), max(pair)) for pair in readable))


def match_pairs(place: Place, pairs: Pairs, options: ModelOptions, tell: Tell, given: Matched | None = None) -> None:
    """Matches of every pair that is not in the database yet, each kept as soon as it is found.

    Pairs with fewer than 15 matches are kept without any, as in the benchmark: they are not verified.
    """
    recall = lru_cache(maxsize=KEPT_FEATURES)(partial(read_features, place.features))
    with place.times.of("matching"), tables.opened(place.database) as database:
        ids, done = tables.image_ids(database), tables.count_finished(database)
        counts = tables.count_keypoints(database)
        for first, second in pairs.each:
            if tables.is_matched(database, tables.pair_id(ids[first], ids[second])):
                continue
            tell("matching", done, pairs.total)
            found = None if given is None else given(first, second)
            if found is not None:
                require_keypoints(found, (first, second), (counts[ids[first]], counts[ids[second]]))
            else:
                found = match(recall(first), recall(second), mutual=options.mutual, ratio=options.ratio).pairs
            kept = found if len(found) >= FEWEST_MATCHES else found[:0]
            tables.write_matches(database, ids[first], ids[second], kept)
            done += 1
        tell("matching", pairs.total, pairs.total)


def require_keypoints(pairs: np.ndarray, names: tuple[str, str], counts: tuple[int, int]) -> None:
    """COLMAP believes the numbers that it reads in its database, and looks beyond the end of its tables."""
    if len(pairs) and (pairs.max(axis=0) >= counts).any():
        raise InputError(
            f"the matches of {names[0]} and {names[1]} name keypoints that are not there, up to "
            f"{pairs[:, 0].max()} of {counts[0]} and {pairs[:, 1].max()} of {counts[1]}, counted from 0: write them again."
        )


def verify_pairs(place: Place, photos: int, options: ModelOptions, tell: Tell) -> None:
    record = place.notes / VERIFIED
    if not record.exists():
        with place.times.of("verifying"):
            step = verify(
                place.database, place.log, seed=options.seed, threads=options.threads, tell=partial(tell, "verifying")
            )
        place.times.peak(step.peak_bytes, "verifying")
        with tables.opened(place.database) as database:
            write_json(record, tables.count_verified(database)._asdict())
    if not read_record(record, {"pairs": int})["pairs"]:
        raise NoModel(
            f"no two of the {photos} photos show the same things from different places, as far as their matches say: "
            "a model needs photos that overlap."
        )


def map_models(place: Place, photos: int, options: ModelOptions, tell: Tell) -> list[dict[str, Any]]:
    """Figures of the models in sparse/0, 1, ..., the largest first."""
    record = place.notes / MODELS
    if not (record.exists() and place.sparse.is_dir()):
        with place.times.of("mapping"):
            step = map_photos(
                place.database,
                place.images,
                place.sparse,
                place.notes / SCENE,
                place.log,
                count=photos,
                smallest=options.smallest,
                seed=options.seed,
                tell=partial(tell, "mapping"),
            )
        place.times.peak(step.peak_bytes, "mapping")
        if not step.result:
            raise NoModel(
                f"the {photos} photos cannot be joined into a model of {options.smallest} or more: "
                "they need to show the same things from places not too far apart."
            )
        write_json(record, step.result)
    tell("mapping", photos, photos)
    models: list[dict[str, Any]] = read_record(record, [{"photos": [str], "registered": int}])
    if not models:
        raise InputError(f"{record} names no model: remove it.")
    return models

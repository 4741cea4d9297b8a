"""The ETH benchmark of reconstruction (PROTOCOLS.md 7): the same keypoints for every descriptor, all pairs, the largest model.

Every set and descriptor has a workspace of its own, OUT/SET/LABEL, as `sdgmnet reconstruct` makes it, and is resumed as that is.
Keypoints are those that a set brings in the benchmark's files, or they are detected once and written as such files.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from sdgmnet.benchmarks.photo_sets import PhotoSet, read_truth
from sdgmnet.benchmarks.published import published
from sdgmnet.benchmarks.relative_pose import pose_error
from sdgmnet.descriptors import Descriptor, describe, descriptor_fingerprint, load_descriptor, split_label
from sdgmnet.errors import InputError
from sdgmnet.features.describe import Features, find_keypoints
from sdgmnet.features.eth import (
    matches_path,
    read_descriptors,
    read_keypoints,
    read_matches,
    write_descriptors,
    write_keypoints,
    write_matches,
)
from sdgmnet.features.h5 import read_features
from sdgmnet.features.images import read_gray
from sdgmnet.features.keypoints import Keypoints
from sdgmnet.metrics import pose_auc
from sdgmnet.sfm import database as tables
from sdgmnet.sfm.colmap_baseline import build_with_colmap, detect_with_colmap
from sdgmnet.sfm.fusion import SIZE as DENSE_SIZE
from sdgmnet.sfm.fusion import densify
from sdgmnet.sfm.photo_import import read_copies
from sdgmnet.sfm.reconstruct import ModelOptions, Photos, Place, build_model
from sdgmnet.sfm.scene import View
from sdgmnet.sfm.viewer import show_model
from sdgmnet.storage import digest, only_worker, read_json, write_json

ANGLES = (5, 10, 20)  # degrees
COLMAP = "colmap"

DETECTED_AT_ONCE = 16  # photos for which one process of COLMAP is started
MOST = {"colmap": 8192, "opencv": 12_000}  # keypoints; COLMAP counts places, several orientations each

Tell = Callable[[str, int, int], None]
Detector = Literal["colmap", "opencv"]


@dataclass(frozen=True)
class BenchmarkOptions:
    detector: Detector = "colmap"
    """Of keypoints where a set brings none: COLMAP's as in the benchmark's own files, or OpenCV's."""
    keypoints: int | None = None
    """At most so many; None is the detector's own number."""
    contrast: float = 0.02
    """OpenCV's."""
    mutual: bool = True
    ratio: float | None = None
    cameras: Literal["auto", "one", "each"] = "each"
    """As in the benchmark's databases, each photo has a lens of its own."""
    dense: bool = False
    dense_size: int = DENSE_SIZE
    exchange: bool = False
    """Also write descriptors and matches in the benchmark's files."""
    seed: int = 0
    threads: int = 2


class Entry(NamedTuple):
    """Something to measure: a descriptor, or the descriptors and matches that somebody else computed."""

    label: str
    identity: str
    contender: Descriptor | None
    files: Path | None  # folder with SET/descriptors or descriptors, and perhaps matches beside it

    @property
    def is_colmap(self) -> bool:
        """COLMAP's own SIFT, keypoints and matching included: a comparison of whole pipelines, not of descriptors."""
        return self.contender is None and self.files is None


def parse_entry(text: str) -> Entry:
    """[label=]spec as everywhere, or the folder of the benchmark's files, or "colmap"."""
    label, spec = split_label(text)
    if spec == COLMAP:
        return Entry(label or "colmap, own keypoints", COLMAP, None, None)
    folder = Path(spec)
    if any(folder.glob("descriptors")) or any(folder.glob("*/descriptors")):
        return Entry(label or folder.resolve().name, "files", None, folder)
    contender = load_descriptor(text)
    return Entry(contender.label, descriptor_fingerprint(text), contender, None)


def parse_entries(texts: Sequence[str]) -> list[Entry]:
    if not texts:
        raise InputError("name at least one descriptor, such as sift, rootsift, sdgmnet or a folder of descriptors.")
    entries = [parse_entry(text) for text in texts]
    labels = [one.label for one in entries]
    if twice := sorted({label for label in labels if labels.count(label) > 1}):
        raise InputError(f"{twice[0]} stands there twice: give labels, as in one=FILE other=FILE.")
    for label in labels:
        if "/" in label or label.startswith(".") or label == "keypoints":
            raise InputError(f"{label!r} cannot name a folder: give a label, as in mine={label}.")
    return entries


def run(entry: Entry, photos: PhotoSet, out: Path, options: BenchmarkOptions, tell: Tell) -> dict[str, Any]:
    """One row: a descriptor on a set."""
    place = Place(out / photos.name / entry.label)
    with only_worker(place.notes):
        summary = reconstruct(entry, photos, place, out, options, tell)
        show_model(place, summary, f"{photos.name}, {entry.label}")
        row: dict[str, Any] = {"set": photos.name, "label": entry.label, **summary}
        if options.dense:
            row["dense"] = densify(place, options.dense_size, seed=options.seed, threads=options.threads, tell=tell)
        if photos.truth is not None and not entry.is_colmap:
            row["pose"] = relative_poses(place, photos.truth)
        if options.exchange and not entry.is_colmap:
            write_exchange(place)
        row |= place.times.read()
        write_json(place.folder / "summary.json", row)
    return row


def reconstruct(
    entry: Entry, photos: PhotoSet, place: Place, out: Path, options: BenchmarkOptions, tell: Tell
) -> dict[str, Any]:
    """The model, and its figures."""
    names = Photos(photos.images, photos.photos)
    model_options = ModelOptions(
        cameras=options.cameras,
        mutual=options.mutual,
        ratio=options.ratio,
        seed=options.seed,
        threads=options.threads,
    )
    if entry.is_colmap:
        return build_with_colmap(place, names, model_options, tell)
    keypoints = keypoints_of(photos, out, options, tell)
    given = _files_of(entry, photos)

    def describe_photo(name: str, path: Path) -> Features:
        gray, found = read_gray(path, exif_orientation=False), read_keypoints(keypoints / f"{name}.bin")
        if given is None:
            assert entry.contender is not None
            return describe(gray, found, descriptor=entry.contender, size=None)
        descriptors = read_descriptors(given / "descriptors" / f"{name}.bin")
        if len(descriptors) != len(found.xy):
            raise InputError(
                f"{given}/descriptors/{name}.bin holds {len(descriptors)} descriptors, but {keypoints}/{name}.bin "
                f"{len(found.xy)} keypoints: every descriptor describes the same keypoints."
            )
        return Features(found, descriptors, (gray.shape[1], gray.shape[0]))

    files = {} if given is None else {name: digest_of(given / name) for name in ("descriptors", "matches")}
    return build_model(
        place,
        names,
        model_options,
        describe_photo,
        {"descriptor": entry.identity, **files, "detected": _note(photos, options)},
        matched=None if given is None else lambda one, two: read_matches(given / "matches", one, two),
        tell=tell,
    )


def _files_of(entry: Entry, photos: PhotoSet) -> Path | None:
    if entry.files is None:
        return None
    for folder in (entry.files / photos.name, entry.files):
        if (folder / "descriptors").is_dir():
            return folder
    raise InputError(f"{entry.files} holds no {photos.name}/descriptors.")


def _note(photos: PhotoSet, options: BenchmarkOptions) -> dict[str, Any]:
    if photos.keypoints is not None:
        return {"files": digest_of(photos.keypoints)}
    most = MOST[options.detector] if options.keypoints is None else options.keypoints
    note: dict[str, Any] = {"detector": options.detector, "keypoints": most}
    return note if options.detector == "colmap" else {**note, "contrast": options.contrast}


def digest_of(folder: Path) -> str:
    """Of all files in it, which need not be there."""
    whole = hashlib.sha256()
    for path in sorted(folder.glob("*.bin")):
        whole.update(f"{path.name} {digest(path)}\n".encode())
    return whole.hexdigest()[:12]


def keypoints_of(photos: PhotoSet, out: Path, options: BenchmarkOptions, tell: Tell) -> Path:
    """The folder of keypoints that all descriptors use: the set's own, or detected at full size into OUT/SET/keypoints."""
    if photos.keypoints is not None:
        return photos.keypoints
    folder = out / photos.name / "keypoints"
    note, path = _note(photos, options), folder / "detected.json"
    if path.exists() and read_json(path) != note:
        raise InputError(
            f"{folder} was made with {json.dumps(read_json(path))}, not {json.dumps(note)}: choose another -o."
        )
    if not path.exists():
        write_json(path, note)
    missing = [name for name in photos.photos if not (folder / f"{name}.bin").exists()]
    at_once = DETECTED_AT_ONCE if options.detector == "colmap" else 1
    for start in range(0, len(missing), at_once):
        tell("keypoints", len(photos.photos) - len(missing) + start, len(photos.photos))
        for name, found in _detect(photos.images, missing[start : start + at_once], note, options.threads):
            write_keypoints(folder / f"{name}.bin", found)
    tell("keypoints", len(photos.photos), len(photos.photos))
    return folder


def _detect(images: Path, names: Sequence[str], note: dict[str, Any], threads: int) -> Iterator[tuple[str, Keypoints]]:
    """Of the upright photos. One that cannot be read is left out here: the reason is told when the photos are copied."""
    if note["detector"] == "colmap":
        yield from detect_with_colmap(images, names, note["keypoints"], threads).items()
        return
    for name in names:
        try:
            gray = read_gray(images / name)
        except InputError:
            continue
        yield name, find_keypoints(gray, note["keypoints"], size=None, contrast=note["contrast"])


def relative_poses(place: Place, truth: Path) -> dict[str, Any]:
    """Errors of the relative poses that the matches of each pair give, of all pairs whose two cameras are known."""
    views = read_truth(truth)
    require_sizes(place, views, truth)
    sources = sources_of(place)
    errors: dict[str, float] = {}
    with tables.opened(place.database) as database:
        ids = tables.image_ids(database)
        places = {name: read_features(place.features, name).keypoints.xy for name in ids if sources[name] in views}
        for first, second, pairs in tables.read_matches(database, ids):
            if first in places and second in places:
                matching = places[first][pairs[:, 0]], places[second][pairs[:, 1]]
                one, two = views[sources[first]], views[sources[second]]
                errors[f"{first} {second}"] = pose_error(one, two, matching)
    if not errors:
        raise InputError(f"{truth} names none of the photos, or only one: names there are those of the files.")
    values = np.array(list(errors.values()))
    return {
        "pairs": len(values),
        **{f"auc{angle}": pose_auc(values, angle) for angle in ANGLES},
        "median_error": float(np.median(values)) if np.isfinite(np.median(values)) else None,
    }


def require_sizes(place: Place, views: Mapping[str, View], truth: Path) -> None:
    """The true cameras are those of photos of another size where somebody made the photos smaller."""
    for photo in read_copies(place.notes / "photos.json")["photos"]:
        view = views.get(photo["source"])
        if view is not None and (view.width, view.height) != (photo["width"], photo["height"]):
            raise InputError(
                f"{truth} has a camera of {view.width} x {view.height} pixels for {photo['source']}, which has "
                f"{photo['width']} x {photo['height']}: give the cameras of these photos, or no ground_truth."
            )


def sources_of(place: Place) -> dict[str, str]:
    """What the copies were called."""
    return {photo["name"]: photo["source"] for photo in read_copies(place.notes / "photos.json")["photos"]}


def write_exchange(place: Place) -> None:
    """descriptors/NAME.bin and matches/A---B.bin; what is there is not written again."""
    sources = sources_of(place)
    with tables.opened(place.database) as database:
        ids = tables.image_ids(database)
        for name in ids:
            path = place.folder / "descriptors" / f"{sources[name]}.bin"
            if not path.exists():
                write_descriptors(path, read_features(place.features, name).descriptors)
        for first, second, pairs in tables.read_matches(database, ids):
            names = sources[first], sources[second]
            if not matches_path(place.folder / "matches", *names).exists():
                write_matches(place.folder / "matches", *names, pairs)


def table(rows: Sequence[dict[str, Any]], failed: Sequence[dict[str, str]] = ()) -> tuple[list[str], list[list[str]]]:
    """A line for each row, for each descriptor without a model, and the published ones of each set below its own.

    Dense points of different engines are not comparable: each engine has a column.
    """
    engines = sorted({row["dense"]["engine"] for row in rows if "dense" in row})
    poses = any("pose" in row for row in rows)
    header = ["set", "descriptor", "registered", "points", "observations", "track", "a photo", "error px"]
    header += ["inlier pairs", "inlier matches", "keypoints"]
    header += [f"dense, engine {engine}" for engine in engines] + ["dense, published"] * bool(engines)
    header += [f"AUC@{angle}" for angle in ANGLES] * poses
    body = []
    for name in dict.fromkeys(row["set"] for row in (*rows, *failed)):
        of_set = [row for row in rows if row["set"] == name]
        body += [_line(row, engines, poses) for row in of_set]
        body += [[name, one["label"], "no model"] + [""] * (len(header) - 3) for one in failed if one["set"] == name]
        for one in published(name, of_set[0]["photos"]) if of_set else ():
            known = [name, one.label, str(one.registered), one.points, "", f"{one.track_length:.2f}", ""]
            known += [f"{one.reprojection_error:.2f}", "", "", ""]
            known += [""] * len(engines) + [one.dense] * bool(engines) + [""] * (len(ANGLES) * poses)
            body.append(known)
    return header, body


def _line(row: dict[str, Any], engines: Sequence[str], poses: bool) -> list[str]:
    line = [row["set"], row["label"], f"{row['registered']} of {row['photos']}", f"{row['points']}"]
    line += [f"{row['observations']}", f"{row['track_length']:.3f}", f"{row['observations_per_image']:.1f}"]
    line += [f"{row['reprojection_error']:.3f}", f"{row['inlier_pairs']}", f"{row['inlier_matches']}"]
    line += [f"{row['keypoints']:.0f}"]
    dense = row.get("dense", {})
    line += [str(dense["points"]) if dense.get("engine") == engine else "" for engine in engines]
    line += [""] * bool(engines)
    if poses:
        line += [f"{100 * row['pose'][f'auc{angle}']:.1f}" if "pose" in row else "" for angle in ANGLES]
    return line

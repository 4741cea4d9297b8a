"""The ETH benchmark of reconstruction (docs/protocols.md 7): same keypoints for all descriptors, all pairs, the largest model.

Every set and descriptor has a workspace, OUT/SET/LABEL, like that of `sdgmnet reconstruct`. Keypoints are read from the files
of a set, or detected once and written as such files.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from sdgmnet.benchmarks.photo_sets import PhotoSet, read_truth
from sdgmnet.benchmarks.published import published
from sdgmnet.benchmarks.relative_pose import pose_error
from sdgmnet.descriptors import Descriptor, load_descriptor, split_label
from sdgmnet.errors import InputError
from sdgmnet.features import eth
from sdgmnet.features.describe import Features, describe_located, find_keypoints, locate
from sdgmnet.features.h5 import read_features
from sdgmnet.features.images import read_gray
from sdgmnet.features.keypoints import Keypoints
from sdgmnet.features.match import MatcherName, matching_in_words, require_effect
from sdgmnet.metrics import pose_auc
from sdgmnet.options import pick
from sdgmnet.report import OnProgress, no_progress
from sdgmnet.sfm.database import image_ids, open_database, read_matches
from sdgmnet.sfm.feature_sources import ColmapSift, DescribedPhotos, FeatureSource, ReconstructOptions, detect_sift
from sdgmnet.sfm.fusion import densify
from sdgmnet.sfm.pairs import select_pairs
from sdgmnet.sfm.photo_import import ImportedPhotos, read_imported
from sdgmnet.sfm.plausibility import COLMAP_DEFAULTS
from sdgmnet.sfm.reconstruct import NoModel, Photos, reconstruct, summarise
from sdgmnet.sfm.scene import View
from sdgmnet.sfm.viewer import draw_models
from sdgmnet.sfm.workspace import DENSE_SIZE, Workspace
from sdgmnet.storage import digest, only_worker, require_same_inputs, write_json

ANGLES = (5, 10, 20)  # degrees
COLMAP = "colmap"
DETECTED_AT_ONCE = 16  # photos per process of COLMAP
MAX_KEYPOINTS = {"colmap": 8192, "opencv": 12_000}  # COLMAP counts locations, which may have several orientations

Detector = Literal["colmap", "opencv"]
Row = dict[str, Any]


@dataclass(frozen=True)
class BenchmarkOptions:
    detector: Detector = "colmap"
    """Of the keypoints of sets that have none: COLMAP's as in the benchmark's own files, or OpenCV's."""
    keypoints: int | None = None
    """The maximum per photo; None is the detector's default."""
    contrast: float = 0.02
    """The minimum of OpenCV's keypoints."""
    mutual: bool = True
    ratio: float | None = None
    matcher: MatcherName = "nearest"
    pairs: str = "exhaustive"
    """How they are chosen, as for `sdgmnet reconstruct`."""
    neighbours: int | None = None
    cameras: Literal["auto", "one", "each"] = "each"
    """each: photos share no camera, as in the benchmark's databases."""
    refine: bool = False
    dense: bool = False
    dense_size: int = DENSE_SIZE
    exchange: bool = False
    """Also write descriptors and matches in the benchmark's format."""
    seed: int = 0
    threads: int = 2

    def __post_init__(self) -> None:
        require_effect(self.matcher, self.ratio)


class Entry(NamedTuple):
    """A row of the benchmark: a descriptor, a folder of descriptors and matches, or (neither) COLMAP's whole pipeline."""

    label: str
    fingerprint: str
    descriptor: Descriptor | None = None
    files: Path | None = None  # folder with SET/descriptors or descriptors, and optionally matches

    @property
    def is_colmap(self) -> bool:
        return self.descriptor is None and self.files is None


def parse_entry(text: str) -> Entry:
    """[label=]spec of a descriptor, a folder of the benchmark's files, or "colmap"."""
    label, spec = split_label(text)
    if spec == COLMAP:
        return Entry(label or "colmap, own keypoints", COLMAP)
    folder = Path(spec)
    if any(folder.glob("descriptors")) or any(folder.glob("*/descriptors")):
        return Entry(label or folder.resolve().name, "files", files=folder)
    descriptor = load_descriptor(text)
    return Entry(descriptor.label, descriptor.fingerprint, descriptor)


def parse_entries(texts: Sequence[str]) -> list[Entry]:
    if not texts:
        raise InputError("name at least one descriptor, such as sift, rootsift, sdgmnet or a folder of descriptors.")
    entries = [parse_entry(text) for text in texts]
    labels = [one.label for one in entries]
    for label in labels:
        if labels.count(label) > 1:
            raise InputError(f"{label} is given twice: use labels, as in one=FILE other=FILE.")
        if "/" in label or label.startswith(".") or label == "keypoints":
            raise InputError(f"{label!r} cannot name a folder: use a label, as in mine={label}.")
    return entries


def run(
    entries: Sequence[Entry],
    sets: Sequence[PhotoSet],
    out: Path,
    options: BenchmarkOptions,
    on_progress: OnProgress = no_progress,
) -> tuple[list[Row], list[dict[str, str]]]:
    """A row per set and descriptor; those that give no model, with the reason."""
    rows, failed = [], []
    for photos in sets:
        for entry in entries:
            about = f"{photos.name}, {entry.label}"

            def on_stage(stage: str, done: int, total: int, about: str = about) -> None:
                on_progress(f"{about}: {stage}", done, total)

            try:
                rows.append(evaluate(entry, photos, out, options, on_stage))
            except NoModel as error:
                failed.append({"set": photos.name, "label": entry.label, "reason": str(error)})
    return rows, failed


def evaluate(entry: Entry, photos: PhotoSet, out: Path, options: BenchmarkOptions, on_progress: OnProgress) -> Row:
    """The row of one descriptor on one set."""
    workspace = Workspace(out / photos.name / entry.label)
    with only_worker(workspace.records):
        source = feature_source(entry, photos, out, options, on_progress)
        names = Photos(photos.images, photos.photos)
        model_options = pick(ReconstructOptions, options)
        pairs = select_pairs(options.pairs, options.neighbours, photos.photos)
        models = reconstruct(workspace, names, source, pairs, model_options, on_progress, COLMAP_DEFAULTS)
        summary = summarise(workspace, names, source, models)
        draw_models(workspace, summary, f"{photos.name}, {entry.label}")
        row: Row = {"set": photos.name, "label": entry.label, **summary}
        if options.dense:
            row["dense"] = densify(
                workspace, options.dense_size, seed=options.seed, threads=options.threads, on_progress=on_progress
            )
        if photos.truth is not None and not entry.is_colmap:
            row["pose"] = relative_poses(workspace, photos.truth)
        if options.exchange and not entry.is_colmap:
            write_exchange(workspace)
        row |= workspace.timer.read()
        write_json(workspace.folder / "summary.json", row)
    return row


def feature_source(
    entry: Entry, photos: PhotoSet, out: Path, options: BenchmarkOptions, on_progress: OnProgress
) -> FeatureSource:
    if entry.is_colmap:
        return ColmapSift({"descriptor": "COLMAP's SIFT and matching, by its defaults"})
    keypoints = detect_keypoints(photos, out, options, on_progress)
    described = {"descriptor": entry.fingerprint, "detected": _detection(photos, options)}
    if entry.descriptor is not None:
        return DescribedPhotos(partial(_locate_photo, keypoints, entry.descriptor), described)
    assert entry.files is not None
    folders = [folder for folder in (entry.files / photos.name, entry.files) if (folder / "descriptors").is_dir()]
    if not folders:
        raise InputError(f"{entry.files} holds no {photos.name}/descriptors.")
    described |= {name: digest_of(folders[0] / name) for name in ("descriptors", "matches")}
    given_matches = partial(eth.read_matches, folders[0] / "matches")
    return DescribedPhotos(partial(_read_described, keypoints, folders[0] / "descriptors"), described, given_matches)


def _locate_photo(keypoints: Path, descriptor: Descriptor, name: str, path: Path) -> Callable[[], Features]:
    gray, found = read_gray(path, exif_orientation=False), eth.read_keypoints(keypoints / f"{name}.bin")
    return partial(describe_located, locate(gray, found, size=None), descriptor)


def _read_described(keypoints: Path, descriptors: Path, name: str, path: Path) -> Callable[[], Features]:
    height, width = read_gray(path, exif_orientation=False).shape
    found, described = eth.read_keypoints(keypoints / f"{name}.bin"), eth.read_descriptors(descriptors / f"{name}.bin")
    if len(described) != len(found.xy):
        raise InputError(
            f"{descriptors}/{name}.bin holds {len(described)} descriptors, but {keypoints}/{name}.bin {len(found.xy)} "
            "keypoints: every descriptor describes the same keypoints."
        )
    return lambda: Features(found, described, (width, height))


def _detection(photos: PhotoSet, options: BenchmarkOptions) -> dict[str, Any]:
    """What the keypoints depend on."""
    if photos.keypoints is not None:
        return {"files": digest_of(photos.keypoints)}
    most = MAX_KEYPOINTS[options.detector] if options.keypoints is None else options.keypoints
    detection: dict[str, Any] = {"detector": options.detector, "keypoints": most}
    return detection if options.detector == "colmap" else {**detection, "contrast": options.contrast}


def digest_of(folder: Path) -> str:
    """Of all .bin files in a folder, which need not exist."""
    whole = hashlib.sha256()
    for path in sorted(folder.glob("*.bin")):
        whole.update(f"{path.name} {digest(path)}\n".encode())
    return whole.hexdigest()[:12]


def detect_keypoints(photos: PhotoSet, out: Path, options: BenchmarkOptions, on_progress: OnProgress) -> Path:
    """The folder of keypoints that all descriptors use: the set's own, or detected at full size into OUT/SET/keypoints."""
    if photos.keypoints is not None:
        return photos.keypoints
    folder, detection = out / photos.name / "keypoints", _detection(photos, options)
    require_same_inputs(folder / "detected.json", detection, folder)
    missing = [name for name in photos.photos if not (folder / f"{name}.bin").exists()]
    total, at_once = len(photos.photos), DETECTED_AT_ONCE if options.detector == "colmap" else 1
    for start in range(0, len(missing), at_once):
        on_progress("keypoints", total - len(missing) + start, total)
        for name, found in _detect(photos.images, missing[start : start + at_once], detection, options.threads):
            eth.write_keypoints(folder / f"{name}.bin", found)
    on_progress("keypoints", total, total)
    return folder


def _detect(
    images: Path, names: Sequence[str], detection: dict[str, Any], threads: int
) -> Iterator[tuple[str, Keypoints]]:
    """In the upright photos. Photos that cannot be read are left out: the import reports them."""
    if detection["detector"] == "colmap":
        yield from detect_sift(images, names, detection["keypoints"], threads).items()
        return
    for name in names:
        try:
            gray = read_gray(images / name)
        except InputError:
            continue
        yield name, find_keypoints(gray, detection["keypoints"], size=None, contrast=detection["contrast"])


def relative_poses(workspace: Workspace, truth: Path) -> dict[str, Any]:
    """Errors of the relative poses from the matches of each pair whose two cameras are known."""
    views, imported = read_truth(truth), read_imported(workspace.imported)
    require_same_sizes(imported, views, truth)
    view_of = {photo["name"]: views[photo["source"]] for photo in imported["photos"] if photo["source"] in views}
    xy = {name: read_features(workspace.features, name).keypoints.xy for name in view_of}
    errors = []
    with open_database(workspace.database) as database:
        for first, second, pairs in read_matches(database, image_ids(database)):
            if first in xy and second in xy:
                matching = xy[first][pairs[:, 0]], xy[second][pairs[:, 1]]
                errors.append(pose_error(view_of[first], view_of[second], matching))
    if not errors:
        raise InputError(f"{truth} names none of the photos, or only one: use the names of the files there.")
    values = np.array(errors)
    return {
        "pairs": len(values),
        **{f"auc{angle}": pose_auc(values, angle) for angle in ANGLES},
        "median_error": float(np.median(values)) if np.isfinite(np.median(values)) else None,
    }


def require_same_sizes(imported: ImportedPhotos, views: Mapping[str, View], truth: Path) -> None:
    """The true cameras have another size if the photos were reduced."""
    for photo in imported["photos"]:
        view = views.get(photo["source"])
        if view is not None and (view.width, view.height) != (photo["width"], photo["height"]):
            raise InputError(
                f"{truth} has a camera of {view.width} x {view.height} pixels for {photo['source']}, which has "
                f"{photo['width']} x {photo['height']}: give the cameras of these photos, or no ground_truth."
            )


def write_exchange(workspace: Workspace) -> None:
    """descriptors/NAME.bin and matches/A---B.bin; files that exist are kept."""
    imported = read_imported(workspace.imported)
    source_of = {photo["name"]: photo["source"] for photo in imported["photos"]}
    with open_database(workspace.database) as database:
        ids = image_ids(database)
        for name in ids:
            path = workspace.folder / "descriptors" / f"{source_of[name]}.bin"
            if not path.exists():
                eth.write_descriptors(path, read_features(workspace.features, name).descriptors)
        for first, second, pairs in read_matches(database, ids):
            names = source_of[first], source_of[second]
            if not eth.matches_path(workspace.folder / "matches", *names).exists():
                eth.write_matches(workspace.folder / "matches", *names, pairs)


def title(options: BenchmarkOptions) -> str:
    pairs = "" if options.pairs == "exhaustive" else f", pairs: {options.pairs}"
    refined = ", refined keypoints" if options.refine else ""
    matching = matching_in_words(options.mutual, options.ratio, options.matcher)
    return f"Reconstruction ({matching}{pairs}{refined})"


def table(rows: Sequence[Row], failed: Sequence[dict[str, str]] = ()) -> tuple[list[str], list[list[str]]]:
    """Per set: its rows, descriptors without a model, and the published rows.

    Dense points of different engines cannot be compared: each engine has a column.
    """
    engines = sorted({row["dense"]["engine"] for row in rows if "dense" in row})
    poses = any("pose" in row for row in rows)
    header = ["set", "descriptor", "registered", "points", "observations", "track", "per photo", "error px"]
    header += ["inlier pairs", "inlier matches", "keypoints"]
    header += [f"dense, engine {engine}" for engine in engines] + ["dense, published"] * bool(engines)
    header += [f"AUC@{angle}" for angle in ANGLES] * poses
    body: list[dict[str, str]] = []
    for name in dict.fromkeys(row["set"] for row in (*rows, *failed)):
        of_set = [row for row in rows if row["set"] == name]
        body += [_cells(row) for row in of_set]
        body += [
            {"set": name, "descriptor": one["label"], "registered": "no model"} for one in failed if one["set"] == name
        ]
        body += [{"set": name, **one.cells()} for one in (published(name, of_set[0]["photos"]) if of_set else ())]
    return header, [[cells.get(column, "") for column in header] for cells in body]


def _cells(row: Row) -> dict[str, str]:
    cells = {
        "set": row["set"],
        "descriptor": row["label"],
        "registered": f"{row['registered']} of {row['photos']}{', implausible' if row['implausible'] else ''}",
        "points": f"{row['points']}",
        "observations": f"{row['observations']}",
        "track": f"{row['track_length']:.3f}",
        "per photo": f"{row['observations_per_image']:.1f}",
        "error px": f"{row['reprojection_error']:.3f}",
        "inlier pairs": f"{row['inlier_pairs']}",
        "inlier matches": f"{row['inlier_matches']}",
        "keypoints": f"{row['keypoints']:.0f}",
    }
    if dense := row.get("dense"):
        cells[f"dense, engine {dense['engine']}"] = str(dense["points"])
    if pose := row.get("pose"):
        cells |= {f"AUC@{angle}": f"{100 * pose[f'auc{angle}']:.1f}" for angle in ANGLES}
    return cells

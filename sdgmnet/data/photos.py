"""Own photos -> PatchSets: reconstruct each scene, decide by geometry which keypoints show the same point, cut their patches.

A scene's work lies in a folder of its own, each finished step under its final name. Started again, nothing finished is
repeated, and the set ends with the same bits.
"""

import errno
import hashlib
import json
import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from sdgmnet.data.correspondences import (
    Anchored,
    Rule,
    anchor,
    carry,
    close_within,
    conflicts_of,
    correspond,
    group_consistently,
    judge_keypoints,
    overlapping,
    support,
)
from sdgmnet.data.patchset import PatchSet, is_patchset, write_patchset
from sdgmnet.errors import InputError, Stopped
from sdgmnet.features.images import read_gray
from sdgmnet.features.keypoints import Keypoints, detect
from sdgmnet.features.patches import cut_patches, inside
from sdgmnet.files import new_file, read_json, write_json
from sdgmnet.reconstruction.dense import DenseOptions, make_depths
from sdgmnet.reconstruction.maps import read_map
from sdgmnet.reconstruction.sparse import SparseOptions, find_photos, reconstruct
from sdgmnet.reconstruction.views import SparseScene, load_scene

OBSERVATION = np.dtype(
    [
        ("image", "i4"),  # place in the origin's list of images
        ("x", "f4"),
        ("y", "f4"),
        ("scale", "f4"),  # sigma in pixels
        ("angle", "f4"),  # radians, clockwise on the picture
        ("point", "i8"),
        ("distance", "f4"),  # pixels from where the point's strongest keypoint is carried to; NaN where it cannot be
        ("detected", "?"),  # a keypoint, or only the carried place
    ]
)
MAPS_IN_MEMORY = 64  # depth maps at a time, 2 MB each at 800 px
PATCHES_AT_ONCE = 1024
# Seconds for one photo of 1600 px on two cores, only to weigh the parts of the progress bar.
SHARE_SPARSE, SHARE_DENSE, SHARE_POINTS = 4.0, 8.0, 2.0


@dataclass(frozen=True)
class PhotoOptions:
    sparse: SparseOptions = field(default_factory=SparseOptions)
    dense: DenseOptions = field(default_factory=DenseOptions)
    rule: Rule = field(default_factory=Rule)
    keypoints: int = 8000
    """Of each photo, the strongest whose patches lie wholly within it."""
    smallest_scale: float = 1.6
    """Sigma in pixels below which a patch is a blow-up of hardly more than noise: 1.6 gives patches 19 px wide."""
    carried: bool = True
    """Also patches where a point is visible but no keypoint was detected: what a detector finds twice also looks alike."""
    source: Literal["geometry", "tracks"] = "geometry"
    """tracks: what SIFT matched in the sparse reconstruction, for comparison."""

    def described(self) -> dict[str, Any]:
        """Everything that the patches depend on, in a form that JSON keeps."""
        sparse = {name: value for name, value in asdict(self.sparse).items() if name != "threads"}
        common: dict[str, Any] = {"source": self.source, "sparse": sparse}
        if self.source == "tracks":
            return common
        return json.loads(
            json.dumps(
                {
                    **common,
                    "dense": asdict(self.dense),
                    "rule": asdict(self.rule),
                    "keypoints": self.keypoints,
                    "smallest_scale": self.smallest_scale,
                    "carried": self.carried,
                }
            )
        )


class Scene(NamedTuple):
    name: str
    folder: Path
    photos: tuple[str, ...]


class Points(NamedTuple):
    """Patches to cut from the views of a model, one row each, ordered by view, and which points conflict."""

    view: np.ndarray
    keypoints: Keypoints
    point: np.ndarray
    distance: np.ndarray
    detected: np.ndarray
    conflicts: np.ndarray


class Meter:
    """How far the whole work is, in weighed photos, and what is being done. Tells nobody unless told whom."""

    def __init__(self, tell: Callable[[float, str], None] | None = None) -> None:
        self.tell, self.done, self.base = tell, 0.0, 0.0

    def at(self, share: float, what: str) -> None:
        self.done = self.base + share
        if self.tell is not None:
            self.tell(self.done, what)

    def finished(self, share: float) -> None:
        self.base += share
        self.done = self.base


def scene_share(scene: Scene, options: PhotoOptions) -> float:
    dense = SHARE_DENSE + SHARE_POINTS if options.source == "geometry" else 0.0
    return len(scene.photos) * (SHARE_SPARSE + dense)


def find_scenes(folder: Path | str) -> list[Scene]:
    """One scene where photos lie in the folder itself, otherwise one for each sub-folder with photos in or below it."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder: give a folder of photos, or one with a sub-folder for each scene.")
    photos = find_photos(folder)
    if not photos:
        raise InputError(f"{folder} holds no photos (JPEG, PNG, TIFF, WebP, BMP), nor do its sub-folders.")
    if any("/" not in photo for photo in photos):
        return [Scene(folder.resolve().name, folder, tuple(photos))]
    names = sorted({photo.split("/")[0] for photo in photos})
    return [Scene(name, folder / name, tuple(find_photos(folder / name))) for name in names]


def make_scene(
    scene: Scene, out: Path, work: Path, options: PhotoOptions, meter: Meter | None = None
) -> dict[str, Any]:
    """The PatchSet of a scene in out/<name>, its work below work/<name>; returns the row of the summary."""
    meter = meter or Meter()
    keep_apart(scene, out / scene.name, work / scene.name)
    target, place, record = out / scene.name, work / scene.name, work / f"{scene.name}.{options.source}.json"
    photos = digests(scene)
    origin = {"source": "photos", "options": options.described(), "photos": hashed(photos)}
    if is_patchset(target):
        opened = PatchSet.open(target)
        if opened.origin.get("options") != origin["options"]:
            raise InputError(f"{target} was made with other options: choose another -o, or remove it.")
        if opened.origin.get("photos") != origin["photos"]:
            raise InputError(f"{target} was made from other photos: choose another -o, or remove it.")
        return read_json(record) if record.exists() else {"scene": scene.name, "patches": len(opened)}
    times = Times(place / f"seconds.{options.source}.json")
    same_photos_or_error(photos, place / "inputs.json", options)
    count = len(scene.photos)
    with times.of("sparse"):
        found = reconstruct(
            scene.folder, scene.photos, place, options.sparse, lambda step: meter.at(0, f"{scene.name}: {step}")
        )
    times.peak(found["peak_bytes"])
    models = sorted((place / "models").iterdir(), key=lambda path: int(path.name))
    made, engines = [], set()
    for number, model in enumerate(models):
        begun = count * SHARE_SPARSE + number / len(models) * count * (SHARE_DENSE + SHARE_POINTS)
        part = count / len(models)
        if options.source == "tracks":
            made.append(points_of_tracks(model))
            continue
        with times.of("dense"):
            engines.add(
                make_depths(
                    model,
                    options.dense,
                    lambda done, all, what, begun=begun, part=part: meter.at(  # type: ignore[misc]
                        begun + part * SHARE_DENSE * done / all, f"{scene.name}: depth"
                    ),
                )
            )
        with times.of("correspondence"):
            made.append(
                points_by_geometry(
                    model,
                    options,
                    lambda done, all, begun=begun, part=part: meter.at(  # type: ignore[misc]
                        begun + part * (SHARE_DENSE + SHARE_POINTS * done / all), f"{scene.name}: correspondence"
                    ),
                )
            )
    if not sum(len(points.view) for points in made):
        raise InputError("no point was seen in two photos: more overlap or more texture is needed.")
    with times.of("patches"):
        meter.at(scene_share(scene, options), f"{scene.name}: patches")
        write_scene(target, scene.name, origin, models, made)
    patchset = PatchSet.open(target)
    points = len(np.unique(patchset.point_id))
    row = {
        "scene": scene.name,
        "photos": count,
        "registered": len({view.name for model in models for view in load_scene(model / "scene.npz").views}),
        "models": len(models),
        "pairs": found["pairs"],
        "broken": found["broken"],
        "points": points,
        "patches": len(patchset),
        "patches_per_point": len(patchset) / points,
        "conflicts": 0 if patchset.conflicts is None else len(patchset.conflicts),
        "dense_engine": "+".join(sorted(engines)),
        **times.read(),
    }
    write_json(record, row)
    return row


class Times:
    """Seconds of each stage and the largest memory, kept over restarts."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, Any]:
        return read_json(self.path) if self.path.exists() else {"seconds": {}, "peak_bytes": 0}

    def peak(self, peak_bytes: int) -> None:
        known = self.read()
        write_json(self.path, {**known, "peak_bytes": max(known["peak_bytes"], peak_bytes)})

    @contextmanager
    def of(self, stage: str) -> Iterator[None]:
        forget_peak()
        begun = time.perf_counter()
        yield
        known = self.read()
        spent = known["seconds"].get(stage, 0.0) + time.perf_counter() - begun
        known["seconds"][stage] = round(spent, 2)
        write_json(self.path, known)
        self.peak(peak_memory())


def forget_peak() -> None:
    """Let the system measure this process's largest memory anew, where it can."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> int:
    """Bytes that this process held at most since `forget_peak`, or ever."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def keep_apart(scene: Scene, target: Path, place: Path) -> None:
    """Nothing is ever written or removed where the photos are, nor in a folder that holds something else."""
    photos = scene.folder.resolve()
    for folder in (target.resolve(), place.resolve()):
        if folder == photos or folder in photos.parents or photos in folder.parents:
            raise InputError(
                f"{folder} and the photos in {scene.folder} would mix: choose another -o, or another --work."
            )
    if target.exists() and not is_patchset(target):
        raise InputError(f"{target} is there and is no PatchSet: choose another -o, or remove it.")
    if place.is_dir() and any(place.iterdir()) and not (place / "inputs.json").exists():
        raise InputError(f"{place} holds something else: choose another --work, or remove it.")


def digests(scene: Scene) -> list[list[str]]:
    """Name and content of each photo; one that cannot be read is told of when its turn comes."""
    found = []
    for name in scene.photos:
        try:
            found.append([name, hashlib.sha1((scene.folder / name).read_bytes()).hexdigest()])
        except OSError as error:
            found.append([name, f"cannot be read: {error.strerror}"])
    return found


def hashed(photos: list[list[str]]) -> str:
    return hashlib.sha256(json.dumps(photos).encode()).hexdigest()


def same_photos_or_error(photos: list[list[str]], path: Path, options: PhotoOptions) -> None:
    """Work goes on only with the photos and the options that it was begun with."""
    inputs = {"sparse": options.described()["sparse"], "photos": photos}
    if not path.exists():
        write_json(path, inputs)
    elif read_json(path) != inputs:
        raise InputError(
            f"{path.parent} holds work on other photos or with other options: remove it, or choose another --work."
        )


# A model's points


def points_by_geometry(
    model: Path, options: PhotoOptions, progress: Callable[[int, int], None] | None = None
) -> Points:
    """Correspondences of a model with dense depth; read again where they were already found with the same options."""
    path = model / "points.npz"
    settings = repr({name: value for name, value in options.described().items() if name != "sparse"})
    if path.exists() and (known := load_points(path, settings)) is not None:
        return known
    scene = load_scene(model / "scene.npz")

    def map_of(kind: str, index: int) -> np.ndarray | None:
        file = model / "stereo" / f"{kind}_maps" / f"{scene.views[index].name}.geometric.bin"
        return read_map(file) if file.exists() else None

    @lru_cache(maxsize=MAPS_IN_MEMORY)
    def depths_of(index: int) -> np.ndarray:
        depths = map_of("depth", index)
        return np.zeros((2, 2), dtype=np.float32) if depths is None else depths

    anchored = []
    for index, view in enumerate(scene.views):
        keypoints = detect(read_gray(model / "images" / view.name, upright=False))
        usable = inside(keypoints, view.width, view.height) & (keypoints.sigma >= options.smallest_scale)
        keypoints = keypoints.select(np.flatnonzero(usable)[: options.keypoints])
        normals = map_of("normal", index)
        flat = np.zeros((2, 2, 3), dtype=np.float32)
        anchored.append(anchor(view, keypoints, depths_of(index), flat if normals is None else normals))
    points = find_points(anchored, depths_of, scene, options, progress)
    save_points(path, points, settings)
    return points


def find_points(
    anchored: Sequence[Anchored],
    depths_of: Callable[[int], np.ndarray],
    scene: SparseScene,
    options: PhotoOptions,
    progress: Callable[[int, int], None] | None = None,
) -> Points:
    """Keypoints of all views -> points seen at least twice, in which no two keypoints contradict each other."""
    rule = options.rule
    found = correspond(anchored, depths_of, list(overlapping(scene)), rule, progress)
    first = found.first

    def judge_pairs(pairs: np.ndarray) -> np.ndarray:
        return judge_keypoints(anchored, depths_of, first, pairs, rule)[0]

    point = group_consistently(found, judge_pairs)
    response = np.concatenate([one.keypoints.response for one in anchored])
    strongest = strongest_of(point, response)
    view = np.repeat(np.arange(len(anchored)), np.diff(first))
    rows = [Carry(np.arange(len(point)), view, point, np.zeros(len(point)))]
    keypoints = Keypoints(
        *(np.concatenate(column) for column in zip(*(one.keypoints for one in anchored), strict=True))
    )
    if options.carried:
        places, more = carried_places(anchored, depths_of, first, point, strongest, scene, options)
        keypoints = Keypoints(*(np.concatenate(pair) for pair in zip(keypoints, places, strict=True)))
        rows.append(more)
    row, view, point_of, distance = (np.concatenate(column) for column in zip(*rows, strict=True))
    seen = np.bincount(point_of, minlength=len(strongest))
    keep = np.flatnonzero(seen[point_of] >= 2)
    numbers = np.full(len(strongest), -1)
    numbers[seen >= 2] = np.arange(np.count_nonzero(seen >= 2))
    # How far each detected keypoint lies from where the strongest of its point is carried to.
    detected = row < first[-1]
    pairs = np.column_stack([strongest[point_of[keep]], row[keep]])
    asked = detected[keep] & (pairs[:, 0] != pairs[:, 1])
    pixels = judge_keypoints(anchored, depths_of, first, pairs[asked], rule)[1]
    distance[keep[asked]] = np.where(np.isfinite(pixels), pixels, np.nan)
    order = keep[np.lexsort((row[keep], view[keep]))]
    places, point_there = keypoints.select(row[order]), numbers[point_of[order]]
    # Carried places are compared as well: two points may come to lie on one spot of a view where neither was detected.
    close = np.concatenate(
        [conflicts_of(found.close, numbers[point]), close_points(places, view[order], point_there, rule)]
    )
    return Points(view[order], places, point_there, distance[order], detected[order], np.unique(close, axis=0))


class Carry(NamedTuple):
    row: np.ndarray
    view: np.ndarray
    point: np.ndarray
    distance: np.ndarray


def strongest_of(point: np.ndarray, response: np.ndarray) -> np.ndarray:
    """Row of the largest response of each point."""
    order = np.lexsort((np.arange(len(point)), -response, point))
    _, start = np.unique(point[order], return_index=True)
    return order[start]


def carried_places(
    anchored: Sequence[Anchored],
    depths_of: Callable[[int], np.ndarray],
    first: np.ndarray,
    point: np.ndarray,
    strongest: np.ndarray,
    scene: SparseScene,
    options: PhotoOptions,
) -> tuple[Keypoints, Carry]:
    """Where each point's strongest keypoint comes to lie in views that show the point but detected none of its keypoints."""
    count, views = int(first[-1]), len(anchored)
    view = np.repeat(np.arange(views), np.diff(first))
    has = np.unique(point * np.int64(views) + view)
    places, rows = [Keypoints(np.empty((0, 2)), *(np.empty(0) for _ in range(3)))], []
    both_ways = sorted(pair for one, other in overlapping(scene) for pair in ((one, other), (other, one)))
    for source, target in both_ways:
        mine = strongest[view[strongest] == source] - first[source]
        view_there, depths, depths_there = anchored[target].view, depths_of(source), depths_of(target)
        carried = carry(anchored[source], view_there, depths_there, options.rule, np.sort(mine))
        response = anchored[source].keypoints.response[carried.row]
        there = Keypoints(carried.xy, carried.sigma, carried.angle, response)
        point_of = point[carried.row + first[source]]
        keep = inside(there, view_there.width, view_there.height) & (carried.sigma >= options.smallest_scale)
        keep &= ~np.isin(point_of * np.int64(views) + target, has)
        shown = support(anchored[source], depths, view_there, depths_there, carried.row[keep], options.rule)
        keep[keep] = shown >= options.rule.least_support
        places.append(there.select(keep))
        rows.append((np.full(np.count_nonzero(keep), target), point_of[keep]))
    all_places = Keypoints(*(np.concatenate(column) for column in zip(*places, strict=True)))
    targets = np.concatenate([row[0] for row in rows]) if rows else np.empty(0, dtype=np.int64)
    points = np.concatenate([row[1] for row in rows]) if rows else np.empty(0, dtype=np.int64)
    return all_places, Carry(count + np.arange(len(points)), targets, points, np.zeros(len(points)))


def points_of_tracks(model: Path) -> Points:
    """What SIFT itself matched: the tracks of the sparse model, at most one keypoint a view and point."""
    scene = load_scene(model / "scene.npz")
    with np.load(model / "tracks.npz") as tracks:
        view, point = tracks["view"], tracks["point"]
        keypoints = Keypoints(tracks["xy"], tracks["sigma"], tracks["angle"] % (2 * np.pi), np.zeros(len(view)))
    sizes = np.array([(one.width, one.height) for one in scene.views])[view]
    fits = np.flatnonzero(inside(keypoints, sizes[:, 0], sizes[:, 1]))
    _, once = np.unique(point[fits] * np.int64(len(scene.views)) + view[fits], return_index=True)
    rows = fits[once]
    often = np.bincount(point[rows], minlength=len(scene.points)) >= 2
    rows = np.sort(rows[often[point[rows]]])
    rows = rows[np.argsort(view[rows], kind="stable")]
    _, number = np.unique(point[rows], return_inverse=True)
    rule = Rule()
    close = close_points(keypoints.select(rows), view[rows], number, rule)
    nan = np.full(len(rows), np.nan)
    return Points(view[rows], keypoints.select(rows), number, nan, np.ones(len(rows), dtype=bool), close)


def close_points(keypoints: Keypoints, view: np.ndarray, point: np.ndarray, rule: Rule) -> np.ndarray:
    """Pairs of points with keypoints in one view that the rule does not call different."""
    close = [np.empty((0, 2), dtype=np.int64)]
    for one in np.unique(view):
        rows = np.flatnonzero(view == one)
        close.append(rows[close_within(keypoints.select(rows), rule)])
    return conflicts_of(np.concatenate(close), point)


def save_points(path: Path, points: Points, settings: str) -> None:
    columns = {name: getattr(points, name) for name in Points._fields if name != "keypoints"}
    with new_file(path) as part, part.open("wb") as file:
        np.savez(file, settings=np.array(settings), **columns, **points.keypoints._asdict())


def load_points(path: Path, settings: str) -> Points | None:
    """None where they were found with other options."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            if str(arrays["settings"]) != settings:
                return None
            keypoints = Keypoints(*(arrays[name] for name in Keypoints._fields))
            return Points(**{name: arrays[name] for name in Points._fields if name != "keypoints"}, keypoints=keypoints)
    except (OSError, ValueError, KeyError):
        return None


def write_scene(
    target: Path, name: str, origin: dict[str, Any], models: Sequence[Path], made: Sequence[Points]
) -> None:
    """One PatchSet of all models, whose points and images are numbered one after the other."""
    images: list[str] = []
    rows, conflicts, next_point = [], [np.empty((0, 2), dtype=np.int64)], 0
    shown: set[str] = set()  # COLMAP may put a photo into two models, which know nothing of each other's points
    scenes = [load_scene(model / "scene.npz") for model in models]
    origin = {**origin, "images": [f"{model.name}/{view.name}" for model, scene in zip(models, scenes, strict=True)
                                   for view in scene.views]}  # fmt: skip
    with write_patchset(target, name, origin) as writer:
        for model, scene, points in zip(models, scenes, made, strict=True):
            for index, view in enumerate(scene.views):
                here = np.flatnonzero((points.view == index) & (view.name not in shown))
                keypoints = points.keypoints.select(here)
                picture = (
                    read_gray(model / "images" / view.name, upright=False)
                    if len(here)
                    else np.empty((0, 0), dtype=np.uint8)
                )
                for start in range(0, len(here), PATCHES_AT_ONCE):
                    writer.append(
                        cut_patches(
                            picture, keypoints.select(np.arange(start, min(start + PATCHES_AT_ONCE, len(here))))
                        )
                    )
                row = np.zeros(len(here), dtype=OBSERVATION)
                row["image"], row["x"], row["y"] = len(images), keypoints.xy[:, 0], keypoints.xy[:, 1]
                row["scale"], row["angle"] = keypoints.sigma, keypoints.angle
                row["point"] = points.point[here] + next_point
                row["distance"], row["detected"] = points.distance[here], points.detected[here]
                rows.append(row)
                images.append(view.name)
                shown.add(view.name)
            conflicts.append(points.conflicts + next_point)
            next_point += int(points.point.max(initial=-1)) + 1
        observations = np.concatenate(rows)
        writer.finish(observations["point"], conflicts=np.concatenate(conflicts), observations=observations)


# All scenes


class Failure(NamedTuple):
    scene: str
    reason: str


def make_patchsets(
    folder: Path | str,
    out: Path | str,
    options: PhotoOptions | None = None,
    *,
    work: Path | str | None = None,
    discard_work: bool = False,
    tell: Callable[[float, float, str], None] | None = None,
) -> tuple[list[dict[str, Any]], list[Failure]]:
    """A PatchSet in out/<scene> for each scene of the folder; rows of the summary, and the scenes that failed with the reason.

    `work` (default out/.work) keeps what a later run can use again. `tell` hears the work done, the whole work, and the step.
    """
    options, out = options or PhotoOptions(), Path(out)
    work = out / ".work" if work is None else Path(work)
    scenes = find_scenes(folder)
    total = math.fsum(scene_share(scene, options) for scene in scenes)
    meter = Meter(None if tell is None else lambda done, what: tell(done, total, what))
    rows, failures = [], []
    for scene in scenes:
        try:
            rows.append(make_scene(scene, out, work, options, meter))
        except (InputError, Stopped, OSError) as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise  # no other scene would fare better
            failures.append(Failure(scene.name, str(error)))
        else:
            if discard_work:
                shutil.rmtree(work / scene.name, ignore_errors=True)
        meter.finished(scene_share(scene, options))
        meter.at(0, f"{scene.name}: done")
    return rows, failures

"""Own photos -> PatchSets: reconstruct each scene, decide by geometry which keypoints show the same point, cut their patches.

A scene's work lies in a folder of its own, each finished step under its final name. Started again, nothing finished is
repeated, and the set ends with the same bits.
"""

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sdgmnet.data.patchset import PatchSet, is_patchset
from sdgmnet.data.photos.options import PhotoOptions
from sdgmnet.data.photos.patches import write_scene
from sdgmnet.data.photos.tracks import Points, points_by_geometry, points_of_tracks
from sdgmnet.errors import InputError, Stopped
from sdgmnet.features.images import find_photos, plain_name
from sdgmnet.sfm.depth import make_depths
from sdgmnet.sfm.scene import load_scene
from sdgmnet.sfm.sparse import reconstruct
from sdgmnet.sfm.stage_timer import Times
from sdgmnet.storage import (
    LOCK,
    is_disk_full,
    only_worker,
    read_bytes,
    read_json,
    read_record,
    remove_unfinished,
    write_json,
)

# Seconds for one photo of 1600 px on two cores, only to weigh the parts of the progress bar.
SHARE_SPARSE, SHARE_DENSE, SHARE_POINTS = 4.0, 8.0, 2.0
METHOD = 2  # raised when the same photos and options would give other patches
NO_POINTS = "no point was seen in two photos: more overlap or more texture is needed."


class Scene(NamedTuple):
    name: str
    folder: Path
    photos: tuple[str, ...]


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


def find_scenes(folder: Path | str, without: Iterable[Path] = ()) -> list[Scene]:
    """One scene where photos lie in the folder itself, otherwise one for each sub-folder with photos in or below it.

    Nothing is taken from folders `without` inside of it: images that an earlier run wrote are no photos.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder: give a folder of photos, or one with a sub-folder for each scene.")
    inner = [place for place in without if place.resolve() != folder.resolve()]
    photos = find_photos(folder, inner)
    if not photos:
        raise InputError(f"{folder} holds no photos (JPEG, PNG, TIFF, WebP, BMP), nor do its sub-folders.")
    if any("/" not in photo for photo in photos):
        return [Scene(plain_name(folder.resolve().name), folder, tuple(photos))]
    names = sorted({photo.split("/")[0] for photo in photos})
    return [Scene(plain_name(name), folder / name, tuple(find_photos(folder / name, inner))) for name in names]


def about_layout(folder: Path | str, scenes: Sequence[Scene]) -> str:
    """A sentence where photos lie both in the folder and in sub-folders, which may be an oversight; empty elsewhere."""
    direct = sum("/" not in photo for photo in scenes[0].photos)
    below = len(scenes[0].photos) - direct
    if len(scenes) > 1 or not direct or not below:
        return ""
    return (
        f"{folder} holds {direct} photo(s) itself and {below} in sub-folders: all are taken as one scene "
        "(with photos in sub-folders only, each of them would be a scene)."
    )


def make_scene(
    scene: Scene, out: Path, work: Path, options: PhotoOptions, meter: Meter | None = None
) -> dict[str, Any]:
    """The PatchSet of a scene in out/<name>, its work below work/<name>; returns the row of the summary."""
    target, place, record = out / scene.name, work / scene.name, work / f"{scene.name}.{options.source}.json"
    keep_apart(scene, target, place)
    photos = digests(scene)
    origin = {"source": "photos", "method": METHOD, "options": options.described(), "photos": hashed(photos)}
    if is_patchset(target):
        opened = PatchSet.open(target)
        if opened.origin.get("options") != origin["options"]:
            raise InputError(f"{target} was made with other options: choose another -o, or remove it.")
        if opened.origin.get("photos") != origin["photos"]:
            raise InputError(f"{target} was made from other photos: choose another -o, or remove it.")
        if opened.origin.get("method", METHOD) != METHOD:
            raise InputError(f"{target} was made by another version of the method: choose another -o, or remove it.")
        remove_unfinished(record)  # of a start that was killed between the set and its record
        known = read_record(record, dict) if record.exists() else {}
        # The record may be that of another set, made from the same work with other options.
        same = known.pop("options", origin["options"]) == origin["options"] and known.get("patches") == len(opened)
        return known if same else {"scene": scene.name, "patches": len(opened)}
    with only_worker(place, "choose another --work"):
        same_photos_or_error(photos, place / "inputs.json", options)
        row = work_on(scene, target, place, origin, options, meter or Meter())
        write_json(record, {**row, "options": origin["options"]})
    return row


def work_on(
    scene: Scene, target: Path, place: Path, origin: dict[str, Any], options: PhotoOptions, meter: Meter
) -> dict[str, Any]:
    """All stages of a scene; a model that fails is left out and told of, as long as another gives patches."""
    times, count = Times(place / f"seconds.{options.source}.json"), len(scene.photos)
    with times.of("sparse"):
        found = reconstruct(
            scene.folder, scene.photos, place, options.sparse, lambda step: meter.at(0, f"{scene.name}: {step}")
        )
    times.peak(found["peak_bytes"])
    models = sorted((place / "models").iterdir(), key=lambda path: int(path.name))
    made: dict[Path, Points] = {}
    left_out: list[list[str]] = []
    engines = set()
    for number, model in enumerate(models):
        part = count / len(models)
        begun = count * SHARE_SPARSE + number * part * (SHARE_DENSE + SHARE_POINTS)

        def tell(share: float, step: str, begun: float = begun, part: float = part) -> None:
            meter.at(begun + part * share, f"{scene.name}: {step}")

        try:
            made[model], engine = model_points(model, options, times, tell)
        except (InputError, Stopped) as error:  # not the machine's troubles, after which a new start finishes the scene
            if is_disk_full(error):
                raise
            left_out.append([model.name, str(error)])
            continue
        engines.add(engine)
        if not len(made[model].view):
            left_out.append([model.name, NO_POINTS])
    if not any(len(points.view) for points in made.values()):
        raise InputError(why_nothing(left_out))
    with times.of("patches"):
        meter.at(scene_share(scene, options), f"{scene.name}: patches")
        write_scene(target, scene.name, origin, list(made), list(made.values()), found["sources"])
    patchset = PatchSet.open(target)
    points = len(np.unique(patchset.point_id))
    return {
        "scene": scene.name,
        "photos": count,
        "registered": len({view.name for model in models for view in load_scene(model / "scene.npz").views}),
        "models": len(models),
        "left_out": left_out,
        "pairs": found["pairs"],
        "broken": found["broken"],
        "points": points,
        "patches": len(patchset),
        "patches_per_point": len(patchset) / points,
        "conflicts": 0 if patchset.conflicts is None else len(patchset.conflicts),
        "dense_engine": "+".join(sorted(engines)),
        **times.read(),
    }


def model_points(
    model: Path, options: PhotoOptions, times: Times, tell: Callable[[float, str], None]
) -> tuple[Points, str]:
    """A model's points and who made its depth maps; `tell` hears how much of a photo's share is done, and the step."""
    if options.source == "tracks":
        return points_of_tracks(model), ""
    with times.of("dense"):
        engine = make_depths(
            model,
            options.dense,
            lambda done, all, _: tell(SHARE_DENSE * done / all, "depth"),
            remake=True,  # the workspace is our own: maps of other options only stand in the way
        )
    with times.of("correspondence"):
        points = points_by_geometry(
            model,
            options,
            lambda done, all: tell(SHARE_DENSE + SHARE_POINTS * done / all, "correspondence"),
        )
    return points, engine


def why_nothing(left_out: list[list[str]]) -> str:
    """One reason where all models have the same, otherwise that of each."""
    reasons = {reason for _, reason in left_out}
    if len(reasons) == 1:
        return reasons.pop()
    return "no model gave patches: " + "; ".join(f"{model}: {reason.rstrip('.')}" for model, reason in left_out) + "."


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
    others = {path.name for path in place.iterdir()} - {LOCK} if place.is_dir() else set()
    if others and "inputs.json" not in others:
        raise InputError(f"{place} holds something else: choose another --work, or remove it.")


def digests(scene: Scene) -> list[list[str]]:
    """Name and content of each photo; one that cannot be read is told of when its turn comes."""
    found = []
    for name in scene.photos:
        try:
            found.append([name, hashlib.sha1(read_bytes(scene.folder / name)).hexdigest()])
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
    say: Callable[[str], None] | None = None,
) -> tuple[list[dict[str, Any]], list[Failure]]:
    """A PatchSet in out/<scene> for each scene of the folder; rows of the summary, and the scenes that failed with the reason.

    `work` (default out/.work) keeps what a later run can use again. `tell` hears the work done, the whole work, and the step;
    `say` hears a sentence for the person who started it.
    """
    options, out = options or PhotoOptions(), Path(out)
    work = out / ".work" if work is None else Path(work)
    scenes = find_scenes(folder, without=(out, work))
    if say is not None and (sentence := about_layout(folder, scenes)):
        say(sentence)
    total = math.fsum(scene_share(scene, options) for scene in scenes)
    meter = Meter(None if tell is None else lambda done, what: tell(done, total, what))
    rows, failures = [], []
    for scene in scenes:
        try:
            rows.append(make_scene(scene, out, work, options, meter))
        except (InputError, Stopped, OSError) as error:
            if is_disk_full(error):
                raise  # no other scene would fare better
            failures.append(Failure(scene.name, str(error)))
        else:
            if discard_work:
                discard(work / scene.name)
        meter.finished(scene_share(scene, options))
        meter.at(0, f"{scene.name}: done")
    return rows, failures


def discard(place: Path) -> None:
    """Remove a scene's work, unless another process began to use it."""
    if place.is_dir():
        with suppress(InputError), only_worker(place):
            shutil.rmtree(place, ignore_errors=True)

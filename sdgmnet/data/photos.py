"""Own photos -> PatchSets: reconstruct each scene, decide by geometry which keypoints show the same point, cut their patches.

A scene's work lies in a folder of its own, each finished step under its final name. Started again, nothing finished is
repeated, and the set ends with the same bits.
"""

import errno
import hashlib
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sdgmnet.data.patchset import PatchSet, is_patchset
from sdgmnet.data.photo_options import PhotoOptions
from sdgmnet.data.photo_patches import write_scene
from sdgmnet.data.photo_points import points_by_geometry, points_of_tracks
from sdgmnet.data.times import Times
from sdgmnet.errors import InputError, Stopped
from sdgmnet.files import read_json, write_json
from sdgmnet.reconstruction.copies import find_photos
from sdgmnet.reconstruction.dense import make_depths
from sdgmnet.reconstruction.sparse import reconstruct
from sdgmnet.reconstruction.views import load_scene

# Seconds for one photo of 1600 px on two cores, only to weigh the parts of the progress bar.
SHARE_SPARSE, SHARE_DENSE, SHARE_POINTS = 4.0, 8.0, 2.0


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

"""Own photos -> PatchSets of synthetic views, a set a scene. No reconstruction is needed: any images will do."""

import json
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np

from sdgmnet.data.patchset import PatchSet, is_patchset, write_patchset
from sdgmnet.data.photos.pipeline import Failure, Scene, digests, find_scenes, hashed
from sdgmnet.data.synthetic.views import Viewing, ViewPatches, patches_of_views
from sdgmnet.errors import InputError
from sdgmnet.features.images import UnreadableImage, plain_name, read_gray
from sdgmnet.storage import is_disk_full

SUFFIX = "-views"
METHOD = 1  # raised when the same photos and options would give other patches
OBSERVATION = np.dtype(
    [
        ("image", "i4"),  # place in the origin's list of images
        ("view", "i4"),  # 0 is the image itself
        ("x", "f4"),
        ("y", "f4"),
        ("scale", "f4"),  # sigma in pixels
        ("angle", "f4"),  # radians, clockwise on the image
        ("point", "i8"),
    ]
)


# Unlike the embedded set's few images, photos may be taken any way up and must not alias. Milder in tilt, blur and noise: of
# 1400 keypoints of a photo 650 are then found again in some of eight views, of the stronger views' 300. Wider in what is called
# the same: a third of the keypoints that are found again at their place have another angle or scale, and a descriptor that
# knows such pairs finds them.
PHOTO_VIEWING = Viewing(
    same=(2.0, 1.0, np.pi / 4),
    undecided=(5.0, 1.5, np.pi / 2),
    keypoints=2500,
    turn=np.pi,
    smallest=0.5,
    largest=1.25,
    tilt=2.0,
    blur=1.2,
    noise=0.025,
    jpeg=True,
    supersampling=2,
)


@dataclass(frozen=True)
class ViewOptions:
    viewing: Viewing = PHOTO_VIEWING
    photos: int = 12
    """Of a scene, evenly spread over those there are."""
    size: int = 1024
    """Longest side in pixels; larger photos are made smaller."""
    seed: int = 0


class Broken(NamedTuple):
    photo: str
    reason: str


def spread(count: int, most: int) -> np.ndarray:
    """Up to `most` of the numbers 0 ... count - 1, as evenly spaced as can be."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def read_photo(path: Path, size: int) -> np.ndarray:
    gray = read_gray(path)
    height, width = gray.shape
    scale = size / max(height, width)
    if scale >= 1:
        return gray
    side = (max(1, round(width * scale)), max(1, round(height * scale)))
    return cv2.resize(gray, side, interpolation=cv2.INTER_AREA)


def make_view_set(
    scene: Scene, out: Path, options: ViewOptions, told: Callable[[str], None], threads: int = 1
) -> tuple[PatchSet, list[Broken]]:
    """The set out/<scene>-views; `told` hears of each photo. A set that is there and was made alike is kept."""
    name = f"{scene.name}{SUFFIX}"
    chosen = [scene.photos[number] for number in spread(len(scene.photos), options.photos)]
    origin: dict[str, Any] = {
        "source": "views",
        "scene": scene.name,
        "options": json.loads(json.dumps(asdict(options))),  # as it will be read back
        "method": METHOD,
        "photos": hashed(digests(scene._replace(photos=tuple(chosen)))),
        # Photos of a scene show the same things: their points are never negatives of each other.
        "one_image_a_batch": True,
    }
    target = out / name
    if is_patchset(target):
        opened = PatchSet.open(target)
        if any(opened.origin.get(key) != value for key, value in origin.items()):
            raise InputError(
                f"{target} was made of other photos or with other options: choose another -o, or remove it."
            )
        for photo in chosen:
            told(photo)
        return opened, [Broken(*one) for one in opened.origin.get("broken", [])]
    broken: list[Broken] = []
    images: list[str] = []
    rows, ids, conflicts, next_point = [], [], [], 0
    with write_patchset(target, name, origin) as writer:
        for photo, seen in _each(scene, chosen, options, threads):
            told(photo)
            if isinstance(seen, Broken):
                broken.append(seen)
                continue
            writer.append(seen.patches)
            row = np.zeros(len(seen.point), dtype=OBSERVATION)
            row["image"], row["view"], row["point"] = len(images), seen.view, seen.point + next_point
            row["x"], row["y"] = seen.keypoints.xy.T
            row["scale"], row["angle"] = seen.keypoints.sigma, seen.keypoints.angle
            rows.append(row)
            ids.append(seen.point + next_point)
            conflicts.append(seen.conflicts + next_point)
            next_point += int(seen.point.max(initial=-1)) + 1
            images.append(plain_name(photo))
        if not writer.count:
            reasons = "; ".join(f"{photo} {reason}" for photo, reason in broken) or "they have no texture"
            raise InputError(f"no keypoint was found again in any view of its photos ({reasons}).")
        writer.origin |= {"images": images, "broken": [list(one) for one in broken]}
        writer.finish(np.concatenate(ids), conflicts=np.concatenate(conflicts), observations=np.concatenate(rows))
    return PatchSet.open(target), broken


def _each(
    scene: Scene, chosen: list[str], options: ViewOptions, threads: int
) -> Iterator[tuple[str, ViewPatches | Broken]]:
    """The photos in order, several at a time; each has a random stream of its own, so the order of work says nothing."""

    def views_of(photo: str) -> ViewPatches | Broken:
        try:
            gray = read_photo(scene.folder / photo, options.size)
        except UnreadableImage as error:
            return Broken(plain_name(photo), error.reason)
        rng = np.random.default_rng([options.seed, zlib.crc32(plain_name(f"{scene.name}/{photo}").encode())])
        return patches_of_views(gray, rng, options.viewing)

    with ThreadPoolExecutor(threads) as pool:
        try:
            yield from zip(chosen, pool.map(views_of, chosen), strict=True)
        finally:
            pool.shutdown(cancel_futures=True)


def make_view_sets(
    folder: Path | str,
    out: Path | str,
    options: ViewOptions | None = None,
    *,
    threads: int = 1,
    tell: Callable[[int, int, str], None] | None = None,
) -> tuple[list[PatchSet], list[Broken], list[Failure]]:
    """A set for each scene of the folder, the photos that could not be read, and the scenes that gave nothing."""
    options, out = options or ViewOptions(), Path(out)
    scenes = find_scenes(folder, without=(out,))
    total = sum(len(spread(len(scene.photos), options.photos)) for scene in scenes)
    done = 0

    def told(what: str) -> None:
        nonlocal done
        done += 1
        if tell is not None:
            tell(done, total, what)

    sets, broken, failures = [], [], []
    for scene in scenes:
        try:
            made, left_out = make_view_set(
                scene,
                out,
                options,
                lambda photo, scene=scene: told(  # type: ignore[misc]
                    f"{scene.name}/{photo}"
                ),
                threads,
            )
        except InputError as error:
            if is_disk_full(error):
                raise  # no other scene would fare better
            failures.append(Failure(scene.name, str(error)))
            continue
        sets.append(made)
        broken += [Broken(f"{scene.name}/{one.photo}", one.reason) for one in left_out]
    return sets, broken, failures

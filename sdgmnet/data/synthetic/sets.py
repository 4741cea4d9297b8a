"""Own photos -> PatchSets of synthetic views, one set per scene. Any images will do: nothing is reconstructed."""

import json
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sdgmnet.data.match_rule import MatchRule
from sdgmnet.data.patchset import PatchSet, PatchTable, is_patchset, write_patchset
from sdgmnet.data.scenes import Failure, Scene, digest_of, find_scenes
from sdgmnet.data.synthetic.views import Viewing, ViewPatches, patches_of_views
from sdgmnet.errors import InputError
from sdgmnet.features.images import UnreadableImage, limit_size, plain_name, read_gray
from sdgmnet.registry import WINDOW
from sdgmnet.report import OnProgress, no_progress
from sdgmnet.storage import is_disk_full

SUFFIX = "-views"
METHOD = 1  # raised when the same photos and options would give other patches
# Unlike the demo's few images, photos may have any orientation and must not alias. Tilt, blur and noise are milder: of 1400
# keypoints of a photo 650 are then found again in one of eight views, instead of 300. The limits are wider: a third of the
# keypoints found again at their location have another angle or scale, and a descriptor learns to match them from such pairs.
PHOTO_VIEWING = Viewing(
    rule=MatchRule(np.inf, 2.0, 1.0, np.pi / 4, 0.0, 5.0, 1.5, np.pi / 2),
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
    """Per scene, evenly spread over those there are."""
    size: int = 1024
    """Longest side in pixels; larger photos are resized."""
    seed: int = 0
    window: float = WINDOW
    """Side of the patches in sigmas."""

    def described(self) -> dict[str, Any]:
        """As kept in set.json."""
        described = {"viewing": self.viewing.described(), "photos": self.photos, "size": self.size, "seed": self.seed}
        return json.loads(json.dumps(described))  # as it will be read back


class Broken(NamedTuple):
    photo: str
    reason: str


class ViewSets(NamedTuple):
    sets: list[PatchSet]
    broken: list[Broken]  # photos that could not be read
    failures: list[Failure]  # scenes that gave no patches


def make_view_sets(
    folder: Path | str,
    out: Path | str,
    options: ViewOptions | None = None,
    *,
    threads: int = 1,
    on_progress: OnProgress = no_progress,
) -> ViewSets:
    """A set out/<scene>-views for each scene of the folder."""
    options, out = options or ViewOptions(), Path(out)
    made = ViewSets([], [], [])
    for scene in find_scenes(folder, without=(out,)):
        chosen = scene._replace(photos=tuple(scene.photos[k] for k in spread(len(scene.photos), options.photos)))
        try:
            patchset, broken = make_view_set(chosen, out, options, threads, on_progress)
        except InputError as error:
            if is_disk_full(error):
                raise  # every other scene would fail as well
            made.failures.append(Failure(scene.name, str(error)))
            continue
        made.sets.append(patchset)
        made.broken.extend(Broken(f"{scene.name}/{one.photo}", one.reason) for one in broken)
    return made


def spread(count: int, most: int) -> np.ndarray:
    """Up to `most` of the numbers 0 ... count - 1, evenly spaced."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def make_view_set(
    scene: Scene, out: Path, options: ViewOptions, threads: int = 1, on_progress: OnProgress = no_progress
) -> tuple[PatchSet, list[Broken]]:
    """The set out/<scene>-views of all photos of the scene; a set that was made of the same photos and options is kept."""
    name = f"{scene.name}{SUFFIX}"
    origin: dict[str, Any] = {
        "source": "views",
        "scene": scene.name,
        "options": options.described(),
        "window": options.window,
        "method": METHOD,
        "photos": digest_of(scene.digests()),
        # Photos of a scene show the same things: points of different photos are never negatives of each other.
        "one_image_a_batch": True,
    }
    target = out / name
    if is_patchset(target):
        opened = PatchSet.open(target)
        if any({"window": WINDOW, **opened.origin}.get(key) != value for key, value in origin.items()):
            raise InputError(f"{target} was made from other photos or options: choose another -o, or remove it.")
        return opened, [Broken(*one) for one in opened.origin.get("broken", [])]
    broken: list[Broken] = []
    images: list[str] = []
    table = PatchTable()
    with write_patchset(target, name, origin) as writer:
        for number, (photo, seen) in enumerate(_views_of_photos(scene, options, threads), 1):
            on_progress(name, number, len(scene.photos))
            if isinstance(seen, Broken):
                broken.append(seen)
                continue
            writer.append(seen.patches)
            table.add(seen.point, seen.keypoints, image=len(images), view=seen.view)
            table.end_piece(int(seen.point.max(initial=-1)) + 1, seen.ambiguous)
            images.append(plain_name(photo))
        if not writer.count:
            reasons = "; ".join(f"{photo} {reason}" for photo, reason in broken)
            if not images:
                raise InputError(f"no photo could be read ({reasons}).")
            also = f"; {len(broken)} of {len(scene.photos)} could not be read ({reasons})" if broken else ""
            raise InputError(f"no keypoint was found again in any view of its photos: they have no texture{also}.")
        writer.origin |= {"images": images, "broken": [list(one) for one in broken]}
        writer.finish(**table.arrays())
    return PatchSet.open(target), broken


def _views_of_photos(scene: Scene, options: ViewOptions, threads: int) -> Iterator[tuple[str, ViewPatches | Broken]]:
    """The photos in order, several at a time. Each has a random stream of its own: results do not depend on the threads."""

    def views_of(photo: str) -> ViewPatches | Broken:
        try:
            gray = limit_size(read_gray(scene.folder / photo), options.size)
        except UnreadableImage as error:
            return Broken(plain_name(photo), error.reason)
        rng = np.random.default_rng([options.seed, zlib.crc32(plain_name(f"{scene.name}/{photo}").encode())])
        return patches_of_views(gray, rng, options.viewing, options.window)

    with ThreadPoolExecutor(threads) as pool:
        try:
            yield from zip(scene.photos, pool.map(views_of, scene.photos), strict=True)
        finally:
            pool.shutdown(cancel_futures=True)

"""Folders of photos -> scenes."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from sdgmnet.errors import InputError
from sdgmnet.features.images import find_photos, photo_digests, plain_name


class Scene(NamedTuple):
    name: str
    folder: Path
    photos: tuple[str, ...]

    def digests(self) -> list[list[str]]:
        """Name and SHA-1 of each photo. A photo that cannot be read is reported by the step that needs it."""
        return photo_digests(self.folder, self.photos)


class Failure(NamedTuple):
    scene: str
    reason: str


def find_scenes(folder: Path | str, without: Iterable[Path] = ()) -> list[Scene]:
    """One scene if the folder itself contains photos, otherwise one per sub-folder with photos in or below it.

    Folders `without` are skipped: they hold images that an earlier run wrote.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder: give a folder of photos, or one with a sub-folder for each scene.")
    inner = [place for place in without if place.resolve() != folder.resolve()]
    photos = find_photos(folder, inner)
    if not photos:
        raise InputError(f"{folder} and its sub-folders contain no photos (JPEG, PNG, TIFF, WebP, BMP).")
    if any("/" not in photo for photo in photos):
        return [Scene(plain_name(folder.resolve().name), folder, tuple(photos))]
    names = sorted({photo.split("/")[0] for photo in photos})
    return [Scene(plain_name(name), folder / name, tuple(find_photos(folder / name, inner))) for name in names]


def mixed_layout(folder: Path | str, without: Iterable[Path] = ()) -> str:
    """A warning where photos are both in the folder and in sub-folders, which may be a mistake; otherwise empty."""
    scenes = find_scenes(folder, without)
    direct = sum("/" not in photo for photo in scenes[0].photos)
    below = len(scenes[0].photos) - direct
    if len(scenes) > 1 or not direct or not below:
        return ""
    return (
        f"{folder} contains {direct} photo(s), and its sub-folders {below}: all are used as one scene "
        "(with photos in sub-folders only, each of them would be a scene)."
    )


def digest_of(photos: list[list[str]]) -> str:
    """Of the names and digests of all photos."""
    return hashlib.sha256(json.dumps(photos).encode()).hexdigest()

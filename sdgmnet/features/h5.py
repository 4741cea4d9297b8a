"""Features and matches in hloc's h5 files, whole at every moment.

An h5 file that is open for writing when its process is killed may be lost. So the file itself is never open for writing: what
is new goes into small files in a hidden folder beside it, and every now and then all of it is put together in a new file that
takes the old one's place. What a killed process left in the folder is found again by the next.
"""

import io
import json
import math
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import h5py
import numpy as np

from sdgmnet.errors import InputError
from sdgmnet.features.describe import Features
from sdgmnet.features.keypoints import Keypoints
from sdgmnet.features.match import Matches
from sdgmnet.storage import is_disk_full, new_file, parse_json, reason_of, require_bounded, require_plain

Kind = Literal["features", "matches"]
MARK = {"features": "keypoints", "matches": "matches0"}  # the array that makes a group one of features, or of matches
NOTE = "sdgmnet"  # attribute of the file: how its groups were made, as JSON
STAMP = "sdgmnet_stamp"  # attribute of the file: another one whenever a group is replaced, so that what was made of it is seen
ROOM = 1 << 20  # bytes that HDF5 may need beyond the arrays
OFTEN, SHARE = 10.0, 10.0  # put together every so many seconds, or after so many times what it took the last time

Arrays = Mapping[str, np.ndarray]


class Store:
    """Adds groups of arrays to an h5 file.

    note: how they are made; a file with another note is refused, or begun anew where `overwrite` is given.
    pause: seconds between writings. 0 keeps every group at once; more is quicker for many small ones, and a kill costs as much.
    """

    def __init__(
        self,
        path: Path,
        kind: Kind,
        note: Mapping[str, Any] | None = None,
        *,
        overwrite: bool = False,
        pause: float = 0,
    ) -> None:
        self.path, self.kind, self.pause = path, kind, pause
        self.note = note_text(note or {})
        self.parts = parts_folder(path)
        self.stamp = uuid.uuid4().hex
        self.is_anew = False  # what the file holds is not to be kept
        self.waiting: dict[str, Arrays] = {}  # in memory
        self.written: list[Path] = []  # beside the file
        self.wrote = self.merged = time.monotonic()
        self.took = 0.0
        if path.is_dir():
            raise InputError(f"{path} is a folder: give the name of an h5 file.")
        self._begin(overwrite)

    def _begin(self, overwrite: bool) -> None:
        """What is there already, in the file and from a process that did not come to its end."""
        if self.path.exists():
            self._require_ours()
        sources = [self.path] if self.path.exists() else []
        sources += self._left_over()
        others = [note for source in sources if (note := read_note(source)) not in (None, self.note)]
        if others and not overwrite and all(same_but_stamp(other, self.note) for other in others):
            raise InputError(
                f"{self.path} was made of features that were described again since: make it anew with --overwrite."
            )
        if others and not overwrite:
            raise InputError(
                f"{self.path} was made in another way ({said(others[0])}; now {said(self.note)}): choose another -o, or begin "
                "it anew with --overwrite."
            )
        if others:  # the old file stays until the first of the new groups takes its place
            self.is_anew = True
            for place in self._left_over():
                place.unlink()
        keeps = self.path.exists() and not self.is_anew
        self.finished = set(names_in(self.path, self.kind)) if keeps else set()
        self.stamp = stamp_of(self.path) if keeps else self.stamp
        self.written = self._left_over()
        if self.written:
            self.merge()

    def _require_ours(self) -> None:
        """A file of another kind or of another program's is not added to, and not begun anew."""
        other: Kind = "matches" if self.kind == "features" else "features"
        if names_in(self.path, other):
            raise InputError(f"{self.path} holds {other}, not {self.kind}: choose another -o.")
        with opened(self.path) as file:
            if len(file) and NOTE not in file.attrs:
                raise InputError(
                    f"{self.path} was not written here, and how is not known: it is not added to; choose another -o."
                )

    def _left_over(self) -> list[Path]:
        return sorted(self.parts.glob("[0-9]*.h5"))

    def __contains__(self, name: str) -> bool:
        return name in self.finished

    def add(self, name: str, arrays: Arrays) -> None:
        self.waiting[name] = arrays
        now = time.monotonic()
        if now - self.wrote >= self.pause:
            self._write()
        if self.is_anew or not self.path.exists() or now - self.merged >= max(OFTEN, SHARE * self.took):
            self.merge()

    def _write(self) -> None:
        if not self.waiting:
            return
        self.written.append(write_part(self.path, self.note, self.waiting))
        self.waiting = {}
        self.wrote = time.monotonic()

    def merge(self) -> None:
        """Put the file and what was written beside it together, by this process or by others that help it."""
        self._write()
        began = time.monotonic()
        self.written = self._left_over()
        if self.written:
            new = {place: names_in(place, self.kind) for place in self.written}
            replaced = {name for names in new.values() for name in names} & self.finished
            keeps = self.path.exists() and not self.is_anew
            if replaced:
                self.stamp = uuid.uuid4().hex
            require_room(self.path, ([self.path] if keeps else []) + self.written)
            with new_file(self.path) as part:
                if keeps and not replaced:
                    shutil.copyfile(self.path, part)
                with h5py.File(part, "a") as file:
                    if keeps and replaced:  # without them: what is removed from an h5 file leaves a hole
                        with opened(self.path) as before:
                            copy_all_but(before, file, replaced)
                    file.attrs[NOTE], file.attrs[STAMP] = self.note, self.stamp
                    for place, names in new.items():
                        copy_groups(place, file, names)
            self.is_anew = False
            self.finished.update(*new.values())
            for place in self.written:
                place.unlink(missing_ok=True)
            self.written = []
        self.merged = time.monotonic()
        self.took = self.merged - began

    def close(self) -> None:
        self.merge()
        for unfinished in self.parts.glob(".*.part*"):  # of processes that were killed
            unfinished.unlink(missing_ok=True)
        with suppress(OSError):  # there may be a lock in it, which its holder removes
            self.parts.rmdir()

    def __enter__(self) -> "Store":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        elif self.written or self.waiting:
            with suppress(InputError):  # the first error is the one to tell; what is written beside is found again
                self.close()


class Helper:
    """In a process that helps the one with the store: what it adds, the store puts into the file when it next merges."""

    def __init__(self, path: Path, note: Mapping[str, Any]) -> None:
        self.path, self.note = path, note_text(note)

    def add(self, name: str, arrays: Arrays) -> None:
        write_part(self.path, self.note, {name: arrays})


def write_part(path: Path, note: str, groups: Mapping[str, Arrays]) -> Path:
    """Groups that wait beside the file to be put into it."""
    place = parts_folder(path) / f"{time.time_ns()}-{uuid.uuid4().hex[:8]}.h5"
    content = io.BytesIO()  # HDF5 crashes where the disk is full; plain writing says so
    with h5py.File(content, "w") as file:
        file.attrs[NOTE] = note
        for name, arrays in groups.items():
            group = file.create_group(name)
            for key, values in arrays.items():
                group.create_dataset(key, data=values)
    with new_file(place) as part:
        part.write_bytes(content.getbuffer())
    return place


def parts_folder(path: Path) -> Path:
    """Where new groups wait to be put into the file."""
    return path.with_name(f".{path.name}.parts")


def require_room(path: Path, parts: list[Path]) -> None:
    """That the disk takes all of them together once more: HDF5 crashes where it is full."""
    needed = sum(part.stat().st_size for part in parts) + ROOM
    if shutil.disk_usage(path.parent).free < needed:
        raise InputError(
            f"{path} cannot be written, the disk is full ({needed / 1e6:.0f} MB are needed): free some space and run again."
        )


def copy_all_but(source: h5py.Group, target: h5py.Group, left_out: set[str], below: str = "") -> None:
    """Everything, whoever wrote it, but the groups of these names."""
    target.attrs.update(source.attrs)
    for key in source:
        name, link = f"{below}{key}", source.get(key, getlink=True)
        if name in left_out:
            continue
        if not isinstance(link, h5py.HardLink):
            target[key] = link
        elif isinstance(source[key], h5py.Group) and any(one.startswith(f"{name}/") for one in left_out):
            copy_all_but(source[key], target.require_group(key), left_out, f"{name}/")
        else:
            source.copy(key, target, key)


def copy_groups(source: Path, target: h5py.File, names: Any) -> None:
    with opened(source) as file:
        for name in sorted(names):
            if name in target:
                del target[name]
            file.copy(file[name], target, name)


@contextmanager
def opened(path: Path) -> Iterator[h5py.File]:
    try:
        require_plain(path)
        file = h5py.File(path, "r")
    except FileNotFoundError:
        raise InputError(f"{path} does not exist.") from None
    except OSError as error:
        reason = " ".join(str(error).split())[:150]
        raise InputError(
            f"{path} is not an h5 file that can be read ({reason}): remove it, or give another."
        ) from error
    with file:
        try:
            yield file
        except InputError:
            raise
        except Exception as error:  # a damaged file fails in whatever way its bytes lead to
            if is_disk_full(error) or "No space left" in str(error):
                raise
            raise InputError(f"{path} is damaged ({reason_of(error)}): remove it, or give another.") from error


def group_at(path: Path, file: h5py.File, name: str) -> h5py.Group | None:
    """The group of this name, None where there is none. Links are refused, those within the file too, which may lead on to one
    that leaves it: a file speaks for itself.
    """
    group: h5py.Group | h5py.Dataset = file
    for part in filter(None, name.split("/")):
        link = group.get(part, getlink=True) if isinstance(group, h5py.Group) and part in group else None
        if isinstance(link, h5py.ExternalLink | h5py.SoftLink):
            place = link.filename if isinstance(link, h5py.ExternalLink) else link.path
            raise InputError(
                f"{path}: {name} is a link to {place}: links, and so links into other files, are not followed."
            )
        group = group[part] if link is not None else None
        if group is None:
            return None
    return group if isinstance(group, h5py.Group) else None


def arrays_of(path: Path, group: h5py.Group) -> dict[str, np.ndarray]:
    """The arrays of a group, from this very file and of no more numbers than it can hold."""
    arrays = {}
    for key in group:
        link = group.get(key, getlink=True)
        found = group.get(key) if isinstance(link, h5py.HardLink) else None
        if not isinstance(found, h5py.Dataset):
            continue
        if found.external or found.is_virtual:
            raise InputError(f"{path}: {group.name}/{key} lies in another file: such files are not followed.")
        # A chunk is unpacked as a whole, however little of it belongs to the array.
        require_bounded(path, max(found.nbytes, math.prod(found.chunks or ()) * found.dtype.itemsize))
        arrays[key] = np.asarray(found)
    return arrays


def note_text(note: Mapping[str, Any]) -> str:
    return json.dumps(dict(note), sort_keys=True)


def read_note(path: Path) -> str | None:
    with opened(path) as file:
        note = file.attrs.get(NOTE)
    return None if note is None else str(note)


def stamp_of(path: Path) -> str:
    """Another one whenever groups of the file were replaced; of files that were not written here, whenever they changed."""
    with opened(path) as file:
        stamp = file.attrs.get(STAMP)
    return f"{path.stat().st_size}-{path.stat().st_mtime_ns}" if stamp is None else str(stamp)


def same_but_stamp(one: str, other: str) -> bool:
    first, second = (dict(parsed_note(note), stamp=None) for note in (one, other))
    return first == second


def parsed_note(note: str | None) -> dict[str, Any]:
    """Nothing where it is none of ours."""
    try:
        found = parse_json(note or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def said(note: str) -> str:
    """A note in words. That of matches holds the note of their features."""
    own = parsed_note(note)
    parts = {key: value for key, value in own.items() if key not in ("stamp", "features")}
    parts = parsed_note(str(own.get("features") or "{}")) | parts
    return ", ".join(f"{key} {value}" for key, value in parts.items() if value not in (None, False)) or "as it comes"


def names_in(path: Path, kind: Kind = "features") -> list[str]:
    """Names of the images, or pairs of images, that the file holds."""
    names = []

    def visit(name: str, found: h5py.Group | h5py.Dataset) -> None:
        if isinstance(found, h5py.Dataset) and name.rpartition("/")[2] == MARK[kind]:
            names.append(name.rpartition("/")[0])

    with opened(path) as file:
        file.visititems(visit)
    return names


def features_to_arrays(features: Features) -> dict[str, np.ndarray]:
    """As hloc keeps them: pixel centres at integers, angles clockwise in degrees, descriptors (D, N)."""
    keypoints = features.keypoints
    return {
        "keypoints": keypoints.xy.astype(np.float32),
        "descriptors": np.ascontiguousarray(features.descriptors.T),
        "scores": keypoints.response.astype(np.float32),
        "image_size": np.array(features.size),
        "scales": keypoints.sigma.astype(np.float32),
        "oris": np.rad2deg(keypoints.angle).astype(np.float32),
    }


def read_features(path: Path | str, name: str) -> Features:
    """Of one image. Files of hloc's own are read too: where there are no scales or angles, they are 1 and 0."""
    with opened(Path(path)) as file:
        group = group_at(Path(path), file, name)
        arrays = {} if group is None else arrays_of(Path(path), group)
    if not {"keypoints", "descriptors", "image_size"} <= set(arrays):
        raise InputError(f"{path} holds no features of {name}.")
    descriptors = np.ascontiguousarray(arrays["descriptors"].T)
    if descriptors.ndim != 2 or len(descriptors) != len(np.atleast_1d(arrays["keypoints"])):
        raise InputError(
            f"{path}: {name} has keypoints {arrays['keypoints'].shape} and descriptors {descriptors.shape[::-1]}."
        )
    require_numbers(path, name, arrays)
    if descriptors.dtype.kind == "f":
        descriptors = descriptors.astype(np.float32, copy=False)
    width, height = (int(side) for side in arrays["image_size"])
    return Features(arrays_to_keypoints(arrays), descriptors, (width, height))


def require_numbers(path: Path | str, name: str, arrays: Arrays) -> None:
    """Of features: as many of each as there are keypoints, finite, and a size that an image can have."""
    count, size = len(np.atleast_1d(arrays["keypoints"])), arrays["image_size"]
    shapes = {key: arrays[key].shape == (count,) for key in ("scales", "oris", "scores") if key in arrays}
    shapes["keypoints"] = arrays["keypoints"].ndim == 2 and arrays["keypoints"].shape[1] >= 2
    shapes["image_size"] = (
        size.shape == (2,) and size.dtype.kind in "iuf" and bool(((size >= 1) & (size < 2**31)).all())
    )
    for key in ("keypoints", "descriptors", *shapes):
        fits = shapes.get(key, True) and arrays[key].dtype.kind in "iuf"
        if not fits or not np.isfinite(arrays[key]).all():
            raise InputError(f"{path}: {name} has {key} that are not as they should be, or not finite: write it again.")


def arrays_to_keypoints(arrays: Arrays) -> Keypoints:
    xy = np.asarray(arrays["keypoints"], dtype=np.float64)[:, :2]
    fallback = {"scales": 1.0, "oris": 0.0, "scores": 1.0}
    sigma, degrees, response = (
        np.asarray(arrays.get(key, np.full(len(xy), value)), dtype=np.float64) for key, value in fallback.items()
    )
    return Keypoints(xy, sigma, np.deg2rad(degrees), response)


def pair_name(first: str, second: str) -> str:
    return "/".join(name.replace("/", "-") for name in (first, second))


def matches_to_arrays(matches: Matches, count: int) -> dict[str, np.ndarray]:
    """As hloc keeps them: for each of the first image's `count` keypoints, its match in the second or -1, and a score.

    The score is hloc's for nearest neighbours, the mean of 1 and the cosine, taken from the distance of unit descriptors.
    """
    largest = matches.pairs[:, 1].max(initial=0)
    found = np.full(count, -1, dtype=np.int16 if largest <= np.iinfo(np.int16).max else np.int32)
    scores = np.zeros(count, dtype=np.float16)
    found[matches.pairs[:, 0]] = matches.pairs[:, 1]
    scores[matches.pairs[:, 0]] = np.clip(1 - np.square(matches.distance) / 4, 0, 1)
    return {"matches0": found, "matching_scores0": scores}


def read_matches(path: Path | str, first: str, second: str) -> tuple[np.ndarray, np.ndarray]:
    """Pairs (M, 2) int64 of keypoints of the first and the second image, and their scores, whichever way they are kept."""
    with opened(Path(path)) as file:
        for turned, name in enumerate((pair_name(first, second), pair_name(second, first))):
            if (group := group_at(Path(path), file, name)) is not None:
                arrays = arrays_of(Path(path), group)
                found, scores = (arrays.get(key, np.empty(())) for key in ("matches0", "matching_scores0"))
                fits = found.ndim == 1 and found.shape == scores.shape
                if (
                    not fits
                    or found.dtype.kind not in "iu"
                    or scores.dtype.kind != "f"
                    or not np.isfinite(scores).all()
                ):
                    raise InputError(f"{path}: the matches of {first} and {second} are not as hloc keeps them.")
                if (found.astype(np.float64) >= 2**31).any():
                    raise InputError(f"{path}: the matches of {first} and {second} name keypoints beyond any image's.")
                kept = np.flatnonzero(found >= 0)
                pairs = np.column_stack([kept, found[kept]]).astype(np.int64)
                return pairs[:, ::-1] if turned else pairs, scores[kept]
    raise InputError(f"{path} holds no matches of {first} and {second}.")

"""Add groups to an h5 file that is valid at every moment, by one process or several.

An h5 file that is open for writing when its process is killed may be lost. So the file itself is never open for writing: new
groups go into small files in a hidden folder next to it, and from time to time all of them are merged into a new file that
replaces the old one. The next process finds what a killed one left in the folder.
"""

import io
import json
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import h5py

from sdgmnet.errors import InputError
from sdgmnet.features.h5 import Arrays, Kind, names_in, open_h5
from sdgmnet.storage import changes_in_words, new_file, only_worker, parse_json

NOTE = "sdgmnet"  # attribute of the file: how its groups were made, as JSON
STAMP = "sdgmnet_stamp"  # attribute of the file: changes whenever a group is replaced, which makes matches outdated
HDF5_OVERHEAD = 1 << 20  # bytes that HDF5 may need besides the arrays
MERGE_SECONDS, MERGE_FACTOR = 10.0, 10.0  # merge after so many seconds, or so many times what the last merge took


@contextmanager
def open_store(
    path: Path, kind: Kind, note: Mapping[str, Any] | None = None, *, overwrite: bool = False, pause: float = 0
) -> Iterator["Store"]:
    """A store that no other process opens meanwhile. Whatever happens in the block, what was added is in the file afterwards.

    note: how the groups are made. A file with another note is refused, or started anew with `overwrite`.
    pause: seconds between writes. 0 writes every group at once; more is faster for many small ones, and is lost by a kill.
    """
    if path.is_dir():
        raise InputError(f"{path} is a folder: give the name of an h5 file.")
    parts = parts_folder(path)
    with only_worker(parts):
        try:
            store = Store(path, kind, note or {}, overwrite=overwrite, pause=pause)
            try:
                yield store
            except BaseException:
                with suppress(InputError):  # report the first error; parts that are not merged are found again
                    store.merge()
                raise
            store.merge()
        finally:
            if not any(parts.glob("*.h5")):
                shutil.rmtree(parts, ignore_errors=True)


class Store:
    """An h5 file and the parts that wait to be merged into it. Use `open_store`."""

    def __init__(self, path: Path, kind: Kind, note: Mapping[str, Any], *, overwrite: bool, pause: float) -> None:
        self.path, self.kind, self.note = path, kind, parse_note(note_text(note))
        self.parts = PartWriter(path, self.note, pause)
        self.merged_at = time.monotonic()
        self.merge_took = 0.0
        if path.exists():
            self._require_own_file()
        sources = [path] * path.exists() + self._parts()
        others = [found for found in map(read_note, sources) if found not in (None, self.note)]
        if others and not overwrite:
            self._refuse(others)
        self.replaces_file = bool(others)  # the old file stays until the first new group is merged
        for part in self._parts() if others else ():
            part.unlink()
        self.names = set(names_in(path, kind)) if self._keeps_file() else set()
        self.stamp = read_stamp(path) if self._keeps_file() else uuid.uuid4().hex
        self.merge()

    def _keeps_file(self) -> bool:
        return self.path.exists() and not self.replaces_file

    def _require_own_file(self) -> None:
        """Files of the other kind and of other programs are never added to, and never replaced."""
        other: Kind = "matches" if self.kind == "features" else "features"
        if names_in(self.path, other):
            raise InputError(f"{self.path} holds {other}, not {self.kind}: choose another -o.")
        with open_h5(self.path) as file:
            if len(file) and NOTE not in file.attrs:
                raise InputError(f"{self.path} was not written by sdgmnet; nothing is added to it: choose another -o.")

    def _refuse(self, others: list[dict[str, Any]]) -> None:
        if all(other | {"stamp": None} == self.note | {"stamp": None} for other in others):
            raise InputError(f"{self.path} was made from features that changed since: replace it with --overwrite.")
        changes = changes_in_words(options_in(others[0]), options_in(self.note))
        raise InputError(f"{self.path} was made with {changes}: choose another -o, or replace it with --overwrite.")

    def _parts(self) -> list[Path]:
        return sorted(parts_folder(self.path).glob("[0-9]*.h5"))

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def add(self, name: str, arrays: Arrays) -> None:
        self.parts.add(name, arrays)
        is_due = time.monotonic() - self.merged_at >= max(MERGE_SECONDS, MERGE_FACTOR * self.merge_took)
        if is_due or self.replaces_file or not self.path.exists():
            self.merge()

    def merge(self) -> None:
        """Merge the parts into the file, those of other processes too."""
        self.parts.write()
        began = time.monotonic()
        new = {part: names_in(part, self.kind) for part in self._parts()}
        if new:
            replaced, keeps = self.names & {name for names in new.values() for name in names}, self._keeps_file()
            if replaced:
                self.stamp = uuid.uuid4().hex
            needed = sum(one.stat().st_size for one in [self.path] * keeps + [*new]) + HDF5_OVERHEAD
            if shutil.disk_usage(self.path.parent).free < needed:  # HDF5 crashes on a full disk
                megabytes = f"{needed / 1e6:.0f} MB"
                raise InputError(f"{self.path}: the disk is full ({megabytes} needed): free some space and run again.")
            with new_file(self.path) as target:
                if keeps and not replaced:
                    shutil.copyfile(self.path, target)
                with h5py.File(target, "a") as file:
                    if keeps and replaced:  # copied without these: deleting from an h5 file leaves a hole
                        with open_h5(self.path) as before:
                            copy_except(before, file, replaced)
                    file.attrs[NOTE], file.attrs[STAMP] = note_text(self.note), self.stamp
                    for part, names in new.items():
                        with open_h5(part) as source:
                            for name in sorted(names):
                                if name in file:
                                    del file[name]
                                source.copy(source[name], file, name)
            self.replaces_file = False
            self.names.update(*new.values())
            for part in new:
                part.unlink(missing_ok=True)
        self.merged_at = time.monotonic()
        self.merge_took = self.merged_at - began


class PartWriter:
    """Groups for the next merge into the file at `path`, by a process that helps the one that has the store.

    pause: seconds between writes, as for `open_store`.
    """

    def __init__(self, path: Path, note: Mapping[str, Any], pause: float = 0) -> None:
        self.path, self.note, self.pause = path, note, pause
        self.waiting: dict[str, Arrays] = {}  # in memory
        self.written_at = time.monotonic()

    def add(self, name: str, arrays: Arrays) -> None:
        self.waiting[name] = arrays
        if time.monotonic() - self.written_at >= self.pause:
            self.write()

    def write(self) -> None:
        if self.waiting:
            write_part(self.path, self.note, self.waiting)
            self.waiting = {}
            self.written_at = time.monotonic()


def write_part(path: Path, note: Mapping[str, Any], groups: Mapping[str, Arrays]) -> None:
    """Groups for the next merge into the file at `path`, by the process that has the store or by another that helps it."""
    content = io.BytesIO()  # HDF5 crashes on a full disk; writing bytes raises an error
    with h5py.File(content, "w") as file:
        file.attrs[NOTE] = note_text(note)
        for name, arrays in groups.items():
            group = file.create_group(name)
            for key, values in arrays.items():
                group.create_dataset(key, data=values)
    with new_file(parts_folder(path) / f"{time.time_ns()}-{uuid.uuid4().hex[:8]}.h5") as part:
        part.write_bytes(content.getbuffer())


def parts_folder(path: Path) -> Path:
    """Where new groups wait to be merged into the file."""
    return path.with_name(f".{path.name}.parts")


def copy_except(source: h5py.Group, target: h5py.Group, left_out: set[str], below: str = "") -> None:
    """Everything, whoever wrote it, except the groups of these names."""
    target.attrs.update(source.attrs)
    for key in source:
        name, link = f"{below}{key}", source.get(key, getlink=True)
        if name in left_out:
            continue
        if not isinstance(link, h5py.HardLink):
            target[key] = link
        elif isinstance(source[key], h5py.Group) and any(one.startswith(f"{name}/") for one in left_out):
            copy_except(source[key], target.require_group(key), left_out, f"{name}/")
        else:
            source.copy(key, target, key)


def note_text(note: Mapping[str, Any]) -> str:
    return json.dumps(dict(note), sort_keys=True)


def read_note(path: Path) -> dict[str, Any] | None:
    """How the groups were made; None in files of other programs, empty if it is not valid."""
    with open_h5(path) as file:
        note = file.attrs.get(NOTE)
    return None if note is None else parse_note(str(note))


def parse_note(text: str) -> dict[str, Any]:
    try:
        found = parse_json(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def read_stamp(path: Path) -> str:
    """Changes whenever groups of the file are replaced; in files of other programs, whenever the file changes."""
    with open_h5(path) as file:
        stamp = file.attrs.get(STAMP)
    return f"{path.stat().st_size}-{path.stat().st_mtime_ns}" if stamp is None else str(stamp)


def options_in(note: Mapping[str, Any]) -> dict[str, Any]:
    """The options that made the groups, by their names on the command line. The note of matches contains that of features."""
    own = {key: value for key, value in note.items() if key not in ("stamp", "features")}
    values = parse_note(str(note.get("features") or "{}")) | own
    if isinstance(values.get("keypoints"), str):  # name and digest of a file
        values["keypoints from"] = values.pop("keypoints")
    if "limit" in values:
        values["keypoints"] = "all" if values["limit"] is None else values["limit"]
        del values["limit"]
    return values

"""PatchSet: the one currency between data sources and training, memory-mapped.

On disk a set is a folder: `patches.npy` uint8 (N, 64, 64), `point_id.npy` int64 (N,), `set.json`, and optionally
`test_pairs.npy` int64 (P, 3) with columns patch, patch, same point (1) or not (0); `conflicts.npy` int64 (C, 2), pairs of point
ids too close to be negatives of each other; and `observations.npy`, one record a patch of where it was cut.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from sdgmnet.errors import InputError
from sdgmnet.storage import is_plain_name, new_file, new_folder, read_json, reason_of, require_plain, write_json

PATCH_SIDE = 64
FORMAT = "sdgmnet-patchset-1"
OPTIONAL_ARRAYS = ("test_pairs", "conflicts", "observations")


@dataclass(frozen=True, eq=False)
class PatchSet:
    """Patches of one scene and the 3-D point each of them shows.

    patches (N, 64, 64) uint8; point_id (N,) int64, equal for patches of the same point, not necessarily contiguous.
    """

    name: str
    patches: np.ndarray
    point_id: np.ndarray
    test_pairs: np.ndarray | None = None
    conflicts: np.ndarray | None = None
    observations: np.ndarray | None = None
    origin: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_arrays(self, f"PatchSet {self.name!r}")

    def __len__(self) -> int:
        return len(self.patches)

    @staticmethod
    def open(folder: Path | str) -> "PatchSet":
        """Map a set from disk: milliseconds whatever its size, since patches are read only when asked for."""
        folder = Path(folder)
        if not is_patchset(folder):
            raise InputError(f"{folder} is not a PatchSet: it has no set.json of format {FORMAT}.")
        card = read_json(folder / "set.json")
        if not isinstance(card.get("name"), str) or not is_plain_name(card["name"]):
            raise InputError(
                f"{folder}/set.json gives the set no name that a file could have: build the PatchSet again."
            )
        if not isinstance(card.get("origin", {}), dict):
            raise InputError(f"{folder}/set.json does not say where the set is from: build the PatchSet again.")
        required = {name: map_array(folder / f"{name}.npy") for name in ("patches", "point_id")}
        optional = {
            name: map_array(folder / f"{name}.npy") for name in OPTIONAL_ARRAYS if (folder / f"{name}.npy").exists()
        }
        try:
            opened = PatchSet(name=card["name"], origin=card.get("origin", {}), **required, **optional)
        except InputError as error:
            raise InputError(f"{folder}: {error}") from error
        if card.get("patches") != len(opened):
            raise InputError(f"{folder}/patches.npy holds {len(opened)} patches, set.json says {card.get('patches')}.")
        return opened

    def save(self, folder: Path | str) -> "PatchSet":
        """Write the set into a new folder, whole or not at all; returns it opened from there."""
        with write_patchset(folder, self.name, self.origin) as writer:
            for start in range(0, len(self), 4096):
                writer.append(self.patches[start : start + 4096])
            writer.finish(self.point_id, **{name: getattr(self, name) for name in OPTIONAL_ARRAYS})
        return PatchSet.open(folder)

    def with_test_pairs(self, test_pairs: np.ndarray) -> "PatchSet":
        return replace(self, test_pairs=test_pairs)


class PatchSetWriter:
    """Streams patches to disk, so that a set larger than memory can be written."""

    def __init__(self, folder: Path, name: str, origin: dict[str, Any]) -> None:
        self.folder, self.name, self.origin, self.count = folder, name, origin, 0
        self._stream = open(folder / "patches.npy", "wb")  # noqa: SIM115 - closed in close()
        self._write_header()
        self._finished = False

    def _write_header(self) -> None:
        self._stream.seek(0)
        header = {"descr": "|u1", "fortran_order": False, "shape": (self.count, PATCH_SIDE, PATCH_SIDE)}
        # Version 1 headers are padded with room for a growing first dimension, so the final count fits in the same bytes.
        np.lib.format.write_array_header_1_0(self._stream, header)

    def append(self, patches: np.ndarray) -> None:
        """patches (B, 64, 64) uint8."""
        if patches.dtype != np.uint8 or patches.shape[1:] != (PATCH_SIDE, PATCH_SIDE):
            raise InputError(f"patches must be uint8 (B, 64, 64), not {patches.dtype} {patches.shape}.")
        self._stream.write(np.ascontiguousarray(patches).tobytes())
        self.count += len(patches)

    def finish(
        self,
        point_id: np.ndarray,
        test_pairs: np.ndarray | None = None,
        conflicts: np.ndarray | None = None,
        observations: np.ndarray | None = None,
    ) -> None:
        self._write_header()
        self.close()
        arrays = {"test_pairs": test_pairs, "conflicts": conflicts, "observations": observations}
        np.save(self.folder / "point_id.npy", np.asarray(point_id).astype(np.int64, casting="same_kind"))
        for name, array in arrays.items():
            if array is not None:
                np.save(self.folder / f"{name}.npy", np.asarray(array))
        points = len(np.unique(point_id))
        card = {"format": FORMAT, "name": self.name, "patches": self.count, "points": points, "origin": self.origin}
        write_json(self.folder / "set.json", card)
        PatchSet.open(self.folder)  # every check that a reader makes, before the folder gets its name
        self._finished = True

    def close(self) -> None:
        if not self._stream.closed:
            self._stream.close()


@contextmanager
def write_patchset(folder: Path | str, name: str, origin: dict[str, Any] | None = None) -> Iterator[PatchSetWriter]:
    """Open a new PatchSet folder for streaming; it appears under its name only after `finish`."""
    with new_folder(folder) as part:
        writer = PatchSetWriter(part, name, origin or {})
        try:
            yield writer
            if not writer._finished:
                raise RuntimeError("write_patchset left without finish()")
        finally:
            writer.close()


def is_patchset(folder: Path | str) -> bool:
    card = Path(folder) / "set.json"
    return card.is_file() and isinstance(content := read_json(card), dict) and content.get("format") == FORMAT


def map_array(path: Path) -> np.ndarray:
    """A .npy file as a read-only memory map; never unpickles."""
    if not path.exists():
        raise InputError(f"{path} is missing: the PatchSet is incomplete; build it again.")
    try:
        require_plain(path)
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise ValueError("not one array")
        return array
    except Exception as error:  # a damaged header fails in whatever way its bytes lead to
        if (empty := _empty_array(path)) is not None:  # nothing cannot be mapped, but it can be read
            return empty
        raise InputError(
            f"{path} cannot be read ({reason_of(error)}): it may be cut off; build the PatchSet again."
        ) from error


def _empty_array(path: Path) -> np.ndarray | None:
    """The array of a .npy file that is a header and nothing else; None for any other file."""
    try:
        if path.stat().st_size > 1024:
            return None
        array: np.ndarray = np.load(path, allow_pickle=False)
        return array if array.size == 0 else None
    except Exception:  # as above
        return None


def check_arrays(patchset: PatchSet, where: str) -> None:
    """Shapes, types and ranges. Reads the small arrays, never the patches."""
    patches, point_id, pairs = patchset.patches, patchset.point_id, patchset.test_pairs
    if patches.dtype != np.uint8 or patches.shape[1:] != (PATCH_SIDE, PATCH_SIDE):
        raise InputError(f"{where}: patches must be uint8 (N, 64, 64), not {patches.dtype} {patches.shape}.")
    if point_id.ndim != 1 or not np.issubdtype(point_id.dtype, np.integer):
        raise InputError(f"{where}: point_id must be a vector of integers, not {point_id.dtype} {point_id.shape}.")
    if len(point_id) != len(patches):
        raise InputError(f"{where}: {len(patches)} patches but {len(point_id)} point ids.")
    if pairs is not None:
        if pairs.ndim != 2 or pairs.shape[1] != 3 or not np.issubdtype(pairs.dtype, np.integer):
            raise InputError(f"{where}: test_pairs must be integers (P, 3), not {pairs.dtype} {pairs.shape}.")
        if len(pairs) and (pairs[:, :2].min() < 0 or pairs[:, :2].max() >= len(patches)):
            raise InputError(f"{where}: test_pairs name patches outside 0..{len(patches) - 1}.")
    conflicts = patchset.conflicts
    if conflicts is not None and (conflicts.ndim != 2 or conflicts.shape[1] != 2 or conflicts.dtype.kind not in "iu"):
        raise InputError(f"{where}: conflicts must be integers (C, 2), not {conflicts.dtype} {conflicts.shape}.")
    if patchset.observations is not None and len(patchset.observations) != len(patches):
        raise InputError(f"{where}: {len(patches)} patches but {len(patchset.observations)} observations.")


def scene_of(patchset: PatchSet) -> str:
    """The scene that a set shows: sets of the same scene take turns."""
    return str(patchset.origin.get("scene", patchset.name))


def together(patchset: PatchSet) -> np.ndarray:
    """Of each patch (N,), the part of the set it belongs to: a photo of synthetic views, a model, otherwise the whole set."""
    observations, origin = patchset.observations, patchset.origin
    has_images = observations is not None and "image" in (observations.dtype.names or ())
    if origin.get("one_image_a_batch"):
        if observations is None or not has_images:
            raise InputError(f"PatchSet {patchset.name!r} does not say which image its patches are of: make it again.")
        return image_numbers(patchset)
    images = origin.get("images")
    if origin.get("source") == "photos" and images and observations is not None and has_images:
        seen = image_numbers(patchset)
        if not isinstance(images, list) or (len(seen) and not 0 <= seen.min() <= seen.max() < len(images)):
            raise InputError(f"PatchSet {patchset.name!r} names images that its set.json does not list: make it again.")
        _, model = np.unique([str(name).split("/")[0] for name in images], return_inverse=True)
        return model[seen]
    return np.zeros(len(patchset), dtype=np.int64)


def image_numbers(patchset: PatchSet) -> np.ndarray:
    """Of each patch (N,), the number of the image it is cut from."""
    numbers = np.asarray(patchset.observations["image"])  # type: ignore[index]  # the caller looked
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise InputError(f"PatchSet {patchset.name!r} does not number the images of its patches: make it again.")
    return numbers.astype(np.int64)


def random_test_pairs(patchset: PatchSet, count: int, seed: int = 0) -> np.ndarray:
    """Balanced verification pairs in the PhotoTour sense: (count, 3) with half matching, half of different points.

    Matching pairs are two different patches of one point; non-matching ones are patches of two points that do not conflict, of
    one image where images show the same things.
    Fewer come back where the set has hardly more than `count` distinct pairs.
    """
    rng = np.random.default_rng([seed, 0x7E57])
    order = np.argsort(patchset.point_id, kind="stable")
    _, start, size = np.unique(patchset.point_id[order], return_index=True, return_counts=True)
    usable = np.flatnonzero(size >= 2)
    if len(usable) < 2:
        raise InputError(
            f"PatchSet {patchset.name!r} has fewer than two points with two patches: no test pairs possible."
        )
    point = rng.choice(usable, size=4 * count)
    first = (rng.random(len(point)) * size[point]).astype(np.int64)
    second = (rng.random(len(point)) * (size[point] - 1)).astype(np.int64)
    second += second >= first
    matching = np.sort(np.stack([order[start[point] + first], order[start[point] + second]], axis=1), axis=1)
    matching = np.unique(matching, axis=0)
    matching = rng.permutation(matching)[: count // 2]
    other = _different_points(patchset, rng, len(matching))
    matching = matching[: len(other)]
    pairs = np.concatenate([matching, other])
    labels = np.repeat([1, 0], [len(matching), len(other)])
    return rng.permutation(np.column_stack([pairs, labels]).astype(np.int64))


def write_test_pairs(folder: Path | str, test_pairs: np.ndarray) -> None:
    """Put test pairs into a set on disk, in place of those it has."""
    PatchSet.open(folder).with_test_pairs(test_pairs)  # checks them
    with new_file(Path(folder) / "test_pairs.npy") as part, part.open("wb") as file:
        np.save(file, test_pairs)


def some_pairs(patchset: PatchSet, most: int | None) -> np.ndarray:
    """At most `most` of the set's test pairs, as many matching as not where there are enough; the same ones every time."""
    pairs = np.asarray(patchset.test_pairs)
    if most is None or len(pairs) <= most:
        return pairs
    order = np.random.default_rng(0).permutation(len(pairs))
    matching, other = order[pairs[order, 2] == 1], order[pairs[order, 2] != 1]
    half = min(max(most // 2, most - len(other)), len(matching))
    return pairs[np.sort(np.concatenate([matching[:half], other[: most - half]]))]


def _different_points(patchset: PatchSet, rng: np.random.Generator, count: int) -> np.ndarray:
    """Up to `count` pairs of patches (count, 2) of two points that do not conflict; fewer only where hardly any exist."""
    found, number, part = [np.empty((0, 2), dtype=np.int64)], 0, together(patchset)
    for _ in range(50):
        drawn = rng.integers(len(patchset), size=(4 * count + 64, 2))
        points = patchset.point_id[drawn]
        allowed = (points[:, 0] != points[:, 1]) & (part[drawn[:, 0]] == part[drawn[:, 1]])
        if patchset.conflicts is not None and len(patchset.conflicts):
            allowed &= ~pairs_in(points, np.asarray(patchset.conflicts))
        found.append(drawn[allowed])
        number += len(found[-1])
        if number >= count:
            break
    return np.concatenate(found)[:count]


def pairs_in(pairs: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Which unordered pairs (B, 2) stand in `known` (C, 2); a boolean (B,)."""
    ids = np.unique(np.concatenate([pairs.ravel(), known.ravel()]))

    def key(rows: np.ndarray) -> np.ndarray:
        low_high = np.searchsorted(ids, np.sort(rows, axis=1))
        return low_high[:, 0] * len(ids) + low_high[:, 1]

    return np.isin(key(pairs), key(known))

"""PatchSet: patches and the point each of them shows, memory-mapped. Every data source makes one, training reads nothing else.

On disk a set is a folder: `patches.npy` uint8 (N, 64, 64), `point_id.npy` int64 (N,), `set.json`, and optionally
`test_pairs.npy` int64 (P, 3) with columns patch, patch, same point (1) or not (0); `conflicts.npy` int64 (C, 2), pairs of
ambiguous points, which are too close to be negatives of each other; and `observations.npy`, one record per patch of where it
was cut.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sdgmnet.errors import InputError, suggestion
from sdgmnet.registry import WINDOW, is_window
from sdgmnet.storage import is_plain_name, new_file, new_folder, read_json, reason_of, require_regular_file, write_json

if TYPE_CHECKING:
    from sdgmnet.features.keypoints import Keypoints

PATCH_SIDE = 64
FORMAT = "sdgmnet-patchset-1"
MAKE_ONE = "make PatchSets with sdgmnet data photos or sdgmnet data views."
OPTIONAL_ARRAYS = ("test_pairs", "conflicts", "observations")
OBSERVATION_COLUMNS = {
    "image": "i4",  # index in the origin's list of images
    "view": "i4",  # of a synthetic view; 0 is the image itself
    "x": "f4",
    "y": "f4",
    "scale": "f4",  # sigma in pixels
    "angle": "f4",  # radians, clockwise on the image
    "point": "i8",
    "distance": "f4",  # pixels to the reprojection of the point's strongest keypoint; NaN where unknown
    "detected": "?",  # whether a keypoint was detected here, or one was reprojected
}


@dataclass(frozen=True, eq=False, repr=False)
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
        require_valid(self, f"PatchSet {self.name!r}")

    def __len__(self) -> int:
        return len(self.patches)

    def __repr__(self) -> str:
        return f"PatchSet({self.name!r}, {len(self)} patches of {len(np.unique(self.point_id))} points)"

    @property
    def window(self) -> float:
        """Side of the patches in sigmas of their keypoints."""
        return float(self.origin.get("window", WINDOW))

    @staticmethod
    def open(folder: Path | str) -> "PatchSet":
        """Map a set from disk. Takes milliseconds whatever its size: patches are read when they are used."""
        folder = Path(folder)
        if not is_patchset(folder):
            raise InputError(f"{folder} is not a PatchSet: it has no set.json of format {FORMAT}.")
        card = read_json(folder / "set.json")
        name, origin = card.get("name"), card.get("origin", {})
        if not isinstance(name, str) or not is_plain_name(name) or not isinstance(origin, dict):
            raise InputError(f"{folder}/set.json has no valid name or origin: build the PatchSet again.")
        required = {array: map_array(folder / f"{array}.npy") for array in ("patches", "point_id")}
        files = {array: folder / f"{array}.npy" for array in OPTIONAL_ARRAYS}
        optional = {array: map_array(file) for array, file in files.items() if file.exists()}
        try:
            opened = PatchSet(name=name, origin=origin, **required, **optional)
        except InputError as error:
            raise InputError(f"{folder}: {error}") from error
        if card.get("patches") != len(opened):
            raise InputError(f"{folder}/patches.npy holds {len(opened)} patches, set.json says {card.get('patches')}.")
        return opened

    def save(self, folder: Path | str) -> "PatchSet":
        """Write the set into a new folder, completely or not at all; returns it opened from there."""
        with write_patchset(folder, self.name, self.origin) as writer:
            for start in range(0, len(self), 4096):
                writer.append(self.patches[start : start + 4096])
            writer.finish(self.point_id, **{name: getattr(self, name) for name in OPTIONAL_ARRAYS})
        return PatchSet.open(folder)

    def with_test_pairs(self, test_pairs: np.ndarray) -> "PatchSet":
        return replace(self, test_pairs=test_pairs)


def require_valid(patchset: PatchSet, where: str) -> None:
    """InputError where shapes, types or ranges are wrong. Reads the small arrays, never the patches."""
    patches, point_id, pairs, conflicts = patchset.patches, patchset.point_id, patchset.test_pairs, patchset.conflicts
    require_patches(patches, f"{where}: ")
    if point_id.ndim != 1 or point_id.dtype.kind not in "iu":
        raise InputError(f"{where}: point_id must be integers (N,), not {point_id.dtype} {point_id.shape}.")
    for name, array, columns in (("test_pairs", pairs, 3), ("conflicts", conflicts, 2)):
        if array is not None and (array.ndim != 2 or array.shape[1] != columns or array.dtype.kind not in "iu"):
            raise InputError(f"{where}: {name} must be integers (N, {columns}), not {array.dtype} {array.shape}.")
    if pairs is not None and len(pairs) and (pairs[:, :2].min() < 0 or pairs[:, :2].max() >= len(patches)):
        raise InputError(f"{where}: test_pairs name patches outside 0..{len(patches) - 1}.")
    if not is_window(patchset.origin.get("window", WINDOW)):
        raise InputError(f"{where}: its window must be from 1 to 100 sigmas, not {patchset.origin['window']!r}.")
    for name, array in (("point ids", point_id), ("observations", patchset.observations)):
        if array is not None and len(array) != len(patches):
            raise InputError(f"{where}: {len(patches)} patches but {len(array)} {name}.")


def require_patches(patches: np.ndarray, where: str = "") -> None:
    if patches.dtype != np.uint8 or patches.shape[1:] != (PATCH_SIDE, PATCH_SIDE):
        raise InputError(f"{where}patches must be uint8 (N, 64, 64), not {patches.dtype} {patches.shape}.")


class PatchSetWriter:
    """Streams patches to disk, so that a set larger than memory can be written."""

    def __init__(self, folder: Path, name: str, origin: dict[str, Any]) -> None:
        self.folder, self.name, self.origin, self.count, self.finished = folder, name, origin, 0, False
        self._stream = open(folder / "patches.npy", "wb")  # noqa: SIM115 - closed in close()
        self._write_header()

    def _write_header(self) -> None:
        self._stream.seek(0)
        header = {"descr": "|u1", "fortran_order": False, "shape": (self.count, PATCH_SIDE, PATCH_SIDE)}
        # Version 1 headers are padded with room for a growing first dimension, so the final count fits in the same bytes.
        np.lib.format.write_array_header_1_0(self._stream, header)

    def append(self, patches: np.ndarray) -> None:
        """patches (B, 64, 64) uint8."""
        require_patches(patches)
        self._stream.write(np.ascontiguousarray(patches).tobytes())
        self.count += len(patches)

    def finish(
        self,
        point_id: np.ndarray,
        test_pairs: np.ndarray | None = None,
        conflicts: np.ndarray | None = None,
        observations: np.ndarray | None = None,
    ) -> None:
        """Write the other arrays and set.json."""
        self._write_header()
        self.close()
        np.save(self.folder / "point_id.npy", np.asarray(point_id).astype(np.int64, casting="same_kind"))
        for name, array in zip(OPTIONAL_ARRAYS, (test_pairs, conflicts, observations), strict=True):
            if array is not None:
                np.save(self.folder / f"{name}.npy", np.asarray(array))
        points = len(np.unique(point_id))
        card = {"format": FORMAT, "name": self.name, "patches": self.count, "points": points, "origin": self.origin}
        write_json(self.folder / "set.json", card)
        PatchSet.open(self.folder)  # makes all checks before the folder gets its name
        self.finished = True

    def close(self) -> None:
        self._stream.close()


@contextmanager
def write_patchset(folder: Path | str, name: str, origin: dict[str, Any] | None = None) -> Iterator[PatchSetWriter]:
    """Open a new PatchSet folder for streaming; it appears under its name only after `finish`."""
    with new_folder(folder) as part:
        writer = PatchSetWriter(part, name, origin or {})
        try:
            yield writer
            if not writer.finished:
                raise RuntimeError("write_patchset left without finish()")
        finally:
            writer.close()


class PatchTable:
    """Observations and ambiguous points of a set made piece by piece, where each piece numbers its points from 0."""

    def __init__(self) -> None:
        self.rows: list[np.ndarray] = []
        self.ambiguous = [np.empty((0, 2), dtype=np.int64)]
        self.first_point = 0  # of the current piece

    def add(self, point: np.ndarray, keypoints: "Keypoints", **columns: Any) -> None:
        """Patches (B,) of one image of the current piece; more columns by their names in OBSERVATION_COLUMNS."""
        x, y = keypoints.xy.T
        known = {"x": x, "y": y, "scale": keypoints.sigma, "angle": keypoints.angle, "point": point + self.first_point}
        known |= columns
        rows = np.zeros(len(point), dtype=[column for column in OBSERVATION_COLUMNS.items() if column[0] in known])
        for name, values in known.items():
            rows[name] = values
        self.rows.append(rows)

    def end_piece(self, points: int, ambiguous: np.ndarray) -> None:
        """The current piece has so many points, of which pairs (C, 2) are ambiguous."""
        self.ambiguous.append(ambiguous + self.first_point)
        self.first_point += points

    def arrays(self) -> dict[str, np.ndarray]:
        """point_id, conflicts and observations of the set."""
        rows = np.concatenate(self.rows)
        return {"point_id": rows["point"], "conflicts": np.concatenate(self.ambiguous), "observations": rows}


def is_patchset(folder: Path | str) -> bool:
    card = Path(folder) / "set.json"
    return card.is_file() and isinstance(content := read_json(card), dict) and content.get("format") == FORMAT


def require_photos(place: Path) -> None:
    """InputError for a PatchSet, or a folder of PatchSets, where photos are needed."""
    from sdgmnet.features.images import find_photos

    if is_patchset(place):
        raise InputError(f"{place} is a PatchSet (patches, not photos): give a folder of photos.")
    if place.is_dir() and not find_photos(place) and any(map(is_patchset, place.iterdir())):
        raise InputError(f"{place} holds PatchSets (patches, not photos): give a folder of photos.")


def patchset_folders(folder: Path) -> list[Path]:
    """The folder itself if it is a PatchSet, otherwise the PatchSets in it."""
    if is_patchset(folder):
        return [folder]
    if not folder.is_dir():
        problem = "is a file" if folder.exists() else "does not exist"
        beside = [one.name for one in _patchsets_in(folder.parent)] if folder.parent.is_dir() else []
        advice = f"{folder.parent} has {', '.join(beside)}{suggestion(folder.name, beside)}" if beside else MAKE_ONE
        raise InputError(f"{folder} {problem}: {advice}")
    found = _patchsets_in(folder)
    if not found:
        raise InputError(f"{folder} is not a PatchSet and contains none: {MAKE_ONE}")
    return found


def _patchsets_in(folder: Path) -> list[Path]:
    return sorted(child for child in folder.iterdir() if is_patchset(child))


def map_array(path: Path) -> np.ndarray:
    """A .npy file as a read-only memory map; never unpickles."""
    if not path.exists():
        raise InputError(f"{path} is missing: the PatchSet is incomplete; build it again.")
    try:
        require_regular_file(path)
        # An empty array cannot be mapped; up to a kilobyte is read instead.
        small = path.stat().st_size <= 1024
        array = np.load(path, mmap_mode=None if small else "r", allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise ValueError("not one array")
        return array
    except Exception as error:  # a damaged header fails in whatever way its bytes lead to
        message = f"{path} cannot be read ({reason_of(error)}): it may be truncated; build the PatchSet again."
        raise InputError(message) from error


def number_by_appearance(point_id: np.ndarray) -> np.ndarray:
    """(N,) ids -> (N,) int64 ids 0, 1, ... without gaps, in order of first appearance."""
    _, first, inverse = np.unique(point_id, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]


def scene_of(patchset: PatchSet) -> str:
    """The scene that a set shows: batches alternate between sets of the same scene."""
    return str(patchset.origin.get("scene", patchset.name))


def batch_groups(patchset: PatchSet) -> np.ndarray:
    """(N,) Patches of different groups of a set are never in one batch: their points may be the same without being known to be.

    A group is an image of a set of synthetic views, a model of a set of photos, otherwise the whole set.
    """
    observations, origin, images = patchset.observations, patchset.origin, patchset.origin.get("images")
    has_images = observations is not None and "image" in (observations.dtype.names or ())
    one_image = bool(origin.get("one_image_a_batch"))
    if not one_image and not (origin.get("source") == "photos" and images and has_images):
        return np.zeros(len(patchset), dtype=np.int64)
    numbers = np.asarray(observations["image"]) if has_images else np.empty(0)  # type: ignore[index]
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise InputError(f"PatchSet {patchset.name!r} does not say which image its patches are from: make it again.")
    if one_image:
        return numbers.astype(np.int64)
    if not isinstance(images, list) or (len(numbers) and not 0 <= numbers.min() <= numbers.max() < len(images)):
        raise InputError(f"PatchSet {patchset.name!r} names images that its set.json does not list: make it again.")
    _, model = np.unique([str(name).split("/")[0] for name in images], return_inverse=True)
    return model[numbers]


def random_test_pairs(patchset: PatchSet, count: int, seed: int = 0) -> np.ndarray:
    """Balanced verification pairs as in PhotoTour: (count, 3), half matching, half of different points.

    Matching pairs are two different patches of one point. Non-matching pairs are of two points of one batch group that are not
    ambiguous. Fewer are returned where the set has hardly more than `count` distinct pairs.
    """
    rng = np.random.default_rng([seed, 0x7E57])
    order = np.argsort(patchset.point_id, kind="stable")
    _, start, size = np.unique(patchset.point_id[order], return_index=True, return_counts=True)
    usable = np.flatnonzero(size >= 2)
    if len(usable) < 2:
        raise InputError(f"PatchSet {patchset.name!r} has fewer than two points with two patches for test pairs.")
    point = rng.choice(usable, size=4 * count)
    first = (rng.random(len(point)) * size[point]).astype(np.int64)
    second = (rng.random(len(point)) * (size[point] - 1)).astype(np.int64)
    second += second >= first
    matching = np.sort(np.stack([order[start[point] + first], order[start[point] + second]], axis=1), axis=1)
    matching = np.unique(matching, axis=0)
    matching = rng.permutation(matching)[: count // 2]
    other = _different_points(patchset, rng, len(matching))
    matching = matching[: len(other)]
    labels = np.repeat([1, 0], [len(matching), len(other)])
    return rng.permutation(np.column_stack([np.concatenate([matching, other]), labels]).astype(np.int64))


def _different_points(patchset: PatchSet, rng: np.random.Generator, count: int) -> np.ndarray:
    """Up to `count` pairs of patches (count, 2) of different points; fewer only where hardly any exist."""
    found, number, group = [np.empty((0, 2), dtype=np.int64)], 0, batch_groups(patchset)
    for _ in range(50):
        drawn = rng.integers(len(patchset), size=(4 * count + 64, 2))
        points = patchset.point_id[drawn]
        allowed = (points[:, 0] != points[:, 1]) & (group[drawn[:, 0]] == group[drawn[:, 1]])
        if patchset.conflicts is not None and len(patchset.conflicts):
            allowed &= ~pairs_in(points, np.asarray(patchset.conflicts))
        found.append(drawn[allowed])
        number += len(found[-1])
        if number >= count:
            break
    return np.concatenate(found)[:count]


def pairs_in(pairs: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Which unordered pairs (B, 2) are in `known` (C, 2); a boolean (B,)."""
    ids = np.unique(np.concatenate([pairs.ravel(), known.ravel()]))

    def key(rows: np.ndarray) -> np.ndarray:
        low_high = np.searchsorted(ids, np.sort(rows, axis=1))
        return low_high[:, 0] * len(ids) + low_high[:, 1]

    return np.isin(key(pairs), key(known))


def write_test_pairs(folder: Path | str, test_pairs: np.ndarray) -> None:
    """Write test pairs into a set on disk, in place of those it has."""
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


def summary_table(sets: list[PatchSet]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a table with a row per set."""
    rows = []
    for one in sets:
        points, pairs = len(np.unique(one.point_id)), 0 if one.test_pairs is None else len(one.test_pairs)
        rows.append([one.name, f"{len(one)}", f"{points}", f"{len(one) / max(points, 1):.2f}", f"{pairs}"])
    return ["set", "patches", "points", "patches per point", "test pairs"], rows

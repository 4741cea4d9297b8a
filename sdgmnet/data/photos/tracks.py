"""A reconstructed model -> its points: which patches of which photos show the same place, and which points conflict."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sdgmnet.data.photos.correspondences import (
    Correspondences,
    close_within,
    conflicts_of,
    correspond,
    judge_keypoints,
    overlapping,
)
from sdgmnet.data.photos.match_rule import DIFFERENT, UNDECIDED, Rule
from sdgmnet.data.photos.options import PhotoOptions
from sdgmnet.data.photos.reproject import Anchored, anchor, carry, support
from sdgmnet.errors import InputError
from sdgmnet.features.images import read_gray
from sdgmnet.features.keypoints import Keypoints, detect
from sdgmnet.features.patches import inside
from sdgmnet.sfm.scene import SparseScene, load_scene
from sdgmnet.sfm.workspace import noted_options, read_map
from sdgmnet.storage import new_file, read_arrays

# ---- data.grouping


def group(
    count: int, view: np.ndarray, edges: np.ndarray, misfit: np.ndarray, forbidden: np.ndarray | None = None
) -> np.ndarray:
    """Keypoints -> number of their point (count,): the best edges join first, and none joins what may not be together.

    A point has at most one keypoint of a view (view (count,)) and no two of a `forbidden` (F, 2) pair. Points are numbered by
    their first keypoint; a keypoint that no edge joins is a point of its own.
    """
    owner = np.arange(count).tolist()
    members: dict[int, dict[int, int]] = {}
    apart: dict[int, set[int]] = {}
    for one, other in np.empty((0, 2), np.int64) if forbidden is None else forbidden:
        apart.setdefault(int(one), set()).add(int(other))
        apart.setdefault(int(other), set()).add(int(one))
    views = view.tolist()
    for one, other in edges[np.lexsort((edges[:, 1], edges[:, 0], misfit))].tolist():
        first, second = owner[one], owner[other]
        if first == second:
            continue
        here, there = members.get(first) or {views[first]: first}, members.get(second) or {views[second]: second}
        if len(here) < len(there):
            first, second, here, there = second, first, there, here
        if not here.keys().isdisjoint(there):
            continue
        if apart and any(not apart[one].isdisjoint(here.values()) for one in there.values() if one in apart):
            continue
        here.update(there)
        members[first] = here
        members.pop(second, None)
        for moved in there.values():
            owner[moved] = first
    _, start, point = np.unique(np.array(owner, dtype=np.int64), return_index=True, return_inverse=True)
    rank = np.empty(len(start), dtype=np.int64)
    rank[np.argsort(start)] = np.arange(len(start))
    return rank[point]


def group_consistently(
    found: Correspondences, judge_pairs: Callable[[np.ndarray], np.ndarray], rounds: int = 20
) -> np.ndarray:
    """Points in which geometry, wherever it can judge, calls every two keypoints matching.

    Edges alone can chain keypoints 4 px apart to a pair 8 px apart. So the pairs inside of points are judged (judge_pairs:
    (P, 2) -> verdicts), those that do not match are forbidden, and the edges joined again, until nothing is left to forbid.
    """
    count = int(found.first[-1])
    view = np.repeat(np.arange(len(found.first) - 1), np.diff(found.first))
    known = pair_keys(found.edges, count)
    forbidden = np.empty((0, 2), dtype=np.int64)
    judged = np.unique(known)
    for _ in range(rounds):
        point = group(count, view, found.edges, found.misfit, forbidden)
        inside = pairs_within(point)
        inside = inside[~np.isin(pair_keys(inside, count), judged)]
        if not len(inside):
            return point
        verdict = judge_pairs(inside)
        judged = np.union1d(judged, pair_keys(inside, count))
        wrong = inside[(verdict == DIFFERENT) | (verdict == UNDECIDED)]
        if not len(wrong):
            return point
        forbidden = np.concatenate([forbidden, wrong])
    # What still disagrees after so many rounds is taken apart.
    point = group(count, view, found.edges, found.misfit, forbidden)
    inside = pairs_within(point)
    fresh = inside[~np.isin(pair_keys(inside, count), judged)]
    verdict = judge_pairs(fresh)
    loose = np.unique(fresh[(verdict == DIFFERENT) | (verdict == UNDECIDED)])
    point[loose] = point.max(initial=-1) + 1 + np.arange(len(loose))
    return point


def pair_keys(pairs: np.ndarray, count: int) -> np.ndarray:
    return pairs.min(axis=1) * np.int64(count) + pairs.max(axis=1) if len(pairs) else np.empty(0, dtype=np.int64)


def pairs_within(point: np.ndarray) -> np.ndarray:
    """All pairs (P, 2) of rows with the same number, the first row before the second."""
    order = np.argsort(point, kind="stable")
    _, start, size = np.unique(point[order], return_index=True, return_counts=True)
    found = [np.empty((0, 2), dtype=np.int64)]
    for length in np.unique(size[size > 1]):
        rows = order[start[size == length][:, None] + np.arange(length)]
        one, other = np.triu_indices(length, 1)
        found.append(np.stack([rows[:, one].ravel(), rows[:, other].ravel()], axis=1))
    return np.concatenate(found)


# ---- data.photo_points


MAPS_IN_MEMORY = 64  # depth maps at a time, 2 MB each at 800 px


class Points(NamedTuple):
    """Patches to cut from the views of a model, one row each, ordered by view, and which points conflict."""

    view: np.ndarray
    keypoints: Keypoints
    point: np.ndarray
    distance: np.ndarray
    detected: np.ndarray
    conflicts: np.ndarray


def points_by_geometry(
    model: Path, options: PhotoOptions, progress: Callable[[int, int], None] | None = None
) -> Points:
    """Correspondences of a model with dense depth; read again where they were already found with the same options."""
    path = model / "points.npz"
    described = {name: value for name, value in options.described().items() if name != "sparse"}
    settings = repr({**described, "maps": noted_options(model)})  # who made them, and by which method
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
        keypoints = detect(read_gray(model / "images" / view.name, exif_orientation=False))
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
    tracks = read_arrays(model / "tracks.npz", ["view", "point", "xy", "sigma", "angle"])
    view, point = tracks["view"], tracks["point"]
    _require_tracks(model / "tracks.npz", tracks, len(scene.views), len(scene.points))
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


def _require_tracks(path: Path, tracks: dict[str, np.ndarray], views: int, points: int) -> None:
    count = tracks["view"].size
    shapes = {name: (count, 2) if name == "xy" else (count,) for name in tracks}
    fits = all(tracks[name].shape == shape for name, shape in shapes.items())
    for name, most in (("view", views), ("point", points)):
        fits = fits and tracks[name].dtype.kind in "iu" and bool(((tracks[name] >= 0) & (tracks[name] < most)).all())
    numbers = [tracks[name] for name in ("xy", "sigma", "angle")]
    if not fits or not all(one.dtype.kind == "f" and np.isfinite(one).all() for one in numbers):
        raise InputError(f"{path} does not fit its scene: reconstruct the photos again.")


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
    """None where they were found with other options, or are damaged: they are only kept to be found sooner."""
    columns = [name for name in Points._fields if name != "keypoints"]
    try:
        arrays = read_arrays(path, ["settings", *columns, *Keypoints._fields])
    except InputError:
        return None
    count = arrays["view"].size
    wide = {"xy": 2}
    whole = all(
        arrays[name].shape == ((count, wide[name]) if name in wide else (count,)) and arrays[name].dtype.kind in "biuf"
        for name in [*columns, *Keypoints._fields]
        if name != "conflicts"
    )
    if str(arrays["settings"]) != settings or not whole:
        return None
    keypoints = Keypoints(*(arrays[name] for name in Keypoints._fields))
    return Points(**{name: arrays[name] for name in columns}, keypoints=keypoints)

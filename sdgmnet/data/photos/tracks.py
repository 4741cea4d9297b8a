"""A reconstructed model -> its points: which patches of which photos show the same point, and which points are ambiguous."""

from collections.abc import Callable
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sdgmnet.data.match_rule import DIFFERENT, PHOTOS, UNDECIDED, MatchRule, ambiguous_pairs
from sdgmnet.data.patchset import number_by_appearance
from sdgmnet.data.photos.correspondences import (
    Correspondences,
    PointOptions,
    ambiguous_points,
    correspond,
    judge_keypoints,
    overlapping,
)
from sdgmnet.data.photos.reproject import Model, support, surface_at
from sdgmnet.errors import InputError
from sdgmnet.features.images import read_gray
from sdgmnet.features.keypoints import Keypoints, concatenate, detect
from sdgmnet.features.patches import inside
from sdgmnet.report import OnProgress, no_progress
from sdgmnet.sfm.scene import SparseScene, load_scene
from sdgmnet.sfm.workspace import map_path, read_map, read_map_options
from sdgmnet.storage import new_file, read_arrays

MAPS_IN_MEMORY = 64  # depth maps, 2 MB each at 800 px


class Points(NamedTuple):
    """Patches to cut from the views of a model, one row each, ordered by view; and which points are ambiguous."""

    view: np.ndarray  # (M,)
    keypoints: Keypoints  # (M,)
    point: np.ndarray  # (M,)
    distance: np.ndarray  # (M,) pixels to the reprojection of the point's strongest keypoint; NaN where unknown
    detected: np.ndarray  # (M,) False for reprojected locations without a keypoint
    conflicts: np.ndarray  # (C, 2) ambiguous points


class Locations(NamedTuple):
    """Reprojected locations of points."""

    keypoints: Keypoints
    view: np.ndarray
    point: np.ndarray


def points_by_geometry(
    model: Path, options: PointOptions, on_progress: OnProgress = no_progress, stage: str = "correspondences"
) -> Points:
    """The points of a model with dense depth. They are kept in points.npz and read again for the same options."""
    path = model / "points.npz"
    settings = repr({**asdict(options), "maps": read_map_options(model)})
    if path.exists() and (known := load_points(path, settings)) is not None:
        return known
    scene = load_scene(model / "scene.npz")

    def geometric_map(kind: str, number: int) -> np.ndarray | None:
        file = map_path(model, kind, scene.views[number].name, "geometric")
        return read_map(file) if file.exists() else None

    @lru_cache(maxsize=MAPS_IN_MEMORY)
    def depth_map(number: int) -> np.ndarray:
        depths = geometric_map("depth", number)
        return np.zeros((2, 2), dtype=np.float32) if depths is None else depths

    surfaces = []
    for number, view in enumerate(scene.views):
        keypoints = detect(read_gray(model / "images" / view.name, exif_orientation=False))
        usable = inside(keypoints, view.width, view.height) & (keypoints.sigma >= options.smallest_scale)
        keypoints = keypoints.select(np.flatnonzero(usable)[: options.keypoints])
        normals = geometric_map("normal", number)
        normals = np.zeros((2, 2, 3), dtype=np.float32) if normals is None else normals
        surfaces.append(surface_at(view, keypoints, depth_map(number), normals))
    points = find_points(Model(surfaces, depth_map), scene, options, on_progress, stage)
    save_points(path, points, settings)
    return points


def find_points(
    model: Model,
    scene: SparseScene,
    options: PointOptions,
    on_progress: OnProgress = no_progress,
    stage: str = "correspondences",
) -> Points:
    """Keypoints of all views -> points seen at least twice, in which no two keypoints contradict each other."""
    pairs = overlapping(scene)
    found = correspond(model, pairs, options, on_progress, stage)
    keypoints = concatenate([surface.keypoints for surface in model.surfaces])
    view, count = views_of(model.first), len(keypoints.xy)
    point = group_consistently(found, view, lambda pairs: judge_keypoints(model, pairs, options).verdict)
    strongest = strongest_of(point, keypoints.response)
    point_of = point
    if options.reprojected:
        more = reprojected_locations(model, pairs, point, strongest, options)
        keypoints = concatenate([keypoints, more.keypoints])
        view, point_of = np.concatenate([view, more.view]), np.concatenate([point, more.point])
    seen = np.bincount(point_of, minlength=len(strongest)) >= 2
    number = np.where(seen, np.cumsum(seen) - 1, -1)
    keep = np.flatnonzero(seen[point_of])
    detected = np.arange(len(point_of)) < count
    others = keep[detected[keep] & (strongest[point_of[keep]] != keep)]
    pixels = judge_keypoints(model, np.column_stack([strongest[point_of[others]], others]), options).pixels
    distance = np.zeros(len(point_of))
    distance[others] = np.where(np.isfinite(pixels), pixels, np.nan)
    order = keep[np.argsort(view[keep], kind="stable")]
    patches = Locations(keypoints.select(order), view[order], number[point_of[order]])
    # Reprojected locations count as well: two points may coincide in a view where neither was detected.
    ambiguous = np.concatenate(
        [ambiguous_points(found.close, number[point]), ambiguous_in_views(patches, options.rule)]
    )
    return Points(
        patches.view,
        patches.keypoints,
        patches.point,
        distance[order],
        detected[order],
        np.unique(ambiguous, axis=0),
    )


def views_of(first: np.ndarray) -> np.ndarray:
    """The view of each keypoint, for keypoints numbered from first[v] in view v."""
    return np.repeat(np.arange(len(first) - 1), np.diff(first))


def group(count: int, view: np.ndarray, edges: np.ndarray, misfit: np.ndarray, forbidden: np.ndarray) -> np.ndarray:
    """Keypoints -> number of their point (count,): edges (E, 2) join keypoints, the least misfit (E,) first.

    A point has at most one keypoint per view (view (count,)) and no two of a `forbidden` (F, 2) pair. Points are numbered by
    their first keypoint; a keypoint without edges is a point of its own.
    """
    owner = list(range(count))
    members: dict[int, dict[int, int]] = {}
    apart: dict[int, set[int]] = {}
    for one, other in forbidden.tolist():
        apart.setdefault(one, set()).add(other)
        apart.setdefault(other, set()).add(one)
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
        if any(not apart[one].isdisjoint(here.values()) for one in there.values() if one in apart):
            continue
        here.update(there)
        members[first] = here
        members.pop(second, None)
        for moved in there.values():
            owner[moved] = first
    return number_by_appearance(np.array(owner, dtype=np.int64))


def group_consistently(
    found: Correspondences, view: np.ndarray, judge_pairs: Callable[[np.ndarray], np.ndarray], rounds: int = 20
) -> np.ndarray:
    """Points in which geometry, wherever it can judge, calls every two keypoints matching.

    Edges alone can chain keypoints 4 px apart to a pair 8 px apart. So the pairs within points are judged (judge_pairs:
    (P, 2) -> verdicts), those that do not match are forbidden, and the edges joined again, until nothing is left to forbid.
    Keypoints that still disagree after so many rounds become points of their own.
    """
    count = len(view)
    judged = np.unique(pair_keys(found.edges, count))
    forbidden = np.empty((0, 2), dtype=np.int64)
    for _ in range(rounds + 1):
        point = group(count, view, found.edges, found.misfit, forbidden)
        pairs = pairs_within(point)
        pairs = pairs[~np.isin(pair_keys(pairs, count), judged)]
        verdict = judge_pairs(pairs)
        wrong = pairs[(verdict == DIFFERENT) | (verdict == UNDECIDED)]
        if not len(wrong):
            return point
        judged = np.union1d(judged, pair_keys(pairs, count))
        forbidden = np.concatenate([forbidden, wrong])
    alone = np.unique(wrong)
    point[alone] = point.max(initial=-1) + 1 + np.arange(len(alone))
    return point


def pair_keys(pairs: np.ndarray, count: int) -> np.ndarray:
    """A number for each unordered pair (P, 2) of rows below `count`."""
    return pairs.min(axis=1) * np.int64(count) + pairs.max(axis=1)


def pairs_within(point: np.ndarray) -> np.ndarray:
    """All pairs (P, 2) of rows with the same point, the first row before the second."""
    order = np.argsort(point, kind="stable")
    _, start, size = np.unique(point[order], return_index=True, return_counts=True)
    found = [np.empty((0, 2), dtype=np.int64)]
    for length in np.unique(size[size > 1]):
        rows = order[start[size == length][:, None] + np.arange(length)]
        one, other = np.triu_indices(length, 1)
        found.append(np.stack([rows[:, one].ravel(), rows[:, other].ravel()], axis=1))
    return np.concatenate(found)


def strongest_of(point: np.ndarray, response: np.ndarray) -> np.ndarray:
    """Row of the largest response of each point."""
    order = np.lexsort((np.arange(len(point)), -response, point))
    _, start = np.unique(point[order], return_index=True)
    return order[start]


def reprojected_locations(
    model: Model, pairs: list[tuple[int, int]], point: np.ndarray, strongest: np.ndarray, options: PointOptions
) -> Locations:
    """Each point's strongest keypoint, reprojected to the views that show the point but have none of its keypoints."""
    first = model.first
    view, views = views_of(first), len(model.surfaces)
    has = np.unique(point * np.int64(views) + view)
    found = [Locations(model.surfaces[0].keypoints.select(np.empty(0, int)), np.empty(0, int), np.empty(0, int))]
    for source, target in sorted([*pairs, *((other, one) for one, other in pairs)]):
        mine = np.sort(strongest[view[strongest] == source] - first[source])
        there = model.reproject(source, target, options.visibility, mine)
        target_view, point_of = model.surfaces[target].view, point[there.row + first[source]]
        keep = inside(there.keypoints, target_view.width, target_view.height)
        keep &= there.keypoints.sigma >= options.smallest_scale
        keep &= ~np.isin(point_of * np.int64(views) + target, has)
        shown = support(model, source, target, there.row[keep], options.visibility)
        keep[keep] = shown >= options.visibility.least_support
        found.append(Locations(there.keypoints.select(keep), np.full(np.count_nonzero(keep), target), point_of[keep]))
    keypoints, view_of, point_there = zip(*found, strict=True)
    return Locations(concatenate(keypoints), np.concatenate(view_of), np.concatenate(point_there))


def points_of_tracks(model: Path) -> Points:
    """What SIFT matched: the tracks of the sparse model, at most one keypoint per view and point."""
    scene = load_scene(model / "scene.npz")
    tracks = read_arrays(model / "tracks.npz", ["view", "point", "xy", "sigma", "angle"])
    _require_tracks(model / "tracks.npz", tracks, scene)
    view, point = tracks["view"], tracks["point"]
    keypoints = Keypoints(tracks["xy"], tracks["sigma"], tracks["angle"] % (2 * np.pi), np.zeros(len(view)))
    width, height = np.array([(one.width, one.height) for one in scene.views])[view].T
    rows = np.flatnonzero(inside(keypoints, width, height))
    _, once = np.unique(point[rows] * np.int64(len(scene.views)) + view[rows], return_index=True)
    rows = rows[once]
    twice = np.bincount(point[rows], minlength=len(scene.points)) >= 2
    rows = np.sort(rows[twice[point[rows]]])
    rows = rows[np.argsort(view[rows], kind="stable")]
    _, number = np.unique(point[rows], return_inverse=True)
    patches = Locations(keypoints.select(rows), view[rows], number)
    unknown, detected = np.full(len(rows), np.nan), np.ones(len(rows), dtype=bool)
    ambiguous = ambiguous_in_views(patches, PHOTOS)
    return Points(patches.view, patches.keypoints, patches.point, unknown, detected, ambiguous)


def _require_tracks(path: Path, tracks: dict[str, np.ndarray], scene: SparseScene) -> None:
    count = tracks["view"].size
    fits = all(array.shape == ((count, 2) if name == "xy" else (count,)) for name, array in tracks.items())
    for name, limit in (("view", len(scene.views)), ("point", len(scene.points))):
        fits = fits and tracks[name].dtype.kind in "iu" and bool(((tracks[name] >= 0) & (tracks[name] < limit)).all())
    floats = [tracks[name] for name in ("xy", "sigma", "angle")]
    if not fits or not all(one.dtype.kind == "f" and np.isfinite(one).all() for one in floats):
        raise InputError(f"{path} does not match scene.npz: reconstruct the photos again.")


def ambiguous_in_views(locations: Locations, rule: MatchRule) -> np.ndarray:
    """Pairs of points with keypoints in one view that are not different by the rule."""
    close = [np.empty((0, 2), dtype=np.int64)]
    for one in np.unique(locations.view):
        rows = np.flatnonzero(locations.view == one)
        close.append(rows[ambiguous_pairs(locations.keypoints.select(rows), rule)])
    return ambiguous_points(np.concatenate(close), locations.point)


COLUMNS = [name for name in Points._fields if name != "keypoints"]


def save_points(path: Path, points: Points, settings: str) -> None:
    columns = {name: getattr(points, name) for name in COLUMNS}
    with new_file(path) as part, part.open("wb") as file:
        np.savez(file, settings=np.array(settings), **columns, **points.keypoints._asdict())


def load_points(path: Path, settings: str) -> Points | None:
    """None where they were made with other options or are damaged: they are only kept to save time."""
    try:
        arrays = read_arrays(path, ["settings", *COLUMNS, *Keypoints._fields])
    except InputError:
        return None
    count = arrays["view"].size
    shapes = dict.fromkeys((*COLUMNS, *Keypoints._fields), (count,)) | {"xy": (count, 2)}
    shapes["conflicts"] = (len(arrays["conflicts"]), 2) if arrays["conflicts"].ndim else (0, 2)
    valid = all(arrays[name].shape == shape and arrays[name].dtype.kind in "biuf" for name, shape in shapes.items())
    if str(arrays["settings"]) != settings or not valid:
        return None
    keypoints = Keypoints(*(arrays[name] for name in Keypoints._fields))
    return Points(**{name: arrays[name] for name in COLUMNS}, keypoints=keypoints)

"""Which keypoints of different photos show the same point, decided by geometry alone and never by appearance.

The rule of Brown, Hua and Winder (2011): a keypoint is carried to another photo by its depth, the poses and the plane of the
surface around it; a keypoint detected there matches it when place, scale and orientation agree within a near border, does not
when any of them is beyond a far border, and in between nothing is said.

Places are compared in pixels of the undistorted picture, and in units of the keypoint's own sigma too, of which a patch has 12:
matching needs both (5 px of a keypoint of 1.6 px would be a quarter of its patch), non-matching needs both as well (10 px of a
keypoint of 20 px is hardly a change of its patch). This only makes the published rule stricter on either side.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sdgmnet.features.keypoints import Keypoints
from sdgmnet.features.patches import SIDE_IN_SIGMAS
from sdgmnet.reconstruction.views import SparseScene, View, project, unproject

MATCHING, UNDECIDED, DIFFERENT, UNKNOWN = 2, 1, 0, -1


@dataclass(frozen=True)
class Rule:
    """Borders of matching and non-matching, and which depths are believed."""

    near_pixels: float = 5.0
    near_sigmas: float = 1.5
    near_octaves: float = 0.25
    near_radians: float = np.pi / 8
    far_pixels: float = 10.0
    far_sigmas: float = 3.0
    far_octaves: float = 0.5
    far_radians: float = np.pi / 4
    depth_tolerance: float = 0.01
    """How far the other photo's depth may be from that of the carried point, as a share."""
    return_pixels: float = 1.5
    """How far a place carried over by one depth map and back by the other may come to lie from where it was."""
    steepest: float = 70.0
    """Degrees between the line of sight and the surface's normal, in either photo, at most."""
    least_support: float = 0.7
    """Share of a patch's surface, where its depth is known, that the other photo must show for a carried patch."""


class Anchored(NamedTuple):
    """Keypoints of a view and the surface at each of them; depth 0 where it is not known."""

    view: View
    keypoints: Keypoints
    depth: np.ndarray  # (N,)
    normal: np.ndarray  # (N, 3) unit length, camera coordinates


class Carried(NamedTuple):
    """Keypoints of one view as they must look in another, of those whose point is visible there."""

    row: np.ndarray  # (M,) of the keypoint in its own view
    xy: np.ndarray  # (M, 2)
    sigma: np.ndarray  # (M,)
    angle: np.ndarray  # (M,)


class Correspondences(NamedTuple):
    """Keypoints are numbered through all views: those of view v begin at first[v]."""

    first: np.ndarray  # (V + 1,)
    edges: np.ndarray  # (E, 2) int64 matching keypoints
    misfit: np.ndarray  # (E,) 0 = perfect agreement, 1 = on the near border of each of the three
    close: np.ndarray  # (C, 2) int64 keypoints of which geometry does not say that they are different, edges among them


# Surfaces at keypoints


def bilinear(values: np.ndarray, view: View, xy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The four values (N, 4, ...) of a map around pixels (N, 2) of the view's picture, and their weights (N, 4).

    The map may be smaller than the picture. Places within the outermost half pixel of the map use its border.
    """
    height, width = values.shape[:2]
    x = np.clip((xy[:, 0] + 0.5) * (width / view.width) - 0.5, 0, width - 1)
    y = np.clip((xy[:, 1] + 0.5) * (height / view.height) - 0.5, 0, height - 1)
    left, top = np.minimum(x.astype(np.int64), width - 2), np.minimum(y.astype(np.int64), height - 2)
    across, down = x - left, y - top
    weights = np.stack([(1 - across) * (1 - down), across * (1 - down), (1 - across) * down, across * down], axis=1)
    around = np.stack(
        [values[top, left], values[top, left + 1], values[top + 1, left], values[top + 1, left + 1]], axis=1
    )
    return around, weights


def depths_at(depths: np.ndarray, view: View, xy: np.ndarray, spread: float = 0.03) -> np.ndarray:
    """Depth (N,) between the pixels of a map, 0 where one of the four around is not known or they differ by over `spread`.

    Interpolated in inverse depth, in which planes are linear.
    """
    around, weights = bilinear(depths, view, xy)
    around = around.astype(np.float64)
    known = (around > 0).all(axis=1)
    known &= around.max(axis=1) <= (1 + spread) * around.min(axis=1)
    inverse = (weights / np.where(around > 0, around, 1)).sum(axis=1)
    return np.where(known, 1 / inverse, 0.0)


def anchor(view: View, keypoints: Keypoints, depths: np.ndarray, normals: np.ndarray) -> Anchored:
    """Keypoints with the surface of the view's depth (h, w) and normal (h, w, 3) maps at each of them."""
    depth = depths_at(depths, view, keypoints.xy)
    around, weights = bilinear(normals, view, keypoints.xy)
    normal = (weights[:, :, None] * around).sum(axis=1).astype(np.float64)
    length = np.linalg.norm(normal, axis=1)
    known = length > 0.5  # opposite or missing normals say nothing
    return Anchored(
        view,
        keypoints,
        np.where(known, depth, 0.0),
        np.where(known, 1, 0)[:, None] * normal / np.maximum(length, 1e-9)[:, None],
    )


def plane_warp(source: View, target: View, xy: np.ndarray, depth: np.ndarray, normal: np.ndarray) -> np.ndarray:
    """Derivatives (N, 2, 2) of the map from the source's to the target's pixels that the plane at each keypoint induces.

    A plane with normal n through the point X of the source's camera moves pixels by H = K' (R + t n^T / n^T X) K^-1.
    """
    rotation = target.rotation @ source.rotation.T
    shift = target.translation - rotation @ source.translation
    homogeneous = np.concatenate([xy, np.ones((len(xy), 1))], axis=1)
    inverse = np.linalg.inv(source.intrinsics)
    points = homogeneous @ inverse.T * depth[:, None]
    distance = (normal * points).sum(axis=1)
    distance = np.where(np.abs(distance) > 1e-12, distance, 1e-12)
    plane = rotation + shift[None, :, None] * (normal / distance[:, None])[:, None, :]
    homography = target.intrinsics @ plane @ inverse
    mapped = np.einsum("nij,nj->ni", homography, homogeneous)
    depth_there = np.where(np.abs(mapped[:, 2:]) > 1e-12, mapped[:, 2:], 1e-12)
    there = mapped[:, :2] / depth_there
    return (homography[:, :2, :2] - there[:, :, None] * homography[:, 2:, :2]) / depth_there[:, :, None]


def facing(view: View, points: np.ndarray, normals: np.ndarray) -> np.ndarray:
    """Cosine (N,) between the surface's normal and the direction to the camera; world points and world normals."""
    rays = view.centre() - points
    return (rays * normals).sum(axis=1) / np.maximum(np.linalg.norm(rays, axis=1), 1e-12)


def carry(
    source: Anchored, target: View, target_depths: np.ndarray, rule: Rule, which: np.ndarray | None = None
) -> Carried:
    """The keypoints (or those of index `which`) as they must look in the target, where its own depth map confirms them."""
    index = np.flatnonzero(source.depth > 0) if which is None else which[source.depth[which] > 0]
    xy, depth, normal = source.keypoints.xy[index], source.depth[index], source.normal[index]
    points = unproject(source.view, xy, depth)
    there, depth_there = project(target, points)
    outward = normal @ source.view.rotation  # camera to world
    flat = np.cos(np.deg2rad(rule.steepest))
    seen = (depth_there > 0) & (there >= 0).all(axis=1) & (there <= [target.width - 1, target.height - 1]).all(axis=1)
    seen &= (facing(source.view, points, outward) > flat) & (facing(target, points, outward) > flat)
    index, xy, depth, normal, there, depth_there = (
        rows[seen] for rows in (index, xy, depth, normal, there, depth_there)
    )
    measured = depths_at(target_depths, target, there)
    seen = (measured > 0) & (np.abs(measured - depth_there) <= rule.depth_tolerance * depth_there)
    back, _ = project(source.view, unproject(target, there, np.where(measured > 0, measured, 1.0)))
    seen &= np.linalg.norm(back - xy, axis=1) <= rule.return_pixels
    index, xy, depth, normal, there = (rows[seen] for rows in (index, xy, depth, normal, there))
    warp = plane_warp(source.view, target, xy, depth, normal)
    angle = source.keypoints.angle[index]
    direction = np.einsum("nij,nj->ni", warp, np.stack([np.cos(angle), np.sin(angle)], axis=1))
    scale = np.sqrt(np.abs(np.linalg.det(warp)))
    turned = np.arctan2(direction[:, 1], direction[:, 0]) % (2 * np.pi)
    return Carried(index, there, source.keypoints.sigma[index] * scale, turned)


SUPPORT = np.stack(np.meshgrid([-2 / 3, 0, 2 / 3], [-2 / 3, 0, 2 / 3]), -1).reshape(
    -1, 2
)  # in halves of a patch's side
FEWEST_SUPPORT = 5  # of these nine that must have a depth


def support(
    source: Anchored, source_depths: np.ndarray, target: View, target_depths: np.ndarray, rows: np.ndarray, rule: Rule
) -> np.ndarray:
    """Share (N,) of the surface under the patches of keypoints `rows` that the target shows too; 0 where hardly any is known.

    A keypoint's own point may be in sight while half of its patch is hidden, or another thing stands before it.
    """
    keypoints = source.keypoints.select(rows)
    half = keypoints.sigma * SIDE_IN_SIGMAS / 2
    cos, sin = half * np.cos(keypoints.angle), half * np.sin(keypoints.angle)
    x = keypoints.xy[:, :1] + cos[:, None] * SUPPORT[:, 0] - sin[:, None] * SUPPORT[:, 1]
    y = keypoints.xy[:, 1:] + sin[:, None] * SUPPORT[:, 0] + cos[:, None] * SUPPORT[:, 1]
    around = np.stack([x.ravel(), y.ravel()], axis=1)
    depth = depths_at(source_depths, source.view, around)
    there, depth_there = project(target, unproject(source.view, around, depth))
    seen = (depth > 0) & (depth_there > 0) & (there >= 0).all(axis=1)
    seen &= (there <= [target.width - 1, target.height - 1]).all(axis=1)
    measured = np.zeros(len(there))
    measured[seen] = depths_at(target_depths, target, there[seen])
    seen &= (measured > 0) & (np.abs(measured - depth_there) <= 2 * rule.depth_tolerance * depth_there)
    known = (depth > 0).reshape(-1, len(SUPPORT)).sum(axis=1)
    return np.where(known >= FEWEST_SUPPORT, seen.reshape(-1, len(SUPPORT)).sum(axis=1) / np.maximum(known, 1), 0.0)


# The rule


def differences(
    one_xy: np.ndarray,
    one_sigma: np.ndarray,
    one_angle: np.ndarray,
    xy: np.ndarray,
    sigma: np.ndarray,
    angle: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pixels, octaves and radians between rows."""
    turn = np.abs((one_angle - angle + np.pi) % (2 * np.pi) - np.pi)
    return np.linalg.norm(one_xy - xy, axis=1), np.abs(np.log2(one_sigma / sigma)), turn


def judge(
    pixels: np.ndarray, octaves: np.ndarray, radians: np.ndarray, sigma: np.ndarray, rule: Rule
) -> tuple[np.ndarray, np.ndarray]:
    """Verdict (N,) of MATCHING, UNDECIDED or DIFFERENT, and misfit (N,), for keypoints of about `sigma`."""
    near = np.minimum(rule.near_pixels, rule.near_sigmas * sigma)
    far = np.maximum(rule.far_pixels, rule.far_sigmas * sigma)
    matching = (pixels <= near) & (octaves <= rule.near_octaves) & (radians <= rule.near_radians)
    different = (pixels > far) | (octaves > rule.far_octaves) | (radians > rule.far_radians)
    misfit = np.sqrt(
        ((pixels / near) ** 2 + (octaves / rule.near_octaves) ** 2 + (radians / rule.near_radians) ** 2) / 3
    )
    return np.where(matching, MATCHING, np.where(different, DIFFERENT, UNDECIDED)), misfit


def near_pairs(
    carried: Carried, keypoints: Keypoints, rule: Rule
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rows of `carried` and of `keypoints` that are not different by the rule, with verdict and misfit of each pair.

    Keypoints are sorted into a grid for each octave of scale, so that a carried one is compared with its nine cells only.
    """
    found: list[tuple[np.ndarray, ...]] = []
    reach = np.maximum(rule.far_pixels, rule.far_sigmas * carried.sigma)
    level = np.floor(np.log2(reach / rule.far_pixels)).astype(np.int64)
    for step in np.unique(level):
        asked = np.flatnonzero(level == step)
        stretch = 2 ** (rule.far_octaves + 1e-9)
        sigma = carried.sigma[asked]
        others = np.flatnonzero((keypoints.sigma >= sigma.min() / stretch) & (keypoints.sigma <= sigma.max() * stretch))
        cell = rule.far_pixels * 2.0 ** (step + 1)
        query, other = _grid_neighbours(carried.xy[asked], keypoints.xy[others], cell)
        query, other = asked[query], others[other]
        verdict, misfit = judge(
            *differences(
                *(rows[query] for rows in (carried.xy, carried.sigma, carried.angle)),
                *(rows[other] for rows in (keypoints.xy, keypoints.sigma, keypoints.angle)),
            ),
            carried.sigma[query],
            rule,
        )
        keep = verdict != DIFFERENT
        found.append((query[keep], other[keep], verdict[keep], misfit[keep]))
    if not found:
        none = np.empty(0, dtype=np.int64)
        return none, none, none, np.empty(0)
    query, other, verdict, misfit = (np.concatenate(column) for column in zip(*found, strict=True))
    order = np.lexsort((other, query))
    return query[order], other[order], verdict[order], misfit[order]


def _grid_neighbours(asked: np.ndarray, others: np.ndarray, cell: float) -> tuple[np.ndarray, np.ndarray]:
    """All (row of asked, row of others) whose cells of a square grid touch."""
    low = np.minimum(asked.min(axis=0), others.min(axis=0)) if len(others) else asked.min(axis=0)
    place, home = (np.floor((rows - low) / cell).astype(np.int64) + 1 for rows in (asked, others))
    columns = int(max(place[:, 0].max(), home[:, 0].max() if len(home) else 0)) + 2
    key = home[:, 1] * columns + home[:, 0]
    order = np.argsort(key, kind="stable")
    key = key[order]
    rows, found = [], []
    for down in (-1, 0, 1):
        for across in (-1, 0, 1):
            wanted = (place[:, 1] + down) * columns + place[:, 0] + across
            start, stop = np.searchsorted(key, wanted, "left"), np.searchsorted(key, wanted, "right")
            count = stop - start
            rows.append(np.repeat(np.arange(len(asked)), count))
            within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
            found.append(order[np.repeat(start, count) + within])
    return np.concatenate(rows), np.concatenate(found)


# All views


def overlapping(scene: SparseScene, fewest: int = 10) -> Iterator[tuple[int, int]]:
    """Pairs of views that share at least `fewest` sparse points, the first before the second."""
    sees = np.zeros((len(scene.views), len(scene.points)), dtype=np.float32)
    sees[scene.observations[:, 0], scene.observations[:, 1]] = 1
    shared = sees @ sees.T
    for first, second in np.argwhere(np.triu(shared >= fewest, 1)):
        yield int(first), int(second)


def correspond(
    anchored: Sequence[Anchored],
    depths_of: Callable[[int], np.ndarray],
    pairs: Sequence[tuple[int, int]],
    rule: Rule,
    progress: Callable[[int, int], None] | None = None,
) -> Correspondences:
    """Compare the keypoints of all given pairs of views, each pair in both directions; `depths_of(view)` gives a depth map."""
    first = np.concatenate([[0], np.cumsum([len(one.keypoints.xy) for one in anchored])]).astype(np.int64)
    edges, misfits, close = [np.empty((0, 2), np.int64)], [np.empty(0)], [np.empty((0, 2), np.int64)]
    for number, (one, other) in enumerate(pairs):
        offset = first[[one, other]]
        matched, misfit, near = compare_views(anchored[one], anchored[other], depths_of(one), depths_of(other), rule)
        edges.append(matched + offset)
        misfits.append(misfit)
        close.append(near + offset)
        if progress is not None:
            progress(number + 1, len(pairs))
    for view, here in enumerate(anchored):
        close.append(close_within(here.keypoints, rule) + first[view])
    return Correspondences(first, np.concatenate(edges), np.concatenate(misfits), np.concatenate(close))


def compare_views(
    one: Anchored, other: Anchored, one_depths: np.ndarray, other_depths: np.ndarray, rule: Rule
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Matching keypoints (E, 2) of two views with their misfit (E,), and all pairs (C, 2) not known to be different.

    A match is called so in both directions, and each is the other's best in both.
    """
    there, back = carry(one, other.view, other_depths, rule), carry(other, one.view, one_depths, rule)
    query, found, verdict, misfit = near_pairs(there, other.keypoints, rule)
    forward = np.column_stack([there.row[query], found])
    query, found, verdict_back, misfit_back = near_pairs(back, one.keypoints, rule)
    backward = np.column_stack([found, back.row[query]])
    count = np.int64(len(other.keypoints.xy)) + 1
    best = _best(forward[verdict == MATCHING], misfit[verdict == MATCHING], 0)
    best_back = _best(backward[verdict_back == MATCHING], misfit_back[verdict_back == MATCHING], 1)
    key, key_back = best[0] @ [count, 1], best_back[0] @ [count, 1]
    _, here, where = np.intersect1d(key, key_back, assume_unique=True, return_indices=True)
    close = np.unique(np.concatenate([forward, backward]), axis=0)
    return best[0][here], (best[1][here] + best_back[1][where]) / 2, close


def _best(pairs: np.ndarray, misfit: np.ndarray, column: int) -> tuple[np.ndarray, np.ndarray]:
    """Of each keypoint of a column the pair with the least misfit."""
    order = np.lexsort((pairs[:, 1 - column], misfit, pairs[:, column]))
    _, start = np.unique(pairs[order, column], return_index=True)
    return pairs[order[start]], misfit[order[start]]


def close_within(keypoints: Keypoints, rule: Rule) -> np.ndarray:
    """Pairs of keypoints of one view that are not different by the rule."""
    as_carried = Carried(np.arange(len(keypoints.xy)), keypoints.xy, keypoints.sigma, keypoints.angle)
    query, found, _, _ = near_pairs(as_carried, keypoints, rule)
    pairs = np.sort(np.column_stack([query, found])[query != found], axis=1)
    return np.unique(pairs, axis=0)  # the border depends on whose sigma is taken: either counts


# Points


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


def judge_keypoints(
    anchored: Sequence[Anchored],
    depths_of: Callable[[int], np.ndarray],
    first: np.ndarray,
    pairs: np.ndarray,
    rule: Rule,
) -> tuple[np.ndarray, np.ndarray]:
    """Verdict (P,) of pairs (P, 2) of keypoints in different views, UNKNOWN where neither can be carried to the other's view.

    The more favourable of the two directions counts, unless one of them says DIFFERENT. Second come the pixels (P,) between
    the carried and the detected place, of the closer direction, infinite where unknown.
    """
    view = np.searchsorted(first, pairs, side="right") - 1
    verdicts = np.full((2, len(pairs)), UNKNOWN)
    pixels = np.full((2, len(pairs)), np.inf)
    for direction, (source, target) in enumerate(((0, 1), (1, 0))):
        key = view[:, source] * len(anchored) + view[:, target]
        order = np.argsort(key, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(key[order])) + 1) if len(order) else []:
            here, there = int(view[rows[0], source]), int(view[rows[0], target])
            asked, wanted = pairs[rows, source] - first[here], pairs[rows, target] - first[there]
            unique, back = np.unique(asked, return_inverse=True)
            carried = carry(anchored[here], anchored[there].view, depths_of(there), rule, unique)
            place = np.full(len(unique), -1)
            place[np.searchsorted(unique, carried.row)] = np.arange(len(carried.row))
            row = place[back]
            known = np.flatnonzero(row >= 0)
            row, other = row[known], anchored[there].keypoints.select(wanted[known])
            apart = differences(
                carried.xy[row], carried.sigma[row], carried.angle[row], other.xy, other.sigma, other.angle
            )
            verdicts[direction, rows[known]] = judge(*apart, carried.sigma[row], rule)[0]
            pixels[direction, rows[known]] = apart[0]
    verdict = verdicts.max(axis=0)
    verdict[(verdicts == DIFFERENT).any(axis=0)] = DIFFERENT
    return verdict, pixels.min(axis=0)


def conflicts_of(close: np.ndarray, point: np.ndarray) -> np.ndarray:
    """Pairs (C, 2) of points, sorted, of which some keypoints are not known to be different; point -1 counts for nothing."""
    pairs = np.sort(point[close], axis=1)
    pairs = pairs[(pairs[:, 0] >= 0) & (pairs[:, 0] != pairs[:, 1])]
    return np.unique(pairs, axis=0)

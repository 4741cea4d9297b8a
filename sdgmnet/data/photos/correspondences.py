"""Which keypoints of different photos show the same point, decided by geometry alone and never by appearance."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from sdgmnet.data.photos.match_rule import DIFFERENT, MATCHING, UNKNOWN, Rule, differences, judge
from sdgmnet.data.photos.reproject import Anchored, Carried, carry
from sdgmnet.features.keypoints import Keypoints
from sdgmnet.sfm.scene import SparseScene


class Correspondences(NamedTuple):
    """Keypoints are numbered through all views: those of view v begin at first[v]."""

    first: np.ndarray  # (V + 1,)
    edges: np.ndarray  # (E, 2) int64 matching keypoints
    misfit: np.ndarray  # (E,) 0 = perfect agreement, 1 = on the near border of each of the three
    close: np.ndarray  # (C, 2) int64 keypoints of which geometry does not say that they are different, edges among them


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

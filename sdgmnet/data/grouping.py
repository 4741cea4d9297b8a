"""Matching keypoints -> points: at most one keypoint of a photo each, and no contradictions."""

from collections.abc import Callable

import numpy as np

from sdgmnet.data.correspondences import Correspondences
from sdgmnet.data.rule import DIFFERENT, UNDECIDED


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

"""Which keypoints of different photos show the same point, decided by geometry and never by appearance."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from sdgmnet.data.match_rule import (
    DIFFERENT,
    PHOTOS,
    UNKNOWN,
    MatchRule,
    NearPairs,
    ambiguous_pairs,
    best_rows,
    judge,
    near_pairs,
)
from sdgmnet.data.photos.reproject import Model, Visibility
from sdgmnet.report import OnProgress, no_progress, track
from sdgmnet.sfm.scene import SparseScene


@dataclass(frozen=True)
class PointOptions:
    """Which keypoints are used and when they show the same point."""

    rule: MatchRule = PHOTOS
    visibility: Visibility = field(default_factory=Visibility)
    keypoints: int = 8000
    """Of each photo, at most: the strongest whose patches lie inside the photo."""
    smallest_scale: float = 1.6
    """Least sigma of a keypoint in pixels. Smaller patches are hardly more than noise; at 1.6 they are 19 px wide."""
    reprojected: bool = True
    """Also patches where a point is visible but no keypoint was detected. What a detector finds twice also looks alike."""


class Correspondences(NamedTuple):
    """Keypoints of two views by their rows, or of a model, numbered through all its views."""

    edges: np.ndarray  # (E, 2) matching
    misfit: np.ndarray  # (E,) 0 for perfect agreement, 1 where location, scale and orientation are at their near limits
    close: np.ndarray  # (C, 2) not known to be different; the edges are among them


class Verdicts(NamedTuple):
    verdict: np.ndarray  # (P,)
    pixels: np.ndarray  # (P,) between the reprojected and the detected location; infinite where unknown


def overlapping(scene: SparseScene, fewest: int = 10) -> list[tuple[int, int]]:
    """Pairs of views that share at least `fewest` sparse points, the first before the second."""
    sees = np.zeros((len(scene.views), len(scene.points)), dtype=np.float32)
    sees[scene.observations[:, 0], scene.observations[:, 1]] = 1
    return [(int(one), int(other)) for one, other in np.argwhere(np.triu(sees @ sees.T >= fewest, 1))]


def correspond(
    model: Model,
    pairs: Sequence[tuple[int, int]],
    options: PointOptions,
    on_progress: OnProgress = no_progress,
    stage: str = "correspondences",
) -> Correspondences:
    """Compare the keypoints of the given pairs of views, each pair in both directions, and the keypoints within each view."""
    first, none = model.first, np.empty((0, 2), np.int64)
    edges, misfit, close = [none], [np.empty(0)], [none]
    for one, other in track(pairs, stage, on_progress):
        found = compare_views(model, one, other, options)
        edges.append(found.edges + first[[one, other]])
        misfit.append(found.misfit)
        close.append(found.close + first[[one, other]])
    for view, surface in enumerate(model.surfaces):
        close.append(ambiguous_pairs(surface.keypoints, options.rule) + first[view])
    return Correspondences(np.concatenate(edges), np.concatenate(misfit), np.concatenate(close))


def compare_views(model: Model, one: int, other: int, options: PointOptions) -> Correspondences:
    """Keypoints match where each is the other's best match, in both directions of reprojection."""

    def compare(source: int, target: int) -> NearPairs:
        there = model.reproject(source, target, options.visibility)
        near = near_pairs(there.keypoints, model.surfaces[target].keypoints, options.rule)
        return near._replace(reprojected=there.row[near.reprojected])  # row in the source view

    def best(near: NearPairs) -> tuple[NearPairs, np.ndarray]:
        matching = near.matching()
        misfit = matching.judged.mean_misfit()
        rows = best_rows(matching.reprojected, matching.found, misfit)
        return matching.select(rows), misfit[rows]

    forward, backward = compare(one, other), compare(other, one)
    (there, misfit), (back, misfit_back) = best(forward), best(backward)
    count = np.int64(len(model.surfaces[other].keypoints.xy)) + 1
    key, key_back = there.reprojected * count + there.found, back.found * count + back.reprojected
    _, here, where = np.intersect1d(key, key_back, assume_unique=True, return_indices=True)
    close = np.concatenate(
        [np.column_stack([forward.reprojected, forward.found]), np.column_stack([backward.found, backward.reprojected])]
    )
    edges = np.column_stack([there.reprojected, there.found])[here]
    return Correspondences(edges, (misfit[here] + misfit_back[where]) / 2, np.unique(close, axis=0))


def judge_keypoints(model: Model, pairs: np.ndarray, options: PointOptions) -> Verdicts:
    """Judge pairs (P, 2) of keypoints in different views; UNKNOWN where neither can be reprojected to the other's view.

    The more favourable of the two directions counts, unless one of them says DIFFERENT.
    """
    first = model.first
    view = np.searchsorted(first, pairs, side="right") - 1
    verdicts = np.full((2, len(pairs)), UNKNOWN)
    pixels = np.full((2, len(pairs)), np.inf)
    for direction, (source, target) in enumerate(((0, 1), (1, 0))):
        key = view[:, source] * len(model.surfaces) + view[:, target]
        order = np.argsort(key, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(key[order])) + 1) if len(order) else []:
            here, there = int(view[rows[0], source]), int(view[rows[0], target])
            wanted, other = pairs[rows, source] - first[here], pairs[rows, target] - first[there]
            found = model.reproject(here, there, options.visibility, np.unique(wanted))
            position = np.searchsorted(found.row, wanted).clip(max=len(found.row) - 1)
            known = found.row[position] == wanted if len(found.row) else np.zeros(len(rows), dtype=bool)
            judged = judge(
                found.keypoints.select(position[known]),
                model.surfaces[there].keypoints.select(other[known]),
                options.rule,
            )
            verdicts[direction, rows[known]] = judged.verdict
            pixels[direction, rows[known]] = judged.pixels
    verdict = verdicts.max(axis=0)
    verdict[(verdicts == DIFFERENT).any(axis=0)] = DIFFERENT
    return Verdicts(verdict, pixels.min(axis=0))


def ambiguous_points(close: np.ndarray, point: np.ndarray) -> np.ndarray:
    """Pairs (C, 2) of points, sorted, with keypoints that are not known to be different; keypoints of point -1 are ignored."""
    pairs = np.sort(point[close], axis=1)
    pairs = pairs[(pairs[:, 0] >= 0) & (pairs[:, 0] != pairs[:, 1])]
    return np.unique(pairs, axis=0)

"""PatchSets -> batches of (anchor, positive) pairs. Everything is a pure function of (seed, step): any step can be repeated."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, get_args

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from sdgmnet.data.augmentation import augment
from sdgmnet.data.patchset import PATCH_SIDE, PatchSet, batch_groups, scene_of
from sdgmnet.data.window import training_window
from sdgmnet.errors import InputError
from sdgmnet.registry import Augmentation, Balance

ALL_ROWS = slice(None)


class PointPool(NamedTuple):
    """Points of one scene that may be in a batch together."""

    points: np.ndarray
    synthetic: bool  # from synthetic views
    # So many can always be drawn together, whichever are drawn first: ambiguous points exclude each other.
    capacity: int


class Draw(NamedTuple):
    """So many of these points are to be drawn."""

    points: np.ndarray
    wanted: int


class BatchPlan:
    """Which pools the points of a batch are drawn from; a pure function of the random generator.

    Each scene uses one of its pools per batch. Pools that are too small for the scene's share of the batch are left out if the
    scene has others. `scenes_per_batch` scenes are in a batch, None for all.
    """

    def __init__(
        self,
        scenes: Mapping[str, Sequence[PointPool]],
        balance: Balance,
        views: float,
        batch_size: int,
        scenes_per_batch: int | None = None,
    ) -> None:
        self.balance, self.views = balance, views
        self.scenes_per_batch = min(scenes_per_batch or len(scenes), len(scenes))
        self.left_out: dict[str, int] = {}  # scene -> how many of its pools are too small
        self.scenes: dict[str, list[PointPool]] = {}
        for name, pools in scenes.items():
            used = self._used(pools)
            enough = [pool for pool in used if pool.capacity * self.scenes_per_batch >= batch_size]
            if used:
                self.scenes[name] = enough or used
            if enough and len(enough) < len(used):
                self.left_out[name] = len(used) - len(enough)
        # The largest batch that is possible whichever scenes and pools are used.
        smallest = sorted(min(pool.capacity for pool in pools) for pools in self.scenes.values())
        self.capacity = sum(smallest[: self.scenes_per_batch])
        points = [pool.points for pools in self.scenes.values() for pool in pools]
        self.everything = np.sort(np.concatenate(points)) if points else np.empty(0, dtype=np.int64)

    def _used(self, pools: Sequence[PointPool]) -> list[PointPool]:
        """Without empty pools; at `views` 0 or 1 only one kind, as long as the scene has that kind."""
        found = [pool for pool in pools if len(pool.points)]
        if self.views in (0, 1):
            found = [pool for pool in found if pool.synthetic == bool(self.views)] or found
        return found

    def draw(self, rng: np.random.Generator, count: int) -> list[Draw]:
        no_choice = self.scenes_per_batch >= len(self.scenes) and max(map(len, self.scenes.values()), default=1) == 1
        if self.balance == "points" and no_choice:
            return [Draw(self.everything, count)]
        scenes = list(self.scenes.values())
        if self.scenes_per_batch < len(scenes):
            scenes = [scenes[number] for number in rng.permutation(len(scenes))[: self.scenes_per_batch]]
        chosen = [self._choose(pools, rng) for pools in scenes]
        if self.balance == "points":
            return [Draw(np.concatenate([pool.points for pool in chosen]), count)]
        shares = equal_shares(count, np.array([pool.capacity for pool in chosen]), rng)
        return [Draw(pool.points, int(share)) for pool, share in zip(chosen, shares, strict=True) if share]

    def _choose(self, pools: Sequence[PointPool], rng: np.random.Generator) -> PointPool:
        if len(pools) == 1:
            return pools[0]
        synthetic = [pool for pool in pools if pool.synthetic]
        others = [pool for pool in pools if not pool.synthetic]
        if synthetic and others:
            pools = synthetic if rng.random() < self.views else others
        sizes = np.array([len(pool.points) for pool in pools])
        return pools[int(rng.choice(len(pools), p=sizes / sizes.sum()))]


def equal_shares(count: int, capacity: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Integers (S,) that sum to `count`, as equal as `capacity` (S,) allows; remainders go to random places."""
    shares = np.zeros(len(capacity), dtype=np.int64)
    while (left := count - shares.sum()) > 0:
        free = np.flatnonzero(shares < capacity)
        if not len(free):
            raise InputError(f"could not draw {count} points without ambiguous pairs: use a smaller --batch-size.")
        more = np.full(len(free), left // len(free))
        more[rng.permutation(len(free))[: left % len(free)]] += 1
        shares[free] = np.minimum(shares[free] + more, capacity[free])
    return shares


class PairSampler:
    """Batches of N pairs: N distinct points, two distinct patches of each, over several PatchSets as one.

    Ambiguous points are never drawn together, nor are points of different groups of a scene (`batch_groups`). With `balance`
    "points" every usable point of the chosen groups is equally likely, with "scenes" every scene gives as many. `views` is the
    share of batches that use a scene's synthetic views, if it also has other patches; `scenes_per_batch` scenes are in a batch,
    None for all. Without `reprojected` only patches of detected keypoints are used. `window` is the side of the patches in
    sigmas: the centre of wider ones is used. With `window_jitter` each pair has a random one, down to 1 - window_jitter of it.
    """

    def __init__(
        self,
        patchsets: Sequence[PatchSet],
        seed: int,
        *,
        balance: Balance = "points",
        views: float = 0.5,
        scenes_per_batch: int | None = None,
        reprojected: bool = True,
        window: float | None = None,
        window_jitter: float = 0.0,
    ) -> None:
        self.window_jitter = window_jitter
        self.patchsets, self.seed, self.balance, self.views = list(patchsets), seed, balance, views
        self.scenes_per_batch = scenes_per_batch
        self.window = training_window(self.patchsets, window)
        self.shares = np.array([self.window / one.window for one in self.patchsets])  # of a patch's side, used
        self.set_start = np.cumsum([0, *(len(patchset) for patchset in self.patchsets)])
        order, start, size, ambiguous, points, rows = [], [], [], [], 0, 0
        usable: list[tuple[PatchSet, np.ndarray, np.ndarray]] = []
        for patchset, offset in zip(self.patchsets, self.set_start, strict=False):
            used = _used_rows(patchset, reprojected)
            by_point = used[np.argsort(patchset.point_id[used], kind="stable")]
            ids, first, count = np.unique(patchset.point_id[by_point], return_index=True, return_counts=True)
            order.append(by_point + offset)
            start.append(first + rows)
            size.append(count)
            ambiguous.append(_renumbered(patchset.conflicts, ids) + points)
            twice = np.flatnonzero(count >= 2)
            usable.append((patchset, ids[twice], twice + points))
            points, rows = points + len(ids), rows + len(by_point)
        self.order, self.start, self.size = np.concatenate(order), np.concatenate(start), np.concatenate(size)
        cluster = connected(points, np.concatenate(ambiguous))
        self.scenes: dict[str, list[PointPool]] = {}
        for patchset, ids, numbers in usable:
            pools = self.scenes.setdefault(scene_of(patchset), [])
            pools += pools_of(patchset, ids, numbers, cluster[numbers])
        self._plans: dict[int, BatchPlan] = {}
        both_ways = np.concatenate([c for pairs in ambiguous for c in (pairs, pairs[:, ::-1])])
        both_ways = both_ways[np.argsort(both_ways[:, 0], kind="stable")]
        self.excluded = both_ways[:, 1]  # by point k: from excluded_start[k] to excluded_start[k + 1]
        self.excluded_start = np.searchsorted(both_ways[:, 0], np.arange(points + 1))

    def require_batch_size(self, batch_size: int) -> None:
        if batch_size < 2:
            raise InputError(f"a batch needs at least 2 pairs, not {batch_size}.")
        capacity = self.plan(batch_size).capacity
        if batch_size > capacity:
            names = ", ".join(patchset.name for patchset in self.patchsets)
            smaller = f"use --batch-size {capacity} or less, or more data" if capacity >= 2 else "use more data"
            raise InputError(
                f"{names}: too few points with two patches for a batch of {batch_size} pairs without ambiguous points "
                f"({capacity} are always possible): {smaller}."
            )

    def plan(self, batch_size: int) -> BatchPlan:
        if batch_size not in self._plans:
            settings = self.balance, self.views, batch_size, self.scenes_per_batch
            self._plans[batch_size] = BatchPlan(self.scenes, *settings)
        return self._plans[batch_size]

    def indices(self, step: int, batch_size: int) -> np.ndarray:
        """(2, N) patch numbers of anchors and positives, counted through all sets."""
        rng = _generator(self.seed, step, "pairs")
        draws = self.plan(batch_size).draw(rng, batch_size)
        points = np.concatenate([self._draw(rng, draw.points, draw.wanted) for draw in draws])
        size = self.size[points]
        first = (rng.random(batch_size) * size).astype(np.int64)
        second = (rng.random(batch_size) * (size - 1)).astype(np.int64)
        second += second >= first
        return self.order[self.start[points] + np.stack([first, second])]

    def _draw(self, rng: np.random.Generator, pool: np.ndarray, count: int) -> np.ndarray:
        """So many points of the pool, no two of them ambiguous."""
        if count > len(pool):
            raise InputError(f"could not draw {count} points from {len(pool)}: use a smaller --batch-size.")
        points = rng.choice(pool, size=count, replace=False)
        for _ in range(100):
            refused = self._refused(points)
            if not refused.any():
                return points
            kept = points[~refused]
            fresh = np.setdiff1d(rng.choice(pool, size=count, replace=False), kept)
            points = np.concatenate([kept, rng.permutation(fresh)[: count - len(kept)]])
        # Hardly any room: one by one, which always gives as many as there are clusters of ambiguous points.
        taken, shut = list[int](), set[int]()
        for point in rng.permutation(pool).tolist():
            if point not in shut:
                taken.append(point)
                shut.update(self.excluded[self.excluded_start[point] : self.excluded_start[point + 1]].tolist())
            if len(taken) == count:
                return np.array(taken)
        raise InputError(f"could not draw {count} points without ambiguous pairs: use a smaller --batch-size.")

    def _refused(self, points: np.ndarray) -> np.ndarray:
        """Which points are ambiguous with one drawn before them."""
        refused = np.zeros(len(points), dtype=bool)
        number = self.excluded_start[points + 1] - self.excluded_start[points]
        if not number.any():
            return refused
        mine = np.repeat(np.arange(len(points)), number)  # position in the batch of each (point, excluded point)
        within = np.arange(len(mine)) - np.repeat(np.cumsum(number) - number, number)
        excluded = self.excluded[self.excluded_start[points[mine]] + within]
        by_point = np.argsort(points)
        found = by_point[np.searchsorted(points, excluded, sorter=by_point).clip(max=len(points) - 1)]
        refused[mine[(points[found] == excluded) & (found < mine)]] = True
        return refused

    def patches(self, indices: np.ndarray) -> np.ndarray:
        """Patches (..., 64, 64) uint8 by their numbers."""
        flat = indices.ravel()
        out = np.empty((len(flat), PATCH_SIDE, PATCH_SIDE), dtype=np.uint8)
        which = self._set_of(flat)
        for number, patchset in enumerate(self.patchsets):
            here = which == number
            out[here] = patchset.patches[flat[here] - self.set_start[number]]
        return out.reshape(*indices.shape, PATCH_SIDE, PATCH_SIDE)

    def _set_of(self, indices: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.set_start, indices, side="right") - 1

    def shares_of(self, indices: np.ndarray) -> np.ndarray | None:
        """How much of the side of these patches is used; None if all of every patch is."""
        return None if (self.shares == 1).all() else self.shares[self._set_of(indices)]

    def batch(
        self,
        step: int,
        batch_size: int,
        device: torch.device | str = "cpu",
        augmentation: Augmentation = "paper",
        rows: slice = ALL_ROWS,
    ) -> Tensor:
        """Anchors and positives of one step: (2, N, 1, 32, 32) float32 in [0, 1].

        rows: only these of the N pairs are made, with the same values as in the whole batch.
        """
        if augmentation not in get_args(Augmentation):
            raise InputError(f"augmentation is one of {', '.join(get_args(Augmentation))}, not {augmentation!r}.")
        indices = self.indices(step, batch_size)[:, rows]
        rng, shares = _generator(self.seed, step, "augmentation"), self.shares_of(indices)
        if self.window_jitter:
            factors = 1 - self.window_jitter * _generator(self.seed, step, "window").random(batch_size)
            shares = factors[rows] * (np.ones(indices.shape) if shares is None else shares)
        return augment(self.patches(indices), augmentation, rng, batch_size, rows, device, shares)


def pools_of(patchset: PatchSet, ids: np.ndarray, points: np.ndarray, cluster: np.ndarray) -> list[PointPool]:
    """The set's points, given by ids (K,) and numbers (K,), in the pools that may be in a batch together.

    cluster (K,): equal for points that ambiguous pairs connect, directly or through others.
    """
    known, first = np.unique(patchset.point_id, return_index=True)
    group = batch_groups(patchset)[first[np.searchsorted(known, ids)]]
    synthetic = patchset.origin.get("source") == "views"
    members = [group == one for one in np.unique(group)]
    return [PointPool(points[here], synthetic, len(np.unique(cluster[here]))) for here in members]


def connected(count: int, pairs: np.ndarray) -> np.ndarray:
    """A label (count,) for each of so many points, equal where pairs (P, 2) connect them."""
    graph = coo_array((np.ones(len(pairs), dtype=bool), pairs.T), shape=(count, count))
    return connected_components(graph, directed=False)[1]


def _generator(seed: int, step: int, purpose: str) -> np.random.Generator:
    """A random stream of its own for each (seed, step, purpose)."""
    return np.random.default_rng([seed, step, *purpose.encode()])


def _used_rows(patchset: PatchSet, reprojected: bool) -> np.ndarray:
    """Patches to train on: all, or those of detected keypoints if the set records which are."""
    observations = patchset.observations
    if reprojected or observations is None or "detected" not in (observations.dtype.names or ()):
        return np.arange(len(patchset))
    return np.flatnonzero(observations["detected"])


def _renumbered(ambiguous: np.ndarray | None, ids: np.ndarray) -> np.ndarray:
    """Ambiguous point ids (C, 2) -> positions in the sorted `ids`, without pairs of absent points."""
    if ambiguous is None or not len(ambiguous):
        return np.empty((0, 2), dtype=np.int64)
    position = np.searchsorted(ids, ambiguous).clip(max=len(ids) - 1)
    return position[(ids[position] == ambiguous).all(axis=1)]

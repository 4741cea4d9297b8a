"""PatchSets -> (anchor, positive) batches. Everything is a pure function of (seed, step), so any step can be made again."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from sdgmnet.data.augmentation import (
    OUTPUT_SIDE,
    PAPER,
    STRONG,
    Augmentation,
    Geometry,
    Light,
    compress,
    draw_geometry,
    draw_light,
    draw_qualities,
    draw_turns_and_flips,
    quarter_turns_and_flips,
    relight,
    turn_and_crop,
)
from sdgmnet.data.patchset import PATCH_SIDE, PatchSet, scene_of, together
from sdgmnet.engine import halve
from sdgmnet.errors import InputError

# ---- data.pools


Balance = Literal["points", "scenes"]


class Choice(NamedTuple):
    """Points of a scene that may be in a batch together."""

    points: np.ndarray
    views: bool
    room: int  # so many of them can be drawn together whatever is drawn first, conflicts or not


class Part(NamedTuple):
    """So many of these points are to be drawn."""

    points: np.ndarray
    wanted: int


def choices_of(patchset: PatchSet, ids: np.ndarray, points: np.ndarray, group: np.ndarray) -> list[Choice]:
    """The set's points, given by ids (K,) and numbers (K,), in the parts that may be in a batch together.

    group (K,): equal for points that conflicts connect, directly or through others.
    """
    known, first = np.unique(patchset.point_id, return_index=True)
    part = together(patchset)[first[np.searchsorted(known, ids)]]
    synthetic = patchset.origin.get("source") == "views"
    return [Choice(points[part == one], synthetic, len(np.unique(group[part == one]))) for one in np.unique(part)]


def connected(count: int, pairs: np.ndarray) -> np.ndarray:
    """A label (count,) for each of so many things, equal where pairs (P, 2) connect them: the smallest number among them."""
    label = np.arange(count)
    while len(pairs):
        low = label[pairs].min(axis=1)
        before = label.copy()
        for column in (0, 1):
            np.minimum.at(label, pairs[:, column], low)
        label = label[label]
        if np.array_equal(label, before):
            break
    return label


class Pools:
    """The parts of any batch of a size, a pure function of the generator that is given.

    Of a scene's choices, those are used that can give its share of the batch, where there are such.
    """

    def __init__(self, scenes: Mapping[str, Sequence[Choice]], balance: Balance, views: float, batch_size: int) -> None:
        self.balance, self.views = balance, views
        self.left_out: dict[str, int] = {}  # scene -> how many of its choices are too small
        self.scenes: dict[str, list[Choice]] = {}
        for name, choices in scenes.items():
            shown = self._shown(choices)
            enough = [choice for choice in shown if choice.room * len(scenes) >= batch_size]
            if shown:
                self.scenes[name] = enough or shown
            if len(self.scenes.get(name, ())) < len(shown):
                self.left_out[name] = len(shown) - len(enough)
        # The largest that any batch can be, whatever the turns.
        self.room = sum(min(choice.room for choice in choices) for choices in self.scenes.values())
        points = [choice.points for choices in self.scenes.values() for choice in choices]
        self.everything = np.sort(np.concatenate(points)) if points else np.empty(0, dtype=np.int64)

    def _shown(self, choices: Sequence[Choice]) -> list[Choice]:
        """Those that are ever shown."""
        found = [choice for choice in choices if len(choice.points)]
        for kind, never in ((True, self.views == 0), (False, self.views == 1)):
            others = [choice for choice in found if choice.views != kind]
            found = others if never and others else found
        return found

    def draw(self, rng: np.random.Generator, count: int) -> list[Part]:
        if self.balance == "points":
            if all(len(choices) == 1 for choices in self.scenes.values()):
                return [Part(self.everything, count)]
            return [
                Part(np.concatenate([self._choose(choices, rng).points for choices in self.scenes.values()]), count)
            ]
        chosen = [self._choose(choices, rng) for choices in self.scenes.values()]
        counts = equal_shares(count, np.array([choice.room for choice in chosen]), rng)
        return [Part(choice.points, int(many)) for choice, many in zip(chosen, counts, strict=True) if many]

    def _choose(self, choices: Sequence[Choice], rng: np.random.Generator) -> Choice:
        if len(choices) == 1:
            return choices[0]
        synthetic = [choice for choice in choices if choice.views]
        others = [choice for choice in choices if not choice.views]
        if synthetic and others:
            choices = synthetic if rng.random() < self.views else others
        sizes = np.array([len(choice.points) for choice in choices])
        return choices[int(rng.choice(len(choices), p=sizes / sizes.sum()))]


def equal_shares(count: int, room: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Whole numbers (S,) that sum to `count`, as equal as `room` (S,) allows; who gets one more is drawn."""
    shares = np.zeros(len(room), dtype=np.int64)
    while (left := count - shares.sum()) > 0:
        open_to = np.flatnonzero(shares < room)
        if not len(open_to):
            raise InputError(f"could not draw {count} points of which no two conflict: use a smaller --batch-size.")
        more = np.full(len(open_to), left // len(open_to))
        more[rng.permutation(len(open_to))[: left % len(open_to)]] += 1
        shares[open_to] = np.minimum(shares[open_to] + more, room[open_to])
    return shares


# ---- data.batches


EVERY_ROW = slice(None)


class PairSampler:
    """Batches of N pairs: N distinct points, two distinct patches of each, over several PatchSets as one.

    Points that conflict are never drawn together, nor are parts of a scene that show the same things (`pools.py`). With
    `balance` "points" every point with at least two patches of what a batch may show is equally likely, with "scenes" every
    scene gives as many. `views` is how often a scene shows its synthetic views, where it has other patches too; without
    `carried` only patches of detected keypoints are used.
    """

    def __init__(
        self,
        patchsets: Sequence[PatchSet],
        seed: int,
        *,
        balance: Balance = "points",
        views: float = 0.5,
        carried: bool = True,
    ) -> None:
        self.patchsets, self.seed = list(patchsets), seed
        self.set_start = np.cumsum([0, *(len(patchset) for patchset in self.patchsets)])
        order, start, size, conflicts, points, rows = [], [], [], [], 0, 0
        usable: list[tuple[PatchSet, np.ndarray, np.ndarray]] = []
        for patchset, offset in zip(self.patchsets, self.set_start, strict=False):
            used = _used_rows(patchset, carried)
            by_point = used[np.argsort(patchset.point_id[used], kind="stable")]
            ids, first, count = np.unique(patchset.point_id[by_point], return_index=True, return_counts=True)
            order.append(by_point + offset)
            start.append(first + rows)
            size.append(count)
            conflicts.append(_renumbered(patchset.conflicts, ids) + points)
            twice = np.flatnonzero(count >= 2)
            usable.append((patchset, ids[twice], twice + points))
            points, rows = points + len(ids), rows + len(by_point)
        self.order, self.start, self.size = np.concatenate(order), np.concatenate(start), np.concatenate(size)
        group = connected(points, np.concatenate(conflicts))
        self.scenes: dict[str, list[Choice]] = {}
        for patchset, ids, numbers in usable:
            here = self.scenes.setdefault(scene_of(patchset), [])
            here += choices_of(patchset, ids, numbers, group[numbers])
        self.balance, self.views, self._pools = balance, views, dict[int, Pools]()
        both_ways = np.concatenate([c for pairs in conflicts for c in (pairs, pairs[:, ::-1])])
        both_ways = both_ways[np.argsort(both_ways[:, 0], kind="stable")]
        self.rivals = both_ways[:, 1]  # of point k: from rivals_start[k] to rivals_start[k + 1]
        self.rivals_start = np.searchsorted(both_ways[:, 0], np.arange(points + 1))

    def check_batch_size(self, batch_size: int) -> None:
        if batch_size < 2:
            raise InputError(f"a batch needs at least 2 pairs, not {batch_size}.")
        room = self.pools(batch_size).room
        if batch_size > room:
            names = ", ".join(patchset.name for patchset in self.patchsets)
            smaller = f"use --batch-size {room} or less, or more data" if room >= 2 else "use more data"
            raise InputError(
                f"{names}: a batch of {batch_size} pairs needs as many points with two patches that do not conflict, and not "
                f"every batch can have more than {room}: {smaller}."
            )

    def pools(self, batch_size: int) -> Pools:
        if batch_size not in self._pools:
            self._pools[batch_size] = Pools(self.scenes, self.balance, self.views, batch_size)
        return self._pools[batch_size]

    def indices(self, step: int, batch_size: int) -> np.ndarray:
        """(2, N) patch numbers of anchors and positives, counted through all sets."""
        rng = _generator(self.seed, step, "pairs")
        points = self._distinct_points(rng, batch_size)
        size = self.size[points]
        first = (rng.random(batch_size) * size).astype(np.int64)
        second = (rng.random(batch_size) * (size - 1)).astype(np.int64)
        second += second >= first
        return self.order[self.start[points] + np.stack([first, second])]

    def _distinct_points(self, rng: np.random.Generator, count: int) -> np.ndarray:
        parts = self.pools(count).draw(rng, count)
        return np.concatenate([self._draw(rng, part.points, part.wanted) for part in parts])

    def _draw(self, rng: np.random.Generator, pool: np.ndarray, count: int) -> np.ndarray:
        """So many points of the pool, no two of which conflict."""
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
        # Hardly any room: one after the other, which always gives as many as there are groups of conflicting points.
        taken, shut = list[int](), set[int]()
        for point in rng.permutation(pool).tolist():
            if point not in shut:
                taken.append(point)
                shut.update(self.rivals[self.rivals_start[point] : self.rivals_start[point + 1]].tolist())
            if len(taken) == count:
                return np.array(taken)
        raise InputError(f"could not draw {count} points of which no two conflict: use a smaller --batch-size.")

    def _refused(self, points: np.ndarray) -> np.ndarray:
        """Which points conflict with one drawn before them."""
        refused = np.zeros(len(points), dtype=bool)
        number = self.rivals_start[points + 1] - self.rivals_start[points]
        if not number.any():
            return refused
        mine = np.repeat(np.arange(len(points)), number)  # position in the batch of each (point, rival)
        within = np.arange(len(mine)) - np.repeat(np.cumsum(number) - number, number)
        rival = self.rivals[self.rivals_start[points[mine]] + within]
        by_point = np.argsort(points)
        found = by_point[np.searchsorted(points, rival, sorter=by_point).clip(max=len(points) - 1)]
        refused[mine[(points[found] == rival) & (found < mine)]] = True
        return refused

    def patches(self, indices: np.ndarray) -> np.ndarray:
        """Patches (..., 64, 64) uint8 by their numbers."""
        flat = indices.ravel()
        out = np.empty((len(flat), PATCH_SIDE, PATCH_SIDE), dtype=np.uint8)
        which = np.searchsorted(self.set_start, flat, side="right") - 1
        for number, patchset in enumerate(self.patchsets):
            here = which == number
            out[here] = patchset.patches[flat[here] - self.set_start[number]]
        return out.reshape(*indices.shape, PATCH_SIDE, PATCH_SIDE)

    def batch(
        self,
        step: int,
        batch_size: int,
        device: torch.device | str = "cpu",
        augmentation: Augmentation = "paper",
        rows: slice = EVERY_ROW,
    ) -> Tensor:
        """Anchors and positives of one step: (2, N, 1, 32, 32) float32 in [0, 1].

        rows: only these pairs of the N are made. Random numbers are drawn for all, so that they are as they are among the rest.
        """
        if augmentation not in get_args(Augmentation):
            raise InputError(f"augmentation is one of {', '.join(get_args(Augmentation))}, not {augmentation!r}.")
        patches = self.patches(self.indices(step, batch_size)[:, rows]).reshape(-1, PATCH_SIDE, PATCH_SIDE)
        count, both = len(patches) // 2, 2 * batch_size
        rng = _generator(self.seed, step, "augmentation")

        def made(drawn: np.ndarray) -> np.ndarray:
            """Of what was drawn for both sides of all pairs, (2 N, ...), that of the pairs that are made."""
            return drawn.reshape(2, batch_size, *drawn.shape[1:])[:, rows].reshape(2 * count, *drawn.shape[1:])

        if augmentation == "strong":
            patches = compress(patches, made(draw_qualities(rng, both)))
        pixels = torch.from_numpy(patches).to(device).float()
        if augmentation == "none":
            return (halve(pixels) / 255).view(2, count, 1, OUTPUT_SIDE, OUTPUT_SIDE)
        if augmentation in ("hardnet", "hynet", "cdfdesc"):
            small = halve(pixels) / 255
        elif augmentation == "strong":
            geometry, light = draw_geometry(rng, both, STRONG), draw_light(rng, both)
            small = turn_and_crop(pixels, Geometry(*map(made, geometry)), outside="border") / 255
            grain = made(rng.standard_normal((both, OUTPUT_SIDE, OUTPUT_SIDE), dtype=np.float32))
            small = relight(small, Light(*map(made, light)), grain)
        else:
            small = turn_and_crop(pixels, Geometry(*map(made, draw_geometry(rng, both, PAPER)))) / 255
        pairs = small.view(2, count, OUTPUT_SIDE, OUTPUT_SIDE).transpose(0, 1)
        turns, flips = draw_turns_and_flips(rng, batch_size, augmentation)
        pairs = quarter_turns_and_flips(pairs, turns[rows], flips[rows])
        return pairs.transpose(0, 1)[:, :, None].contiguous()


def _generator(seed: int, step: int, purpose: str) -> np.random.Generator:
    """A random stream of its own for each (seed, step, purpose)."""
    return np.random.default_rng([seed, step, *purpose.encode()])


def _used_rows(patchset: PatchSet, carried: bool) -> np.ndarray:
    """Patches to train on; without `carried`, those of detected keypoints where the set tells them apart."""
    observations = patchset.observations
    if carried or observations is None or "detected" not in (observations.dtype.names or ()):
        return np.arange(len(patchset))
    return np.flatnonzero(observations["detected"])


def _renumbered(conflicts: np.ndarray | None, ids: np.ndarray) -> np.ndarray:
    """Conflicting point ids (C, 2) -> positions in the sorted `ids`; pairs that name absent points are dropped."""
    if conflicts is None or not len(conflicts):
        return np.empty((0, 2), dtype=np.int64)
    position = np.searchsorted(ids, conflicts).clip(max=len(ids) - 1)
    return position[(ids[position] == conflicts).all(axis=1)]

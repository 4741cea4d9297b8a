"""From which points a batch is drawn: parts of a scene that show the same things take turns, scenes may get equal shares.

A scene can have a set from its reconstruction and another of synthetic views of its photos. A thing that both show would have
two numbers and be taken for a negative of itself; so a batch sees one of them, of the views those of a single photo, and of a
reconstruction that fell apart one model.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from sdgmnet.data.patchset import PatchSet, together
from sdgmnet.errors import InputError

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

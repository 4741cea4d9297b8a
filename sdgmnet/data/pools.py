"""From which points a batch is drawn: sets that show the same scene take turns, and scenes may get equal shares.

A scene can have a set from its reconstruction and another of synthetic views of its photos. A thing that both show would have
two numbers and be taken for a negative of itself; so a batch sees one of them, and of the views those of a single photo.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from sdgmnet.data.patchset import PatchSet

Balance = Literal["points", "scenes"]


class Pool(NamedTuple):
    """Points to draw from and how likely each is."""

    points: np.ndarray
    shares: np.ndarray | None  # sum to 1; None: all alike


class Choice(NamedTuple):
    """Points of a scene that may be in a batch together."""

    points: np.ndarray
    views: bool


def scene_of(patchset: PatchSet) -> str:
    """The scene that a set shows: sets of the same scene take turns."""
    return str(patchset.origin.get("scene", patchset.name))


def choices_of(patchset: PatchSet, ids: np.ndarray, points: np.ndarray) -> list[Choice]:
    """The set's points, given by their ids (K,) and numbers (K,), in the parts that may be in a batch together."""
    if not patchset.origin.get("one_image_a_batch") or patchset.observations is None:
        return [Choice(points, patchset.origin.get("source") == "views")]
    known, first = np.unique(patchset.point_id, return_index=True)
    image = np.asarray(patchset.observations["image"])[first[np.searchsorted(known, ids)]]
    return [Choice(points[image == one], True) for one in np.unique(image)]


class Pools:
    """The pool of any batch, a pure function of the generator that is given."""

    def __init__(self, scenes: Sequence[Sequence[Choice]], balance: Balance, views: float) -> None:
        self.scenes = [[choice for choice in choices if len(choice.points)] for choices in scenes]
        self.scenes = [choices for choices in self.scenes if choices]
        self.balance, self.views = balance, views
        self.everything = np.concatenate(
            [c.points for choices in self.scenes for c in choices] or [np.empty(0, np.int64)]
        )
        self.everything.sort()

    def draw(self, rng: np.random.Generator) -> Pool:
        if all(len(choices) == 1 for choices in self.scenes) and self.balance == "points":
            return Pool(self.everything, None)
        chosen = [self._choose(choices, rng).points for choices in self.scenes]
        points = np.concatenate(chosen)
        if self.balance == "points":
            return Pool(points, None)
        sizes = np.array([len(one) for one in chosen])
        return Pool(points, np.repeat(1 / (len(sizes) * sizes), sizes))

    def smallest(self) -> int:
        """Points in the smallest pool that can be drawn."""
        return sum(min(len(choice.points) for choice in choices) for choices in self.scenes)

    def _choose(self, choices: Sequence[Choice], rng: np.random.Generator) -> Choice:
        if len(choices) == 1:
            return choices[0]
        synthetic = [choice for choice in choices if choice.views]
        others = [choice for choice in choices if not choice.views]
        if synthetic and others:
            choices = synthetic if rng.random() < self.views else others
        return choices[int(rng.integers(len(choices)))]

"""What `--data` accepts, and which of the sets are held out for testing.

A new data set is one module with `read_<name>(folder) -> PatchSet` and one line in SOURCES.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from sdgmnet.data.patchset import PatchSet, is_patchset, random_test_pairs, scene_of
from sdgmnet.data.phototour import is_phototour, read_phototour
from sdgmnet.data.synthetic.demo import read_demo
from sdgmnet.errors import InputError
from sdgmnet.report import OnProgress, no_progress

DRAWN_PAIRS = 5000  # for a held-out set without test pairs
DEMO = "demo"


class Source(NamedTuple):
    """A kind of data set: whether a word of --data, or a folder in the folder that it names, is one; and how to read it."""

    recognises: Callable[[str], bool]
    read: Callable[[str, OnProgress], Iterable[PatchSet]]


SOURCES = {
    DEMO: Source(lambda word: word == DEMO, lambda word, on_progress: read_demo(on_progress)),
    "a PatchSet (set.json)": Source(is_patchset, lambda folder, on_progress: [PatchSet.open(folder)]),
    "a PhotoTour folder (info.txt, patches0000.bmp)": Source(
        is_phototour, lambda folder, on_progress: [read_phototour(folder, on_progress=on_progress)]
    ),
}


def accepted() -> str:
    """What --data accepts, for help texts and errors."""
    return f"{', '.join(SOURCES)}, or a folder of these"


class Sources(NamedTuple):
    train: list[PatchSet]
    test: list[PatchSet]  # each with test pairs


def open_sources(data: Sequence[str], holdout: Sequence[str] = (), on_progress: OnProgress = no_progress) -> Sources:
    """The sets to train on and the held-out ones, by the sets' names. The demo's test images are always held out.

    Other sets of a held-out scene, such as synthetic views of its photos, are not trained on either.
    """
    found = open_patchsets(data, on_progress)
    held_out = set(holdout) | {"demo-test"}
    unknown = set(holdout) - {patchset.name for patchset in found}
    if unknown:
        names = ", ".join(patchset.name for patchset in found)
        raise InputError(f"--holdout {' '.join(sorted(unknown))}: no such set; --data gives {names}.")
    scenes = {scene_of(patchset) for patchset in found if patchset.name in held_out}
    train = [patchset for patchset in found if scene_of(patchset) not in scenes]
    test = [with_pairs(patchset) for patchset in found if patchset.name in held_out]
    if not train:
        raise InputError("every set of --data is held out: nothing is left to train on.")
    return Sources(train, test)


def open_tests(data: Sequence[str], on_progress: OnProgress = no_progress) -> list[PatchSet]:
    """The sets to evaluate on, each with test pairs; `demo` means its test images."""
    found = open_patchsets(data, on_progress)
    return [with_pairs(one) for one in found if not (one.name == "demo-train" and DEMO in data)]


def open_patchsets(data: Sequence[str], on_progress: OnProgress = no_progress) -> list[PatchSet]:
    if not data:
        raise InputError(f"--data is empty: give {accepted()}.")
    found = [patchset for word in data for patchset in _open(word, on_progress)]
    names = [patchset.name for patchset in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:  # a point given twice would be a negative of itself
        raise InputError(f"--data gives {', '.join(twice)} more than once: name each set once.")
    return found


def _open(word: str, on_progress: OnProgress) -> list[PatchSet]:
    """The sets that a word of --data names."""
    words = [word]
    if _source_of(word) is None:
        if not Path(word).is_dir():
            raise InputError(f"{word}: there is no such folder; give {accepted()}.")
        words = sorted(entry.path for entry in os.scandir(word) if entry.is_dir())
    sources = [(one, source) for one in words if (source := _source_of(one)) is not None]
    if not sources:
        raise InputError(f"--data {word}: not a data set, and contains none; give {accepted()}.")
    return [patchset for one, source in sources for patchset in source.read(one, on_progress)]


def _source_of(word: str) -> Source | None:
    return next((source for source in SOURCES.values() if source.recognises(word)), None)


def with_pairs(patchset: PatchSet) -> PatchSet:
    """The set with test pairs: its own, or random ones."""
    if patchset.test_pairs is not None and len(patchset.test_pairs):
        return patchset
    return patchset.with_test_pairs(random_test_pairs(patchset, DRAWN_PAIRS))

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
from sdgmnet.errors import InputError, suggestion
from sdgmnet.report import OnProgress, no_progress

DRAWN_PAIRS, DRAWN_SEED = 5000, 0  # for a held-out set without test pairs
DEMO = "demo"
DEMO_SETS = ("demo-train", "demo-test")


def folder_name(word: str) -> Sequence[str]:
    return [Path(word).resolve().name]


class Source(NamedTuple):
    """A kind of data set: whether a word of --data, or a folder in the folder that it names, is one; and how to read it."""

    recognises: Callable[[str], bool]
    read: Callable[[str, OnProgress], Iterable[PatchSet]]
    names: Callable[[str], Sequence[str]] = folder_name  # of its sets, known before they are read


SOURCES = {
    DEMO: Source(lambda word: word == DEMO, lambda word, on_progress: read_demo(on_progress), lambda word: DEMO_SETS),
    "a PatchSet (set.json)": Source(
        is_patchset, lambda folder, on_progress: [PatchSet.open(folder)], lambda folder: [PatchSet.open(folder).name]
    ),
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
    remarks: Sequence[str] = ()  # sets that are not used, test pairs that were drawn


def require_sources(data: Sequence[str], holdout: Sequence[str] = ()) -> None:
    """InputError where --data or --holdout name something that is not there. Reads no data set: takes milliseconds."""
    names = [name for one, source in locate(data) for name in source.names(one)]
    require_each_once(names)
    require_holdout(holdout, names)


def open_sources(data: Sequence[str], holdout: Sequence[str] = (), on_progress: OnProgress = no_progress) -> Sources:
    """The sets to train on and the held-out ones, by the sets' names. The demo's test images are always held out.

    Other sets of a held-out scene, such as synthetic views of its photos, are not trained on either.
    """
    found = open_patchsets(data, on_progress)
    require_holdout(holdout, [patchset.name for patchset in found])
    held_out = set(holdout) | {"demo-test"}
    scenes = {scene_of(patchset) for patchset in found if patchset.name in held_out}
    train = [patchset for patchset in found if scene_of(patchset) not in scenes]
    chosen = [patchset for patchset in found if patchset.name in held_out]
    if not train:
        raise InputError("every set of --data is held out: nothing is left to train on.")
    unused = [one for one in found if one.name not in held_out and scene_of(one) in scenes]
    remarks = [f"{one.name} is not trained on: it shows the held-out scene {scene_of(one)}." for one in unused]
    test = [with_pairs(patchset) for patchset in chosen]
    return Sources(train, test, [*remarks, *drawn_remarks(chosen, test)])


def open_tests(data: Sequence[str], on_progress: OnProgress = no_progress) -> tuple[list[PatchSet], list[str]]:
    """The sets to evaluate on, each with test pairs, and a remark per set whose pairs were drawn; `demo`: its test images."""
    found = open_patchsets(data, on_progress)
    chosen = [one for one in found if not (one.name == "demo-train" and DEMO in data)]
    test = [with_pairs(one) for one in chosen]
    return test, drawn_remarks(chosen, test)


def open_patchsets(data: Sequence[str], on_progress: OnProgress = no_progress) -> list[PatchSet]:
    found = [patchset for one, source in locate(data) for patchset in source.read(one, on_progress)]
    require_each_once([patchset.name for patchset in found])
    return found


def require_each_once(names: Sequence[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:  # a point given twice would be a negative of itself
        raise InputError(f"--data gives {', '.join(twice)} more than once: name each set once.")


def require_holdout(holdout: Sequence[str], names: Sequence[str]) -> None:
    if unknown := sorted(set(holdout) - set(names)):
        near = suggestion(unknown[0], names)
        raise InputError(f"--holdout {' '.join(unknown)}: no such set; --data gives {', '.join(names)}{near}")


def locate(data: Sequence[str]) -> list[tuple[str, Source]]:
    """The data sets that the words of --data name, or that are in the folders they name; nothing is read."""
    if not data:
        raise InputError(f"--data is empty: give {accepted()}.")
    return [found for word in data for found in _locate(word)]


def _locate(word: str) -> list[tuple[str, Source]]:
    words = [word]
    if _source_of(word) is None:
        if not Path(word).is_dir():
            problem = "is not a folder" if Path(word).exists() else "does not exist"
            raise InputError(f"--data {word} {problem}: give {accepted()}.")
        words = sorted(entry.path for entry in os.scandir(word) if entry.is_dir())
    sources = [(one, source) for one in words if (source := _source_of(one)) is not None]
    if not sources:
        raise InputError(f"--data {word}: not a data set, and contains none; give {accepted()}.")
    return sources


def _source_of(word: str) -> Source | None:
    return next((source for source in SOURCES.values() if source.recognises(word)), None)


def with_pairs(patchset: PatchSet) -> PatchSet:
    """The set with test pairs: its own, or random ones."""
    if patchset.test_pairs is not None and len(patchset.test_pairs):
        return patchset
    return patchset.with_test_pairs(random_test_pairs(patchset, DRAWN_PAIRS, DRAWN_SEED))


def drawn_remarks(before: Sequence[PatchSet], after: Sequence[PatchSet]) -> list[str]:
    """A sentence per set that had no test pairs before `with_pairs`."""
    return [
        f"{one.name} has no test pairs: {len(paired.test_pairs)} were drawn (seed {DRAWN_SEED})."
        for one, paired in zip(before, after, strict=True)
        if paired is not one and paired.test_pairs is not None
    ]

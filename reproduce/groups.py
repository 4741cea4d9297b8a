"""Train on one group of scenes, test on the others: PhotoTour's three subsets, or groups of scenes made from photos."""

import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from sdgmnet.data.patchset import PatchSet, scene_of
from sdgmnet.data.sources import DRAWN_PAIRS, open_patchsets, with_pairs
from sdgmnet.errors import InputError
from sdgmnet.report import OnProgress, no_progress
from sdgmnet.training.fit import fingerprint

PHOTOTOUR = {"LIB": "liberty", "ND": "notredame", "YOS": "yosemite"}  # in the order of Table 1's columns


@dataclass(frozen=True)
class Group:
    """Scenes that are trained on together and tested on together; their FPR@95 is the mean over the scenes."""

    name: str
    folders: tuple[str, ...]
    train: tuple[PatchSet, ...]  # without test pairs, which do not matter for training
    test: tuple[PatchSet, ...]  # with test pairs; no synthetic views where there are photos
    drawn: tuple[str, ...] = ()  # sets that came without test pairs

    @cached_property
    def train_identity(self) -> list[list[str]]:
        return [[one.name, identity(one)] for one in self.train]

    @cached_property
    def test_identity(self) -> list[list[str]]:
        return [[one.name, identity(one, one.name in self.drawn)] for one in self.test]

    @cached_property
    def train_fingerprints(self) -> dict[str, str]:
        return {one.name: fingerprint(one) for one in self.train}

    @cached_property
    def test_fingerprints(self) -> dict[str, str]:
        return {one.name: fingerprint(one) for one in self.test}

    @property
    def pairs(self) -> int:
        return self.pairs_without(())

    def pairs_without(self, scenes: Collection[str]) -> int:
        return sum(len(one.test_pairs) for one in self.test if one.test_pairs is not None and one.name not in scenes)


def identity(patchset: PatchSet, drawn: bool = False) -> str:
    """Which set this is: one cut from photos by its photos and options, any other, and one with its own test pairs, by content.

    The last digits of a reconstruction may depend on the processor, so that two machines cut somewhat different patches from
    the same photos, a per cent more or fewer. A run that was finished on one of them is known on the other; results tell the
    sets apart by fingerprints, and `comparable.py` compares runs on equal ones.
    """
    made = {key: patchset.origin.get(key) for key in ("source", "method", "options", "photos")}
    if None in made.values() or not (drawn or patchset.test_pairs is None):
        return fingerprint(patchset)
    content = json.dumps({**made, "pairs": DRAWN_PAIRS if drawn else None}, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def open_groups(texts: Sequence[str], phototour: Path | None, on_progress: OnProgress = no_progress) -> list[Group]:
    """Groups of `NAME=FOLDER,FOLDER` texts, or PhotoTour's three subsets inside a folder."""
    if phototour is not None and texts:
        raise InputError("give either --groups or --phototour, not both.")
    if phototour is not None:
        texts = [f"{name}={_subset(phototour, folder)}" for name, folder in PHOTOTOUR.items()]
    if len(texts) < 2:
        raise InputError(
            "--groups needs two groups of scenes at least, as in --groups A=sets/castle,sets/dog B=sets/rock C=sets/temple: "
            "one to train on, the others to test on. sdgmnet data photos makes such sets; --phototour takes PhotoTour's."
        )
    groups = [_open(text, on_progress) for text in texts]
    require_apart(groups)
    return groups


def _subset(root: Path, name: str) -> Path:
    if not (root / name).is_dir():
        raise InputError(
            f"--phototour {root}: there is no folder {name}; it must hold {', '.join(PHOTOTOUR.values())}."
        )
    return root / name


def _open(text: str, on_progress: OnProgress) -> Group:
    name, equals, folders = text.partition("=")
    names = tuple(folder for folder in folders.split(",") if folder)
    if not equals or not name or not names or not name.replace("-", "").replace("_", "").isalnum():
        raise InputError(f"--groups {text}: a group is written NAME=FOLDER,FOLDER, NAME of letters and digits.")
    try:
        found = open_patchsets(names, on_progress)
    except InputError as error:
        raise InputError(f"--groups {name}: {str(error).replace('--data ', '')}") from error
    return make_group(name, names, found)


def make_group(name: str, folders: Sequence[str], found: Sequence[PatchSet]) -> Group:
    photos = [one for one in found if one.origin.get("source") != "views"] or list(found)
    drawn = tuple(one.name for one in photos if one.test_pairs is None or not len(one.test_pairs))
    plain = tuple(replace(one, test_pairs=None) for one in found)
    return Group(name, tuple(folders), plain, tuple(with_pairs(one) for one in photos), drawn)


def require_apart(groups: Sequence[Group]) -> None:
    """No name twice, and no scene in two groups: it would be trained on and tested on."""
    names = [group.name for group in groups]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"--groups: two groups are called {name}.")
    owner: dict[str, str] = {}
    for group in groups:
        for known in {one for patchset in group.train for one in (patchset.name, scene_of(patchset))}:
            if owner.setdefault(known, group.name) != group.name:
                raise InputError(
                    f"--groups: {known} is in {owner[known]} and in {group.name}; a scene may be in one group only."
                )


def find_group(groups: Sequence[Group], name: str | None) -> Group:
    """The group of that name, the first where none is given."""
    if name is None:
        return groups[0]
    for group in groups:
        if group.name == name:
            return group
    raise InputError(f"--train {name}: no such group; there are {', '.join(group.name for group in groups)}.")

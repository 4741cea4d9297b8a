"""Groups of scenes: training uses one group, tests use the others. PhotoTour's three subsets, or scenes made from photos."""

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
from sdgmnet.training.checkpoint import fingerprint

PHOTOTOUR = {"LIB": "liberty", "ND": "notredame", "YOS": "yosemite"}  # in the order of Table 1's columns


@dataclass(frozen=True)
class Group:
    """Scenes that are trained on together and tested on together; their FPR@95 is the mean over the scenes."""

    name: str
    folders: tuple[str, ...]
    train: tuple[PatchSet, ...]  # without test pairs, which do not matter for training
    test: tuple[PatchSet, ...]  # with test pairs; no synthetic views if there are photos
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

    def pairs(self, left_out: Collection[str] = ()) -> int:
        """Test pairs of all scenes but those."""
        return sum(len(one.test_pairs) for one in self.test if one.test_pairs is not None and one.name not in left_out)


def identity(patchset: PatchSet, drawn: bool = False) -> str:
    """A set cut from photos is identified by its photos and options, any other, or one with own test pairs, by its content.

    The last digits of a reconstruction may depend on the processor, so two machines cut slightly different patches from the
    same photos. A run that was finished on one machine is found on the other. Results record fingerprints of the content, and
    `results.compared` compares runs only on sets with equal ones.
    """
    made = {key: patchset.origin.get(key) for key in ("source", "method", "options", "photos")}
    if None in made.values() or not (drawn or patchset.test_pairs is None):
        return fingerprint(patchset)
    content = json.dumps({**made, "pairs": DRAWN_PAIRS if drawn else None}, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def open_groups(texts: Sequence[str], phototour: Path | None, on_progress: OnProgress = no_progress) -> list[Group]:
    """Groups written as NAME=FOLDER,FOLDER, or PhotoTour's three subsets inside a folder."""
    if phototour is not None and texts:
        raise InputError("give either --groups or --phototour, not both.")
    if phototour is not None:
        for folder in PHOTOTOUR.values():
            if not (phototour / folder).is_dir():
                needed = ", ".join(PHOTOTOUR.values())
                raise InputError(f"--phototour {phototour}: there is no folder {folder}; it must contain {needed}.")
        texts = [f"{name}={phototour / folder}" for name, folder in PHOTOTOUR.items()]
    if len(texts) < 2:
        raise InputError(
            "--groups needs at least two groups of scenes, one to train on and the others to test on, as in --groups "
            "A=sets/castle,sets/dog B=sets/rock. sdgmnet data photos makes such sets; --phototour reads PhotoTour's."
        )
    groups = [_open(text, on_progress) for text in texts]
    require_disjoint(groups)
    return groups


def _open(text: str, on_progress: OnProgress) -> Group:
    name, equals, folders = text.partition("=")
    names = tuple(folder for folder in folders.split(",") if folder)
    if not equals or not name or not names or not name.replace("-", "").replace("_", "").isalnum():
        raise InputError(f"--groups {text}: a group is written NAME=FOLDER,FOLDER, with a NAME of letters and digits.")
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


def require_disjoint(groups: Sequence[Group]) -> None:
    """No name twice, and no scene in two groups: it would be trained on and tested on."""
    names = [group.name for group in groups]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"--groups: two groups are named {name}.")
    owner: dict[str, str] = {}
    for group in groups:
        for known in {one for patchset in group.train for one in (patchset.name, scene_of(patchset))}:
            if owner.setdefault(known, group.name) != group.name:
                raise InputError(
                    f"--groups: {known} is in {owner[known]} and in {group.name}; a scene may be in one group only."
                )


def find_group(groups: Sequence[Group], name: str) -> Group:
    for group in groups:
        if group.name == name:
            return group
    raise InputError(f"--train {name}: no such group; there are {', '.join(group.name for group in groups)}.")

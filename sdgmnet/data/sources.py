"""What `--data` may name: PatchSets, PhotoTour folders, folders of these, or `demo`; and which of them are held out."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sdgmnet.data.patchset import PatchSet, is_patchset, random_test_pairs, scene_of
from sdgmnet.data.phototour import is_phototour, read_phototour
from sdgmnet.data.synthetic.demo import read_demo
from sdgmnet.errors import InputError

DRAWN_PAIRS = 5000  # for a held-out set that comes without test pairs


class Sources(NamedTuple):
    train: list[PatchSet]
    test: list[PatchSet]  # each with test pairs


def open_sources(data: Sequence[str], holdout: Sequence[str] = (), progress: bool = False) -> Sources:
    """The sets to train on and the held-out ones, by the sets' names. The demo's test images are always held out.

    Other sets of a held-out scene, such as synthetic views of its photos, are not trained on either.
    """
    found = open_patchsets(data, progress)
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


def open_patchsets(data: Sequence[str], progress: bool = False) -> list[PatchSet]:
    if not data:
        raise InputError("--data names no set: give folders of patches, or demo.")
    found = [patchset for name in data for patchset in _open_one(name, progress)]
    names = [patchset.name for patchset in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:  # a point given twice would be a negative of itself
        raise InputError(f"--data gives {', '.join(twice)} more than once: name each set once.")
    return found


def open_tests(data: Sequence[str], progress: bool = False) -> list[PatchSet]:
    """The sets to evaluate on, each with test pairs; `demo` means its test images."""
    found = open_patchsets(data, progress)
    return [with_pairs(one) for one in found if not (one.name == "demo-train" and "demo" in data)]


def _open_one(name: str, progress: bool) -> list[PatchSet]:
    if name == "demo":
        return list(read_demo())
    folder = Path(name)
    if not folder.is_dir():
        raise InputError(f"--data {name}: there is no such folder; give a PatchSet, a PhotoTour folder, or demo.")
    inside = (
        [folder]
        if _is_set(folder)
        else sorted(child for child in folder.iterdir() if child.is_dir() and _is_set(child))
    )
    if not inside:
        raise InputError(
            f"--data {name}: neither a PatchSet (set.json) nor a PhotoTour folder (info.txt, patches0000.bmp), "
            "and no folder of such."
        )
    return [PatchSet.open(one) if is_patchset(one) else read_phototour(one, progress=progress) for one in inside]


def _is_set(folder: Path) -> bool:
    return is_patchset(folder) or is_phototour(folder)


def with_pairs(patchset: PatchSet) -> PatchSet:
    """The set with test pairs: its own, or drawn ones where it has none."""
    if patchset.test_pairs is not None and len(patchset.test_pairs):
        return patchset
    return patchset.with_test_pairs(random_test_pairs(patchset, DRAWN_PAIRS))

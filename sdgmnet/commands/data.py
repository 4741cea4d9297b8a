"""`sdgmnet data ...`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from sdgmnet.data.demo import read_demo
from sdgmnet.data.download import DEFAULT_MIRROR, fetch_phototour
from sdgmnet.data.patchset import PatchSet
from sdgmnet.data.phototour import read_phototour, write_phototour
from sdgmnet.errors import InputError
from sdgmnet.report import print_table

Out = Annotated[Path, tyro.conf.arg(aliases=["-o"])]


@dataclass(frozen=True)
class PhototourArguments:
    """UBC PhotoTour subsets as PatchSets, one folder each below --out.

    Convert folders you have (info.txt, patches0000.bmp, m50_100000_100000_0.txt):

        sdgmnet data phototour downloads/liberty downloads/yosemite -o ubc

    Or fetch them first, several hundred megabytes each, over HTTPS; a broken download goes on where it stopped:

        sdgmnet data phototour liberty notredame yosemite --download -o ubc
    """

    subsets: tyro.conf.Positional[tuple[str, ...]]
    """Folders to convert; with --download names: liberty, notredame, yosemite, and these with _harris."""
    out: Out
    """Where the PatchSets go."""
    download: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Fetch the named subsets. Nothing is downloaded without it."""
    mirror: str = DEFAULT_MIRROR
    """Address below which the archives lie."""


def phototour(words: list[str]) -> None:
    arguments = tyro.cli(PhototourArguments, prog="sdgmnet data phototour", args=words)
    if not arguments.subsets:
        raise InputError("name the folders to convert, or the subsets to fetch with --download.")
    if arguments.download:
        sets = [fetch_phototour(name, arguments.out, arguments.mirror, progress=True) for name in arguments.subsets]
    else:
        for name in arguments.subsets:
            if not Path(name).is_dir():
                raise InputError(f"{name} is not a folder: give the folder of a subset, or add --download to fetch it.")
        folders = [Path(name) for name in arguments.subsets]
        for folder in folders:
            if (arguments.out / folder.resolve().name).resolve() == folder.resolve():
                raise InputError(f"{folder} would be converted into itself: choose another -o.")
        sets = [read_phototour(folder, arguments.out / folder.resolve().name, progress=True) for folder in folders]
    summarise(sets)


@dataclass(frozen=True)
class DemoArguments:
    """Write the embedded patch sets, made from scikit-image's pictures: demo-train and demo-test, below --out."""

    out: Out
    """Folder for the two PatchSets."""


def demo(words: list[str]) -> None:
    arguments = tyro.cli(DemoArguments, prog="sdgmnet data demo", args=words)
    summarise([patchset.save(arguments.out / patchset.name) for patchset in read_demo()])


@dataclass(frozen=True)
class ExportArguments:
    """Write a PatchSet in the layout of UBC PhotoTour (bitmaps, info.txt, m50_n_n_0.txt), for other tools to read."""

    patchset: tyro.conf.Positional[Path]
    """Folder of the PatchSet."""
    out: Out
    """New folder to write."""
    contiguous_ids: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Number points from 0 without gaps, as the loaders of HardNet and its followers expect."""


def export(words: list[str]) -> None:
    arguments = tyro.cli(ExportArguments, prog="sdgmnet data export", args=words)
    write_phototour(PatchSet.open(arguments.patchset), arguments.out, arguments.contiguous_ids)
    print(f"Written to {arguments.out}.")


def summarise(sets: list[PatchSet]) -> None:
    rows = []
    for one in sets:
        points, pairs = len(np.unique(one.point_id)), 0 if one.test_pairs is None else len(one.test_pairs)
        rows.append([one.name, f"{len(one)}", f"{points}", f"{len(one) / max(points, 1):.2f}", f"{pairs}"])
    print_table(["set", "patches", "points", "patches a point", "test pairs"], rows)

"""`sdgmnet data ...`."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from sdgmnet.data.download import DEFAULT_MIRROR, fetch_phototour
from sdgmnet.data.patchset import PatchSet, is_patchset, random_test_pairs, write_test_pairs
from sdgmnet.data.phototour import read_phototour, write_phototour
from sdgmnet.data.synthetic.demo import read_demo
from sdgmnet.errors import InputError
from sdgmnet.report import Out, Section, deliver, print_aside, print_table


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
class PhotosArguments:
    """Training patches from your own photos: each sub-folder of FOLDER is a scene, or FOLDER itself is one.

        sdgmnet data photos my_photos -o my_patches

    Every scene is reconstructed, keypoints are carried between photos through depth maps, and those that geometry calls the
    same become one point of a PatchSet in --out. Started again after a stop, it goes on where it was. Needs pycolmap
    (pip install 'sdgmnet[sfm]').
    """

    folder: tyro.conf.Positional[Path]
    """Photos, or a sub-folder of photos for each scene. 10 to 60 overlapping photos make a good scene."""
    out: Out
    """A PatchSet and a contact sheet for each scene, results.json and table.md."""
    source: Annotated[Literal["geometry", "tracks"], tyro.conf.arg(name="from")] = "geometry"
    """tracks: only what SIFT matched in the reconstruction. Quicker, but too easy to learn much from."""
    carried: bool = True
    """Also cut patches where a point is visible but no keypoint was detected: what a detector finds twice looks alike."""
    keypoints: int = 8000
    """Keypoints of a photo, at most."""
    smallest_scale: float = 1.6
    """Sigma of a keypoint in pixels, at least; a patch is 12 sigma wide."""
    size: int = 1600
    """Longest side of the photos that are worked on; larger ones are made smaller."""
    dense_size: int = 800
    """Longest side of the depth maps; the time grows with its square."""
    cameras: Literal["auto", "one", "each"] = "auto"
    """Who shares a lens: photos of equal size, folder and focal length; all of equal size; nobody."""
    all_pairs: int = 40
    """Scenes of up to so many photos compare all pairs; larger ones neighbours by name, then photos that share points."""
    threads: int = 2
    """Threads to work with. The patches do not depend on it."""
    seed: int = 0
    """Of every random choice in the reconstruction."""
    work: Path | None = None
    """Where reconstructions are kept for another run; by default .work in --out."""
    discard_work: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Delete a scene's reconstruction once its patches are written."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print results as JSON."""


def photos(words: list[str]) -> None:
    arguments = tyro.cli(PhotosArguments, prog="sdgmnet data photos", args=words)
    import torch

    from sdgmnet.data.photos.match_rule import Rule
    from sdgmnet.data.photos.pipeline import PhotoOptions, make_patchsets
    from sdgmnet.plots import draw_easy_and_hard
    from sdgmnet.sfm.depth import DenseOptions
    from sdgmnet.sfm.sparse import SparseOptions

    for name in ("keypoints", "size", "dense_size", "threads"):
        if getattr(arguments, name) < 1:
            raise InputError(f"--{name.replace('_', '-')} must be at least 1, not {getattr(arguments, name)}.")
    if arguments.dense_size < 64 or arguments.size < 64:
        raise InputError("--size and --dense-size must be at least 64 pixels.")
    if not 0 <= arguments.seed < 2**31:
        raise InputError(f"--seed must lie in [0, 2^31), not {arguments.seed}.")
    if not 0 < arguments.smallest_scale < float("inf") or arguments.all_pairs < 0:
        raise InputError("--smallest-scale must be a positive number and --all-pairs not negative.")
    if find_spec("pycolmap") is None:
        raise InputError("photos are reconstructed by pycolmap, which is not installed: pip install 'sdgmnet[sfm]'.")
    torch.set_num_threads(arguments.threads)
    sparse = SparseOptions(
        size=arguments.size,
        cameras=arguments.cameras,
        all_pairs=arguments.all_pairs,
        seed=arguments.seed,
        threads=arguments.threads,
    )
    dense = DenseOptions(size=arguments.dense_size, seed=arguments.seed)
    options = PhotoOptions(
        sparse,
        dense,
        Rule(),
        arguments.keypoints,
        arguments.smallest_scale,
        arguments.carried,
        arguments.source,
    )
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("photos", total=None)
        rows, failures = make_patchsets(
            arguments.folder,
            arguments.out,
            options,
            work=arguments.work,
            discard_work=arguments.discard_work,
            tell=lambda done, total, what: bar.update(task, completed=done, total=total, description=what),
            say=lambda sentence: bar.console.print(sentence, markup=False, highlight=False, soft_wrap=True),
        )
    for row in rows:
        sheet = arguments.out / f"{row['scene']}.png"
        if not sheet.exists() or sheet.stat().st_mtime < (arguments.out / row["scene"] / "set.json").stat().st_mtime:
            draw_easy_and_hard(PatchSet.open(arguments.out / row["scene"]), sheet)
    for row in rows:
        for name, reason in row.get("broken", []):
            print_aside(f"{row['scene']}: {name} {reason}; left out.")
        for model, reason in row.get("left_out", []):
            print_aside(f"{row['scene']}: model {model} left out: {reason}")
    for failure in failures:
        print_aside(f"{failure.scene} skipped: {failure.reason}")
    if not rows:
        raise InputError("no scene gave patches; the reasons stand above.")
    results = {"scenes": rows, "failed": [failure._asdict() for failure in failures]}
    deliver(results, [Section("Patch sets", "", *photos_table(rows))], arguments.out, arguments.json)


def photos_table(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    stages = ("sparse", "dense", "correspondence", "patches")
    header = [
        "scene",
        "photos",
        "registered",
        "points",
        "patches",
        "a point",
        *(f"{stage} s" for stage in stages),
        "peak MB",
    ]
    table = []
    for row in rows:
        seconds = row.get("seconds", {})
        table.append(
            [
                row["scene"],
                *(f"{row.get(name, '')}" for name in ("photos", "registered", "points", "patches")),
                f"{row['patches_per_point']:.2f}" if "patches_per_point" in row else "",
                *(f"{seconds[stage]:.0f}" if stage in seconds else "" for stage in stages),
                f"{row['peak_bytes'] / 1e6:.0f}" if "peak_bytes" in row else "",
            ]
        )
    return header, table


@dataclass(frozen=True)
class PairsArguments:
    """Draw balanced test pairs for PatchSets, half matching, half of different points, as in PhotoTour's m50 files.

    Points that are too close to each other to be called different never make a non-matching pair. Sets that have test
    pairs keep them.
    """

    patchsets: tyro.conf.Positional[tuple[Path, ...]]
    """PatchSets, or folders of them."""
    count: int = 100000
    """Pairs for each set; fewer where the set has no more."""
    seed: int = 0
    """Of the draw."""
    replace: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Draw anew where a set already has test pairs."""


def pairs(words: list[str]) -> None:
    arguments = tyro.cli(PairsArguments, prog="sdgmnet data pairs", args=words)
    if not arguments.patchsets:
        raise InputError("name the PatchSets that are to get test pairs.")
    if arguments.count < 2:
        raise InputError(f"--count must be at least 2, not {arguments.count}.")
    found = {one.resolve(): one for folder in arguments.patchsets for one in patchset_folders(folder)}  # each once
    opened = {folder: PatchSet.open(folder) for folder in found.values()}
    kept = [folder for folder, one in opened.items() if one.test_pairs is not None and not arguments.replace]
    have = "has" if len(kept) == 1 else "have"
    told = f"{', '.join(str(folder) for folder in kept)} {have} test pairs already"
    if len(kept) == len(opened):
        raise InputError(f"{told}: pass --replace to draw them anew.")
    # All are drawn before the first is written: one that has too few points leaves every set as it was.
    drawn = {
        folder: random_test_pairs(one, arguments.count, arguments.seed)
        for folder, one in opened.items()
        if folder not in kept
    }
    for folder, test_pairs in drawn.items():
        write_test_pairs(folder, test_pairs)
    if kept:
        print_aside(f"{told}, left as they are: --replace draws them anew.")
    summarise([PatchSet.open(folder) for folder in drawn])


def patchset_folders(folder: Path) -> list[Path]:
    """The folder itself where it is a PatchSet, otherwise those in it."""
    if is_patchset(folder):
        return [folder]
    inside = sorted(child for child in folder.iterdir() if is_patchset(child)) if folder.is_dir() else []
    if not inside:
        raise InputError(f"{folder} is no PatchSet and holds none: make one with sdgmnet data photos.")
    return inside


@dataclass(frozen=True)
class DemoArguments:
    """Write the embedded patch sets, made from scikit-image's images: demo-train and demo-test, below --out."""

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

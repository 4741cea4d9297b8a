"""`sdgmnet evaluate reconstruction`."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from sdgmnet.benchmarks.photo_sets import read_photo_sets
from sdgmnet.benchmarks.reconstruction import BenchmarkOptions, Detector, parse_entries, run, table
from sdgmnet.commands.reconstruct import check_numbers, stages, use_threads
from sdgmnet.errors import InputError
from sdgmnet.plots import draw_reconstruction
from sdgmnet.report import Section, deliver, print_aside
from sdgmnet.sfm.colmap import need_pycolmap
from sdgmnet.sfm.reconstruct import NoModel

DEFAULT = BenchmarkOptions()


@dataclass(frozen=True)
class Arguments:
    """The ETH benchmark: what COLMAP reconstructs from each descriptor's matches.

        sdgmnet evaluate reconstruction sift rootsift sdgmnet --root sets -o results

    Every descriptor describes the same keypoints of the photos at full size; all pairs are matched by mutual nearest neighbours
    without ratio test, as in the paper (the official table has --ratio 0.8). Of the largest model: registered photos, points,
    observations, track length, reprojection error. The same options and threads give the same figures. A set is a folder of
    photos, or one with images/, and with keypoints/*.bin and ground_truth/ where there are such. After a stop, start the same
    command again.
    """

    contenders: tyro.conf.Positional[tuple[str, ...]]
    """What to compare: [label=]sift | rootsift | sdgmnet | tfeat:FILE | FILE.safetensors | RUN_FOLDER | a FOLDER with
    SET/descriptors/*.bin, and perhaps SET/matches/*.bin, in the benchmark's format | colmap, its own keypoints and matching."""
    root: Path
    """Folder of sets, or a set."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """results.json, table.md, reconstruction.png, and a COLMAP workspace with cloud.png in SET/LABEL."""
    sets: tuple[str, ...] = ()
    """Names of the sets to use; all where none is given."""
    detector: Detector = DEFAULT.detector
    """Whose keypoints all descriptors describe where a set brings none: those of COLMAP's SIFT, as in the benchmark's own files,
    or OpenCV's."""
    keypoints: int | None = None
    """At most so many a photo. By default 8192 places of COLMAP, the largest, many of them with several orientations; 12 000 of
    OpenCV, the strongest."""
    contrast: float = DEFAULT.contrast
    """Of OpenCV's keypoints, at least."""
    mutual: bool = True
    """Only matches that are each other's nearest."""
    ratio: float | None = None
    """Only matches whose nearest is nearer than so many times the second nearest."""
    cameras: Literal["auto", "one", "each"] = DEFAULT.cameras
    """Who shares a lens: nobody, as in the benchmark; photos of equal size and focal length (auto); all of equal size."""
    dense: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Also dense points, fused by COLMAP from depth maps: its own on a GPU, ours elsewhere; the table says whose."""
    dense_size: int = DEFAULT.dense_size
    """Longest side of the depth maps."""
    exchange: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Also write descriptors/*.bin and matches/*.bin in the benchmark's format, below SET/LABEL."""
    threads: int = DEFAULT.threads
    """Threads to work with; COLMAP's mapping has one."""
    seed: int = DEFAULT.seed
    """Of every random choice."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print JSON instead of a table."""


def main(words: list[str]) -> None:
    arguments = tyro.cli(Arguments, prog="sdgmnet evaluate reconstruction", args=words)
    check_numbers(arguments, dense_size=64, threads=1)
    if arguments.keypoints is not None:
        check_numbers(arguments, keypoints=1)
    need_pycolmap()
    if arguments.out.exists() and not arguments.out.is_dir():
        raise InputError(f"{arguments.out} is a file: give the name of a folder.")
    entries = parse_entries(arguments.contenders)
    sets = read_photo_sets(arguments.root, without=[arguments.out])
    if unknown := sorted(set(arguments.sets) - {one.name for one in sets}):
        raise InputError(f"{arguments.root} holds no set named {', '.join(unknown)}.")
    sets = [one for one in sets if not arguments.sets or one.name in arguments.sets]
    for one in sets:
        if (arguments.out / one.name).resolve() in (one.images.resolve(), *one.images.resolve().parents):
            raise InputError(f"{arguments.out} holds the photos themselves: choose another -o.")
    names = BenchmarkOptions.__dataclass_fields__
    options = BenchmarkOptions(**{name: getattr(arguments, name) for name in names})
    use_threads(arguments.threads)
    rows: list[dict[str, Any]] = []
    failed: list[dict[str, str]] = []
    for photos in sets:
        for entry in entries:
            print_aside(f"{photos.name}, {entry.label}")
            try:
                with stages() as tell:
                    rows.append(run(entry, photos, arguments.out, options, tell))
            except NoModel as error:
                failed.append({"set": photos.name, "label": entry.label, "reason": str(error)})
                print_aside(f"{photos.name}, {entry.label}: {error}")
    if not rows:
        raise InputError("no descriptor gave a model; the reasons stand above.")
    results = {"options": asdict(options), "rows": rows, "failed": failed}
    told = f"ratio {options.ratio:g}" if options.ratio is not None else "no ratio test"
    title = f"Reconstruction ({'mutual' if options.mutual else 'one-way'} nearest neighbours, {told})"
    deliver(results, [Section(title, "", *table(rows, failed))], arguments.out, arguments.json)
    draw_reconstruction(rows, arguments.out / "reconstruction.png")

"""`sdgmnet reconstruct`."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import cv2
import torch
import tyro
from rich.console import Console
from rich.progress import TaskID

from sdgmnet.descriptors import describe, descriptor_fingerprint, load_descriptor
from sdgmnet.errors import InputError
from sdgmnet.features.describe import Features, find_keypoints
from sdgmnet.features.images import find_photos, plain_name, read_gray
from sdgmnet.features.pairs import read_pairs
from sdgmnet.pretrained import ALIAS
from sdgmnet.report import Out, counting_bar, print_aside, print_table
from sdgmnet.sfm.colmap import need_pycolmap
from sdgmnet.sfm.fusion import SIZE as DENSE_SIZE
from sdgmnet.sfm.fusion import densify
from sdgmnet.sfm.reconstruct import INPUTS, ModelOptions, Photos, Place, build_model
from sdgmnet.sfm.viewer import show_model
from sdgmnet.storage import digest, only_worker, write_json

CONTRAST = 0.02  # COLMAP's, at which a photo of 3000 pixels has some 20 000 keypoints
KEYPOINTS = 12_000
SIZE = 3200  # pixels, COLMAP's; the detector takes 235 bytes a pixel
NAMED = 5  # photos, where there may be many


@dataclass(frozen=True)
class ReconstructArguments:
    """A 3-D model of what photos show, as a COLMAP workspace.

        sdgmnet reconstruct photos -o model

    Keypoints are detected, described and matched here; COLMAP (pip install 'sdgmnet[sfm]') verifies the matches and finds
    cameras and points. The folder then holds images/, database.db, sparse/0 (binary and text), sparse/points.ply, summary.json,
    an image, cloud.png, and a page to turn it in, cloud.html; COLMAP's GUI, hloc and splatting tools open it. After a stop,
    start the same command again.
    """

    photos: tyro.conf.Positional[Path]
    """Folder of photos of one scene; sub-folders are taken too."""
    out: Out
    """The workspace."""
    descriptor: str = ALIAS
    """What describes: sdgmnet (the best weights that ship), sift, rootsift, tfeat:FILE, FILE.safetensors, RUN_FOLDER."""
    keypoints: int = KEYPOINTS
    """At most so many keypoints a photo, strongest first."""
    contrast: float = CONTRAST
    """Of a keypoint, at least, in OpenCV's measure: less finds more. Photos with little texture want 0.01."""
    size: int = SIZE
    """Longest side; larger photos are made smaller while keypoints are found, which takes 235 bytes a pixel."""
    upright: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Photos were all taken upright: keypoints get no angle. Finds more then, nothing where a photo is turned."""
    mutual: bool = True
    """Only matches that are each other's nearest."""
    ratio: float | None = None
    """Only matches whose nearest is nearer than so many times the second nearest, such as 0.9: surer where things repeat."""
    pairs: str = "all"
    """Which photos to match: all pairs, sequential (neighbours in the order of names, and some farther ones), or a text FILE
    with two names a line."""
    neighbours: int = 10
    """sequential: so many photos before and after."""
    cameras: Literal["auto", "one", "each"] = "auto"
    """Who shares a lens: photos of equal size, folder and focal length; all of equal size; nobody."""
    dense: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Then depth maps of every photo and a dense cloud of the largest model, dense/fused.ply."""
    dense_size: int = DENSE_SIZE
    """Longest side of the depth maps; the time grows with its square."""
    threads: int = 2
    """Threads to work with."""
    seed: int = 0
    """Of every random choice."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print JSON instead of a table."""


def main(words: list[str]) -> None:
    arguments = tyro.cli(ReconstructArguments, prog="sdgmnet reconstruct", args=words)
    check(arguments)
    place = Place(arguments.out)
    keep_apart(arguments.photos, place)
    names = tuple(find_photos(arguments.photos, without=(arguments.out,)))
    if not names:
        raise InputError(f"{arguments.photos} holds no photos (JPEG, PNG, TIFF, WebP, BMP), nor do its sub-folders.")
    in_file = arguments.pairs not in ("all", "sequential")
    listed = read_pairs(Path(arguments.pairs), {plain_name(name) for name in names}) if in_file else []
    options = ModelOptions(
        cameras=arguments.cameras,
        pairs=f"list {digest(arguments.pairs)}" if in_file else arguments.pairs,
        neighbours=arguments.neighbours,
        mutual=arguments.mutual,
        ratio=arguments.ratio,
        seed=arguments.seed,
        threads=arguments.threads,
    )
    use_threads(arguments.threads)
    contender = load_descriptor(arguments.descriptor)

    def describe_photo(name: str, path: Path) -> Features:
        gray = read_gray(path, exif_orientation=False)
        keypoints = find_keypoints(
            gray, arguments.keypoints, upright=arguments.upright, size=arguments.size, contrast=arguments.contrast
        )
        return describe(gray, keypoints, descriptor=contender, upright=arguments.upright, size=arguments.size)

    described_by = {
        "descriptor": descriptor_fingerprint(arguments.descriptor),
        **{key: getattr(arguments, key) for key in ("keypoints", "contrast", "size", "upright")},
    }
    with only_worker(place.notes), stages() as tell:
        photos = Photos(arguments.photos, names)
        summary = build_model(place, photos, options, describe_photo, described_by, listed=listed, tell=tell)
        show_model(place, summary, plain_name(arguments.photos.resolve().name))
        write_json(place.folder / "summary.json", summary)
        if arguments.dense:
            dense = densify(place, arguments.dense_size, seed=arguments.seed, threads=arguments.threads, tell=tell)
            summary = {**summary, "dense": dense, **place.times.read()}
            write_json(place.folder / "summary.json", summary)
    report(place, summary, as_json=arguments.json)


def check(arguments: ReconstructArguments) -> None:
    check_numbers(arguments, keypoints=1, size=64, dense_size=64, neighbours=1, threads=1)
    if not arguments.photos.is_dir():
        raise InputError(f"{arguments.photos} is not a folder: give the folder of the photos.")
    need_pycolmap()


def check_numbers(arguments: Any, **least: int) -> None:
    """Of arguments with a contrast, a ratio and a seed, and others that have a least value."""
    for name, lowest in least.items():
        if getattr(arguments, name) < lowest:
            raise InputError(f"--{name.replace('_', '-')} must be at least {lowest}, not {getattr(arguments, name)}.")
    if not 0 <= arguments.contrast < 1:
        raise InputError(f"--contrast lies in [0, 1), not {arguments.contrast}.")
    if arguments.ratio is not None and not 0 < arguments.ratio <= 1:
        raise InputError(f"--ratio lies in (0, 1], not {arguments.ratio}.")
    if not 0 <= arguments.seed < 2**31:
        raise InputError(f"--seed must lie in [0, 2^31), not {arguments.seed}.")


def use_threads(count: int) -> None:
    torch.set_num_threads(count)
    cv2.setNumThreads(count)


def keep_apart(photos: Path, place: Place) -> None:
    """Nothing is ever written or removed where the photos are, nor in a folder that holds something else."""
    ours, theirs = place.folder.resolve(), photos.resolve()
    if ours == theirs or ours in theirs.parents:
        raise InputError(f"{place.folder} holds the photos themselves: choose another -o.")
    if place.folder.exists() and not place.folder.is_dir():
        raise InputError(f"{place.folder} is a file: give the name of a folder.")
    others = {path.name for path in place.folder.iterdir()} if place.folder.is_dir() else set()
    if others and others != {place.notes.name} and not (place.notes / INPUTS).exists():
        raise InputError(f"{place.folder} holds something else: choose another -o, or remove it.")


@contextmanager
def stages() -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each stage, as it comes."""
    with counting_bar(Console(stderr=True)) as bar:
        tasks: dict[str, TaskID] = {}

        def tell(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=total)
            bar.update(tasks[stage], completed=done, total=total)

        yield tell


def report(place: Place, summary: dict[str, Any], *, as_json: bool) -> None:
    for name, reason in summary["broken"]:
        print_aside(f"{name} {reason}; left out.")
    if missing := summary["unregistered"]:
        more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
        others = f" (other models hold {summary['models'][1:]} photos)" if len(summary["models"]) > 1 else ""
        print_aside(f"Not in the largest model: {', '.join(missing[:NAMED])}{more}{others}.")
    if as_json:
        print(json.dumps(summary, indent=2))
        return
    figures = [
        ["photos registered", f"{summary['registered']} of {summary['photos']}"],
        ["points", f"{summary['points']}"],
        ["observations", f"{summary['observations']}"],
        ["track length", f"{summary['track_length']:.3f}"],
        ["observations a photo", f"{summary['observations_per_image']:.1f}"],
        ["reprojection error", f"{summary['reprojection_error']:.3f} px"],
        ["pairs verified", f"{summary['inlier_pairs']} of {summary['pairs']}"],
        ["matches verified", f"{summary['inlier_matches']}"],
        ["keypoints a photo", f"{summary['keypoints']:.0f}"],
    ]
    if dense := summary.get("dense"):
        figures.append([f"dense points, engine {dense['engine']}", f"{dense['points']}"])
    print_table(["what", "value"], figures)
    seconds, peaks = summary["seconds"], summary["peak_bytes_of"]
    spent = [[stage, f"{seconds[stage]:.1f}", f"{peaks.get(stage, 0) / 1e6:.0f}"] for stage in seconds]
    print_table(["stage", "seconds", "MB"], spent)
    print(
        f"{place.folder / 'cloud.png'} and cloud.html show it; COLMAP's GUI, hloc and splatting tools open {place.folder}."
    )

"""`sdgmnet match`."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from sdgmnet.data.patchset import require_photos
from sdgmnet.descriptors import accepted_forms, load_descriptor, require_form, with_window
from sdgmnet.errors import InputError, resumable
from sdgmnet.features.describe import LONGEST_SIDE, SMALLEST_SIDE, UPRIGHT_HELP, StageTimer
from sdgmnet.features.images import find_images, plain_name, read_color, require_readable
from sdgmnet.features.masks import MASKS_HELP, require_masks
from sdgmnet.features.match import MATCHER_HELP, RATIO, MatcherName, match
from sdgmnet.features.pairs import (
    CHOICES,
    FORMER,
    NEIGHBOURS,
    NEIGHBOURS_HELP,
    PAIRS_DEFAULT,
    PAIRS_HELP,
    Pair,
    choose_method,
    ordered_pairs,
    read_pairs,
    write_pairs,
)
from sdgmnet.features.verify import Model, verify
from sdgmnet.options import Flag, Option, OptionalOut, Positional, pick, require_options
from sdgmnet.pretrained import ALIAS
from sdgmnet.report import OnProgress, print_aside, print_table, progress_bars, track

if TYPE_CHECKING:
    from sdgmnet.distributed import World
    from sdgmnet.features.describe import Descriptor

DRAWN = (".png", ".jpg", ".pdf")  # what the matches of two images are drawn as
MODEL = {"homography": "homography", "fundamental": "fundamental matrix"}
COUNTS = {  # key in JSON -> row of the table
    "keypoints_first": "keypoints in the first image",
    "keypoints_second": "keypoints in the second image",
    "matches": "matches",
}


@dataclass(frozen=True)
class MatchArguments:
    """Match two images, or pairs of images of a folder.

    For example:

        sdgmnet match a.jpg b.jpg -o matches.png --verify homography
        sdgmnet match photos -o matches.h5

    For two images, the command prints the number of keypoints and matches and the times, and draws the matches. For a folder,
    it writes files in hloc's layout: matches.h5, matches_pairs.txt (unless --pairs is a file) and features.h5 (unless
    --features is given). An interrupted command can simply be run again.

    With several processes (docs/guides/distributed.md):

        torchrun --nproc-per-node 4 -m sdgmnet match photos -o matches.h5
    """

    images: Positional[tuple[Path, ...]]
    """Two images, or a folder of images."""
    out: OptionalOut = None
    """For two images: image of the matches (.png, .jpg, .pdf); default: none. For a folder: h5 file of the matches."""
    matcher: Annotated[MatcherName, Option(help=MATCHER_HELP)] = "nearest"
    mutual: bool = True
    """Keep only mutual nearest neighbours."""
    ratio: float | None = RATIO
    """Ratio test: maximum distance to the nearest neighbour over that to the second nearest. none: no test."""
    verify: Model = "none"
    """Keep only inliers of a homography (planar scene, rotating camera) or a fundamental matrix (any scene)."""
    tolerance: float | None = None
    """Inlier threshold of --verify in pixels; default: 3 for homographies, 1.5 for fundamental matrices."""
    outliers: bool = True
    """Also draw the outliers of --verify, faintly."""
    descriptor: Annotated[
        str | None, Option(help=f"The descriptor: {accepted_forms()}; default: {ALIAS}, or that of --features.")
    ] = None
    window: float | None = None
    """Side of the patches in sigmas of their keypoints; default: that of the weights."""
    keypoints: Annotated[int | None, Option(former=("--limit",))] = None
    """Maximum number of keypoints per image, strongest first; default: no limit."""
    upright: Flag = False
    """Set the angle of every keypoint to 0, one keypoint per location."""
    auto_upright: Annotated[Flag, Option(help=f"For a folder. {UPRIGHT_HELP}")] = False
    as_stored: Flag = False
    """Do not apply EXIF orientation. hloc and COLMAP do not apply it either."""
    size: int | None = None
    """Longest side in pixels; larger images are resized for detection; default: 2400."""
    masks: Annotated[Path | None, Option(help=MASKS_HELP, metavar="FOLDER")] = None
    pairs: Annotated[str | None, Option(help=f"For a folder. {PAIRS_HELP} {PAIRS_DEFAULT}", metavar="METHOD|FILE")] = (
        None
    )
    neighbours: Annotated[int | None, Option(help=NEIGHBOURS_HELP)] = None
    features: Path | None = None
    """For a folder: h5 file from sdgmnet describe, to which missing images are added; or from hloc, which is only read."""
    overwrite: Flag = False
    """Also match pairs that the file already has. A file made with other options is replaced."""
    json: Flag = False
    """For two images: print JSON instead of a table."""

    @property
    def chosen(self) -> str:
        return with_window(self.descriptor or ALIAS, self.window)

    def __post_init__(self) -> None:
        require_options(self, keypoints=1, size=SMALLEST_SIDE, neighbours=1)
        if self.upright and self.auto_upright:
            raise InputError("--upright and --auto-upright exclude each other: leave one of them out.")
        if self.tolerance is not None and self.verify == "none":
            raise InputError("--tolerance needs --verify homography or --verify fundamental.")
        if self.tolerance is not None and not 0 < self.tolerance < float("inf"):
            raise InputError(f"--tolerance must be a positive number of pixels, not {self.tolerance:g}.")
        require_form(self.chosen)


def main(arguments: MatchArguments) -> None:
    for path in arguments.images:
        if not path.exists():
            raise InputError(f"{path} does not exist: give two images, or one folder of images.")
        require_photos(path)
    kinds = ["folder" if path.is_dir() else "file" for path in arguments.images]
    if kinds == ["folder"]:
        check_folder(arguments)
        images, pairs = read_inputs(arguments)
        from sdgmnet.distributed import open_world

        with resumable(), open_world() as world:
            match_folder(arguments, images, pairs, world)
    elif kinds == ["file", "file"]:
        if os.environ.get("WORLD_SIZE", "1") != "1":
            raise InputError("two images are matched in one process: use torchrun only for a folder.")
        match_two(arguments)
    else:
        raise InputError(f"give two images, or one folder of images, not {in_words(kinds)}.")


def in_words(kinds: list[str]) -> str:
    """3 files and 1 folder"""
    counts = {kind: kinds.count(kind) for kind in sorted(set(kinds))}
    return " and ".join(f"{count} {kind}{'' if count == 1 else 's'}" for kind, count in counts.items()) or "nothing"


def match_two(arguments: MatchArguments) -> None:
    if arguments.pairs or arguments.features or arguments.auto_upright:
        raise InputError("--pairs, --features and --auto-upright apply to a folder of images.")
    if arguments.out is not None and arguments.out.suffix.lower() not in DRAWN:
        raise InputError(
            f"{arguments.out}: the matches of two images are drawn: give a name that ends in {' or '.join(DRAWN)}."
        )
    for path in arguments.images:
        require_readable([path])
    require_masks(arguments.masks, [path.name for path in arguments.images])
    with progress_bars() as on_progress:
        result = draw_two(arguments, on_progress)
    if arguments.json:
        print(json.dumps(result, indent=2))
        return
    names = COUNTS | {"inliers": f"inliers of the {MODEL.get(arguments.verify)}"}
    counted = {names[key]: count for key, count in result["counts"].items() if count is not None}
    print_table(["", "count"], [[name, str(count)] for name, count in counted.items()])
    print_table(["stage", "seconds"], [[name, f"{seconds:.3f}"] for name, seconds in result["seconds"].items()])
    if arguments.out is not None:
        print(f"The matches are drawn in {arguments.out}.")


def draw_two(arguments: MatchArguments, on_progress: OnProgress) -> dict[str, Any]:
    """Match two images and draw the matches; returns counts, the matrix of --verify, and the seconds of each stage."""

    on_progress("loading the descriptor", 0, 0)
    from sdgmnet.features.collection import DescribeOptions, MatchOptions, describe_files, without_keypoints

    options = pick(MatchOptions, arguments)
    size = LONGEST_SIDE if arguments.size is None else arguments.size
    describing = DescribeOptions(arguments.keypoints, arguments.upright, arguments.as_stored, size, arguments.masks)
    timer = StageTimer()
    with timer("loading the descriptor"):
        descriptor = load_descriptor(arguments.chosen)
    on_progress("loading the descriptor", 1, 1)
    described = describe_files(arguments.images, descriptor, describing, timer)
    first, second = track(described, "describing", on_progress, len(arguments.images))
    for path, features in zip(arguments.images, (first, second), strict=True):
        if not len(features.keypoints.xy):
            print_aside(without_keypoints(path))
    on_progress("matching", 0, 0)
    with timer("matching"):
        matches = match(first, second, mutual=options.mutual, ratio=options.ratio, matcher=options.matcher)
    inlier, matrix, inliers = np.ones(len(matches.pairs), dtype=bool), None, None
    names = " and ".join(plain_name(path.name) for path in arguments.images)
    title = f"{names}, {arguments.chosen}: {len(matches.pairs)} matches"
    if options.verify != "none":
        with timer("verifying"):
            matrix, inlier = verify(first, second, matches, options.verify, options.tolerance)
        inliers = int(inlier.sum())
        title += f", {inliers} inliers of the {MODEL[options.verify]}"
    on_progress("matching", 1, 1)
    if arguments.out is not None:
        on_progress("drawing", 0, 0)
        with timer("drawing"):
            from sdgmnet.features.draw import draw_matches

            a, b = (read_color(path, exif_orientation=not describing.as_stored) for path in arguments.images)
            xy = first.keypoints.xy[matches.pairs[:, 0]], second.keypoints.xy[matches.pairs[:, 1]]
            draw_matches((a, b), xy, inlier, arguments.out, title, show_outliers=arguments.outliers)
        on_progress("drawing", 1, 1)
    counts = dict(zip(COUNTS, (len(first.keypoints.xy), len(second.keypoints.xy), len(matches.pairs)), strict=True))
    return {
        "counts": counts | {"inliers": inliers},
        "matrix": None if matrix is None else matrix.tolist(),
        "seconds": timer.seconds,
    }


def check_folder(arguments: MatchArguments) -> None:
    """InputError for what can be seen without loading anything."""
    if arguments.json:
        raise InputError("--json applies to two images.")
    if arguments.out is None or arguments.out.suffix.lower() not in (".h5", ".hdf5"):
        raise InputError("the matches of a folder are written to an h5 file: give its name, as in -o matches.h5.")
    if features_path(arguments).resolve() == arguments.out.resolve():
        raise InputError(f"{arguments.out} cannot hold both features and matches: choose another -o or --features.")


def features_path(arguments: MatchArguments) -> Path:
    assert arguments.out is not None
    return arguments.features or arguments.out.with_name("features.h5")


def match_folder(arguments: MatchArguments, images: dict[str, Path], pairs: list[Pair] | None, world: "World") -> None:
    """pairs: None for those that retrieval finds."""
    assert arguments.out is not None
    from sdgmnet.features.collection import MatchOptions, complete_features, match_pairs, require_distinct_names

    features, quiet = features_path(arguments), not world.is_rank_zero
    options = world.on_all_ranks(pick, MatchOptions, arguments)
    world.on_all_ranks(require_distinct_names, pairs or [])
    descriptor = world.on_all_ranks(load_descriptor, arguments.chosen)
    given: dict[str, Any] = {
        "limit": arguments.keypoints,
        "upright": arguments.upright or world.from_rank_zero(choose_upright, arguments, images, descriptor),
        "as_stored": arguments.as_stored,
        "size": arguments.size,
        "masks": arguments.masks,
    }
    given = {name: value for name, value in given.items() if value not in (None, False)}
    if arguments.descriptor is not None or arguments.window is not None:
        given["descriptor"] = descriptor.fingerprint
    with progress_bars(quiet=quiet) as on_progress:
        described = complete_features(features, images, descriptor, given, world=world, on_progress=on_progress)
    if described.summary and not quiet:
        print(described.summary)
    if pairs is None:
        names = [name for name in images if name in described.names]
        neighbours = arguments.neighbours or NEIGHBOURS["retrieval"]
        with progress_bars(quiet=quiet) as on_progress:
            pairs = world.from_rank_zero(retrieve, features, names, neighbours, on_progress)
    pairs = [pair for pair in pairs if described.names.issuperset(pair)]

    def require_pairs() -> None:
        if not pairs:
            raise InputError(f"{features} has no two images of the pairs to match.")
        require_distinct_names(pairs)

    world.on_all_ranks(require_pairs)
    with progress_bars(quiet=quiet) as on_progress:
        outcome = match_pairs(
            arguments.out, features, pairs, options, overwrite=arguments.overwrite, world=world, on_progress=on_progress
        )
    if quiet:
        return
    print(outcome.summary)
    if not is_listed(arguments):
        listed = arguments.out.with_name(f"{arguments.out.stem}_pairs.txt")
        try:
            write_pairs(listed, pairs)
            print(f"{listed}: the pairs, in hloc's format.")
        except InputError as error:  # the matches themselves are complete
            print(error)


def choose_upright(arguments: MatchArguments, images: dict[str, Path], descriptor: "Descriptor") -> bool:
    """By --auto-upright; existing features stay as they are, and others are made like them."""
    if not arguments.auto_upright:
        return False
    if features_path(arguments).exists():
        print_aside(f"{features_path(arguments)} exists: --auto-upright keeps the angles of its keypoints.")
        return False
    from sdgmnet.features.collection import DescribeOptions
    from sdgmnet.features.upright import measure_upright

    size = LONGEST_SIDE if arguments.size is None else arguments.size
    options = DescribeOptions(arguments.keypoints, as_stored=arguments.as_stored, size=size, masks=arguments.masks)
    with progress_bars() as on_progress:
        chosen, words = measure_upright(images, descriptor, options, on_progress)
    print_aside(words)
    return chosen


def read_inputs(arguments: MatchArguments) -> tuple[dict[str, Path], list[Pair] | None]:
    """The images to describe, and their pairs; None: by retrieval, after they are described."""
    images = find_images(arguments.images, () if arguments.masks is None else (arguments.masks,))
    if len(images) < 2:
        raise InputError(f"{arguments.images[0]} holds one image: matching needs two.")
    require_masks(arguments.masks, images)
    method = choose_method(arguments.pairs, len(images))
    if method == "list":
        pairs = read_pairs(Path(str(arguments.pairs)), set(images))
    if arguments.features is None:
        require_readable(images.values(), 2, f"{arguments.images[0]}: matching needs two images")
    if method == "retrieval":
        from sdgmnet.features.retrieval import require_faiss

        require_faiss()
        return images, None
    if method != "list":
        pairs = ordered_pairs(method, list(images), arguments.neighbours or NEIGHBOURS["sequential"])
    in_pairs = {name for pair in pairs for name in pair}
    return {name: path for name, path in images.items() if name in in_pairs}, pairs


def is_listed(arguments: MatchArguments) -> bool:
    """Whether the user gave a file of pairs."""
    return arguments.pairs is not None and arguments.pairs not in (*CHOICES, *FORMER)


def retrieve(features: Path, names: list[str], neighbours: int, on_progress: OnProgress) -> list[Pair]:
    from sdgmnet.features.h5 import read_features
    from sdgmnet.features.retrieval import retrieve_pairs

    def descriptors_of(name: str) -> np.ndarray:
        return read_features(features, name).descriptors

    return retrieve_pairs(names, descriptors_of, neighbours, on_progress=on_progress)

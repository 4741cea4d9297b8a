"""`sdgmnet match`."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import tyro
from rich.console import Console

from sdgmnet.commands.describe import (
    Pictures,
    check_describing,
    describe_into,
    features_note,
    find_pictures,
    number_of,
    progress,
    store_at,
)
from sdgmnet.descriptors import Descriptor, load_descriptor
from sdgmnet.errors import InputError
from sdgmnet.features import h5
from sdgmnet.features.describe import LONGEST_SIDE, Features, describe_keypoints, rescale, shrink
from sdgmnet.features.draw import draw_matches
from sdgmnet.features.images import plain_name, read_color, read_gray
from sdgmnet.features.keypoints import detect
from sdgmnet.features.match import Matches, match
from sdgmnet.features.pairs import read_pairs
from sdgmnet.features.verify import Verified, verify
from sdgmnet.pretrained import ALIAS
from sdgmnet.report import print_table
from sdgmnet.storage import write_text

PAUSE = 2.0  # seconds of matching that a kill may cost
KEPT_FEATURES = 32  # images whose features are kept in memory while pairs are matched


@dataclass(frozen=True)
class MatchArguments:
    """Match two images, or the images of a folder in pairs.

        sdgmnet match a.jpg b.jpg -o matches.png --verify homography
        sdgmnet match photos -o matches.h5

    Two images give counts, times and an image of the matches. A folder gives hloc's files: matches.h5, and beside it
    matches_pairs.txt unless --pairs is given, and features.h5 unless --features says otherwise. After an interruption,
    start the same command again.
    """

    images: tyro.conf.Positional[tuple[Path, ...]]
    """Two images, or a folder of images."""
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    """The image to draw (.png), or the h5 file of a folder's matches."""
    mutual: bool = True
    """Only pairs that are each other's nearest."""
    ratio: float | None = None
    """Only pairs whose nearest is nearer than so many times the second nearest, such as 0.8."""
    verify: Literal["none", "homography", "fundamental"] = "none"
    """Keep what one homography (flat scenes, turning cameras) or one fundamental matrix (any scene) explains."""
    tolerance: float | None = None
    """Pixels within which a match agrees: 3 for homographies, 1.5 for fundamental matrices."""
    outliers: bool = True
    """Draw what was found and does not agree, faintly."""
    descriptor: str | None = None
    """What describes: sdgmnet (the best weights that ship, unless said otherwise), sift, rootsift, tfeat:FILE,
    FILE.safetensors, RUN_FOLDER."""
    limit: int | None = None
    """At most so many keypoints an image, strongest first; all where it is left out."""
    upright: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Take images as they stand: every angle is 0, and a place that is detected gives one keypoint."""
    as_stored: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Do not turn images as the camera's note says: hloc and COLMAP take the pixels as they lie in the file."""
    size: int | None = None
    """Longest side, 2400 unless said otherwise; larger images are made smaller while they are worked on."""
    pairs: Path | None = None
    """Of a folder: a text file, two names a line. All pairs where it is left out."""
    features: Path | None = None
    """Of a folder: the h5 file of features. Images that it lacks are described as the others were and added; to the files of
    other programs nothing is added."""
    overwrite: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Match pairs again that the file holds already. A file made with other options begins anew."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Of two images: print JSON instead of a table."""


def main(words: list[str]) -> None:
    arguments = tyro.cli(MatchArguments, prog="sdgmnet match", args=words)
    check_describing(arguments.limit, LONGEST_SIDE if arguments.size is None else arguments.size)
    if arguments.tolerance is not None and arguments.verify == "none":
        raise InputError("--tolerance is for --verify homography or fundamental.")
    if arguments.ratio is not None and not 0 < arguments.ratio <= 1:
        raise InputError(f"--ratio lies in (0, 1], not {arguments.ratio}.")
    if arguments.tolerance is not None and not 0 < arguments.tolerance < float("inf"):
        raise InputError(f"--tolerance must be a positive number of pixels, not {arguments.tolerance}.")
    for place in arguments.images:
        if not place.exists():
            raise InputError(f"{place} does not exist.")
    kinds = ["folder" if place.is_dir() else "file" for place in arguments.images]
    if kinds == ["file", "file"]:
        match_two(arguments)
    elif kinds == ["folder"]:
        match_folder(arguments)
    else:
        raise InputError(f"give two images, or one folder of images, not {len(kinds)} of {', '.join(kinds) or 'none'}.")


class Clock:
    """Seconds of the stages, added up by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began


def match_two(arguments: MatchArguments) -> None:
    if arguments.pairs or arguments.features:
        raise InputError("--pairs and --features are for folders of images.")
    if arguments.out is not None and arguments.out.suffix.lower() != ".png":
        raise InputError(f"{arguments.out}: two images give an image, whose name ends in .png.")
    clock = Clock()
    with clock.stage("loading the descriptor"):
        contender = load_descriptor(ALIAS if arguments.descriptor is None else arguments.descriptor)
    first, second = (describe_in_stages(path, contender, arguments, clock) for path in arguments.images)
    with clock.stage("matching"):
        matches = match(first, second, mutual=arguments.mutual, ratio=arguments.ratio)
    with clock.stage("verifying"):
        verified = verify_by(arguments, first, second, matches)
    if arguments.out is not None:
        with clock.stage("drawing"):
            draw(arguments, first, second, matches, verified)
    counts = {
        "keypoints in the first": len(first.keypoints.xy),
        "keypoints in the second": len(second.keypoints.xy),
        "matches": len(matches.pairs),
    }
    if arguments.verify != "none":
        counts[f"of these, one {called(arguments.verify)} explains"] = int(verified.inlier.sum())
    if arguments.json:
        matrix = None if verified.matrix is None else verified.matrix.tolist()
        print(json.dumps({"counts": counts, "matrix": matrix, "seconds": clock.seconds}, indent=2))
        return
    print_table(["what", "count"], [[what, str(count)] for what, count in counts.items()])
    print_table(["stage", "seconds"], [[name, f"{seconds:.3f}"] for name, seconds in clock.seconds.items()])
    if arguments.out is not None:
        print(f"{arguments.out} shows them.")


def describe_in_stages(path: Path, contender: Descriptor, arguments: MatchArguments, clock: Clock) -> Features:
    """As `describe`, with a look at the clock between its steps."""
    with clock.stage("reading"):
        whole = read_gray(path, exif_orientation=not arguments.as_stored)
        gray = shrink(whole, LONGEST_SIDE if arguments.size is None else arguments.size)
    sizes = [(one.shape[1], one.shape[0]) for one in (gray, whole)]
    with clock.stage("finding keypoints"):
        keypoints = detect(gray, arguments.limit, upright=arguments.upright)

    def timed(describe: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
        def call(*given: Any) -> np.ndarray:
            with clock.stage("describing"):
                return describe(*given)

        return call

    of_image = None if contender.describe_at_keypoints is None else timed(contender.describe_at_keypoints)
    watched = contender._replace(describe=timed(contender.describe), describe_at_keypoints=of_image)
    before = clock.seconds.get("describing", 0.0)
    began = time.perf_counter()
    features = describe_keypoints(gray, keypoints, watched)
    if of_image is None:
        cutting = time.perf_counter() - began - (clock.seconds["describing"] - before)
        clock.seconds["cutting patches"] = clock.seconds.get("cutting patches", 0.0) + cutting
    return Features(rescale(features.keypoints, *sizes), features.descriptors, sizes[1])


def verify_by(arguments: MatchArguments, first: Features, second: Features, matches: Matches) -> Verified:
    if arguments.verify == "none":
        return Verified(None, np.ones(len(matches.pairs), dtype=bool))
    return verify(first, second, matches, arguments.verify, arguments.tolerance)


def called(model: str) -> str:
    return "fundamental matrix" if model == "fundamental" else model


def draw(arguments: MatchArguments, first: Features, second: Features, matches: Matches, verified: Verified) -> None:
    assert arguments.out is not None
    images = [read_color(path, exif_orientation=not arguments.as_stored) for path in arguments.images]
    places = [one.keypoints.xy[matches.pairs[:, k]] for k, one in enumerate((first, second))]
    names = " and ".join(plain_name(path.name) for path in arguments.images)
    title = f"{names}, {ALIAS if arguments.descriptor is None else arguments.descriptor}: {len(matches.pairs)} matches"
    if arguments.verify != "none":
        title += f", {int(verified.inlier.sum())} explained by one {called(arguments.verify)}"
    draw_matches(
        (images[0], images[1]),
        (places[0], places[1]),
        verified.inlier,
        arguments.out,
        title,
        show_outliers=arguments.outliers,
    )


class Pair(NamedTuple):
    first: str
    second: str


def match_folder(arguments: MatchArguments) -> None:
    if arguments.json:
        raise InputError("--json is for two images.")
    if arguments.out is None or arguments.out.suffix.lower() not in (".h5", ".hdf5"):
        raise InputError("a folder's matches go into an h5 file: give its name, as in -o matches.h5.")
    features = arguments.features or arguments.out.with_name("features.h5")
    if features.resolve() == arguments.out.resolve():
        raise InputError(f"{arguments.out} cannot hold both features and matches: choose another -o or --features.")
    pictures = find_pictures(arguments.images)
    wanted = list(combinations(pictures, 2)) if arguments.pairs is None else read_pairs(arguments.pairs, set(pictures))
    pairs = [Pair(*pair) for pair in wanted]
    require_distinct(pairs)
    needed = {name for pair in pairs for name in pair}
    held = described(features, {name: pictures[name] for name in pictures if name in needed}, arguments)
    # A pair of images that could not be described is left out; why was said.
    pairs = [pair for pair in pairs if pair.first in held and pair.second in held]
    if not pairs:
        raise InputError(f"{arguments.images[0]} holds no two images to match.")
    note = {
        "features": h5.read_note(features),
        "stamp": h5.stamp_of(features),
        "mutual": arguments.mutual,
        "ratio": arguments.ratio,
        "verify": arguments.verify,
        "tolerance": arguments.tolerance,
    }
    counted, began, errors = 0, time.perf_counter(), Console(stderr=True, highlight=False, soft_wrap=True)
    with store_at(arguments.out, "matches", note, overwrite=arguments.overwrite, pause=PAUSE) as store:
        todo = [pair for pair in pairs if arguments.overwrite or not is_there(store, pair)]
        remembered: dict[str, Features] = {}
        with progress(errors) as track:
            for pair in track(todo, "matching"):
                first, second = (remember(remembered, features, name, pair) for name in pair)
                matches = match(first, second, mutual=arguments.mutual, ratio=arguments.ratio)
                inlier = verify_by(arguments, first, second, matches).inlier
                matches = Matches(*(column[inlier] for column in matches))
                store.add(h5.pair_name(*pair), h5.matches_to_arrays(matches, len(first.keypoints.xy)))
                counted += len(matches.pairs)
    words = [f"{number_of(len(todo), 'pair')} matched ({counted} matches, {time.perf_counter() - began:.1f} s)"]
    words += [f"{len(pairs) - len(todo)} in the file already"] * (len(pairs) > len(todo))
    print(f"{arguments.out}: {', '.join(words)}.")
    if arguments.pairs is None:
        list_pairs(arguments.out.with_name(f"{arguments.out.stem}_pairs.txt"), pairs)


def list_pairs(path: Path, pairs: list[Pair]) -> None:
    """hloc's list: two names a line, which spaces in a name would make three."""
    spaced = [name for pair in pairs for name in pair if len(name.split()) > 1]
    if spaced:
        print(f"{path} is not written: hloc's list of pairs has no place for spaces, as in {spaced[0]}.")
        return
    write_text(path, "".join(f"{pair.first} {pair.second}\n" for pair in pairs))
    print(f"{path}: their names, as hloc wants them.")


def described(features: Path, pictures: Pictures, arguments: MatchArguments) -> set[str]:
    """The images of which the file holds features, after what it lacks was added in the way the others were made."""
    options: dict[str, Any] = {
        "descriptor": ALIAS if arguments.descriptor is None else arguments.descriptor,
        "limit": arguments.limit,
        "upright": arguments.upright,
        "as_stored": arguments.as_stored,
        "size": LONGEST_SIDE if arguments.size is None else arguments.size,
    }
    if not features.exists():
        return set(describe_into(features, pictures, **options))
    before = h5.read_note(features)
    there = set(h5.names_in(features)) & set(pictures)
    asked = [key for key in options if getattr(arguments, key) not in (None, False)]
    if before is None and asked:
        raise InputError(f"{features} was not written here: --{asked[0].replace('_', '-')} says nothing about it.")
    made, wanted = h5.parsed_note(before), features_note(**options)
    if any(made.get(key) != wanted[key] for key in asked):
        raise InputError(
            f"{features} was made in another way ({h5.said(str(before))}): give these options, or another --features."
        )
    if len(there) < len(pictures):
        options |= {key: made[key] for key in made if key in options and key != "descriptor"}
        if made == features_note(**options):
            return set(describe_into(features, pictures, **options))
        # Not made here, or by weights or keypoints that are not at hand.
        errors = Console(stderr=True, highlight=False, soft_wrap=True)
        for name in sorted(set(pictures) - there):
            errors.print(f"{features} lacks {name}. Left out.", markup=False)
    return there


def is_there(store: h5.Store, pair: Pair) -> bool:
    return h5.pair_name(*pair) in store or h5.pair_name(*reversed(pair)) in store


def remember(remembered: dict[str, Features], path: Path, name: str, pair: Pair) -> Features:
    """Read features, or take them from the last few that were."""
    if name not in remembered:
        while len(remembered) >= KEPT_FEATURES:
            remembered.pop(next(one for one in remembered if one not in pair))
        remembered[name] = h5.read_features(path, name)
    return remembered[name]


def require_distinct(pairs: list[Pair]) -> None:
    """hloc's name of a pair writes a/b as a-b: two pairs may come to the same."""
    taken: dict[str, Pair] = {}
    for pair in pairs:
        other = taken.setdefault(h5.pair_name(*pair), pair)
        if other != pair:
            raise InputError(f"{pair} and {other} have the same name in hloc's files: rename a folder or an image.")

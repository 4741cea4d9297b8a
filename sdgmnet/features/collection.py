"""Many images: describe them into an h5 file and match pairs into another, in hloc's layout.

Both can be interrupted at any moment and continued by the same call; what a file holds already is not computed again.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import cv2

from sdgmnet.distributed import ALONE, World
from sdgmnet.errors import InputError
from sdgmnet.features.describe import (
    LONGEST_SIDE,
    Descriptor,
    Features,
    Located,
    StageTimer,
    describe_located,
    locate,
    overlapped,
    require_limits,
)
from sdgmnet.features.h5 import features_to_arrays, matches_to_arrays, names_in, pair_name, read_features
from sdgmnet.features.h5_store import PartWriter, note_text, open_store, options_in, read_note, read_stamp, write_part
from sdgmnet.features.images import read_gray
from sdgmnet.features.keypoint_files import holds_many, read_keypoints, require_inside
from sdgmnet.features.masks import read_mask
from sdgmnet.features.match import RATIO, MatcherName, Matches, match, require_matcher
from sdgmnet.features.pairs import Pair, in_blocks
from sdgmnet.features.verify import Model, verify
from sdgmnet.report import OnProgress, no_progress, print_aside, track
from sdgmnet.storage import changes_in_words, digest

Images = Mapping[str, Path]  # name -> file
MATCH_PAUSE = 2.0  # seconds of matching that a kill may lose
CACHED_FEATURES = 32  # images whose features stay in memory while pairs are matched
UNRECORDED = (("matcher", "nearest"),)  # so that matches of earlier versions, which had no other, can be continued


@dataclass(frozen=True)
class DescribeOptions:
    limit: int | None = None  # keypoints per image, strongest first
    upright: bool = False  # every angle 0, one keypoint per location
    as_stored: bool = False  # EXIF orientation is not applied
    size: int = LONGEST_SIDE  # longest side while an image is described
    masks: Path | None = None  # folder, see features/masks.py

    def __post_init__(self) -> None:
        require_limits(self.limit, self.size)


@dataclass(frozen=True)
class MatchOptions:
    mutual: bool = True
    ratio: float | None = RATIO
    verify: Model = "none"
    tolerance: float | None = None  # pixels; None: the default of the model
    matcher: MatcherName = "nearest"

    def __post_init__(self) -> None:
        require_matcher(self.matcher, self.ratio)
        if self.tolerance is not None and self.verify == "none":
            raise InputError("tolerance needs verify homography or fundamental.")
        if self.tolerance is not None and not 0 < self.tolerance < float("inf"):
            raise InputError(f"tolerance must be a positive number of pixels, not {self.tolerance}.")


class Outcome(NamedTuple):
    """Of a run that added images or pairs to a file."""

    names: set[str]  # of the images or pairs asked for, those that the file holds now
    summary: str


def describe_images(
    out: Path,
    images: Images,
    descriptor: Descriptor,
    options: DescribeOptions | None = None,
    *,
    keypoints: Path | None = None,
    overwrite: bool = False,
    world: World = ALONE,
    on_progress: OnProgress = no_progress,
    on_skipped: Callable[[str], None] = print_aside,
) -> Outcome:
    """Describe the images that the h5 file lacks, or all of them with `overwrite`. An image that cannot be read is skipped.

    keypoints: a file of keypoints to describe instead of detecting any. Of several ranks, each describes its share into parts,
    and rank 0 merges them into the file.
    """
    options = options or DescribeOptions()
    world.require_equal(json.dumps(sorted(images)), "images", "give all ranks the same folders")
    note = world.on_all_ranks(lambda: features_note(descriptor, options) | _keypoints_note(out, images, keypoints))
    began, counted, skipped = time.perf_counter(), 0, []
    with ExitStack() as stack:
        store = world.on_rank_zero(lambda: stack.enter_context(open_store(out, "features", note, overwrite=overwrite)))
        todo = world.broadcast([name for name in images if store is not None and (overwrite or name not in store)])
        mine = todo[world.rank :: world.size]
        described = overlapped(
            mine,
            lambda name: locate_in_file(images[name], options, keypoints=keypoints, name=name),
            lambda located: describe_located(located, descriptor),
        )
        stack.enter_context(closing(described))
        for name, future in track(described, "describing", on_progress, len(mine)):
            try:
                features = future.result()
            except (InputError, cv2.error, MemoryError) as error:
                reason = str(error)
                if isinstance(error, MemoryError) or (isinstance(error, cv2.error) and "memory" in reason.lower()):
                    reason = f"{images[name]} needs more memory than there is: try a smaller --size."
                elif isinstance(error, cv2.error):
                    reason = f"{images[name]} cannot be described ({' '.join(reason.split())[:200]})."
                skipped.append(reason)
                if len(images) > 1:
                    on_skipped(f"{reason} Skipped.")
                continue
            if not len(features.keypoints.xy):
                on_skipped(without_keypoints(images[name]))
            if store is None:
                write_part(out, note, {name: features_to_arrays(features)})
            else:
                store.add(name, features_to_arrays(features))
            counted += len(features.keypoints.xy)
        shares = world.all_gather_object((counted, skipped))
        counted, skipped = sum(share[0] for share in shares), [reason for share in shares for reason in share[1]]

    def outcome() -> Outcome:
        assert store is not None
        done, before = len(todo) - len(skipped), len(images) - len(todo)
        if sum(name in store for name in todo) < done:
            raise InputError(f"{out}: what other ranks described is missing: all ranks must see the same folders.")
        if not done and not before:
            raise InputError("no image could be described; see the reasons above." if len(skipped) > 1 else skipped[0])
        summary = _summary(out, done, "image", "described", f"{counted} keypoints", began, before, len(skipped))
        return Outcome({name for name in images if name in store}, summary)

    return world.from_rank_zero(outcome)


def locate_in_file(
    path: Path,
    options: DescribeOptions,
    *,
    keypoints: Path | None = None,
    name: str = "",
    timer: StageTimer | None = None,
) -> Located:
    """The keypoints of an image; with a file of keypoints, those it has for the image of this name, which its mask has too."""
    timer = timer or StageTimer()
    with timer("reading"):
        gray = read_gray(path, exif_orientation=not options.as_stored)
        given = None
        if keypoints is not None:
            given = read_keypoints(keypoints, name)
            require_inside(given, keypoints, path, (gray.shape[1], gray.shape[0]))
        mask = None if options.masks is None else read_mask(options.masks, name, (gray.shape[1], gray.shape[0]))
    return locate(gray, given, limit=options.limit, upright=options.upright, size=options.size, mask=mask, timer=timer)


def describe_files(
    paths: Sequence[Path], descriptor: Descriptor, options: DescribeOptions, timer: StageTimer | None = None
) -> Iterator[Features]:
    """Features of each image, in order. An image that cannot be read is an InputError."""
    described = overlapped(
        paths,
        lambda path: locate_in_file(path, options, name=path.name, timer=timer),
        lambda located: describe_located(located, descriptor, timer),
    )
    with closing(described):
        for _, future in described:
            yield future.result()


def without_keypoints(path: Path) -> str:
    return f"{path} has no keypoints: it is too small, or has no texture."


def features_note(descriptor: Descriptor, options: DescribeOptions) -> dict[str, Any]:
    """What must be the same for all features in a file."""
    return {"descriptor": descriptor.fingerprint or descriptor.label, **recorded(asdict(options))}


def recorded(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as they are kept in a file: of the folder of masks the name, and nothing if there is none."""
    kept = {key: value for key, value in options.items() if key != "masks"}
    return kept if options.get("masks") is None else {**kept, "masks": options["masks"].resolve().name}


def _keypoints_note(out: Path, images: Images, keypoints: Path | None) -> dict[str, str]:
    if keypoints is None:
        return {}
    if not keypoints.is_file():
        raise InputError(f"{keypoints} does not exist.")
    if not holds_many(keypoints) and len(images) > 1:
        raise InputError(f"{keypoints} has the keypoints of one image, but {len(images)} are given: use an h5 file.")
    if keypoints.resolve() == out.resolve():
        raise InputError(f"{out} cannot be read for its keypoints and written at once: choose another -o.")
    return {"keypoints": f"{keypoints.name} {digest(keypoints)}"}


def _summary(
    out: Path, done: int, what: str, verb: str, found: str, began: float, before: int, skipped: int = 0
) -> str:
    parts = [f"{done} {what}{'' if done == 1 else 's'} {verb} ({found}, {time.perf_counter() - began:.1f} s)"]
    parts += [f"{before} in the file already"] * bool(before) + [f"{skipped} skipped"] * bool(skipped)
    return f"{out}: {', '.join(parts)}."


def complete_features(
    path: Path,
    images: Images,
    descriptor: Descriptor,
    given: Mapping[str, Any],
    *,
    world: World = ALONE,
    on_progress: OnProgress = no_progress,
    on_skipped: Callable[[str], None] = print_aside,
) -> Outcome:
    """Features of the images in an h5 file, made where it is missing. Images that it lacks are described as the others were.

    given: the options that the user gave, `descriptor` (a fingerprint) among them; they must agree with an existing file.
    """
    present, options = world.from_rank_zero(_missing_features, path, images, descriptor, given, on_skipped)
    if options is None:
        return Outcome(present, "")
    return describe_images(
        path, images, descriptor, options, world=world, on_progress=on_progress, on_skipped=on_skipped
    )


def _missing_features(
    path: Path,
    images: Images,
    descriptor: Descriptor,
    given: Mapping[str, Any],
    on_skipped: Callable[[str], None],
) -> tuple[set[str], DescribeOptions | None]:
    """Images that the h5 file has, and how those that it lacks are described; None if they cannot be, or there are none."""
    options = DescribeOptions(**{key: value for key, value in given.items() if key != "descriptor"})
    if not path.exists():
        return set(), options
    note = read_note(path)
    if note is None and given:
        option = next(iter(given)).replace("_", "-")
        raise InputError(f"{path} was not written by sdgmnet: leave out --{option}, which does not apply to it.")
    made = note or {}
    if changes := changes_in_words(options_in({key: made.get(key) for key in given}), options_in(recorded(given))):
        raise InputError(f"{path} was made with {changes}: give the same options, or another --features.")
    present = set(names_in(path)) & set(images)
    missing = sorted(set(images) - present)
    if missing:
        options = replace(options, **{key: made[key] for key in asdict(options) if key in made and key != "masks"})
        if made == features_note(descriptor, options):
            return present, options
        for name in missing:  # of another program, or made by weights, keypoints or masks that are not given
            on_skipped(f"{path} lacks {name}. Skipped.")
    return present, None


def match_pairs(
    out: Path,
    features: Path,
    pairs: Sequence[Pair],
    options: MatchOptions | None = None,
    *,
    overwrite: bool = False,
    world: World = ALONE,
    on_progress: OnProgress = no_progress,
) -> Outcome:
    """Match the pairs that the h5 file `out` lacks, or all with `overwrite`, by their features in another h5 file.

    Of several ranks, each matches its share into parts, and rank 0 merges them into the file.
    """
    options = options or MatchOptions()
    note = world.on_all_ranks(matches_note, features, options)
    world.require_equal(note_text(note), "features", "give all ranks the same file")
    world.require_equal(json.dumps(list(pairs)), "pairs", "give all ranks the same pairs")
    read = lru_cache(CACHED_FEATURES)(partial(read_features, features))
    counted, began = 0, time.perf_counter()
    with ExitStack() as stack:
        enter = partial(open_store, out, "matches", note, overwrite=overwrite, pause=MATCH_PAUSE)
        store = world.on_rank_zero(lambda: stack.enter_context(enter()))
        matched = world.broadcast(set() if overwrite or store is None else store.names)
        todo = [pair for pair in pairs if not any(pair_name(*one) in matched for one in (pair, pair[::-1]))]
        parts = PartWriter(out, note, MATCH_PAUSE) if store is None else store
        for pair in track(in_blocks(todo, CACHED_FEATURES)[world.rank :: world.size], "matching", on_progress):
            first, second = read(pair[0]), read(pair[1])
            matches = match(first, second, mutual=options.mutual, ratio=options.ratio, matcher=options.matcher)
            inlier = verify(first, second, matches, options.verify, options.tolerance).inlier
            matches = Matches(*(column[inlier] for column in matches))
            parts.add(pair_name(*pair), matches_to_arrays(matches, len(first.keypoints.xy)))
            counted += len(matches.pairs)
        if isinstance(parts, PartWriter):
            parts.write()
        counted = sum(world.all_gather_object(counted))

    def outcome() -> Outcome:
        assert store is not None
        if not all(pair_name(*pair) in store for pair in todo):
            raise InputError(f"{out}: what other ranks matched is missing: all ranks must see the same folders.")
        summary = _summary(out, len(todo), "pair", "matched", f"{counted} matches", began, len(pairs) - len(todo))
        return Outcome({pair_name(*pair) for pair in pairs}, summary)

    return world.from_rank_zero(outcome)


def matches_note(features: Path, options: MatchOptions) -> dict[str, Any]:
    """What must be the same for all matches in a file."""
    made = read_note(features)
    note = {"features": None if made is None else note_text(made), "stamp": read_stamp(features), **asdict(options)}
    return {key: value for key, value in note.items() if (key, value) not in UNRECORDED}


def require_distinct_names(pairs: Sequence[Pair]) -> None:
    """hloc writes a/b as a-b in the name of a pair: two pairs may get the same name."""
    taken: dict[str, Pair] = {}
    for pair in pairs:
        other = taken.setdefault(pair_name(*pair), pair)
        if other != pair:
            raise InputError(
                f"the pairs {' '.join(other)} and {' '.join(pair)} have the same name in hloc's files: rename an image."
            )

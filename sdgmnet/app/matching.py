"""The tab Match: several descriptors on the same keypoints of two images, and the neighbours of one keypoint."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import cv2
import numpy as np

from sdgmnet.app.html import patch_html, patches_html
from sdgmnet.descriptors import load_descriptor, require_form, split_label
from sdgmnet.errors import InputError
from sdgmnet.features.describe import Descriptor, Features, StageTimer, describe_located, find_keypoints, locate
from sdgmnet.features.draw import TITLE, draw_matches, layout
from sdgmnet.features.images import read_color
from sdgmnet.features.match import RATIO, Matches, match
from sdgmnet.features.patches import cut_patches
from sdgmnet.features.verify import MIN_MATCHES, Model, verify
from sdgmnet.report import OnProgress, markdown, no_progress, track

MAX_DESCRIPTORS = 3
MAX_KEYPOINTS = 8000
NEIGHBOURS = 6
LARGE, SMALL = 26, 12  # radii of circles in pixels of the drawing
STAGES = ("cutting patches", "describing", "matching", "verifying")  # of each descriptor
NAMES = ("first image", "second image")


@dataclass(frozen=True)
class MatchOptions:
    """What a user chooses."""

    descriptors: tuple[str, ...] = ("sift", "sdgmnet")  # specs, [label=]spec
    keypoints: int = 2000  # per image, strongest first
    ratio: float = RATIO  # 1: no test
    verify: Model = "homography"

    def __post_init__(self) -> None:
        if not 1 <= len(self.descriptors) <= MAX_DESCRIPTORS:
            raise InputError(f"choose one to {MAX_DESCRIPTORS} descriptors, not {len(self.descriptors)}.")
        if len(set(self.descriptors)) < len(self.descriptors):
            raise InputError("a descriptor is chosen twice: choose each once.")
        for text in self.descriptors:
            require_form(text)
        if not 1 <= self.keypoints <= MAX_KEYPOINTS:
            raise InputError(f"the number of keypoints must be from 1 to {MAX_KEYPOINTS}, not {self.keypoints}.")
        if not 0 < self.ratio <= 1:
            raise InputError(f"the ratio must be in (0, 1], not {self.ratio}.")
        if self.verify not in ("none", *MIN_MATCHES):
            raise InputError(f"verification must be none, {' or '.join(MIN_MATCHES)}, not {self.verify!r}.")


def require_offered(descriptors: Sequence[str], offered: Sequence[str] | None) -> None:
    """InputError for a descriptor that is not offered: a page on a public link must not open paths. None: any is allowed."""
    for one in descriptors:
        if offered is not None and one not in offered:
            raise InputError(f"{one!r} is not offered here: choose from {', '.join(offered)}.")


class Result(NamedTuple):
    """Of one descriptor."""

    text: str  # as chosen
    label: str
    window: float  # side of its patches in sigmas
    features: tuple[Features, Features]
    matches: Matches
    inlier: np.ndarray  # (M,) bool; all without verification
    seconds: dict[str, float]  # per stage


class Comparison(NamedTuple):
    grays: tuple[np.ndarray, np.ndarray]  # (H, W) uint8
    options: MatchOptions
    results: list[Result]
    seconds: dict[str, float]  # of the stages that all descriptors share


def compare(
    grays: tuple[np.ndarray, np.ndarray], options: MatchOptions, on_progress: OnProgress = no_progress
) -> Comparison:
    """Match two images (H, W) uint8 with each descriptor, on the same keypoints."""
    timer = StageTimer()
    with timer("loading the descriptors"):
        on_progress("loading the descriptors", 0, 0)
        loaded = [load_descriptor(text) for text in options.descriptors]
    with timer("finding keypoints"):
        on_progress("finding keypoints", 0, 0)
        keypoints = [find_keypoints(gray, options.keypoints) for gray in grays]
    for name, found in zip(NAMES, keypoints, strict=True):
        if not len(found.xy):
            raise InputError(f"the {name} has no keypoints: it is too small, or has no texture.")
    results = []
    for text, descriptor in track(list(zip(options.descriptors, loaded, strict=True)), "describing", on_progress):
        own = StageTimer()
        a, b = (
            describe_located(locate(gray, found), descriptor, own) for gray, found in zip(grays, keypoints, strict=True)
        )
        results.append(matched(text, descriptor, (a, b), options, own))
    return Comparison(grays, options, results, timer.seconds)


def matched(
    text: str, descriptor: Descriptor, features: tuple[Features, Features], options: MatchOptions, timer: StageTimer
) -> Result:
    with timer("matching"):
        matches = match(*features, ratio=None if options.ratio == 1 else options.ratio)
    with timer("verifying"):
        inlier = verify(*features, matches, options.verify).inlier
    return Result(text, descriptor.label, descriptor.window, features, matches, inlier, timer.seconds)


def draw_result(images: tuple[np.ndarray, np.ndarray], result: Result, options: MatchOptions) -> np.ndarray:
    """The matches of one descriptor, drawn: (H, W, 3) uint8."""
    first, second = (one.keypoints.xy[result.matches.pairs[:, side]] for side, one in enumerate(result.features))
    title = f"{result.label}: {len(result.inlier)} matches"
    if options.verify != "none":
        title += f", {int(result.inlier.sum())} inliers"
    with TemporaryDirectory() as folder:
        path = Path(folder) / "matches.png"
        draw_matches(images, (first, second), result.inlier, path, title)
        return read_color(path)


def counts_table(comparison: Comparison) -> str:
    """Matches, inliers and seconds per descriptor, in Markdown."""
    stages = [stage for stage in STAGES if any(stage in result.seconds for result in comparison.results)]
    verified = comparison.options.verify != "none"
    rows = [
        [
            result.label,
            str(len(result.inlier)),
            *([str(int(result.inlier.sum()))] if verified else []),
            *(f"{result.seconds[stage]:.2f} s" if stage in result.seconds else "-" for stage in stages),
        ]
        for result in comparison.results
    ]
    header = ["descriptor", "matches", *(["inliers"] if verified else []), *stages]
    first, second = (len(one.keypoints.xy) for one in comparison.results[0].features)
    shared = ", ".join(f"{stage} {seconds:.2f} s" for stage, seconds in comparison.seconds.items())
    return f"{markdown(header, rows)}\n{first} and {second} keypoints, the same for every descriptor. Once for all: {shared}."


def command_lines(options: MatchOptions) -> str:
    """The same matches on the command line."""
    ratio = "none" if options.ratio == 1 else f"{options.ratio:g}"
    lines = []
    for text in options.descriptors:
        words = ["sdgmnet", "match", "a.jpg", "b.jpg", "--descriptor", text, "--keypoints", str(options.keypoints)]
        words += ["--ratio", ratio, "--verify", options.verify, "-o", f"{plain(text)}.png"]
        lines.append(shlex.join(words))
    return "\n".join(lines)


def python_code(options: MatchOptions) -> str:
    """The same matches in Python, for the first descriptor."""
    ratio = None if options.ratio == 1 else options.ratio
    spec = split_label(options.descriptors[0])[1]
    lines = [
        "import sdgmnet",
        "",
        f"a, b = (sdgmnet.describe(path, descriptor={spec!r}, limit={options.keypoints}) for path in ('a.jpg', 'b.jpg'))",
        f"matches = sdgmnet.match(a, b, ratio={ratio})",
    ]
    if options.verify != "none":
        lines.insert(1, "from sdgmnet.features.verify import verify")
        lines.append(f"inlier = verify(a, b, matches, {options.verify!r}).inlier  # (M,) bool")
    return "\n".join([*lines, "print(len(matches.pairs))"])


def plain(text: str) -> str:
    """A name for a file."""
    name = split_label(text)[0] or Path(text).stem
    return "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in name)


class Neighbour(NamedTuple):
    keypoint: int  # in the other image
    angle: float  # degrees between the descriptors
    patch: np.ndarray  # (64, 64) uint8


class Neighbourhood(NamedTuple):
    """A keypoint and its nearest neighbours in the other image, by angle."""

    side: int  # image of the keypoint, 0 or 1
    keypoint: int
    patch: np.ndarray
    neighbours: list[Neighbour]
    match: int | None  # the keypoint that it is matched with
    is_inlier: bool


def neighbourhood(comparison: Comparison, result: Result, x: float, y: float) -> Neighbourhood:
    """Of the keypoint nearest to a pixel of what `draw_result` draws."""
    drawn = layout([(len(gray), gray.shape[1]) for gray in comparison.grays])
    side, location = drawn.locate(x, y - TITLE)
    own, other = result.features[side], result.features[1 - side]
    index = int(np.square(own.keypoints.xy - location).sum(1).argmin())
    degrees = angles(own.descriptors[index], other.descriptors)
    nearest = np.argsort(degrees, kind="stable")[:NEIGHBOURS]
    patches = cut_patches(comparison.grays[1 - side], other.keypoints.select(nearest), window=result.window)
    patch = cut_patches(comparison.grays[side], own.keypoints.select(np.array([index])), window=result.window)[0]
    found = [Neighbour(int(i), float(degrees[i]), one) for i, one in zip(nearest, patches, strict=True)]
    row = np.flatnonzero(result.matches.pairs[:, side] == index)
    match_index = int(result.matches.pairs[row[0], 1 - side]) if len(row) else None
    return Neighbourhood(side, index, patch, found, match_index, bool(len(row) and result.inlier[row[0]]))


def angles(descriptor: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Degrees (N,) between a descriptor (D,) and others (N, D) of any length."""
    lengths = np.linalg.norm(others, axis=1) * np.linalg.norm(descriptor)
    cosines = others.astype(np.float64) @ descriptor / np.maximum(lengths, 1e-12)
    return np.degrees(np.arccos(np.clip(cosines, -1, 1)))


def neighbourhood_html(found: Neighbourhood, result: Result, verified: bool) -> str:
    """The patch, then its neighbours with their angles."""
    outcome = "has no match: its nearest neighbour is not mutual, or fails the ratio test"
    if found.match is not None:
        outcome = "is matched" + ("" if not verified else ", an inlier" if found.is_inlier else ", an outlier")
    cells = [patch_html(found.patch, f"keypoint, {NAMES[found.side]}")]
    for rank, one in enumerate(found.neighbours, start=1):
        is_match = one.keypoint == found.match
        cells.append(patch_html(one.patch, f"{rank}. at {one.angle:.1f}°" + (", match" if is_match else ""), is_match))
    head = f"<p>{escape(result.label)}: keypoint {found.keypoint} of the {NAMES[found.side]} {outcome}.</p>"
    return head + patches_html(cells)


def mark_neighbourhood(drawn: np.ndarray, comparison: Comparison, result: Result, found: Neighbourhood) -> np.ndarray:
    """What `draw_result` draws, with circles about the keypoint and its neighbours, large for the keypoint and its match."""
    place = layout([(len(gray), gray.shape[1]) for gray in comparison.grays]).place
    own, other = result.features[found.side].keypoints.xy, result.features[1 - found.side].keypoints.xy
    circles = [(own[found.keypoint], found.side, LARGE)]
    circles += [
        (other[one.keypoint], 1 - found.side, LARGE if one.keypoint == found.match else SMALL)
        for one in found.neighbours
    ]
    marked = drawn.copy()
    for xy, side, radius in circles:
        x, y = np.rint(place(xy, side) + np.array([0, TITLE])).astype(int).tolist()
        for color, width in (((0, 0, 0), 9), ((255, 255, 255), 4)):  # visible on any image
            cv2.circle(marked, (x, y), radius, color, width, cv2.LINE_AA)
    return marked

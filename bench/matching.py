"""Matching descriptors, and matching two images stage by stage: ours against OpenCV."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from bench.command import Row, command, memory_row, seconds_row
from bench.options import Options
from bench.timing import Timing, alternate, in_fresh_process, seconds_of
from bench.training import unit_pairs
from sdgmnet.data.synthetic.demo import read_motorcycle
from sdgmnet.encoders import SDGMNet
from sdgmnet.errors import InputError
from sdgmnet.features.describe import StageTimer, describe_image, descriptor_from_encoder
from sdgmnet.features.match import match as match_descriptors
from sdgmnet.report import OnProgress, no_progress, track

RATIO = 0.9
STAGES = ("reading", "finding keypoints", "cutting patches", "describing", "matching")


def time_matching(count: int, repeats: int, on_progress: OnProgress = no_progress) -> dict[str, Timing]:
    """Mutual nearest neighbours with ratio test among `count` unit descriptors per side, and the matrix product alone.

    OpenCV's brute-force matcher runs twice: two nearest neighbours one way, and the nearest the other way.
    """
    a, b = (side.detach() for side in unit_pairs(count))
    first, second = a.numpy(), b.numpy()

    def opencv() -> list[Any]:
        matcher = cv2.BFMatcher(cv2.NORM_L2)
        back = [found.trainIdx for found in matcher.match(second, first)]
        return [
            best
            for best, other in matcher.knnMatch(first, second, k=2)
            if best.distance < RATIO * other.distance and back[best.trainIdx] == best.queryIdx
        ]

    calls = {
        "ours": lambda: match_descriptors(first, second, ratio=RATIO),
        "product": lambda: a @ b.T,
        "OpenCV": opencv,
    }
    return alternate({name: (call, 1.0) for name, call in calls.items()}, repeats, "matching", on_progress)


def measure_matching(options: Options, on_progress: OnProgress) -> Iterator[Row]:
    count = options.descriptors
    timings, what = time_matching(count, options.repeats, on_progress), f"matching {count} x {count}"
    for name, timing in timings.items():
        ratio = "" if name == "product" else f"{1 / timing.against(timings['product']):.2f} times as long as product"
        if name == "ours":
            ratio += f", 1/{timing.against(timings['OpenCV']):.1f} of OpenCV"
        yield seconds_row(what, name, [1 / rate for rate in timing.rates], ratio)
    memory = in_fresh_process(
        "import sdgmnet; from bench.training import unit_pairs",
        f"a, b = (side.detach().numpy() for side in unit_pairs({count})); sdgmnet.match(a[:100], b[:100])",
        f"sdgmnet.match(a, b, ratio={RATIO})",
    )
    yield memory_row(what, "ours", memory["megabytes"])


def time_images(
    paths: tuple[Path, Path], repeats: int, on_progress: OnProgress = no_progress
) -> tuple[dict[str, list[float]], list[float], int]:
    """From two files to mutual matches: seconds of our stages, of the usual script with OpenCV's SIFT, and keypoints."""
    descriptor = descriptor_from_encoder(SDGMNet().eval())

    def ours() -> tuple[list[float], int]:
        timer = StageTimer()
        first, second = (describe_image(path, descriptor=descriptor, size=None, timer=timer) for path in paths)
        if not len(first.keypoints.xy) or not len(second.keypoints.xy):
            raise InputError(f"{paths[0]} or {paths[1]} has no keypoints: use other images.")
        with timer("matching"):
            match_descriptors(first, second)
        return [timer.seconds[stage] for stage in STAGES], len(first.keypoints.xy) + len(second.keypoints.xy)

    def opencv() -> None:
        sift = cv2.SIFT.create()
        first, second = (
            sift.detectAndCompute(np.asarray(cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)), None)[1] for path in paths
        )
        cv2.BFMatcher(cv2.NORM_L2, crossCheck=True).match(first, second)

    rounds = [(*ours(), seconds_of(opencv)) for _ in track(range(repeats + 1), "two images", on_progress)]
    stages, keypoints, script = zip(*rounds[1:], strict=True)  # the first is the warm-up
    return {name: [one[i] for one in stages] for i, name in enumerate(STAGES)}, list(script), keypoints[0]


def measure_images(options: Options, on_progress: OnProgress) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        paths = (options.images[0], options.images[1]) if options.images else write_megapixel_pair(Path(folder))
        stages, script, keypoints = time_images(paths, options.repeats, on_progress)
    what = f"two images, {keypoints} keypoints"
    for name, seconds in stages.items():
        rate = f"{keypoints / np.median(seconds):.0f} patches/s" if name == "describing" else ""
        yield seconds_row(what, name, seconds, rate)
    rest = np.sum([seconds for name, seconds in stages.items() if name != "describing"], axis=0)
    ratio = f"{np.median(rest / np.array(script)):.2f} x OpenCV"
    yield seconds_row(what, "all but describing", rest.tolist(), ratio)
    yield seconds_row(what, "OpenCV's SIFT, brute force", script)


def write_megapixel_pair(folder: Path) -> tuple[Path, Path]:
    """The motorcycle of scikit-image, enlarged to a megapixel."""
    pair = read_motorcycle()
    paths = folder / "left.png", folder / "right.png"
    for image, path in zip((pair.left, pair.right), paths, strict=True):
        scale = (1_000_000 / (image.shape[0] * image.shape[1])) ** 0.5
        bgr = cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
        cv2.imwrite(str(path), cv2.resize(bgr, None, fx=scale, fy=scale, interpolation=cv2.INTER_CUBIC))
    return paths


match = command("match", measure_matching)
images = command("images", measure_images)

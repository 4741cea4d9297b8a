"""Matching descriptors, and matching two images stage by stage: ours against OpenCV."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np

from bench.command import Row, command, memory_row, seconds_row
from bench.options import Options
from bench.timing import Timing, alternate, in_fresh_process, seconds_of
from bench.training import unit_pairs
from sdgmnet.data.synthetic.demo import read_motorcycle
from sdgmnet.encoders import FastSDGMNet, SDGMNet
from sdgmnet.errors import InputError
from sdgmnet.features.collection import DescribeOptions, describe_files
from sdgmnet.features.describe import Descriptor, StageTimer, descriptor_from_encoder
from sdgmnet.features.match import match as match_descriptors
from sdgmnet.report import OnProgress, no_progress, track

RATIO = 0.9
TIMED_ENCODERS = {"sdgmnet": SDGMNet, "fast": FastSDGMNet}
WHOLE = "from start to end"
STAGES = ("reading", "finding keypoints", "cutting patches", "describing", "matching", WHOLE)
FULL_SIZE = 1_000_000  # pixels: images are not reduced


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


class ImageTimes(NamedTuple):
    """Seconds of each repetition, from two files to mutual matches."""

    stages: dict[str, dict[str, list[float]]]  # encoder -> stage; the second image is read while the first is described
    script: list[float]  # the usual script with OpenCV's SIFT
    keypoints: int  # of both images


def time_images(paths: tuple[Path, Path], repeats: int, on_progress: OnProgress = no_progress) -> ImageTimes:
    descriptors = {name: descriptor_from_encoder(encoder().eval()) for name, encoder in TIMED_ENCODERS.items()}

    def ours(descriptor: Descriptor) -> tuple[list[float], int]:
        timer = StageTimer()
        with timer(WHOLE):
            first, second = describe_files(paths, descriptor, DescribeOptions(size=FULL_SIZE), timer)
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

    stages: dict[str, dict[str, list[float]]] = {name: {stage: [] for stage in STAGES} for name in descriptors}
    script, keypoints = [], 0
    for repeat in track(range(repeats + 1), "two images", on_progress):
        for name, descriptor in descriptors.items():
            seconds, keypoints = ours(descriptor)
            for stage, one in zip(STAGES, seconds, strict=True):
                stages[name][stage] += [one] * (repeat > 0)  # the first is the warm-up
        script += [seconds_of(opencv)] * (repeat > 0)
    return ImageTimes(stages, script, keypoints)


def measure_images(options: Options, on_progress: OnProgress) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        paths = (options.images[0], options.images[1]) if options.images else write_megapixel_pair(Path(folder))
        times = time_images(paths, options.repeats, on_progress)
    what = f"two images, {times.keypoints} keypoints"
    for encoder, stages in times.stages.items():
        for stage, seconds in stages.items():
            ratio = f"{np.median(np.array(seconds) / times.script):.2f} x OpenCV" if stage == WHOLE else ""
            yield seconds_row(what, f"{encoder}, {stage}", seconds, ratio)
    yield seconds_row(what, "OpenCV's SIFT, brute force", times.script)


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

"""Whether the photos of a folder match better without the angles of their keypoints: measured on some pairs of neighbours."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from sdgmnet.errors import InputError
from sdgmnet.features.collection import DescribeOptions, Images, locate_in_file
from sdgmnet.features.describe import Descriptor, Features, describe_located
from sdgmnet.features.match import match
from sdgmnet.features.verify import verify
from sdgmnet.report import OnProgress, no_progress, track

MEASURED_PAIRS = 8
KEYPOINTS, SIZE = 1000, 1200  # per image at most, and its longest side: enough to measure, and quick
ENOUGH = 30  # inliers of a pair of images that overlap
KEPT = 0.5  # of them without angles, or one of the two images is rotated

DescribeUpright = Callable[[str, bool], Features]  # name of an image, whether all angles are 0


def measure_upright(
    images: Images, descriptor: Descriptor, options: DescribeOptions, on_progress: OnProgress = no_progress
) -> tuple[bool, str]:
    """`prefers_upright` of images described in this way, but for the number of keypoints, the size and the contrast."""
    reduced = replace(options, limit=min(options.limit or KEYPOINTS, KEYPOINTS), size=min(options.size, SIZE))

    def describe(name: str, upright: bool) -> Features:
        return describe_located(locate_in_file(images[name], replace(reduced, upright=upright), name=name), descriptor)

    return prefers_upright(list(images), describe, on_progress)


def prefers_upright(
    names: Sequence[str], describe: DescribeUpright, on_progress: OnProgress = no_progress
) -> tuple[bool, str]:
    """Whether neighbours by name have more inliers of fundamental matrices without angles, and the counts in words.

    Only pairs that overlap count. No, if there are none, or if one pair loses half of its inliers. Images that cannot be read
    are left out.
    """
    described = cache(describe)
    counts: list[tuple[int, int]] = []
    starts = np.unique(np.linspace(0, max(len(names) - 2, 0), MEASURED_PAIRS).round().astype(int)).tolist()
    for start in track(starts, "measuring whether upright", on_progress):
        two = names[start : start + 2]
        try:
            both = [inliers([described(name, upright) for name in two]) for upright in (False, True)]
        except InputError:
            continue
        if max(both) >= ENOUGH:
            counts.append((both[0], both[1]))
    with_angles, without = (sum(count[which] for count in counts) for which in (0, 1))
    rotated = any(one >= ENOUGH and other < KEPT * one for one, other in counts)
    chosen = without > with_angles and not rotated
    words = f"{len(counts)} overlapping pairs have {with_angles} inliers with the angles of keypoints, {without} without them"
    return chosen, f"{words}: {'upright' if chosen else 'not upright'}."


def inliers(two: Sequence[Features]) -> int:
    """Distinct locations among them: with angles, a location with several of them has several keypoints."""
    if len(two) < 2:
        return 0
    matches = match(two[0], two[1])
    found = matches.pairs[verify(two[0], two[1], matches, "fundamental").inlier, 0]
    return len(np.unique(two[0].keypoints.xy[found], axis=0))

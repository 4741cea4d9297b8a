"""Matching of whole images under known homographies, by four measures from the same keypoints and descriptors.

Found again: how often the nearest descriptor is the right one, where there is a right one (here). The paper's own protocol of
Fig. 5 (sampled.py). Mutual nearest neighbours (mutual.py), and the homographies that they give (homography.py).
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from sdgmnet.benchmarks.geometry import Size, is_inside, true_places
from sdgmnet.benchmarks.homography import corner_error
from sdgmnet.benchmarks.mutual import Mutual, count_mutual
from sdgmnet.benchmarks.sampled import Sampled, sample
from sdgmnet.data.sequences import ImageSequence
from sdgmnet.descriptors import Descriptor
from sdgmnet.features.describe import Features
from sdgmnet.features.images import read_gray
from sdgmnet.features.keypoints import Keypoints, detect
from sdgmnet.features.match import match
from sdgmnet.features.patches import cut_patches
from sdgmnet.features.verify import verify

DescribeImage = Callable[[np.ndarray, Keypoints], np.ndarray]
Value = TypeVar("Value")

KEYPOINTS = 2000  # an image, strongest first
NEAR = 3.0  # pixels
ROWS = 1024  # of a block of distances: memory stays bounded
KINDS = {"i_": "illumination", "v_": "viewpoint"}  # by HPatches' names


class PairScore(NamedTuple):
    sequence: str
    number: int  # of the other image, from 2
    findable: int  # reference keypoints with a keypoint within NEAR of their true place
    found: int  # of these, whose nearest descriptor is within NEAR of it
    sampled: Sampled
    mutual: Mutual
    corner_error: float  # pixels, of the homography from mutual matches; infinite where there is none

    @property
    def score(self) -> float:
        return self.found / self.findable if self.findable else 0.0


class View(NamedTuple):
    """An image: all its keypoints, strongest first, and what each describing function makes of them."""

    size: Size
    keypoints: Keypoints
    descriptors: list[np.ndarray]  # (N, D) each


def run(
    describe: DescribeImage, sequences: Sequence[ImageSequence], keypoints: int = KEYPOINTS, near: float = NEAR
) -> Iterator[PairScore]:
    """Scores of one describing function, a pair of images at a time."""
    for sequence in sequences:
        yield from compare([describe], sequence, keypoints, near)[0]


def compare(
    describes: Sequence[DescribeImage],
    sequence: ImageSequence,
    keypoints: int = KEYPOINTS,
    near: float = NEAR,
    advance: Callable[[], object] = lambda: None,
) -> list[list[PairScore]]:
    """Scores of the pairs of one sequence, a list for each describing function.

    Keypoints are found once for all functions, and two images are held at a time. The paper's protocol takes all keypoints,
    the other measures the strongest of them. `advance` is called after each image.
    """
    results: list[list[PairScore]] = [[] for _ in describes]
    reference = look(sequence.reference, describes)
    advance()
    for number, (path, homography) in enumerate(zip(sequence.others, sequence.homographies, strict=True), start=2):
        other = look(path, describes)
        for which, scores in enumerate(results):
            scores.append(judge(sequence.name, number, homography, reference, other, which, keypoints, near))
        advance()
    return results


def look(path: Path, describes: Sequence[DescribeImage]) -> View:
    image = read_gray(path)
    keypoints = detect(image)
    size = image.shape[1], image.shape[0]
    return View(size, keypoints, [np.asarray(describe(image, keypoints)) for describe in describes])


def judge(
    name: str,
    number: int,
    homography: np.ndarray,
    reference: View,
    other: View,
    which: int,
    keypoints: int,
    near: float,
) -> PairScore:
    """All measures of one pair of images by the describing function `which`."""
    wanted = true_places(homography, reference.keypoints.xy, reference.size)
    back = true_places(np.linalg.inv(homography), other.keypoints.xy, other.size)
    in_other, in_reference = is_inside(wanted, other.size), is_inside(back, reference.size)
    descriptors, others, places = reference.descriptors[which], other.descriptors[which], other.keypoints.xy
    sampled = sample(reference.keypoints.xy, wanted, in_other, descriptors, places, others)
    # From here on, the strongest keypoints alone.
    first, second = (
        Features(Keypoints(*(column[:keypoints] for column in view.keypoints)), described[:keypoints], view.size)
        for view, described in ((reference, descriptors), (other, others))
    )
    wanted, places, in_other, in_reference = (rows[:keypoints] for rows in (wanted, places, in_other, in_reference))
    findable, found = count_found(wanted, places, first.descriptors, second.descriptors, near)
    matches = match(first, second)
    mutual = count_mutual(matches.pairs, wanted, places, in_other, in_reference, near)
    estimate = verify(first, second, matches, "homography").matrix
    error = corner_error(estimate, homography, reference.size)
    return PairScore(name, number, findable, found, sampled, mutual, error)


def count_found(
    wanted: np.ndarray, places: np.ndarray, descriptors: np.ndarray, others: np.ndarray, near: float
) -> tuple[int, int]:
    """Of keypoints wanted (N, 2) at true places: how many have one of `places` (M, 2) there, and how many find it.

    descriptors (N, D) of the wanted ones, others (M, D): the nearest neighbour decides, without ratio test.
    """
    if not len(wanted) or not len(places):
        return 0, 0
    nearest = match(descriptors, others, mutual=False).pairs[:, 1]
    found = np.linalg.norm(wanted - places[nearest], axis=1) <= near
    findable = np.zeros(len(wanted), dtype=bool)
    for start in range(0, len(wanted), ROWS):
        rows = wanted[start : start + ROWS]
        findable[start : start + ROWS] = np.linalg.norm(rows[:, None] - places[None], axis=2).min(axis=1) <= near
    return int(findable.sum()), int(found.sum())


def describe_image(contender: Descriptor) -> DescribeImage:
    """SIFT has its own way with images; whatever describes patches gets those of side 12 sigma."""
    if contender.describe_at_keypoints is not None:
        return contender.describe_at_keypoints
    return lambda image, keypoints: contender.describe(cut_patches(image, keypoints))


def table(labels: Sequence[str], results: Sequence[Sequence[PairScore]]) -> tuple[list[str], list[list[str]]]:
    """Score by sequence and their mean, one line a descriptor."""
    names = list(dict.fromkeys(pair.sequence for pair in results[0]))
    body = []
    for label, pairs in zip(labels, results, strict=True):
        scores = sequence_scores(pairs)
        body.append([label, *(f"{scores[name]:.3f}" for name in names), f"{np.mean(list(scores.values())):.3f}"])
    return ["descriptor", *names, "mean"], body


def sequence_scores(pairs: Sequence[PairScore]) -> dict[str, float]:
    """Mean over the pairs of each sequence."""
    names = dict.fromkeys(pair.sequence for pair in pairs)
    return {name: float(np.mean([pair.score for pair in pairs if pair.sequence == name])) for name in names}


def by_kind(pairs: Sequence[PairScore], value: Callable[[PairScore], Value]) -> dict[str, list[Value]]:
    """A value of each pair, apart for light, viewpoint and what says neither; and "all" where there is more than one kind."""
    kinds = {
        kind: [value(pair) for pair in pairs if kind_of(pair.sequence) == kind]
        for kind in (*KINDS.values(), "unlabelled")
    }
    kinds = {kind: values for kind, values in kinds.items() if values}
    return kinds if len(kinds) == 1 else {**kinds, "all": [value(pair) for pair in pairs]}


def kind_of(sequence: str) -> str:
    return KINDS.get(sequence[:2], "unlabelled")

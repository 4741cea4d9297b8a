"""Matching of whole images under known homographies: image 1 of a sequence with each other image, by four measures.

All descriptors describe the same DoG keypoints. The measures are defined in matching_measures.py.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np

from sdgmnet.benchmarks import matching_measures as measures
from sdgmnet.benchmarks.matching_measures import (
    MMA_THRESHOLDS,
    SAMPLE_THRESHOLDS,
    SAMPLES,
    SEEDS,
    SHOWN,
    Matched,
    PlanePair,
    Sampled,
    Size,
)
from sdgmnet.data.sequences import ImageSequence, read_sequence, sequence_folders
from sdgmnet.data.synthetic.demo import read_demo
from sdgmnet.descriptors import Descriptor
from sdgmnet.errors import InputError, suggestion
from sdgmnet.features import compact
from sdgmnet.features.describe import Features, describe_keypoints
from sdgmnet.features.images import read_gray
from sdgmnet.features.keypoints import Keypoints, detect
from sdgmnet.features.match import MatcherName, match, matching_in_words, require_effect, require_matcher
from sdgmnet.features.verify import MIN_MATCHES, TOLERANCE, verify
from sdgmnet.report import OnProgress, Section, no_progress

Table = tuple[list[str], list[list[str]]]  # header, rows

KEYPOINTS = 2000  # per image, strongest first
NEAR = 3.0  # pixels
KINDS = {"i_": "illumination", "v_": "viewpoint"}  # by the prefix of HPatches' names
PRINTED_MMA = (1, 3, 5, 10)  # pixels
ACCURACY_AT = (1, 3, 5)  # pixels, of homographies
AUC_TO = (3, 5, 10)  # pixels, of homographies
FIG5_ROWS = 5
LISTED = 12  # names in an error message


@dataclass(frozen=True)
class MatchingOptions:
    """`mutual`, `ratio` and `matcher` apply to MMA, correct matches per keypoint and homographies only."""

    keypoints: int = KEYPOINTS
    near: float = NEAR  # pixels
    mutual: bool = True
    ratio: float | None = None
    matcher: MatcherName = "nearest"

    def __post_init__(self) -> None:
        require_matcher(self.matcher, self.ratio)
        require_effect(self.matcher, self.ratio)


DEFAULT = MatchingOptions()


class PairScore(NamedTuple):
    sequence: str
    number: int  # of the other image, from 2
    findable: int  # reference keypoints with a keypoint within `near` of their true location
    found: int  # of these, whose nearest descriptor is within `near` of it
    sampled: Sampled
    matched: Matched
    corner_error: float  # pixels, of the homography from these matches; infinite without an estimate

    @property
    def score(self) -> float:
        return self.found / self.findable if self.findable else 0.0


Results = Mapping[str, Sequence[PairScore]]  # by label


class View(NamedTuple):
    """An image with all its keypoints, strongest first, and their descriptors (N, D) by label."""

    size: Size
    keypoints: Keypoints
    descriptors: dict[str, np.ndarray]

    def strongest(self, label: str, count: int) -> Features:
        keypoints = Keypoints(*(column[:count] for column in self.keypoints))
        return Features(keypoints, self.descriptors[label][:count], self.size)


def run(
    describe_fn: Callable[[np.ndarray, Keypoints], np.ndarray],
    sequences: Sequence[ImageSequence],
    options: MatchingOptions = DEFAULT,
) -> list[PairScore]:
    """Scores of one function from a gray image and its keypoints to descriptors (N, D)."""
    describe = describer([Descriptor("descriptor", lambda patches: patches, describe_at_keypoints=describe_fn)])
    scores = [score_sequence(describe, sequence, options) for sequence in sequences]
    return [pair for of_sequence in scores for pair in of_sequence["descriptor"]]


def compare(
    descriptors: Sequence[Descriptor],
    sequences: Sequence[ImageSequence],
    options: MatchingOptions = DEFAULT,
    *,
    with_compact: bool = False,
    on_progress: OnProgress = no_progress,
) -> tuple[dict[str, list[PairScore]], list[str]]:
    """Scores of all pairs by label, and an error message per sequence that failed and is left out.

    with_compact: evaluate each descriptor also in uint8, and with PCA to 64 dimensions in uint8.
    """
    describe = describer(descriptors, with_compact)
    results: dict[str, list[PairScore]] = {}
    errors: list[str] = []
    images, total = 0, sum(1 + len(one.others) for one in sequences)
    for sequence in sequences:

        def count_image(done: int, before: int = images) -> None:
            on_progress("matching images", before + done, total)

        count_image(0)
        try:
            for label, scores in score_sequence(describe, sequence, options, count_image).items():
                results.setdefault(label, []).extend(scores)
        except (InputError, cv2.error) as error:
            errors.append(f"{sequence.name}: {' '.join(str(error).split())}")
        images += 1 + len(sequence.others)
    on_progress("matching images", total, total)
    return results, errors


def read_sequences(root: Path, names: Sequence[str] = ()) -> tuple[list[ImageSequence], list[str]]:
    """The sequences of these names, or all; and an error message per sequence that cannot be read."""
    folders = sequence_folders(root)
    if unknown := sorted(set(names) - {folder.name for folder in folders}):
        there = [folder.name for folder in folders]
        shown = ", ".join(there[:LISTED]) + (f" and {len(there) - LISTED} more" if len(there) > LISTED else "")
        raise InputError(
            f"{root} has no sequence named {', '.join(unknown)}: it has {shown}{suggestion(unknown[0], there)}"
        )
    sequences, errors = [], []
    for folder in folders:
        if not names or folder.name in names:
            try:
                sequences.append(read_sequence(folder))
            except InputError as error:
                errors.append(str(error))
    return sequences, errors


def describer(
    descriptors: Sequence[Descriptor], with_compact: bool = False
) -> Callable[[np.ndarray, Keypoints], dict[str, np.ndarray]]:
    """A function from an image and its keypoints to descriptors by label."""
    projections = {
        one.label: compact.fit_projection(compact.unit(one.describe(read_demo()[0].patches)))
        for one in (descriptors if with_compact else ())
    }

    def describe(image: np.ndarray, keypoints: Keypoints) -> dict[str, np.ndarray]:
        described: dict[str, np.ndarray] = {}
        for one in descriptors:
            described[one.label] = describe_keypoints(image, keypoints, one).descriptors
            if with_compact:
                unit = compact.unit(described[one.label])
                described[f"{one.label}, uint8"] = compact.to_bytes(unit)
                projected = compact.project(projections[one.label], unit)
                described[f"{one.label}, PCA 64, uint8"] = compact.to_bytes(projected)
        return described

    return describe


def score_sequence(
    describe: Callable[[np.ndarray, Keypoints], dict[str, np.ndarray]],
    sequence: ImageSequence,
    options: MatchingOptions,
    count_image: Callable[[int], None] = lambda done: None,
) -> dict[str, list[PairScore]]:
    """Scores of the pairs of one sequence by label. Two images are held in memory at a time."""

    def view(path: Path) -> View:
        image = read_gray(path)
        detected = detect(image)
        return View((image.shape[1], image.shape[0]), detected, describe(image, detected))

    reference = view(sequence.reference)
    count_image(1)
    results: dict[str, list[PairScore]] = {label: [] for label in reference.descriptors}
    for number, (path, homography) in enumerate(zip(sequence.others, sequence.homographies, strict=True), start=2):
        other = view(path)
        for label, scores in results.items():
            score = score_pair(homography, reference, other, label, options)
            scores.append(score._replace(sequence=sequence.name, number=number))
        count_image(number)
    return results


def score_pair(homography: np.ndarray, reference: View, other: View, label: str, options: MatchingOptions) -> PairScore:
    """All measures of one pair of images. The paper's protocol takes all keypoints, the other measures the strongest."""
    pair = PlanePair.under(homography, reference.keypoints.xy, other.keypoints.xy, (reference.size, other.size))
    sampled = measures.sample(pair, reference.descriptors[label], other.descriptors[label])
    pair = pair.strongest(options.keypoints)
    first, second = (view.strongest(label, options.keypoints) for view in (reference, other))
    findable, found = measures.count_found(pair, first.descriptors, second.descriptors, options.near)
    matches = match(first, second, mutual=options.mutual, ratio=options.ratio, matcher=options.matcher)
    matched = measures.count_matched(pair, matches.pairs, options.near)
    estimate = verify(first, second, matches, "homography").matrix
    error = measures.corner_error(estimate, homography, reference.size)
    return PairScore("", 2, findable, found, sampled, matched, error)


def sequence_scores(pairs: Sequence[PairScore]) -> dict[str, float]:
    """Mean score over the pairs of each sequence."""
    names = dict.fromkeys(pair.sequence for pair in pairs)
    return {name: float(np.mean([pair.score for pair in pairs if pair.sequence == name])) for name in names}


def by_kind(pairs: Sequence[PairScore]) -> dict[str, Sequence[PairScore]]:
    """Pairs of illumination, viewpoint and unlabelled sequences; and "all" if there is more than one kind."""
    kinds: dict[str, Sequence[PairScore]] = {}
    for kind in (*KINDS.values(), "unlabelled"):
        if of_kind := [pair for pair in pairs if KINDS.get(pair.sequence[:2], "unlabelled") == kind]:
            kinds[kind] = of_kind
    return kinds if len(kinds) == 1 else {**kinds, "all": pairs}


def hardest_pairs(results: Results, count: int) -> list[int]:
    """Indices of the pairs that Fig. 5 shows, hardest first.

    Of each sequence the pair with the fewest correct matches of the first draw, on average over the descriptors; of these the
    `count` lowest. Pairs without any correct match are skipped.
    """
    lists = list(results.values())
    names = [pair.sequence for pair in lists[0]] if lists else []
    means = [float(np.mean([pairs[i].sampled.correct[0][SHOWN] for pairs in lists])) for i in range(len(names))]
    ranked = sorted((i for i, mean in enumerate(means) if mean > 0), key=lambda i: means[i])
    hardest: dict[str, int] = {}
    for i in ranked:
        hardest.setdefault(names[i], i)
    return list(hardest.values())[:count]


def sections(results: Results, options: MatchingOptions = DEFAULT) -> list[Section]:
    """One table per measure."""
    near, strongest = options.near, f"the {options.keypoints} strongest DoG keypoints of each image"
    return [
        Section(
            f"Matching score ({options.keypoints} keypoints, {near:g} px)",
            f"Of {strongest}: reference keypoints with a keypoint of the other image within {near:g} px of their true "
            "location, and the share of them whose nearest descriptor is there, without ratio test. Mean over the pairs of a "
            "sequence.",
            *score_table(results),
        ),
        Section(
            f"{SAMPLES} random keypoints against all (the paper's Fig. 5)",
            f"{SAMPLES} random DoG keypoints of the reference whose true location is inside the other image, or all if there "
            "are fewer; nearest of all keypoints of the other image, without ratio test. Matches within so many pixels of the "
            f"true location, mean over pairs and {len(SEEDS)} draws. Pairs with fewer than {MIN_MATCHES['homography']} matches "
            f"within {SAMPLE_THRESHOLDS[SHOWN]:g} px give no homography.",
            *sampled_table(results),
        ),
        Section(
            f"Mean matching accuracy ({matching_in_words(options.mutual, options.ratio, options.matcher)})",
            f"Of {strongest}. MMA: share of matches within so many pixels, mean over pairs; 0 for a pair without matches. "
            "Correct per keypoint (M.S. in papers): correct matches over the keypoints in the region that both images show, of "
            "the image that has fewer there.",
            *accuracy_table(results, near),
        ),
        Section(
            "Homographies from these matches",
            f"Estimated by OpenCV's USAC (MAGSAC++, {TOLERANCE['homography']:g} px), images at full size. Error: mean distance "
            "of the reference's four corners from their true locations. Share of pairs within so many pixels, and the area "
            "under that share from 0 to so many pixels. Failed estimates have infinite error.",
            *homography_table(results),
        ),
    ]


def score_table(results: Results) -> Table:
    names = list(dict.fromkeys(pair.sequence for pair in next(iter(results.values()))))
    rows = []
    for label, pairs in results.items():
        scores = sequence_scores(pairs)
        rows.append([label, *(f"{scores[name]:.3f}" for name in names), f"{np.mean(list(scores.values())):.3f}"])
    return ["descriptor", *names, "mean"], rows


def sampled_table(results: Results) -> Table:
    """Means over pairs and draws, and in how many pairs too few are correct for a homography."""
    least = MIN_MATCHES["homography"]
    correct = [f"correct, {near:g} px" for near in SAMPLE_THRESHOLDS]
    header = ["descriptor", *correct, f"share, {SAMPLE_THRESHOLDS[SHOWN]:g} px (%)", f"pairs below {least}"]
    rows = []
    for label, pairs in results.items():
        scores = [pair.sampled for pair in pairs]
        share = np.mean([one.mean(SHOWN) / one.drawn if one.drawn else 0.0 for one in scores])
        few = sum(one.mean(SHOWN) < least for one in scores)
        rows.append(
            [label, *(f"{mean:.1f}" for mean in sampled_means(pairs)), f"{100 * share:.1f}", f"{few} of {len(pairs)}"]
        )
    return header, rows


def sampled_means(pairs: Sequence[PairScore]) -> list[float]:
    """Correct matches within each of SAMPLE_THRESHOLDS, mean over pairs and draws."""
    return [float(np.mean([pair.sampled.mean(k) for pair in pairs])) for k in range(len(SAMPLE_THRESHOLDS))]


def summary(pairs: Sequence[PairScore]) -> dict[str, Any]:
    """Means over pairs, for the tables by kind and for results.json."""
    errors = [pair.corner_error for pair in pairs]
    return {
        "pairs": len(pairs),
        "mma": measures.mean_accuracy([pair.matched for pair in pairs]),
        "matching_score": float(np.mean([pair.matched.score for pair in pairs])),
        "matches": float(np.mean([pair.matched.matches for pair in pairs])),
        "homography_within": {str(one): measures.share_within(errors, one) for one in ACCURACY_AT},
        "homography_auc": {str(one): measures.error_auc(errors, one) for one in AUC_TO},
    }


def accuracy_table(results: Results, near: float) -> Table:
    header = ["descriptor", "sequences", "pairs", *(f"MMA {threshold} px" for threshold in PRINTED_MMA)]
    header += [f"MMA {MMA_THRESHOLDS[0]}-{MMA_THRESHOLDS[-1]} px", f"correct per keypoint, {near:g} px", "matches"]
    rows = []
    for label, pairs in results.items():
        for kind, of_kind in by_kind(pairs).items():
            means = summary(of_kind)
            mma = [means["mma"][MMA_THRESHOLDS.index(one)] for one in PRINTED_MMA] + [np.mean(means["mma"])]
            numbers = [f"{number:.3f}" for number in (*mma, means["matching_score"])]
            rows.append([label, kind, str(len(of_kind)), *numbers, f"{means['matches']:.0f}"])
    return header, rows


def homography_table(results: Results) -> Table:
    within, auc = [f"within {one} px" for one in ACCURACY_AT], [f"AUC {one} px" for one in AUC_TO]
    rows = []
    for label, pairs in results.items():
        for kind, of_kind in by_kind(pairs).items():
            means = summary(of_kind)
            numbers = [*means["homography_within"].values(), *means["homography_auc"].values()]
            failed = sum(pair.corner_error == float("inf") for pair in of_kind)
            rows.append([label, kind, str(len(of_kind)), *(f"{number:.3f}" for number in numbers), str(failed)])
    return ["descriptor", "sequences", "pairs", *within, *auc, "failed"], rows


def content(results: Results, left_out: Sequence[str], options: MatchingOptions = DEFAULT) -> dict[str, Any]:
    """What results.json holds."""
    return {
        **asdict(options),
        "sampled": {"drawn": SAMPLES, "draws": len(SEEDS), "near": SAMPLE_THRESHOLDS},
        "left_out": list(left_out),
        "lines": [
            {
                "label": label,
                "sequences": sequence_scores(pairs),
                "sampled": sampled_means(pairs),
                "kinds": {kind: summary(of_kind) for kind, of_kind in by_kind(pairs).items()},
                "pairs": [_pair_content(pair) for pair in pairs],
            }
            for label, pairs in results.items()
        ],
    }


def _pair_content(pair: PairScore) -> dict[str, Any]:
    return {
        "sequence": pair.sequence,
        "number": pair.number,
        "findable": pair.findable,
        "found": pair.found,
        "sampled": {"drawn": pair.sampled.drawn, "correct": pair.sampled.correct},
        "matched": {**pair.matched._asdict(), "score": pair.matched.score},
        "corner_error": pair.corner_error if np.isfinite(pair.corner_error) else None,
    }

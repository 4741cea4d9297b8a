"""What `sdgmnet evaluate matching` tells: tables, results.json and pictures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sdgmnet.benchmarks import homography, matching, mutual, sampled
from sdgmnet.benchmarks.matching import PairScore, by_kind
from sdgmnet.data.sequences import ImageSequence
from sdgmnet.features.images import read_gray
from sdgmnet.features.verify import TOLERANCE
from sdgmnet.paper.matching import PairOfPictures, draw_fig5, draw_mma
from sdgmnet.report import Section

Results = Sequence[Sequence[PairScore]]  # the pairs of one descriptor after another

ROWS = 5  # of Fig. 5
KINDS = ("png", "pdf")  # of pictures
FIG5 = (
    f"The reference left, the other picture right. Red crosses: {sampled.DRAWN} random keypoints (the first draw). Green "
    f"lines: nearest neighbours within {sampled.NEAR[sampled.SHOWN]:g} px of their true place. Shown is the pair of each "
    f"sequence with the fewest correct ones on average over the descriptors, of at most {ROWS} sequences, hardest first; "
    "pairs in which no descriptor has any are passed over."
)


def tables(labels: Sequence[str], results: Results, keypoints: int, near: float) -> list[Section]:
    """One a measure."""
    strongest = f"the {keypoints} strongest DoG keypoints of each picture"
    mutual_scores = [by_kind(scores, lambda pair: pair.mutual) for scores in results]
    errors = [by_kind(scores, lambda pair: pair.corner_error) for scores in results]
    return [
        Section(
            f"Matching score ({keypoints} keypoints, {near:g} px)",
            f"Of {strongest}, those of the reference that have one of the other picture within {near:g} px of their "
            "true place: the share whose nearest descriptor is there, without ratio test. Mean over the pairs of a sequence.",
            *matching.table(labels, results),
        ),
        Section(
            f"{sampled.DRAWN} random keypoints against all (the paper's Fig. 5)",
            f"{sampled.DRAWN} random DoG keypoints of the reference whose true place lies in the other picture, or all where "
            "there are fewer; nearest of all keypoints of the other picture, without ratio test. Correct ones within so many "
            f"pixels of their true place, mean over pairs and {len(sampled.SEEDS)} draws; pairs with fewer than "
            f"{sampled.LEAST} within {sampled.NEAR[sampled.SHOWN]:g} px give no homography.",
            *sampled.table(labels, [[pair.sampled for pair in scores] for scores in results]),
        ),
        Section(
            "Mean matching accuracy of mutual nearest neighbours",
            f"Of {strongest}. MMA: the share of matches within so many pixels, mean over pairs, 0 for a pair without matches. "
            "M.S., the matching score of the literature: correct matches over the keypoints in the part that both pictures "
            "show, of the picture that has fewer there.",
            *mutual.table(labels, mutual_scores, near),
        ),
        Section(
            "Homographies from these matches",
            f"By OpenCV's USAC (MAGSAC++, {TOLERANCE['homography']:g} px), pictures at full size. Error: mean distance of the "
            "reference's four corners from their true places; the share of pairs within so many pixels, and the area under "
            "that share from 0 to so many pixels. Failed ones count as infinitely wrong.",
            *homography.table(labels, errors),
        ),
    ]


def content(
    labels: Sequence[str], results: Results, left_out: Sequence[str], keypoints: int, near: float
) -> dict[str, Any]:
    """Everything, for results.json."""
    return {
        "keypoints": keypoints,
        "near": near,
        "sampled": {"drawn": sampled.DRAWN, "draws": len(sampled.SEEDS), "near": sampled.NEAR},
        "left_out": list(left_out),
        "lines": [
            {
                "label": label,
                "sequences": matching.sequence_scores(scores),
                "sampled": [float(np.mean([one.sampled.mean(k) for one in scores])) for k in range(len(sampled.NEAR))],
                "kinds": {kind: kind_content(pairs) for kind, pairs in by_kind(scores, lambda pair: pair).items()},
                "pairs": [pair_content(one) for one in scores],
            }
            for label, scores in zip(labels, results, strict=True)
        ],
    }


def kind_content(scores: Sequence[PairScore]) -> dict[str, Any]:
    errors = [one.corner_error for one in scores]
    return {
        "pairs": len(scores),
        "mma": mutual.mean_accuracy([one.mutual for one in scores]),
        "matching_score": float(np.mean([one.mutual.score for one in scores])),
        "matches": float(np.mean([one.mutual.matches for one in scores])),
        "homography_within": {str(near): homography.accuracy(errors, near) for near in homography.ACCURACY_AT},
        "homography_auc": {str(near): homography.area(errors, near) for near in homography.AREA_TO},
    }


def pair_content(pair: PairScore) -> dict[str, Any]:
    return {
        "sequence": pair.sequence,
        "number": pair.number,
        "findable": pair.findable,
        "found": pair.found,
        "sampled": {"drawn": pair.sampled.drawn, "correct": pair.sampled.correct},
        "mutual": {**pair.mutual._asdict(), "score": pair.mutual.score},
        "corner_error": pair.corner_error if np.isfinite(pair.corner_error) else None,
    }


def draw(labels: Sequence[str], results: Results, sequences: dict[str, ImageSequence], out: Path) -> list[Section]:
    """The pictures, each with what it shows."""
    curves = [
        {kind: mutual.mean_accuracy(values) for kind, values in by_kind(scores, lambda pair: pair.mutual).items()}
        for scores in results
    ]
    for kind in KINDS:
        draw_mma(labels, curves, out / f"mma.{kind}")
    sections = [
        Section(
            "Curves", "Mean matching accuracy of mutual nearest neighbours over the threshold.", picture=out / "mma.png"
        )
    ]
    for kind in KINDS:
        (out / f"fig5.{kind}").unlink(missing_ok=True)  # of an earlier run, should there be no pair to show now
    names = [pair.sequence for pair in results[0]]
    chosen = sampled.hardest(names, [[pair.sampled for pair in scores] for scores in results], ROWS)
    if chosen:
        rows = [picture_of([scores[number] for scores in results], sequences[names[number]]) for number in chosen]
        for kind in KINDS:
            draw_fig5(labels, rows, out / f"fig5.{kind}")
        sections.append(Section("The hardest pairs", FIG5, picture=out / "fig5.png"))
    return sections


def picture_of(scores: Sequence[PairScore], sequence: ImageSequence) -> PairOfPictures:
    """One pair, as all descriptors see it."""
    number = scores[0].number
    images = read_gray(sequence.reference), read_gray(sequence.others[number - 2])
    return PairOfPictures(f"{sequence.name} 1-{number}", images, [one.sampled.shown for one in scores])

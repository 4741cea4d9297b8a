"""`sdgmnet evaluate matching`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import cv2
import numpy as np
import tyro
from rich.console import Console

from sdgmnet.benchmarks import homography, matching, mutual, sampled
from sdgmnet.benchmarks.matching import DescribeImage, PairScore, by_kind
from sdgmnet.commands.evaluate import parse_descriptors, require_labels
from sdgmnet.data.sequences import ImageSequence, read_sequence, sequence_folders
from sdgmnet.data.synthetic.demo import read_demo
from sdgmnet.descriptors import Descriptor
from sdgmnet.errors import InputError
from sdgmnet.features import compact
from sdgmnet.features.images import read_gray
from sdgmnet.features.keypoints import Keypoints
from sdgmnet.features.verify import TOLERANCE
from sdgmnet.plots import PairOfPictures, draw_fig5, draw_mma
from sdgmnet.report import Section, counting_bar, deliver, write_page

# ---- commands.matching_report


Results = Sequence[Sequence[PairScore]]  # the pairs of one descriptor after another

ROWS = 5  # of Fig. 5
KINDS = ("png", "pdf")  # of images
FIG5 = (
    f"The reference left, the other image right. Red crosses: {sampled.DRAWN} random keypoints (the first draw). Green "
    f"lines: nearest neighbours within {sampled.NEAR[sampled.SHOWN]:g} px of their true place. Shown is the pair of each "
    f"sequence with the fewest correct ones on average over the descriptors, of at most {ROWS} sequences, hardest first; "
    "pairs in which no descriptor has any are passed over."
)


def tables(labels: Sequence[str], results: Results, keypoints: int, near: float) -> list[Section]:
    """One a measure."""
    strongest = f"the {keypoints} strongest DoG keypoints of each image"
    mutual_scores = [by_kind(scores, lambda pair: pair.mutual) for scores in results]
    errors = [by_kind(scores, lambda pair: pair.corner_error) for scores in results]
    return [
        Section(
            f"Matching score ({keypoints} keypoints, {near:g} px)",
            f"Of {strongest}, those of the reference that have one of the other image within {near:g} px of their "
            "true place: the share whose nearest descriptor is there, without ratio test. Mean over the pairs of a sequence.",
            *matching.table(labels, results),
        ),
        Section(
            f"{sampled.DRAWN} random keypoints against all (the paper's Fig. 5)",
            f"{sampled.DRAWN} random DoG keypoints of the reference whose true place lies in the other image, or all where "
            "there are fewer; nearest of all keypoints of the other image, without ratio test. Correct ones within so many "
            f"pixels of their true place, mean over pairs and {len(sampled.SEEDS)} draws; pairs with fewer than "
            f"{sampled.LEAST} within {sampled.NEAR[sampled.SHOWN]:g} px give no homography.",
            *sampled.table(labels, [[pair.sampled for pair in scores] for scores in results]),
        ),
        Section(
            "Mean matching accuracy of mutual nearest neighbours",
            f"Of {strongest}. MMA: the share of matches within so many pixels, mean over pairs, 0 for a pair without matches. "
            "M.S., the matching score of the literature: correct matches over the keypoints in the part that both images "
            "show, of the image that has fewer there.",
            *mutual.table(labels, mutual_scores, near),
        ),
        Section(
            "Homographies from these matches",
            f"By OpenCV's USAC (MAGSAC++, {TOLERANCE['homography']:g} px), images at full size. Error: mean distance of the "
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
    """The images, each with what it shows."""
    curves = [
        {kind: mutual.mean_accuracy(values) for kind, values in by_kind(scores, lambda pair: pair.mutual).items()}
        for scores in results
    ]
    for kind in KINDS:
        draw_mma(labels, curves, out / f"mma.{kind}")
    sections = [
        Section(
            "Curves", "Mean matching accuracy of mutual nearest neighbours over the threshold.", image=out / "mma.png"
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
        sections.append(Section("The hardest pairs", FIG5, image=out / "fig5.png"))
    return sections


def picture_of(scores: Sequence[PairScore], sequence: ImageSequence) -> PairOfPictures:
    """One pair, as all descriptors see it."""
    number = scores[0].number
    images = read_gray(sequence.reference), read_gray(sequence.others[number - 2])
    return PairOfPictures(f"{sequence.name} 1-{number}", images, [one.sampled.shown for one in scores])


# ---- commands.matching


@dataclass(frozen=True)
class MatchingArguments:
    """Matching of whole images under known homographies, between image 1 of a sequence and each other one.

        sdgmnet evaluate matching sift rootsift mine=runs/one --root sequences -o results

    Four measures from the same DoG keypoints and descriptors, higher is better in all:

    Matching score. Of the strongest keypoints of image 1, those that have a keypoint at their true place in another image:
    the share whose nearest descriptor there (no ratio test) is at that place. Averaged over pairs, then over sequences.

    The paper's Fig. 5. 200 random keypoints of image 1 that the other image shows, nearest among all keypoints of it:
    how many are within 1, 3 and 5 pixels of their true place. The hardest pairs are drawn.

    Mean matching accuracy. Of mutual nearest neighbours, the share within 1 to 10 pixels; names that begin with i_ (light) and
    v_ (viewpoint) apart.

    Homographies. Estimated from these matches: the share that sends the corners of image 1 to within 1, 3 and 5 pixels of
    their true places, on average over the corners.

    A sequence that cannot be read is named and left out.
    """

    contenders: tyro.conf.Positional[tuple[str, ...]]
    """What to compare: [label=]sift | rootsift | sdgmnet (what ships) | tfeat:FILE | FILE.safetensors | RUN_FOLDER."""
    root: Path
    """Folder of sequences in HPatches' layout: 1.png ... 6.png and H_1_2 ... H_1_6 each."""
    sequences: tuple[str, ...] = ()
    """Names of the sequences to use; all where none is given."""
    keypoints: int = matching.KEYPOINTS
    """At most so many keypoints an image, strongest first. Fig. 5 takes all, as the paper does."""
    near: float = matching.NEAR
    """Within so many pixels is the same place, for the matching score."""
    compact: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Also as large collections keep them: a byte a number, and 64 bytes by axes fitted to the embedded images."""
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    """Folder for results.json, table.md, fig5 and mma as .png and .pdf, and index.html with all of it in one page."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print JSON instead of tables."""


def main(words: list[str]) -> None:
    arguments = tyro.cli(MatchingArguments, prog="sdgmnet evaluate matching", args=words)
    contenders = parse_descriptors(arguments.contenders)
    require_labels(contenders)
    for one in contenders:
        if one.csv_folder is not None:
            raise InputError(
                f"{one.csv_folder} holds descriptors of HPatches' strips, for sdgmnet evaluate hpatches only."
            )
    if arguments.keypoints < 1 or not 0 < arguments.near < float("inf"):
        raise InputError("--keypoints must be at least 1 and --near a positive number.")
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    sequences, left_out = read_all(arguments.root, arguments.sequences)
    if not sequences:
        raise InputError(f"no sequence can be read. {' '.join(left_out)}")
    forms = [form for one in contenders for form in forms_of(one, arguments.compact)]
    labels = [label for label, _ in forms]
    results, broken = evaluate([describe for _, describe in forms], sequences, arguments, console)
    left_out += broken
    if not results[0]:
        raise InputError(f"no sequence could be evaluated. {' '.join(left_out)}")
    sections = tables(labels, results, arguments.keypoints, arguments.near)
    everything = content(labels, results, left_out, arguments.keypoints, arguments.near)
    deliver(everything, sections, arguments.out, arguments.json)
    if arguments.out is not None:
        sections += draw(labels, results, {one.name: one for one in sequences}, arguments.out)
        sections += [Section("Left out", " ".join(left_out))] * bool(left_out)
        write_page(arguments.out / "index.html", "Matching of whole images", sections)
    for sentence in left_out:
        console.print(f"{sentence} This sequence is left out.", markup=False)


def read_all(root: Path, names: Sequence[str]) -> tuple[list[ImageSequence], list[str]]:
    """The sequences of these names, or all; and for each that cannot be read, a sentence."""
    folders = sequence_folders(root)
    unknown = set(names) - {folder.name for folder in folders}
    if unknown:
        raise InputError(f"{root} holds no sequence named {', '.join(sorted(unknown))}.")
    sequences, left_out = [], []
    for folder in folders:
        if not names or folder.name in names:
            try:
                sequences.append(read_sequence(folder))
            except InputError as error:
                left_out.append(str(error))
    return sequences, left_out


def forms_of(contender: Descriptor, is_compact: bool) -> list[tuple[str, DescribeImage]]:
    """Label and describing function; where asked for, also with a byte a number, and with 64 of them along fitted axes."""
    if not is_compact:
        return [(contender.label, matching.describe_image(contender))]
    describe = remember_last(matching.describe_image(contender))
    projection = compact.fit_projection(compact.unit(contender.describe(read_demo()[0].patches)))

    def in_bytes(image: np.ndarray, keypoints: Keypoints) -> np.ndarray:
        return compact.to_bytes(compact.unit(describe(image, keypoints)))

    def in_few_bytes(image: np.ndarray, keypoints: Keypoints) -> np.ndarray:
        return compact.to_bytes(compact.project(projection, compact.unit(describe(image, keypoints))))

    label = contender.label
    return [(label, describe), (f"{label}, bytes", in_bytes), (f"{label}, 64 bytes", in_few_bytes)]


def remember_last(describe: DescribeImage) -> DescribeImage:
    """Three forms of the same descriptors need them once an image."""
    last: list[Any] = [None, None, None]  # image, keypoints, descriptors

    def remembering(image: np.ndarray, keypoints: Keypoints) -> np.ndarray:
        if last[0] is not image or last[1] is not keypoints:
            last[:] = image, keypoints, describe(image, keypoints)
        return np.asarray(last[2])

    return remembering


def evaluate(
    describes: Sequence[DescribeImage],
    sequences: Sequence[ImageSequence],
    arguments: MatchingArguments,
    console: Console,
) -> tuple[list[list[PairScore]], list[str]]:
    """Scores of all pairs, a list for each describing function; and a sentence for each sequence that failed and has none."""
    results: list[list[PairScore]] = [[] for _ in describes]
    broken = []
    with counting_bar(console) as bar:
        task = bar.add_task("", total=sum(1 + len(one.others) for one in sequences))
        done = 0
        for sequence in sequences:
            bar.update(task, description=sequence.name)
            try:
                compared = matching.compare(
                    describes, sequence, arguments.keypoints, arguments.near, advance=lambda: bar.advance(task)
                )
            except (InputError, cv2.error) as error:
                broken.append(f"{sequence.name}: {' '.join(str(error).split())}")
            else:
                for scores, new in zip(results, compared, strict=True):
                    scores += new
            done += 1 + len(sequence.others)
            bar.update(task, completed=done)
    return results, broken

"""`sdgmnet evaluate matching`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import cv2
import numpy as np
import tyro
from rich.console import Console

from sdgmnet.benchmarks import matching
from sdgmnet.benchmarks.matching import DescribeImage, PairScore
from sdgmnet.commands.evaluate import demand_labels, parse_contenders
from sdgmnet.commands.matching_report import content, draw, tables
from sdgmnet.contenders import Contender
from sdgmnet.data.demo import read_demo
from sdgmnet.data.sequences import ImageSequence, read_sequence, sequence_folders
from sdgmnet.errors import InputError
from sdgmnet.features import compact
from sdgmnet.features.keypoints import Keypoints
from sdgmnet.html import write_page
from sdgmnet.report import Section, counting_bar, deliver_sections


@dataclass(frozen=True)
class MatchingArguments:
    """Matching of whole pictures under known homographies, between picture 1 of a sequence and each other one.

        sdgmnet evaluate matching sift rootsift mine=runs/one --root sequences -o results

    Four measures from the same DoG keypoints and descriptors, higher is better in all:

    Matching score. Of the strongest keypoints of picture 1, those that have a keypoint at their true place in another picture:
    the share whose nearest descriptor there (no ratio test) is at that place. Averaged over pairs, then over sequences.

    The paper's Fig. 5. 200 random keypoints of picture 1 that the other picture shows, nearest among all keypoints of it:
    how many are within 1, 3 and 5 pixels of their true place. The hardest pairs are drawn.

    Mean matching accuracy. Of mutual nearest neighbours, the share within 1 to 10 pixels; names that begin with i_ (light) and
    v_ (viewpoint) apart.

    Homographies. Estimated from these matches: the share that sends the corners of picture 1 to within 1, 3 and 5 pixels of
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
    """At most so many keypoints a picture, strongest first. Fig. 5 takes all, as the paper does."""
    near: float = matching.NEAR
    """Within so many pixels is the same place, for the matching score."""
    compact: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Also as large collections keep them: a byte a number, and 64 bytes by axes fitted to the embedded pictures."""
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    """Folder for results.json, table.md, fig5 and mma as .png and .pdf, and index.html with all of it in one page."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print JSON instead of tables."""


def main(words: list[str]) -> None:
    arguments = tyro.cli(MatchingArguments, prog="sdgmnet evaluate matching", args=words)
    contenders = parse_contenders(arguments.contenders)
    demand_labels(contenders)
    for one in contenders:
        if one.descriptors is not None:
            raise InputError(
                f"{one.descriptors} holds descriptors of HPatches' strips, for sdgmnet evaluate hpatches only."
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
    deliver_sections(everything, sections, arguments.out, arguments.json)
    if arguments.out is not None:
        sections += draw(labels, results, {one.name: one for one in sequences}, arguments.out)
        sections += [Section("Left out", " ".join(left_out))] * bool(left_out)
        write_page(arguments.out / "index.html", "Matching of whole pictures", sections)
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


def forms_of(contender: Contender, is_compact: bool) -> list[tuple[str, DescribeImage]]:
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
    """Three forms of the same descriptors need them once a picture."""
    last: list[Any] = [None, None, None]  # picture, keypoints, descriptors

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

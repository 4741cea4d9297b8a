"""`sdgmnet evaluate matching`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from sdgmnet.benchmarks import matching
from sdgmnet.benchmarks.matching import FIG5_ROWS, MatchingOptions, Results, by_kind
from sdgmnet.benchmarks.matching_measures import SAMPLE_THRESHOLDS, SAMPLES, SHOWN, mean_accuracy
from sdgmnet.data.sequences import ImageSequence
from sdgmnet.descriptors import COMPARED, load_descriptors, require_descriptors
from sdgmnet.errors import InputError
from sdgmnet.features.match import MATCHER_HELP, MatcherName
from sdgmnet.options import AsJson, Flag, Option, OptionalOut, Positional, pick, require_options
from sdgmnet.report import Section, deliver, print_aside, progress_bars, write_page

FIG5 = (
    f"The reference left, the other image right. Red crosses: {SAMPLES} random keypoints (the first draw). Green lines: "
    f"nearest neighbours within {SAMPLE_THRESHOLDS[SHOWN]:g} px of the true location. Of each sequence the pair with the "
    f"fewest correct matches, on average over the descriptors; at most {FIG5_ROWS} sequences, hardest first; pairs without "
    "any correct match are skipped."
)


@dataclass(frozen=True)
class Arguments:
    """Match image 1 of a sequence with each other image, and compare the matches with the known homographies.

    For example:

        sdgmnet evaluate matching sift rootsift mine=runs/one --root sequences -o results

    Four measures from the same DoG keypoints and descriptors. For all of them higher is better.

    Matching score. Of the keypoints of image 1 that have a keypoint at their true location in the other image, the share whose
    nearest descriptor (no ratio test) is at that location. Mean over pairs, then over sequences.

    The paper's Fig. 5. 200 random keypoints of image 1 that are visible in the other image, matched to all its keypoints: how
    many are within 1, 3 and 5 pixels of their true location. The figure shows the hardest pair of each sequence.

    Mean matching accuracy (MMA). The share of matches within 1 to 10 pixels, separately for sequences whose names start with
    i_ (illumination) and v_ (viewpoint). And the correct matches per keypoint in the shared region (M.S. in papers), which is
    lower than the matching score, because it also counts keypoints that the other image does not have.

    Homographies, estimated from the matches: the share of pairs whose mean error at the corners of image 1 is at most 1, 3
    and 5 pixels.

    The matches of the last two are mutual nearest neighbours without ratio test; --matcher, --mutual and --ratio choose
    others. The first two measures do not depend on these options.

    Sequences that cannot be read are reported and skipped.
    """

    descriptors: Annotated[Positional[tuple[str, ...]], Option(metavar="DESCRIPTOR", help=COMPARED)]
    root: Path
    """Folder of sequences in HPatches' layout: 1.png ... 6.png and H_1_2 ... H_1_6 each."""
    sequences: tuple[str, ...] = ()
    """Names of the sequences to use; default: all."""
    keypoints: int = matching.KEYPOINTS
    """Maximum number of keypoints per image, strongest first. Fig. 5 always uses all, as the paper does."""
    near: float = matching.NEAR
    """Maximum error of a correct match in pixels, for the matching score and for correct matches per keypoint."""
    matcher: Annotated[
        MatcherName, Option(help=f"For MMA, correct matches per keypoint and homographies. {MATCHER_HELP}")
    ] = "nearest"
    mutual: bool = True
    """For the same measures: keep only mutual nearest neighbours."""
    ratio: float | None = None
    """For the same measures: maximum distance to the nearest neighbour over that to the second nearest; default: no test."""
    compact: Flag = False
    """Also evaluate uint8 descriptors, and PCA to 64 dimensions, uint8. The PCA is fitted to the embedded demo images."""
    out: OptionalOut = None
    """Folder for results.json, table.md, fig5 and mma (.png, .pdf) and index.html, which shows all; default: only print."""
    json: AsJson = False


def main(arguments: Arguments) -> None:
    require_descriptors(arguments.descriptors)
    require_options(arguments, keypoints=1)
    if not 0 < arguments.near < float("inf"):
        raise InputError(f"--near must be a positive number, not {arguments.near}.")
    options = pick(MatchingOptions, arguments)
    sequences, left_out = matching.read_sequences(arguments.root, arguments.sequences)
    if not sequences:
        raise InputError(f"no sequence can be read. {' '.join(left_out)}")
    descriptors = load_descriptors(arguments.descriptors)
    for one in descriptors:
        if one.csv_folder is not None:
            raise InputError(f"{one.csv_folder} holds descriptors of HPatches strips: use sdgmnet evaluate hpatches.")
    with progress_bars() as on_progress:
        results, errors = matching.compare(
            descriptors, sequences, options, with_compact=arguments.compact, on_progress=on_progress
        )
    left_out += errors
    if not results:
        raise InputError(f"no sequence could be evaluated. {' '.join(left_out)}")
    sections = matching.sections(results, options)
    deliver(matching.content(results, left_out, options), sections, arguments.out, arguments.json)
    if arguments.out is not None:
        sections += draw(results, sequences, arguments.out)
        sections += [Section("Left out", " ".join(left_out))] * bool(left_out)
        write_page(arguments.out / "index.html", "Matching of whole images", sections)
    for error in left_out:
        print_aside(f"{error} This sequence is left out.")


def draw(results: Results, sequences: Sequence[ImageSequence], out: Path) -> list[Section]:
    """Write mma and fig5 as PNG and PDF; returns their sections."""
    from sdgmnet.plots.benchmarks import draw_fig5, draw_mma, fig5_rows

    curves = {
        label: {kind: mean_accuracy([pair.matched for pair in of_kind]) for kind, of_kind in by_kind(pairs).items()}
        for label, pairs in results.items()
    }
    text = "Mean matching accuracy over the threshold."
    sections = [Section("Curves", text, image=out / "mma.png")]
    for kind in ("png", "pdf"):
        draw_mma(curves, out / f"mma.{kind}")
        (out / f"fig5.{kind}").unlink(missing_ok=True)  # of an earlier run, if there is no pair to show now
    if rows := fig5_rows(results, sequences):
        for kind in ("png", "pdf"):
            draw_fig5(list(results), rows, out / f"fig5.{kind}")
        sections.append(Section("The hardest pairs", FIG5, image=out / "fig5.png"))
    return sections

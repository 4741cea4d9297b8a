"""`sdgmnet evaluate reconstruction`."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from sdgmnet.benchmarks.photo_sets import read_photo_sets
from sdgmnet.descriptors import COMPARED
from sdgmnet.errors import InputError, resumable
from sdgmnet.features.match import MATCHER_HELP, MatcherName
from sdgmnet.features.pairs import NEIGHBOURS_HELP, PAIRS_HELP
from sdgmnet.options import AsJson, Flag, Option, Out, Positional, pick, require_options
from sdgmnet.report import Section, deliver, print_aside, progress_bars
from sdgmnet.sfm.colmap import require_pycolmap
from sdgmnet.sfm.workspace import DENSE_SIZE, require_apart

HELP = (
    f"{COMPARED} Or a FOLDER with SET/descriptors/*.bin and optionally SET/matches/*.bin in the benchmark's format; or colmap ("
    "its own keypoints and matching)."
)


@dataclass(frozen=True)
class Arguments:
    """The ETH benchmark: reconstruct each set of photos with COLMAP from the matches of each descriptor.

    For example:

        sdgmnet evaluate reconstruction sift rootsift sdgmnet --root sets -o results

    Every descriptor describes the same keypoints of the photos at full size. All pairs are matched by mutual nearest neighbours
    without ratio test, as in the paper (the official table uses --ratio 0.8). The table describes the largest model:
    registered photos, points, observations, track length, reprojection error, and whether it is implausible (few points or
    impossible cameras, as after a collapse). The same options give the same numbers. A set is
    a folder of photos, or a folder with images/ and optionally keypoints/*.bin and ground_truth/. An interrupted command can
    simply be run again.
    """

    descriptors: Annotated[Positional[tuple[str, ...]], Option(metavar="DESCRIPTOR", help=HELP)]
    root: Path
    """Folder of sets, or one set."""
    out: Out
    """Folder for results.json, table.md, reconstruction.png and, in SET/LABEL, a COLMAP workspace with cloud.png."""
    sets: tuple[str, ...] = ()
    """Names of the sets to use; default: all."""
    detector: Literal["colmap", "opencv"] = "colmap"
    """Detector for sets without keypoints: COLMAP's SIFT, as in the benchmark's own files, or OpenCV's SIFT."""
    keypoints: int | None = None
    """Maximum number of keypoints per photo; default: COLMAP's 8192 largest locations, or OpenCV's 12 000 strongest."""
    contrast: float = 0.02
    """For --detector opencv: contrastThreshold of SIFT."""
    matcher: Annotated[MatcherName, Option(help=MATCHER_HELP)] = "nearest"
    mutual: bool = True
    """Keep only mutual nearest neighbours."""
    ratio: float | None = None
    """Ratio test: maximum distance to the nearest neighbour over that to the second nearest; default: no test."""
    pairs: Annotated[str, Option(help=PAIRS_HELP, metavar="METHOD|FILE")] = "exhaustive"
    neighbours: Annotated[int | None, Option(help=NEIGHBOURS_HELP)] = None
    cameras: Literal["auto", "one", "each"] = "each"
    """Photos that share intrinsics. each: none, as in the benchmark. auto: equal size and focal length. one: equal size."""
    refine: Flag = False
    """Align the keypoints of each point by their pixels before the model is estimated: smaller reprojection errors.
    COLMAP's own pipeline and the relative poses keep the detected ones."""
    dense: Flag = False
    """Also count dense points. Depth maps are COLMAP's on a GPU, otherwise ours; the table says which. COLMAP fuses them."""
    dense_size: int = DENSE_SIZE
    """Longest side of the depth maps in pixels."""
    exchange: Flag = False
    """Also write descriptors/*.bin and matches/*.bin in the benchmark's format, in SET/LABEL."""
    threads: int = 2
    """Number of threads. COLMAP's mapper always uses one."""
    seed: int = 0
    """Random seed."""
    json: AsJson = False


def main(arguments: Arguments) -> None:
    require_options(arguments, dense_size=64, threads=1, keypoints=1, neighbours=1)
    if arguments.out.exists() and not arguments.out.is_dir():
        raise InputError(f"{arguments.out} is a file: give the name of a folder.")
    sets = read_photo_sets(arguments.root, without=[arguments.out], names=arguments.sets)
    for photos in sets:
        require_apart(arguments.out / photos.name, photos.images)
    require_pycolmap()
    from sdgmnet.benchmarks.reconstruction import BenchmarkOptions, parse_entries, run, table, title
    from sdgmnet.engine import use_threads
    from sdgmnet.plots.benchmarks import draw_reconstruction

    entries = parse_entries(arguments.descriptors)
    options = pick(BenchmarkOptions, arguments)
    use_threads(arguments.threads)
    with resumable(), progress_bars() as on_progress:
        rows, failed = run(entries, sets, arguments.out, options, on_progress)
    for one in failed:
        print_aside(f"{one['set']}, {one['label']}: {one['reason']}")
    for row in rows:
        if row["implausible"]:
            print_aside(f"{row['set']}, {row['label']}: implausible model: {'; '.join(row['implausible'])}.")
    if not rows:
        raise InputError("no descriptor gave a model; see the reasons above.")
    results = {"options": asdict(options), "rows": rows, "failed": failed}
    deliver(results, [Section(title(options), "", *table(rows, failed))], arguments.out, arguments.json)
    draw_reconstruction(rows, arguments.out / "reconstruction.png")

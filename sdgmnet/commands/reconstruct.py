"""`sdgmnet reconstruct`."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from sdgmnet.data.patchset import require_photos
from sdgmnet.descriptors import accepted_forms, require_form, with_window
from sdgmnet.errors import InputError, resumable
from sdgmnet.features.describe import UPRIGHT_HELP
from sdgmnet.features.images import find_photos, plain_name, require_readable
from sdgmnet.features.masks import MASKS_HELP, require_masks
from sdgmnet.features.match import MATCHER_HELP, RATIO, MatcherName
from sdgmnet.features.pairs import NEIGHBOURS_HELP, PAIRS_DEFAULT, PAIRS_HELP
from sdgmnet.options import AsJson, Flag, Option, Out, Positional, pick, require_options
from sdgmnet.pretrained import ALIAS
from sdgmnet.report import print_aside, print_table, progress_bars
from sdgmnet.sfm.colmap import require_mapper, require_pycolmap
from sdgmnet.sfm.pairs import PairSelection, select_pairs
from sdgmnet.sfm.plausibility import MapperName
from sdgmnet.sfm.summary import remarks, tables
from sdgmnet.sfm.workspace import DENSE_SIZE, MIN_PHOTOS, Workspace, require_apart, require_own_folder
from sdgmnet.storage import only_worker, write_json

IMPLAUSIBLE = 3  # exit code


@dataclass(frozen=True)
class ReconstructArguments:
    """Reconstruct a 3-D model from photos and write it as a COLMAP workspace.

    For example:

        sdgmnet reconstruct photos -o model

    This command detects, describes and matches keypoints. COLMAP (pip install 'sdgmnet[sfm]') then verifies the matches and
    estimates cameras and points. The workspace has images/, database.db, models in sparse/0, 1, ... (largest first, binary and
    text), sparse/points.ply, summary.json, cloud.png, and cloud.html to view all models in a browser. COLMAP's GUI, hloc and
    Gaussian splatting tools can open it.
    An interrupted command can simply be run again.

    A model with implausible cameras or too few points is estimated again: without distortion, with a stricter initial pair,
    with a stricter ratio test. If all attempts are implausible, the best one is written, the table gives the reasons, and the
    exit code is 3.
    """

    photos: Positional[Path]
    """Folder of photos. Sub-folders are included. Photos of several scenes give several models."""
    out: Out
    """Folder of the workspace."""
    descriptor: Annotated[str, Option(help=f"The descriptor: {accepted_forms()}.")] = ALIAS
    window: float | None = None
    """Side of the patches in sigmas of their keypoints; default: that of the weights."""
    keypoints: int = 12_000
    """Maximum number of keypoints per photo, strongest first."""
    contrast: float = 0.02  # COLMAP's: a photo of 3000 pixels has about 20 000 keypoints
    """OpenCV's contrastThreshold of SIFT: lower values find more keypoints. Use 0.01 for photos with little texture."""
    size: int = 3200  # COLMAP's
    """Longest side in pixels; larger photos are resized for detection, which needs 235 bytes of memory per pixel."""
    upright: Flag = False
    """Set the angle of every keypoint to 0. Finds more matches if no photo is rotated; rotated photos are not matched."""
    auto_upright: Annotated[Flag, Option(help=UPRIGHT_HELP)] = False
    masks: Annotated[Path | None, Option(help=MASKS_HELP, metavar="FOLDER")] = None
    matcher: Annotated[MatcherName, Option(help=MATCHER_HELP)] = "nearest"
    mutual: bool = True
    """Keep only mutual nearest neighbours."""
    ratio: float | None = RATIO
    """Ratio test: maximum distance to the nearest neighbour over that to the second nearest. none: no test."""
    pairs: Annotated[str | None, Option(help=f"{PAIRS_HELP} {PAIRS_DEFAULT}", metavar="METHOD|FILE")] = None
    neighbours: Annotated[int | None, Option(help=NEIGHBOURS_HELP)] = None
    cameras: Literal["auto", "one", "each"] = "auto"
    """Photos that share intrinsics. auto: equal size, folder and focal length. one: equal size. each: none."""
    refine: Flag = False
    """Align the keypoints of each point by their pixels before the model is estimated: smaller reprojection errors."""
    mapper: MapperName = "incremental"
    """COLMAP's mapper. incremental: photo after photo. global: all photos at once (GLOMAP)."""
    dense: Flag = False
    """Also compute depth maps and a dense point cloud of the largest model, dense/fused.ply."""
    dense_size: int = DENSE_SIZE
    """Longest side of the depth maps in pixels; the time grows with its square."""
    threads: int = 2
    """Number of threads."""
    seed: int = 0
    """Random seed."""
    json: AsJson = False


def main(arguments: ReconstructArguments) -> int:
    """The exit code."""
    require_options(arguments, keypoints=1, size=64, dense_size=64, neighbours=1, threads=1)
    if arguments.upright and arguments.auto_upright:
        raise InputError("--upright and --auto-upright exclude each other: leave one of them out.")
    require_pycolmap()
    if not arguments.photos.is_dir():
        problem = "is not a folder" if arguments.photos.exists() else "does not exist"
        raise InputError(f"{arguments.photos} {problem}: give the folder of the photos.")
    require_photos(arguments.photos)
    require_apart(arguments.out, arguments.photos)
    require_own_folder(arguments.out)
    own = (arguments.out,) if arguments.masks is None else (arguments.out, arguments.masks)
    names = tuple(find_photos(arguments.photos, without=own))
    if not names:
        raise InputError(
            f"{arguments.photos} contains no photos (JPEG, PNG, TIFF, WebP, BMP), nor do its sub-folders: give another folder."
        )
    need = f"{arguments.photos}: a model needs at least {MIN_PHOTOS} overlapping photos"
    require_readable((arguments.photos / name for name in names), MIN_PHOTOS, need)
    require_masks(arguments.masks, map(plain_name, names))
    descriptor = with_window(arguments.descriptor, arguments.window)
    require_form(descriptor)
    pairs = select_pairs(arguments.pairs, arguments.neighbours, names)
    require_mapper(arguments.mapper)
    with resumable():
        return reconstruct_photos(arguments, names, descriptor, pairs)


def reconstruct_photos(
    arguments: ReconstructArguments, names: tuple[str, ...], descriptor: str, pairs: PairSelection
) -> int:
    from sdgmnet.engine import use_threads
    from sdgmnet.sfm.feature_sources import ReconstructOptions, descriptor_source
    from sdgmnet.sfm.fusion import densify
    from sdgmnet.sfm.reconstruct import Photos, reconstruct, summarise
    from sdgmnet.sfm.viewer import draw_models

    workspace, photos = Workspace(arguments.out), Photos(arguments.photos, names)
    options = pick(ReconstructOptions, arguments)
    use_threads(arguments.threads)
    source = descriptor_source(
        descriptor,
        arguments.keypoints,
        contrast=arguments.contrast,
        size=arguments.size,
        upright=arguments.upright or (arguments.auto_upright and choose_upright(arguments, names, descriptor)),
        masks=arguments.masks,
    )
    with only_worker(workspace.records), progress_bars() as on_progress:
        models = reconstruct(workspace, photos, source, pairs, options, on_progress)
        summary = summarise(workspace, photos, source, models)
        draw_models(workspace, summary, plain_name(arguments.photos.resolve().name))
        write_json(workspace.folder / "summary.json", summary)
        if arguments.dense and not summary["implausible"]:
            dense = densify(
                workspace, arguments.dense_size, seed=options.seed, threads=options.threads, on_progress=on_progress
            )
            summary = {**summary, "dense": dense, **workspace.timer.read()}
            write_json(workspace.folder / "summary.json", summary)
    print_remarks(summary)
    if arguments.json:
        print(json.dumps(summary, indent=2))
    else:
        for table in tables(summary):
            print_table(*table)
        print(f"The model is in {workspace.folder}: open cloud.html in a browser, or the folder in COLMAP's GUI.")
    return IMPLAUSIBLE if summary["implausible"] else 0


def choose_upright(arguments: ReconstructArguments, names: tuple[str, ...], descriptor: str) -> bool:
    from sdgmnet.descriptors import load_descriptor
    from sdgmnet.features.collection import DescribeOptions
    from sdgmnet.features.upright import measure_upright

    images = {plain_name(name): arguments.photos / name for name in names}
    options = DescribeOptions(arguments.keypoints, size=arguments.size, masks=arguments.masks)
    with progress_bars() as on_progress:
        chosen, words = measure_upright(images, load_descriptor(descriptor), options, on_progress)
    print_aside(words)
    return chosen


def print_remarks(summary: dict[str, Any]) -> None:
    for one in remarks(summary):
        print_aside(one)
    if summary["implausible"]:
        print_aside(
            f"The model is implausible: {'; '.join(summary['implausible'])}. Use photos with more overlap, or --cameras one if "
            "one camera took them. No depth maps are computed from such a model."
        )

"""`sdgmnet data ...`: make PatchSets, HPatches strips and test pairs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

from sdgmnet.data.download import DEFAULT_MIRROR, fetch_phototour
from sdgmnet.data.hpatches.strips import StripOptions, make_strips, strips_table
from sdgmnet.data.patchset import (
    PatchSet,
    patchset_folders,
    random_test_pairs,
    require_photos,
    summary_table,
    write_test_pairs,
)
from sdgmnet.data.phototour import PATCH_COUNTS, read_phototour, write_phototour
from sdgmnet.data.scenes import mixed_layout
from sdgmnet.data.synthetic.demo import read_demo
from sdgmnet.data.synthetic.sets import PHOTO_VIEWING, ViewOptions, make_view_sets
from sdgmnet.errors import InputError, resumable
from sdgmnet.options import AsJson, Flag, Option, Out, Positional, pick, require_options
from sdgmnet.registry import WINDOW
from sdgmnet.report import Section, deliver, print_aside, print_table, progress_bars, track

MOST_PATCHES = 16000  # in a strip: OpenCV reads images of up to a million pixels in height


def require_results(results: Sequence[Any], failures: Sequence[tuple[str, str]], what: str) -> None:
    """Report failures (name, reason); InputError where nothing else is left."""
    for name, reason in failures:
        print_aside(f"{name} skipped: {reason}")
    if not results:
        raise InputError(f"no {what} was made; the reasons are above.")


@dataclass(frozen=True)
class PhototourArguments:
    """Convert or download UBC PhotoTour subsets; write one PatchSet each to --out.

    Convert folders you have (info.txt, patches0000.bmp, m50_100000_100000_0.txt):

        sdgmnet data phototour downloads/liberty downloads/yosemite -o ubc

    Or download them, several hundred megabytes each, over HTTPS. An interrupted download is resumed:

        sdgmnet data phototour liberty notredame yosemite --download -o ubc
    """

    subsets: Positional[tuple[str, ...]]
    """Folders to convert. With --download, names: liberty, notredame, yosemite, or liberty_harris and so on."""
    out: Out
    """Folder for the PatchSets."""
    download: Flag = False
    """Download the named subsets. Nothing is downloaded without this option."""
    mirror: Annotated[str, Option(metavar="URL")] = DEFAULT_MIRROR
    """URL of the folder with the zip files."""


def phototour(arguments: PhototourArguments) -> None:
    if not arguments.subsets:
        raise InputError(f"name the folders to convert; or --download with {', '.join(PATCH_COUNTS)}.")
    folders = {name: Path(name).resolve() for name in arguments.subsets}
    for name, folder in folders.items() if not arguments.download else ():
        if not folder.is_dir():
            raise InputError(f"{name} is not a folder: give the folder of a subset, or add --download.")
        if (arguments.out / folder.name).resolve() == folder:
            raise InputError(f"{name} would be converted into itself: choose another -o.")
    with progress_bars() as on_progress:
        if arguments.download:
            sets = [fetch_phototour(one, arguments.out, arguments.mirror, on_progress=on_progress) for one in folders]
        else:
            sets = [read_phototour(one, arguments.out / one.name, on_progress=on_progress) for one in folders.values()]
    print_table(*summary_table(sets))


@dataclass(frozen=True)
class PhotosArguments:
    """Make training patches from your own photos. Each sub-folder of FOLDER is a scene, or FOLDER itself is one.

    For example:

        sdgmnet data photos my_photos -o my_patches

    COLMAP (pip install 'sdgmnet[sfm]') reconstructs each scene. Keypoints are reprojected into the other photos through depth
    maps; keypoints that agree in location, scale and orientation become one point of the scene's PatchSet. An interrupted
    command can simply be run again.
    """

    folder: Positional[Path]
    """Folder of photos, or of one sub-folder per scene. 10 to 60 overlapping photos make a good scene."""
    out: Out
    """Folder for a PatchSet and a contact sheet per scene, results.json and table.md."""
    source: Annotated[Literal["geometry", "tracks"], Option(name="from")] = "geometry"
    """Source of the labels. geometry: reprojection. tracks: SIFT's tracks of the sparse model; faster, but easy pairs only."""
    reprojected: bool = True
    """Also cut patches at reprojected locations where no keypoint was detected. They are the harder ones."""
    keypoints: int = 8000
    """Maximum number of keypoints per photo."""
    smallest_scale: float = 1.6
    """Minimum sigma of a keypoint in pixels."""
    window: float = WINDOW
    """Side of the patches in sigmas of their keypoints. Training can use the centre of wider ones (train --window)."""
    size: int = 1600
    """Longest side of the photos in pixels; larger ones are resized."""
    dense_size: int = 800
    """Longest side of the depth maps in pixels; the time grows with its square."""
    cameras: Literal["auto", "one", "each"] = "auto"
    """Photos that share intrinsics. auto: equal size, folder and focal length. one: equal size. each: none."""
    all_pairs: int = 40
    """Maximum number of photos for matching all pairs; larger scenes match neighbours by name, then covisible photos."""
    threads: int = 2
    """Number of threads. The patches do not depend on it."""
    seed: int = 0
    """Random seed of the reconstruction."""
    work: Path | None = None
    """Folder for the reconstructions, which a later run can reuse; default: .work in --out."""
    discard_work: Flag = False
    """Delete a scene's reconstruction once its patches are written."""
    json: AsJson = False


def photos(arguments: PhotosArguments) -> None:
    require_options(arguments, keypoints=1, size=64, dense_size=64, threads=1, all_pairs=0)
    if not 0 < arguments.smallest_scale < float("inf"):
        raise InputError(f"--smallest-scale must be a positive number, not {arguments.smallest_scale}.")
    out, work = arguments.out, arguments.work or arguments.out / ".work"
    if warning := mixed_layout(arguments.folder, without=(out, work)):
        print_aside(warning)
    if find_spec("pycolmap") is None:
        raise InputError("photos are reconstructed by pycolmap, which is not installed: pip install 'sdgmnet[sfm]'.")
    import torch

    from sdgmnet.data.photos.correspondences import PointOptions
    from sdgmnet.data.photos.pipeline import PhotoOptions, make_patchsets, photos_table
    from sdgmnet.plots.patches import draw_easy_and_hard
    from sdgmnet.sfm.stereo import DenseOptions
    from sdgmnet.sfm.undistorted import SparseOptions

    torch.set_num_threads(arguments.threads)
    options = PhotoOptions(
        pick(SparseOptions, arguments),
        DenseOptions(size=arguments.dense_size, seed=arguments.seed),
        pick(PointOptions, arguments),
        arguments.source,
        arguments.window,
    )
    with resumable(), progress_bars() as on_progress:
        rows, failures = make_patchsets(
            arguments.folder, out, options, work=work, discard_work=arguments.discard_work, on_progress=on_progress
        )
    for row in rows:
        for name, reason in row.get("broken", []):
            print_aside(f"{row['scene']}: {name} {reason}; skipped.")
        for model, reason in row.get("left_out", []):
            print_aside(f"{row['scene']}: model {model} skipped: {reason}")
        sheet = out / f"{row['scene']}.png"
        if not sheet.exists() or sheet.stat().st_mtime < (out / row["scene"] / "set.json").stat().st_mtime:
            draw_easy_and_hard(PatchSet.open(out / row["scene"]), sheet)
    require_results(rows, failures, "PatchSet")
    results = {"scenes": rows, "failed": [failure._asdict() for failure in failures]}
    header, table = photos_table(rows)
    deliver(results, [Section("Patches from photos", header=header, rows=table)], out, arguments.json)


@dataclass(frozen=True)
class ViewsArguments:
    """Make training patches from single images, without reconstruction. Each sub-folder of FOLDER is a scene, or FOLDER is one.

    For example:

        sdgmnet data views my_photos -o my_patches

    Every image is warped (rotation, tilt, scale) and relit. Keypoints are detected in each view and matched by the known warp.
    The PatchSet of a scene is called SCENE-views. If sdgmnet train also gets the scene's set from data photos, the two
    alternate: a batch has patches of one of them. Of the views, a batch has those of a single image, because two images of a
    scene may show the same point.
    """

    folder: Positional[Path]
    """Folder of images, or of one sub-folder per scene."""
    out: Out
    """Folder for the PatchSets."""
    photos: int = ViewOptions.photos
    """Maximum number of images per scene, evenly spaced by name."""
    views: int = PHOTO_VIEWING.views
    """Views per image, including the image itself."""
    keypoints: int = PHOTO_VIEWING.keypoints
    """Maximum number of keypoints per view."""
    size: int = ViewOptions.size
    """Longest side in pixels; larger images are resized."""
    seed: int = ViewOptions.seed
    """Random seed of the views."""
    window: float = WINDOW
    """Side of the patches in sigmas of their keypoints. Training can use the centre of wider ones (train --window)."""
    threads: int = 2
    """Number of images processed in parallel. The patches do not depend on it."""


def views(arguments: ViewsArguments) -> None:
    require_options(arguments, photos=1, views=2, keypoints=1, size=64, threads=1)
    viewing = replace(PHOTO_VIEWING, views=arguments.views, keypoints=arguments.keypoints)
    options = ViewOptions(viewing, arguments.photos, arguments.size, arguments.seed, arguments.window)
    require_photos(arguments.folder)
    with resumable(), progress_bars() as on_progress:
        made = make_view_sets(
            arguments.folder, arguments.out, options, threads=arguments.threads, on_progress=on_progress
        )
    for photo, reason in made.broken:
        print_aside(f"{photo} {reason}; skipped.")
    require_results(made.sets, made.failures, "PatchSet")
    print_table(*summary_table(made.sets))


@dataclass(frozen=True)
class StripsArguments:
    """Cut HPatches strips from image sequences with homographies, in the layout of the official set.

    For example:

        sdgmnet data hpatches hpatches-sequences-release -o strips

    A sequence is a folder with images 1.png ... 6.png (or ppm, pgm, jpg) and homographies H_1_2 ... H_1_6 from the first image
    to each of the others. Regions are detected in the first image (DoG, Hessian, Harris), jittered at three levels
    (easy, hard, tough), mapped by the homographies and cut from each image as patches of 65 x 65 pixels. Only regions inside
    all images are used. set.json records the options, sheet.png shows examples. An interrupted command can simply be run again.
    """

    sequences: Positional[Path]
    """Folder of sequences, or one sequence."""
    out: Out
    """Folder for the strips (sixteen per sequence), set.json and sheet.png."""
    patches: int = StripOptions.patches
    """Maximum number of regions per sequence: the strongest, in equal parts from each detector."""
    seed: int = StripOptions.seed
    """Random seed of the jitter and of the choice among overlapping regions."""
    only: Annotated[tuple[str, ...], Option(metavar="SEQUENCE")] = ()
    """Names of the sequences to use; default: all."""
    force: Annotated[tuple[str, ...], Option(metavar="SEQUENCE")] = ()
    """Names of sequences to cut again although they are complete."""


def hpatches(arguments: StripsArguments) -> None:
    require_options(arguments, patches=1)
    if arguments.patches > MOST_PATCHES:
        raise InputError(f"--patches must be at most {MOST_PATCHES}, not {arguments.patches}.")
    options = StripOptions(arguments.patches, arguments.seed)
    with progress_bars() as on_progress:
        made, skipped = make_strips(
            arguments.sequences,
            arguments.out,
            options,
            only=arguments.only,
            force=arguments.force,
            on_progress=on_progress,
        )
    require_results(made, skipped, "strip")
    from sdgmnet.plots.patches import draw_strips

    draw_strips(arguments.out, [one["sequence"] for one in made])
    print_table(*strips_table(made))


@dataclass(frozen=True)
class PairsArguments:
    """Draw labelled test pairs for PatchSets, half matching and half non-matching, as in PhotoTour's m50 files.

    Pairs of ambiguous points (too close to be called different) are never drawn as non-matching. PatchSets that have test
    pairs are skipped.
    """

    patchsets: Positional[tuple[Path, ...]]
    """PatchSets, or folders of them."""
    count: int = 100000
    """Maximum number of pairs per PatchSet."""
    seed: int = 0
    """Random seed."""
    replace: Flag = False
    """Replace the test pairs of PatchSets that have some."""


def pairs(arguments: PairsArguments) -> None:
    if not arguments.patchsets:
        raise InputError("name the PatchSets to draw test pairs for.")
    require_options(arguments, count=2)
    found = {one.resolve(): one for folder in arguments.patchsets for one in patchset_folders(folder)}  # each once
    opened = {folder: PatchSet.open(folder) for folder in found.values()}
    kept = [folder for folder, one in opened.items() if one.test_pairs is not None and not arguments.replace]
    have_pairs = f"{', '.join(map(str, kept))}: test pairs exist"
    if len(kept) == len(opened):
        raise InputError(f"{have_pairs}; --replace draws new ones.")
    # All are drawn before the first is written: if a set has too few points, no set is changed.
    with progress_bars() as on_progress:
        drawn = {
            folder: random_test_pairs(opened[folder], arguments.count, arguments.seed)
            for folder in track([one for one in opened if one not in kept], "drawing pairs", on_progress)
        }
    for folder, test_pairs in drawn.items():
        write_test_pairs(folder, test_pairs)
    if kept:
        print_aside(f"{have_pairs} and are kept; --replace draws new ones.")
    print_table(*summary_table([PatchSet.open(folder) for folder in drawn]))


@dataclass(frozen=True)
class DemoArguments:
    """Write the demo PatchSets, made from scikit-image's images, to the folders demo-train and demo-test in --out."""

    out: Out
    """Folder for the two PatchSets."""


def demo(arguments: DemoArguments) -> None:
    with progress_bars() as on_progress:
        sets = [patchset.save(arguments.out / patchset.name) for patchset in read_demo(on_progress)]
    print_table(*summary_table(sets))


@dataclass(frozen=True)
class ExportArguments:
    """Write a PatchSet in the layout of UBC PhotoTour (bitmaps, info.txt, m50_n_n_0.txt), for other tools to read."""

    patchset: Positional[Path]
    """Folder of the PatchSet."""
    out: Out
    """New folder to write."""
    contiguous_ids: Flag = False
    """Number points from 0 without gaps, as the data loaders of HardNet, SOSNet and HyNet expect."""


def export(arguments: ExportArguments) -> None:
    with progress_bars() as on_progress:
        on_progress("writing bitmaps", 0, 0)
        write_phototour(PatchSet.open(arguments.patchset), arguments.out, arguments.contiguous_ids)
    print(f"Written to {arguments.out}.")

"""`sdgmnet describe`."""

import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from sdgmnet.data.patchset import PatchSet, is_patchset, patchset_folders
from sdgmnet.descriptors import accepted_forms, load_descriptor, require_form, with_window
from sdgmnet.errors import InputError, resumable
from sdgmnet.features.describe import LONGEST_SIDE, SMALLEST_SIDE, Descriptor
from sdgmnet.features.images import find_images, find_photos, require_readable
from sdgmnet.features.masks import MASKS_HELP, require_masks
from sdgmnet.options import Flag, Option, Out, Positional, require_options
from sdgmnet.pretrained import ALIAS
from sdgmnet.report import OnProgress, progress_bars

if TYPE_CHECKING:
    from sdgmnet.distributed import World

H5_SUFFIXES = (".h5", ".hdf5")


@dataclass(frozen=True)
class DescribeArguments:
    """Detect keypoints in images, compute their descriptors and write both to an h5 file in hloc's layout.

    For example:

        sdgmnet describe photos -o features.h5

    In the file, images of a folder are named by their path relative to the folder, single images by their file name. Images
    that the file already has are skipped, so an interrupted command can simply be run again.

    For a PatchSet (a folder of patches, see sdgmnet data), the output is an array (N, D) float32, one row per patch:

        sdgmnet describe my_patches/church -o church.npy

    With several processes (docs/guides/distributed.md):

        torchrun --nproc-per-node 4 -m sdgmnet describe photos -o features.h5
    """

    images: Positional[tuple[Path, ...]]
    """Images, or folders of images; or one PatchSet."""
    out: Out
    """Output h5 file; an existing one is extended. For a PatchSet: npy file."""
    descriptor: Annotated[str, Option(help=f"The descriptor: {accepted_forms()}.")] = ALIAS
    window: float | None = None
    """Side of the patches in sigmas of their keypoints; default: that of the weights."""
    keypoints: Annotated[
        int | None, Option(former=("--limit",), hint="A file of keypoints is given by --keypoints-from.")
    ] = None
    """Maximum number of keypoints per image, strongest first; default: no limit."""
    upright: Flag = False
    """Set the angle of every keypoint to 0, one keypoint per location."""
    as_stored: Flag = False
    """Do not apply EXIF orientation. hloc and COLMAP do not apply it either."""
    size: int = LONGEST_SIDE
    """Longest side in pixels; larger images are resized for detection. Keypoints are in pixels of the original image."""
    masks: Annotated[Path | None, Option(help=MASKS_HELP, metavar="FOLDER")] = None
    keypoints_from: Path | None = None
    """File of keypoints to describe instead of detecting any: hloc h5; for one image npz or text
    (x y sigma [angle [response]])."""
    overwrite: Flag = False
    """Also describe images that the file already has. A file made with other options is replaced."""

    @property
    def chosen(self) -> str:
        return with_window(self.descriptor, self.window)

    def find_images(self) -> dict[str, Path]:
        return find_images(self.images, () if self.masks is None else (self.masks,))

    @property
    def has_patchset(self) -> bool:
        return any(is_patchset(place) for place in self.images)

    def __post_init__(self) -> None:
        require_options(self, keypoints=1, size=SMALLEST_SIDE)
        require_form(self.chosen)
        if self.has_patchset:
            check_patchset(self)
        else:
            check_images(self)


def main(arguments: DescribeArguments) -> None:
    from sdgmnet.distributed import open_world

    describe = describe_patchset if arguments.has_patchset else describe_all
    with nullcontext() if arguments.has_patchset else resumable(), open_world() as world:
        with progress_bars(quiet=not world.is_rank_zero) as on_progress:
            summary = describe(arguments, world, on_progress)
        if world.is_rank_zero:
            print(summary)


def describe_all(arguments: DescribeArguments, world: "World", on_progress: OnProgress) -> str:
    from sdgmnet.features.collection import DescribeOptions, describe_images

    def inputs() -> tuple[dict[str, Path], Descriptor, DescribeOptions]:
        options = DescribeOptions(
            arguments.keypoints, arguments.upright, arguments.as_stored, arguments.size, arguments.masks
        )
        return arguments.find_images(), load_descriptor(arguments.chosen), options

    return describe_images(
        arguments.out,
        *world.on_all_ranks(inputs),
        keypoints=arguments.keypoints_from,
        overwrite=arguments.overwrite,
        world=world,
        on_progress=on_progress,
    ).summary


def describe_patchset(arguments: DescribeArguments, world: "World", on_progress: OnProgress) -> str:
    from sdgmnet.data.window import at_window
    from sdgmnet.features.npy import describe_into_npy

    began = time.perf_counter()
    patchset, descriptor = world.on_all_ranks(lambda: (open_patchset(arguments), load_descriptor(arguments.chosen)))
    descriptor = descriptor._replace(describe=at_window(descriptor.describe, patchset, descriptor.window))
    describe_into_npy(arguments.out, patchset.patches, descriptor, world=world, on_progress=on_progress)
    return f"{arguments.out}: {len(patchset)} patches described ({time.perf_counter() - began:.1f} s)."


def check_images(arguments: DescribeArguments) -> None:
    """InputError for what can be seen without loading anything."""
    for place in arguments.images:
        if place.is_dir() and not find_photos(place) and any(map(is_patchset, place.iterdir())):
            one = patchset_folders(place)[0]
            raise InputError(
                f"{place} holds PatchSets: describe one of them, as in sdgmnet describe {one} -o {one.name}.npy."
            )
    if arguments.out.suffix.lower() not in H5_SUFFIXES:
        raise InputError(f"{arguments.out}: features are written to an h5 file: -o {arguments.out.stem}.h5.")
    given = arguments.keypoints_from
    if given is not None and arguments.keypoints is not None:
        raise InputError("--keypoints is for detected ones: all keypoints of --keypoints-from are described.")
    if given is not None and not given.is_file():
        raise InputError(
            f"--keypoints-from {given} {'is a folder' if given.is_dir() else 'does not exist'}: give a file."
        )
    if given is not None and arguments.masks is not None:
        raise InputError("--masks is for detected keypoints: all keypoints of --keypoints-from are described.")
    images = arguments.find_images()
    require_readable(images.values())
    require_masks(arguments.masks, images)


def check_patchset(arguments: DescribeArguments) -> None:
    """InputError for what can be seen without loading anything."""
    folder, out = arguments.images[0], arguments.out
    if len(arguments.images) != 1:
        raise InputError(f"{folder} or another of these is a PatchSet: describe one PatchSet at a time.")
    defaults = {"keypoints": None, "upright": False, "as_stored": False, "size": LONGEST_SIDE, "masks": None}
    if any(getattr(arguments, name) != value for name, value in {**defaults, "keypoints_from": None}.items()):
        raise InputError(f"{folder} is a PatchSet: leave out the options for images, such as --keypoints or --size.")
    if out.suffix != ".npy":
        raise InputError(f"{out}: descriptors of a PatchSet are written to an npy file: -o {out.stem}.npy.")


def open_patchset(arguments: DescribeArguments) -> PatchSet:
    if arguments.out.exists() and not arguments.overwrite:  # ranks look at the same time: one of them writes the file
        raise InputError(f"{arguments.out} exists already: choose another -o, or replace it with --overwrite.")
    patchset = PatchSet.open(arguments.images[0])
    if len(patchset) == 0:
        raise InputError(f"{arguments.images[0]} contains no patches: give another PatchSet.")
    return patchset

"""`sdgmnet describe`."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from sdgmnet.data.patchset import PatchSet, is_patchset
from sdgmnet.descriptors import accepted_forms, load_descriptor
from sdgmnet.distributed import World, open_world
from sdgmnet.errors import InputError
from sdgmnet.features.collection import DescribeOptions, describe_images, find_images
from sdgmnet.features.describe import LONGEST_SIDE, Descriptor
from sdgmnet.features.npy import describe_into_npy
from sdgmnet.pretrained import ALIAS
from sdgmnet.report import Flag, OnProgress, Out, progress_bars


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

    images: tyro.conf.Positional[tuple[Path, ...]]
    """Images, or folders of images; or one PatchSet."""
    out: Out
    """Output h5 file; an existing one is extended. For a PatchSet: npy file."""
    descriptor: Annotated[str, tyro.conf.arg(help=f"The descriptor: {accepted_forms()}.")] = ALIAS
    limit: int | None = None
    """Maximum number of keypoints per image, strongest first; default: no limit."""
    upright: Flag = False
    """Set the angle of every keypoint to 0, one keypoint per location."""
    as_stored: Flag = False
    """Do not apply EXIF orientation. hloc and COLMAP do not apply it either."""
    size: int = LONGEST_SIDE
    """Longest side in pixels; larger images are resized for detection. Keypoints are in pixels of the original image."""
    keypoints: Path | None = None
    """File of keypoints to describe instead of detecting any: hloc h5; for one image npz or text (x y sigma [angle])."""
    overwrite: Flag = False
    """Also describe images that the file already has. A file made with other options is replaced."""


def main(words: list[str]) -> None:
    arguments = tyro.cli(DescribeArguments, prog="sdgmnet describe", args=words)
    has_patchset = any(is_patchset(place) for place in arguments.images)
    with open_world() as world:
        with progress_bars(quiet=not world.is_rank_zero) as on_progress:
            summary = (describe_patchset if has_patchset else describe_all)(arguments, world, on_progress)
        if world.is_rank_zero:
            print(summary)


def describe_all(arguments: DescribeArguments, world: World, on_progress: OnProgress) -> str:
    def inputs() -> tuple[dict[str, Path], Descriptor, DescribeOptions]:
        if arguments.keypoints is not None and arguments.limit is not None:
            raise InputError("--limit applies to detected keypoints: with --keypoints all of them are described.")
        options = DescribeOptions(arguments.limit, arguments.upright, arguments.as_stored, arguments.size)
        return find_images(arguments.images), load_descriptor(arguments.descriptor), options

    return describe_images(
        arguments.out,
        *world.on_all_ranks(inputs),
        keypoints=arguments.keypoints,
        overwrite=arguments.overwrite,
        world=world,
        on_progress=on_progress,
    ).summary


def describe_patchset(arguments: DescribeArguments, world: World, on_progress: OnProgress) -> str:
    began = time.perf_counter()
    patchset, descriptor = world.on_all_ranks(
        lambda: (check_patchset(arguments), load_descriptor(arguments.descriptor))
    )
    describe_into_npy(arguments.out, patchset.patches, descriptor, world=world, on_progress=on_progress)
    return f"{arguments.out}: {len(patchset)} patches described ({time.perf_counter() - began:.1f} s)."


def check_patchset(arguments: DescribeArguments) -> PatchSet:
    folder, out = arguments.images[0], arguments.out
    if len(arguments.images) != 1:
        raise InputError(f"{folder} or another of these is a PatchSet: describe one PatchSet at a time.")
    image_options = (arguments.limit, arguments.upright, arguments.as_stored, arguments.size, arguments.keypoints)
    if image_options != (None, False, False, LONGEST_SIDE, None):
        raise InputError(f"{folder} is a PatchSet: leave out the options for images, such as --limit or --size.")
    if out.suffix != ".npy":
        raise InputError(f"{out}: descriptors of a PatchSet are written to an npy file: -o {out.stem}.npy.")
    if out.exists() and not arguments.overwrite:
        raise InputError(f"{out} exists already: choose another -o, or replace it with --overwrite.")
    patchset = PatchSet.open(folder)
    if len(patchset) == 0:
        raise InputError(f"{folder} contains no patches: give another PatchSet.")
    return patchset

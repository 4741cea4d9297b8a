"""`sdgmnet describe`."""

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import cv2
import tyro
from rich.console import Console

from sdgmnet.commands.describe_patchset import describe_patchset
from sdgmnet.data.patchset import is_patchset
from sdgmnet.descriptors import describe, descriptor_fingerprint, load_descriptor
from sdgmnet.distributed import ALONE, World, open_world
from sdgmnet.errors import InputError
from sdgmnet.features.describe import LONGEST_SIDE
from sdgmnet.features.h5 import Helper, Kind, Store, features_to_arrays, parts_folder
from sdgmnet.features.images import find_photos, plain_name, read_gray
from sdgmnet.features.keypoint_files import is_for_many, read_keypoints
from sdgmnet.pretrained import ALIAS
from sdgmnet.report import counting_bar
from sdgmnet.storage import digest, only_worker

Pictures = dict[str, Path]


@dataclass(frozen=True)
class DescribeArguments:
    """Keypoints and descriptors of images, in an h5 file that hloc reads.

        sdgmnet describe photos -o features.h5

    A folder's images are called by their path below it, single ones by their file name. Images that the file holds already
    are not described again; after an interruption of any kind, start the same command again.

    The patches of a PatchSet, in their order, as an array (N, D) float32:

        sdgmnet describe my_patches/church -o church.npy

    By several processes, to the same file (docs/distributed.md):

        torchrun --nproc-per-node 4 -m sdgmnet describe photos -o features.h5
    """

    images: tyro.conf.Positional[tuple[Path, ...]]
    """Images, or folders of images; or one PatchSet."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """The h5 file, made or added to; of a PatchSet, the npy file."""
    descriptor: str = ALIAS
    """What describes: sdgmnet (the best weights that ship), sift, rootsift, tfeat:FILE, FILE.safetensors, RUN_FOLDER."""
    limit: int | None = None
    """At most so many keypoints an image, strongest first; all where it is left out."""
    upright: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Take images as they stand: every angle is 0, and a place that is detected gives one keypoint."""
    as_stored: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Do not turn images as the camera's note says: hloc and COLMAP take the pixels as they lie in the file."""
    size: int = LONGEST_SIDE
    """Longest side; larger images are made smaller while they are worked on. Keypoints are in the image's own pixels."""
    keypoints: Path | None = None
    """Describe these instead of detecting any: h5 (hloc's names), or for one image npz or text (x y sigma [angle])."""
    overwrite: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Describe images again that the file holds already. A file made with other options begins anew."""


def main(words: list[str]) -> None:
    arguments = tyro.cli(DescribeArguments, prog="sdgmnet describe", args=words)
    with open_world() as world:
        if any(is_patchset(place) for place in arguments.images):
            world.on_all_ranks(lambda: check_describing_patches(arguments))
            describe_patchset(arguments.out, arguments.images[0], arguments.descriptor, arguments.overwrite, world)
        else:
            _describe_pictures(arguments, world)


def _describe_pictures(arguments: DescribeArguments, world: World) -> None:
    pictures = world.on_all_ranks(lambda: _pictures_of(arguments))
    describe_into(
        arguments.out,
        pictures,
        descriptor=arguments.descriptor,
        limit=arguments.limit,
        upright=arguments.upright,
        as_stored=arguments.as_stored,
        size=arguments.size,
        keypoints=arguments.keypoints,
        overwrite=arguments.overwrite,
        world=world,
    )


def _pictures_of(arguments: DescribeArguments) -> Pictures:
    check_describing(arguments.limit, arguments.size)
    if arguments.keypoints is not None and arguments.limit is not None:
        raise InputError("--limit is for keypoints that are detected: all of --keypoints are described.")
    pictures = find_pictures(arguments.images)
    if arguments.keypoints is not None and not is_for_many(arguments.keypoints) and len(pictures) > 1:
        raise InputError(f"{arguments.keypoints} is about one image, but {len(pictures)} are given: use an h5 file.")
    return pictures


def check_describing_patches(arguments: DescribeArguments) -> None:
    options = (arguments.limit, arguments.upright, arguments.as_stored, arguments.size, arguments.keypoints)
    if len(arguments.images) != 1:
        raise InputError(f"{arguments.images[0]} or another of these is a PatchSet: describe one PatchSet at a time.")
    if options != (None, False, False, LONGEST_SIDE, None):
        raise InputError("a PatchSet is described as it is: leave out what is for images, such as --limit or --size.")


def check_describing(limit: int | None, size: int) -> None:
    if limit is not None and limit < 1:
        raise InputError(f"--limit must be at least 1, not {limit}.")
    if size < 16:
        raise InputError(f"--size must be at least 16, not {size}.")


def find_pictures(places: Sequence[Path]) -> Pictures:
    """Name -> file. Below a folder, names are paths relative to it."""
    if not places:
        raise InputError("give images, or a folder of images.")
    found: Pictures = {}
    for place in places:
        if place.is_dir():
            below = {plain_name(name): place / name for name in find_photos(place)}
            if not below:
                raise InputError(f"{place} holds no images.")
        elif place.exists():
            below = {plain_name(place.name): place}
        else:
            raise InputError(f"{place} does not exist.")
        twice = [name for name, path in below.items() if name in found and found[name].resolve() != path.resolve()]
        if twice:
            raise InputError(
                f"{found[twice[0]]} and {below[twice[0]]} would both be called {twice[0]}: give a folder that holds both."
            )
        found.update(below)
    return found


def describe_into(
    out: Path,
    pictures: Pictures,
    *,
    descriptor: str,
    limit: int | None,
    upright: bool,
    as_stored: bool,
    size: int,
    keypoints: Path | None = None,
    overwrite: bool = False,
    world: World = ALONE,
) -> list[str]:
    """Describe what the file does not hold yet; the names of images that it holds then.

    Of several ranks each describes its share into files of its own; the first one puts them together.
    """
    world.require_equal(json.dumps(sorted(pictures)), "pictures", "give all ranks the same folders")
    contender, note = world.on_all_ranks(
        lambda: (load_descriptor(descriptor), _note_of(out, descriptor, limit, upright, as_stored, size, keypoints))
    )
    errors = Console(stderr=True, highlight=False, soft_wrap=True)
    began, counted, broken = time.perf_counter(), 0, 0
    with ExitStack() as held:
        store = world.on_rank_zero(lambda: held.enter_context(store_at(out, "features", note, overwrite=overwrite)))
        keeper: Store | Helper = Helper(out, note) if store is None else store
        todo = world.broadcast([name for name in pictures if store is not None and (overwrite or name not in store)])
        with progress(errors if world.is_rank_zero else Console(quiet=True)) as track:
            for name in track(todo[world.rank :: world.size], "describing"):
                try:
                    given = None if keypoints is None else read_keypoints(keypoints, name)
                    gray = read_gray(pictures[name], exif_orientation=not as_stored)
                    features = describe(gray, given, descriptor=contender, limit=limit, upright=upright, size=size)
                except (InputError, cv2.error, MemoryError) as error:
                    errors.print(f"{reason_of(error, pictures[name])} Left out.", markup=False)
                    broken += 1
                    continue
                keeper.add(name, features_to_arrays(features))
                counted += len(features.keypoints.xy)
        counted, broken = (sum(numbers) for numbers in zip(*world.all_gather_object((counted, broken)), strict=True))
    if store is None:
        return []
    done, before = len(todo) - broken, len(pictures) - len(todo)
    if sum(name in store for name in todo) < done:
        raise InputError(f"what other ranks described is not beside {out}: all ranks must see the same folders.")
    if not done and not before:
        raise InputError("no image could be described; the reasons stand above.")
    words = [f"{number_of(done, 'picture')} described ({counted} keypoints, {time.perf_counter() - began:.1f} s)"]
    words += [f"{before} in the file already"] * bool(before) + [f"{broken} left out"] * bool(broken)
    print(f"{out}: {', '.join(words)}.")
    return [name for name in pictures if name in store]


def _note_of(
    out: Path,
    descriptor: str,
    limit: int | None,
    upright: bool,
    as_stored: bool,
    size: int,
    keypoints: Path | None,
) -> dict[str, Any]:
    note = features_note(descriptor, limit, upright, as_stored, size)
    if keypoints is not None:
        if not keypoints.is_file():
            raise InputError(f"{keypoints} does not exist.")
        if keypoints.resolve() == out.resolve():
            raise InputError(f"{out} is read for its keypoints and cannot be written at once: choose another -o.")
        note["keypoints"] = f"{keypoints.name} {digest(keypoints)}"
    return note


def features_note(descriptor: str, limit: int | None, upright: bool, as_stored: bool, size: int) -> dict[str, Any]:
    """How a file's features are made: what must agree among them."""
    return {
        "descriptor": descriptor_fingerprint(descriptor),
        "limit": limit,
        "upright": upright,
        "as_stored": as_stored,
        "size": size,
    }


def number_of(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def reason_of(error: Exception, path: Path) -> str:
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, MemoryError) or "memory" in str(error).lower():
        return f"{path} takes more memory than there is: a smaller --size helps."
    return f"{path} cannot be described ({' '.join(str(error).split())[:200]})."


@contextmanager
def store_at(
    path: Path, kind: Kind, note: Mapping[str, Any], *, overwrite: bool = False, pause: float = 0
) -> Iterator[Store]:
    """A store that no other process adds to meanwhile. Whatever happens, what was added is in the file in the end."""
    folder = parts_folder(path)
    with only_worker(folder):
        try:
            with Store(path, kind, note, overwrite=overwrite, pause=pause) as store:
                yield store
        finally:
            if not any(folder.glob("*.h5")):
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def progress(console: Console) -> Iterator[Callable[[Sequence[Any], str], Iterator[Any]]]:
    """A function that goes through a sequence with a bar."""
    with counting_bar(console) as bar:

        def track(items: Sequence[Any], what: str) -> Iterator[Any]:
            yield from bar.track(items, total=len(items), description=what)

        yield track

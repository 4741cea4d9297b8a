"""`sdgmnet describe` of a PatchSet: an array of descriptors, one a patch."""

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console

from sdgmnet.data.patchset import PatchSet
from sdgmnet.descriptors import Descriptor, load_descriptor
from sdgmnet.distributed import ALONE, World, share_of
from sdgmnet.engine import NATIVE_CHUNK
from sdgmnet.errors import InputError
from sdgmnet.report import counting_bar
from sdgmnet.storage import new_file, only_worker

BLOCK = 16 * NATIVE_CHUNK  # patches in memory at once


class Work(NamedTuple):
    patchset: PatchSet
    contender: Descriptor


def describe_patchset(
    out: Path, folder: Path, descriptor: str, overwrite: bool = False, world: World = ALONE
) -> Path | None:
    """Descriptors (N, D) float32 of the patches in their order, as an npy file; returns it on the first rank.

    Of several ranks each describes a part into a file of its own; the first one puts them together. Parts end where chunks do,
    so the result is the same to the bit.
    """
    began = time.perf_counter()
    patchset, contender = world.on_all_ranks(lambda: _opened(out, folder, descriptor, overwrite))
    rows = share_of(len(patchset), world.rank, world.size, NATIVE_CHUNK)
    parts = out.with_name(f".{out.name}.parts")
    own = parts / f"rank-{world.rank}.npy"
    with ExitStack() as held:
        world.on_rank_zero(lambda: held.enter_context(_held(parts)))
        with new_file(own) as part:
            _write(part, _described(patchset, contender, rows, quiet=not world.is_rank_zero), rows.stop - rows.start)
        world.all_gather_object(None)  # all parts are there
        if not world.is_rank_zero:
            return None
        places = [parts / f"rank-{rank}.npy" for rank in range(world.size)]
        with new_file(out) as part:
            _write(part, _read(places), len(patchset))
    seconds = time.perf_counter() - began
    print(f"{out}: {len(patchset)} patches described ({seconds:.1f} s).")
    return out


@contextmanager
def _held(parts: Path) -> Iterator[None]:
    """The folder of the ranks' parts, which nobody needs afterwards, whatever happened."""
    with only_worker(parts):
        try:
            yield
        finally:
            shutil.rmtree(parts, ignore_errors=True)


def _opened(out: Path, folder: Path, descriptor: str, overwrite: bool) -> Work:
    if out.suffix != ".npy":
        raise InputError(
            f"the descriptors of a PatchSet are written as an npy file, not as {out.name}: -o {out.stem}.npy."
        )
    if out.exists() and not overwrite:
        raise InputError(f"{out} exists already: choose another -o, or replace it with --overwrite.")
    patchset = PatchSet.open(folder)
    if len(patchset) == 0:
        raise InputError(f"{folder} holds no patches.")
    return Work(patchset, load_descriptor(descriptor))


def _described(patchset: PatchSet, contender: Descriptor, rows: slice, quiet: bool) -> Iterator[np.ndarray]:
    with counting_bar(Console(stderr=True, quiet=quiet)) as bar:
        task = bar.add_task("describing", total=rows.stop - rows.start)
        for start in range(rows.start, rows.stop, BLOCK):
            block = patchset.patches[start : min(start + BLOCK, rows.stop)]
            yield np.asarray(contender.describe(block), dtype=np.float32)
            bar.advance(task, len(block))


def _read(places: Sequence[Path]) -> Iterator[np.ndarray]:
    for place in places:
        array = np.load(place, mmap_mode="r")
        yield from (array[start : start + BLOCK] for start in range(0, len(array), BLOCK))


def _write(place: Path, blocks: Iterator[np.ndarray], count: int) -> None:
    """Blocks (B, D) of `count` rows in all -> one npy file, with one block at a time in memory."""
    with open(place, "wb") as file:
        for block in blocks:
            if file.tell() == 0:
                header = {"descr": "<f4", "fortran_order": False, "shape": (count, block.shape[1])}
                np.lib.format.write_array_header_1_0(file, header)
            file.write(np.ascontiguousarray(block, dtype="<f4").data)
        if file.tell() == 0:  # more ranks than chunks: this one has nothing to do
            np.save(file, np.empty((0, 0), dtype=np.float32))

"""Descriptors of many patches in an npy file, by one rank or several."""

import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from sdgmnet.distributed import ALONE, World, share_of
from sdgmnet.engine import NATIVE_CHUNK
from sdgmnet.features.describe import Descriptor
from sdgmnet.report import OnProgress, no_progress, track
from sdgmnet.storage import new_file, only_worker

BLOCK = 16 * NATIVE_CHUNK  # patches in memory at once


def describe_into_npy(
    out: Path,
    patches: np.ndarray,
    descriptor: Descriptor,
    *,
    world: World = ALONE,
    on_progress: OnProgress = no_progress,
) -> None:
    """Descriptors (N, D) float32 of patches (N, 64, 64), in their order.

    Each rank describes a share into a file of its own, and rank 0 concatenates them. Shares end where chunks do, so the result
    is the same to the bit for any number of ranks.
    """
    rows = share_of(len(patches), world.rank, world.size, NATIVE_CHUNK)
    starts = range(rows.start, rows.stop, BLOCK)
    parts = [out.with_name(f".{out.name}.parts") / f"rank-{rank}.npy" for rank in range(world.size)]
    with ExitStack() as stack:
        world.on_rank_zero(lambda: stack.enter_context(_temporary_folder(parts[0].parent)))
        blocks = (
            np.asarray(descriptor.describe(patches[start : min(start + BLOCK, rows.stop)]), dtype=np.float32)
            for start in track(starts, "describing", on_progress)
        )
        with new_file(parts[world.rank]) as part:
            _write(part, blocks, rows.stop - rows.start)
        world.all_gather_object(None)  # all parts are written
        if world.is_rank_zero:
            with new_file(out) as target:
                _write(target, _read(parts), len(patches))


@contextmanager
def _temporary_folder(folder: Path) -> Iterator[None]:
    with only_worker(folder):
        try:
            yield
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _read(parts: Iterable[Path]) -> Iterator[np.ndarray]:
    for part in parts:
        array = np.load(part, mmap_mode="r")
        yield from (array[start : start + BLOCK] for start in range(0, len(array), BLOCK))


def _write(path: Path, blocks: Iterable[np.ndarray], count: int) -> None:
    """Blocks (B, D) of `count` rows in all -> one npy file, with one block in memory at a time."""
    with open(path, "wb") as file:
        for block in blocks:
            if file.tell() == 0:
                header = {"descr": "<f4", "fortran_order": False, "shape": (count, block.shape[1])}
                np.lib.format.write_array_header_1_0(file, header)
            file.write(np.ascontiguousarray(block, dtype="<f4").data)
        if file.tell() == 0:  # more ranks than chunks: this one has no share
            np.save(file, np.empty((0, 0), dtype=np.float32))

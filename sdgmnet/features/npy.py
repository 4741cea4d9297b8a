"""Descriptors of many patches in an npy file, by one rank or several."""

import shutil
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from sdgmnet.distributed import ALONE, World, share_of
from sdgmnet.engine import INFERENCE
from sdgmnet.features.describe import Descriptor
from sdgmnet.report import OnProgress, no_progress, track
from sdgmnet.storage import new_file, only_worker

BLOCK = 16 * INFERENCE.native  # patches in memory at once


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
    rows = share_of(len(patches), world.rank, world.size, INFERENCE.native)
    parts = [out.with_name(f".{out.name}.parts") / f"rank-{rank}" for rank in range(world.size)]
    with ExitStack() as stack:

        def lock_folder() -> None:
            stack.enter_context(only_worker(parts[0].parent))
            stack.callback(shutil.rmtree, parts[0].parent, ignore_errors=True)

        world.on_rank_zero(lock_folder)
        with new_file(parts[world.rank]) as part, open(part, "wb") as file:
            for start in track(range(rows.start, rows.stop, BLOCK), "describing", on_progress):
                block = descriptor.describe(patches[start : min(start + BLOCK, rows.stop)])
                file.write(np.ascontiguousarray(block, dtype="<f4").data)
        world.all_gather_object(None)  # all parts are written
        if world.is_rank_zero:
            _concatenate(parts, len(patches), out)


def _concatenate(parts: list[Path], count: int, out: Path) -> None:
    dimensions = sum(part.stat().st_size for part in parts) // (4 * count)
    with new_file(out) as target, open(target, "wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (count, dimensions)}
        np.lib.format.write_array_header_1_0(file, header)
        for part in parts:
            with open(part, "rb") as source:
                shutil.copyfileobj(source, file)

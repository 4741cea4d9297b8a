"""Real process groups for tests: a function on k ranks over gloo, what each returns as a list."""

import multiprocessing
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing

PRELOADED = ["torch", "torch.distributed", "sdgmnet.training.fit", "torch.nn.parallel"]  # once for all groups


def run_ranks(size: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """work(*arguments), a function of a module, in `size` processes that form the world."""
    multiprocessing.set_forkserver_preload(PRELOADED)
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.start_processes(
            _rank, (size, folder, work, arguments), nprocs=size, start_method="forkserver"
        )
        return [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(size)]


def _rank(rank: int, size: int, folder: str, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    try:
        torch.save(work(*arguments), Path(folder) / f"{rank}.pt")
    finally:
        dist.destroy_process_group()

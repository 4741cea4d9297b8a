"""How training scales with processes on this machine: whole steps, batches and dropout included, started by torchrun."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.speed import Timing
from sdgmnet.errors import InputError

WARM_UP = 2


class Job(NamedTuple):
    processes: int
    threads: int  # of each

    @property
    def name(self) -> str:
        return f"{self.processes} x {self.threads} thread{'s' if self.threads > 1 else ''}"


JOBS = (Job(1, 1), Job(2, 1), Job(1, 2))


def scaling(pairs: int, repeats: int, steps: int = 3) -> tuple[dict[Job, Timing], dict[Job, dict[str, float]]]:
    """Pairs a second of each kind of job, in turns, and the bytes of a step."""
    rates: dict[Job, list[float]] = {job: [] for job in JOBS}
    traffic: dict[Job, dict[str, float]] = {}
    for _ in range(repeats):
        for job in JOBS:
            result = measure(job, pairs, steps)
            rates[job].append(pairs / result["seconds"])
            traffic[job] = {key: value for key, value in result.items() if key != "seconds"}
    return {job: Timing(job.name, values) for job, values in rates.items()}, traffic


def measure(job: Job, pairs: int, steps: int) -> dict[str, float]:
    """Median seconds of a step, and bytes a step: gathered, summed, and seen on the loopback interface."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(job.processes)]
    command += ["-m", "bench.distributed", str(pairs), str(steps)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(job.threads), "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise InputError(f"{job.processes} processes cannot train here: {done.stderr.strip()[-500:]}")
    result: dict[str, float] = json.loads(lines[-1])
    return result


def loopback_bytes() -> float:
    """Bytes that went through the loopback interface since the machine started; NaN where the system does not tell."""
    try:
        lines = Path("/proc/net/dev").read_text().splitlines()
    except OSError:
        return float("nan")
    return next(
        (float(line.split(":")[1].split()[0]) for line in lines if line.strip().startswith("lo:")), float("nan")
    )


def train_steps(pairs: int, steps: int) -> dict[str, Any] | None:
    """In each process of a job: what `measure` reports, on the first rank."""
    from sdgmnet.data.patchset import PatchSet
    from sdgmnet.distributed import open_world
    from sdgmnet.training.config import TrainConfig
    from sdgmnet.training.run import iterate_once, start

    random = np.random.default_rng(0)
    patches = random.integers(0, 256, (4 * pairs, 64, 64), dtype=np.uint8)
    patchset = PatchSet("random", patches, np.repeat(np.arange(2 * pairs), 2))
    with open_world() as world:
        config = TrainConfig(batch_size=pairs, device="cpu", engine="auto", chunk_size=1024)
        run = start(config, [patchset], world=world)
        seconds = []
        for step in range(WARM_UP + steps):
            if step == WARM_UP:
                before = np.array([world.gathered_bytes, world.summed_bytes, loopback_bytes()])
            began = time.perf_counter()
            iterate_once(run)
            seconds.append(time.perf_counter() - began)
        after = np.array([world.gathered_bytes, world.summed_bytes, loopback_bytes()])
        gathered, summed, seen = (after - before) / steps
        world.all_gather_object(None)
        if not world.is_rank_zero:
            return None
    return {"seconds": float(np.median(seconds[WARM_UP:])), "gathered": gathered, "summed": summed, "seen": seen}


if __name__ == "__main__":
    found = train_steps(int(sys.argv[1]), int(sys.argv[2]))
    if found is not None:
        print(json.dumps(found), flush=True)

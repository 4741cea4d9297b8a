"""How training scales with processes on this machine: whole steps, with batches and dropout, started by torchrun."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.command import Row, command, rate_row
from bench.options import Options
from bench.timing import Timing
from sdgmnet.errors import InputError
from sdgmnet.report import OnProgress, track

WARM_UP, STEPS = 2, 3


class Job(NamedTuple):
    processes: int
    threads: int  # per process

    @property
    def name(self) -> str:
        return f"{self.processes} x {self.threads} thread{'s' if self.threads > 1 else ''}"


JOBS = (Job(1, 1), Job(2, 1), Job(1, 2))


def measure_distributed(options: Options, on_progress: OnProgress) -> Iterator[Row]:
    """Pairs per second of each kind of job, alternating, and bytes per step."""
    rounds = [
        {job: run_job(job, options.pairs, STEPS) for job in JOBS}
        for _ in track(range(min(3, options.repeats)), "training by one process and by two", on_progress)
    ]
    timings = {job: Timing(job.name, [options.pairs / one[job]["seconds"] for one in rounds]) for job in JOBS}
    what = f"training, N = {options.pairs}"
    for timing in timings.values():
        yield rate_row(what, timing, "pairs/s", timings[JOBS[0]])
    for job, last in rounds[-1].items():
        if job.processes > 1:
            sent = ", ".join(f"{key} {last[key] / 1e6:.3f} MB" for key in ("gathered", "summed"))
            yield [f"{what}: bytes per step", job.name, sent, f"seen on lo {last['seen'] / 1e6:.3f} MB", ""]


def run_job(job: Job, pairs: int, steps: int) -> dict[str, float]:
    """Median seconds per step, and bytes per step: gathered, summed, and seen on the loopback interface."""
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
    """Bytes that went through the loopback interface since the machine started; NaN if not known."""
    try:
        lines = Path("/proc/net/dev").read_text().splitlines()
    except OSError:
        return float("nan")
    return next(
        (float(line.split(":")[1].split()[0]) for line in lines if line.strip().startswith("lo:")), float("nan")
    )


def train_steps(pairs: int, steps: int) -> dict[str, Any] | None:
    """Run in each process of a job; what `run_job` returns, on rank 0."""
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


distributed = command("distributed", measure_distributed)

if __name__ == "__main__":
    found = train_steps(int(sys.argv[1]), int(sys.argv[2]))
    if found is not None:
        print(json.dumps(found), flush=True)

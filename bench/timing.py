"""Timing: methods alternate, so that a busy machine slows all of them; memory is measured in new processes."""

import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sdgmnet.report import OnProgress, no_progress, track

Call = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    name: str
    rates: list[float]  # units of work per second, one per round

    @property
    def median(self) -> float:
        return float(np.median(self.rates))

    def against(self, other: "Timing") -> float:
        """Median of the ratios within each round: what disturbs both cancels."""
        return float(np.median(np.array(self.rates) / np.array(other.rates)))


def wall_clock() -> float:
    return time.perf_counter()


def seconds_of(call: Call, clock: Callable[[], float] = wall_clock) -> float:
    began = clock()
    call()
    return clock() - began


def alternate(
    methods: Mapping[str, tuple[Call, float]],
    repeats: int,
    stage: str = "",
    on_progress: OnProgress = no_progress,
    clock: Callable[[], float] = wall_clock,
) -> dict[str, Timing]:
    """Time name -> (call, units of work), alternating, after one warm-up each."""
    rates: dict[str, list[float]] = {name: [] for name in methods}
    turns = [(turn, name) for turn in range(repeats + 1) for name in methods]
    for turn, name in track(turns, stage, on_progress):
        call, work = methods[name]
        gc.collect()
        seconds = seconds_of(call, clock)
        if turn:  # the first is the warm-up
            rates[name].append(work / seconds)
    return {name: Timing(name, values) for name, values in rates.items()}


def matrix_product(flop_per_unit: float, side: int = 2048, times: int = 4) -> tuple[Call, float]:
    """The machine's limit: float32 matrix products, as a method of `alternate` in units of so many operations."""
    a, b = torch.randn(side, side), torch.randn(side, side)

    def multiply() -> None:
        for _ in range(times):
            a @ b

    return multiply, times * 2.0 * side**3 / flop_per_unit


PROGRAM = """
import json, re, time
from pathlib import Path
import numpy as np, torch
{imports}
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024
{prepare}
before, began = peak(), time.perf_counter()
{work}
print(json.dumps({{"seconds": time.perf_counter() - began, "megabytes": peak() - before, **{more}}}))
"""


def in_fresh_process(imports: str, prepare: str, work: str, more: str = "{}") -> dict[str, Any]:
    """Seconds and growth of peak memory of `work` in a new interpreter, without imports and preparation.

    more: an expression for a dict of further results.
    """
    program = PROGRAM.format(imports=imports, prepare=prepare, work=work, more=more)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result

"""What the kernels are compiled from, and the processors they are compiled for.

setup.py runs this file before the package is installed, so it imports nothing of ours.
"""

import os
import platform
import shutil
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
SOURCES = tuple(HERE / name for name in ("trunk.cpp", "batchnorm.cpp", "nearest.cpp"))
HEADERS = tuple(HERE / name for name in ("vectors.h", "convolution.h", "winograd.h", "layer.h"))
FLAGS = ("-O3", "-ffp-contract=fast", "-std=c++17", "-shared", "-fPIC", "-pthread")
PREBUILT = "prebuilt"  # folder of the libraries in a wheel, next to this file


class Target(NamedTuple):
    """A kind of processor."""

    machine: str  # as platform.machine() has it
    needs: frozenset[str]  # as /proc/cpuinfo has them


# By the names that -march takes, the fastest first. The levels are those of the x86-64 psABI.
V2 = "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3"
V3 = f"{V2} abm avx avx2 bmi1 bmi2 f16c fma movbe xsave"
V4 = f"{V3} avx512bw avx512cd avx512dq avx512f avx512vl"
TARGETS = {
    "x86-64-v4": Target("x86_64", frozenset(V4.split())),
    "x86-64-v3": Target("x86_64", frozenset(V3.split())),
    "x86-64": Target("x86_64", frozenset()),
    "armv8-a": Target("aarch64", frozenset()),
}


def targets_of(machine: str) -> list[str]:
    """Names of the targets of a machine, such as platform.machine()."""
    return [name for name, target in TARGETS.items() if target.machine == machine]


def missing_features(name: str) -> set[str]:
    """What this processor lacks for a target; empty where it runs the target's code."""
    target = TARGETS[name]
    if platform.machine() != target.machine:
        return {target.machine}
    return set(target.needs - processor_features())


def runnable_targets() -> list[str]:
    """Names of the targets whose code this processor runs, the fastest first."""
    return [name for name in TARGETS if not missing_features(name)]


def processor_features() -> frozenset[str]:
    """What the first processor has, in the words of /proc/cpuinfo; empty where that cannot be read."""
    line = next((one for one in cpuinfo() if one.startswith(("flags", "Features"))), "")
    return frozenset(line.partition(":")[2].split())


def cpuinfo() -> list[str]:
    """Lines of /proc/cpuinfo; none where it cannot be read."""
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def compiler() -> str | None:
    """The first of $CXX, g++ and clang++ that is installed."""
    names = (os.environ.get("CXX", ""), "g++", "clang++")
    return next((found for name in names if name and (found := shutil.which(name))), None)


def compile_command(tool: str, flags: tuple[str, ...], march: str, out: Path) -> list[str]:
    return [tool, *flags, f"-march={march}", *map(str, SOURCES), "-o", str(out)]

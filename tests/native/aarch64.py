"""The kernels cross-compiled for aarch64 (NEON) and run under qemu, against torch: python -m tests.native.aarch64.

Needs aarch64-linux-gnu-g++ and qemu-aarch64 (Debian: g++-aarch64-linux-gnu, qemu-user).
"""

import copy
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sdgmnet.encoders import FastSDGMNet, SDGMNet
from sdgmnet.native.targets import FLAGS, SOURCES
from sdgmnet.native.trunk import NETWORKS, _trunk_parameters, pack, pack_transposed, unpack

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
PROGRAM = Path(__file__).with_suffix(".cpp")
LANES = 4
TOLERANCES = {"maps": 1e-5, "gradients": 5e-5}  # relative, as in test_trunk.py


def missing_tools() -> list[str]:
    return [name for name in (COMPILER, EMULATOR) if shutil.which(name) is None]


def compile_program(out: Path) -> None:
    flags = [flag for flag in FLAGS if flag not in ("-shared", "-fPIC")]
    command = [COMPILER, *flags, "-march=armv8-a", "-static", str(PROGRAM), *map(str, SOURCES), "-o", str(out)]
    subprocess.run(command, check=True)


def run(program: Path, words: list[object], *arrays: np.ndarray) -> bytes:
    content = b"".join(np.ascontiguousarray(array, np.float32).tobytes() for array in arrays)
    command = [EMULATOR, program, *map(str, words)]
    return subprocess.run(command, input=content, stdout=subprocess.PIPE, check=True).stdout


def trunk_differences(program: Path, encoder: SDGMNet, count: int = 7) -> tuple[float, float]:
    """Relative difference of the maps, and the largest one of a parameter's gradient, from torch in float64."""
    exact = copy.deepcopy(encoder).double()
    patches, upstream = torch.rand(count, 1, 32, 32), torch.randn(count, *encoder.feature_shape)
    expected = exact.middle(exact.first(exact.input(patches.double())))
    expected.backward(upstream.double())

    parameters, wanted = (_trunk_parameters(one) for one in (encoder, exact))
    packed = pack(parameters, LANES)
    transposed = torch.cat([pack_transposed(weights.detach(), LANES) for weights in reversed(parameters[8::5])])
    words = ["trunk", NETWORKS[type(encoder)], count, len(packed), len(transposed), upstream[0].numel()]
    written = run(program, words, *(one.numpy() for one in (packed, transposed, patches, upstream)))
    made = torch.from_numpy(np.frombuffer(written, np.float32).copy())
    maps, gradients = made.split([upstream.numel(), len(packed)])
    pairs = zip(unpack(gradients, parameters, LANES), wanted, strict=True)
    return (
        relative(maps, expected.detach().flatten()),
        max(relative(one, other.grad) for one, other in pairs if other.grad is not None and one.numel() > 1),
    )


def move_thresholds_away(encoder: SDGMNet) -> None:
    """Every third channel is always below its threshold, the others never: a gradient depends on no rounding."""
    with torch.no_grad():
        for block in (encoder.first, *encoder.middle):
            block[2].tau.fill_(-1000)
            block[2].tau[::3] = 50  # beyond what normalised responses reach


def relative(made: Tensor, expected: Tensor) -> float:
    return float((made.double() - expected).norm() / expected.norm().clamp_min(1e-12))


def different_neighbours(program: Path, rows: int = 61, columns: int = 133) -> int:
    """Of both directions, the second nearest too, against numpy."""
    random = np.random.default_rng(0)
    a, b = random.normal(size=(rows, 32)).astype(np.float32), random.normal(size=(columns, 32)).astype(np.float32)
    halves = [(one**2).sum(1) / 2 for one in (a, b)]
    found = np.frombuffer(run(program, ["nearest", rows, columns], a @ b.T, *halves), np.int32)
    squares = ((a[:, None].astype(np.float64) - b[None]) ** 2).sum(2)
    order = squares.argsort(1)
    return int((found != np.concatenate([order[:, 0], order[:, 1], squares.argmin(0)])).sum())


def distance_difference(program: Path, rows: int = 50, width: int = 129) -> float:
    random = np.random.default_rng(1)
    a, b = random.normal(size=(2, rows, width)).astype(np.float32)
    found = np.frombuffer(run(program, ["distances", rows, width], a, b), np.float64)
    return float(np.abs(found / np.linalg.norm(a.astype(np.float64) - b, axis=1) - 1).max())


def differences() -> dict[str, float]:
    torch.manual_seed(0)
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "kernels"
        compile_program(program)
        for encoder in (SDGMNet(dropout=0.0), FastSDGMNet(dropout=0.0)):
            name = type(encoder).__name__
            found[f"{name} maps"], _ = trunk_differences(program, encoder)
            move_thresholds_away(encoder)
            _, found[f"{name} gradients"] = trunk_differences(program, encoder)
        found["neighbours"] = different_neighbours(program)
        found["distances"] = distance_difference(program)
    return found


if __name__ == "__main__":
    if missing := missing_tools():
        sys.exit(f"not installed: {', '.join(missing)}")
    for name, value in differences().items():
        print(f"{name:24}{value:.1e}")

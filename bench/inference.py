"""Describing patches: our engines against kornia's modules."""

import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from bench.command import Row, command, memory_row, rate_row, seconds_row, share_row
from bench.options import Options
from bench.timing import Call, Timing, alternate, in_fresh_process, matrix_product
from bench.training import FORWARD_FLOP
from sdgmnet.encoders import FastSDGMNet, SDGMNet
from sdgmnet.engine import describe_patches
from sdgmnet.native import build
from sdgmnet.native.targets import runnable_targets
from sdgmnet.report import OnProgress, no_progress, track

USERS_BATCH = 512  # patches per call of kornia's modules, as their users call them
REFERENCE = f"kornia HyNet, {USERS_BATCH}"
COLD_PATCHES = 4000


def best_batch(calls: dict[int, Call], rounds: int = 2) -> int:
    """The batch size whose call is fastest, of several alternating rounds after one warm-up."""
    timings = alternate({str(size): (call, 1.0) for size, call in calls.items()}, rounds)
    return max(calls, key=lambda size: max(timings[str(size)].rates))


def time_inference(patches: int, repeats: int, on_progress: OnProgress = no_progress) -> dict[str, Timing]:
    """Patches per second: our engines, kornia's modules with their users' batch size and with their best, the limit.

    Ours and its reference describe all patches, the others a part.
    """
    import kornia.feature

    pixels = torch.rand(patches, 1, 32, 32)
    part = pixels[: min(patches, 2048)]
    encoder, fast = SDGMNet().eval(), FastSDGMNet().eval()
    methods: dict[str, tuple[Call, float]] = {
        "ours": (lambda: describe_patches(encoder, pixels), patches),
        "ours, fast": (lambda: describe_patches(fast, pixels), patches),
        "ours, eager": (lambda: describe_patches(encoder, part, engine="eager"), len(part)),
    }

    def by_module(module: nn.Module, size: int, some: Tensor) -> Callable[[], None]:
        def call() -> None:
            with torch.inference_mode():
                for chunk in some.split(size):
                    module(chunk)

        return call

    for name in ("HyNet", "HardNet", "SOSNet"):
        module = getattr(kornia.feature, name)(pretrained=False).eval()
        some = pixels if name == "HyNet" else part
        methods[f"kornia {name}, {USERS_BATCH}"] = (by_module(module, USERS_BATCH, some), len(some))
        best = best_batch({size: by_module(module, size, part[:512]) for size in (16, 32, 64, 128, 256)})
        methods[f"kornia {name}, best ({best})"] = (by_module(module, best, part), len(part))
    methods["limit"] = matrix_product(FORWARD_FLOP)
    return alternate(methods, repeats, "inference", on_progress)


def cold_start() -> dict[str, float]:
    """Seconds to describe a few thousand patches in a new process: what the user of one image waits for."""
    pixels = f"pixels = torch.rand({COLD_PATCHES}, 1, 32, 32)"
    ours = in_fresh_process(
        "from sdgmnet import SDGMNet, describe_patches",
        f"{pixels}; encoder = SDGMNet().eval()",
        "describe_patches(encoder, pixels)",
    )
    reference = in_fresh_process(
        "import kornia.feature",
        f"{pixels}; encoder = kornia.feature.HyNet(pretrained=False).eval(); torch.set_grad_enabled(False)",
        f"[encoder(chunk) for chunk in pixels.split({USERS_BATCH})]",
    )
    return {"ours": ours["seconds"], REFERENCE: reference["seconds"]}


def measure_inference(options: Options, on_progress: OnProgress) -> Iterator[Row]:
    timings = time_inference(options.patches, options.repeats, on_progress)
    what = "inference, float32"
    for timing in timings.values():
        yield rate_row(what, timing, "patches/s", timings[REFERENCE])
    yield share_row(what, timings["ours"], timings["limit"])
    starts = [cold_start() for _ in track(range(min(3, options.repeats)), "inference in new processes", on_progress)]
    ratio = np.median([start[REFERENCE] / start["ours"] for start in starts])
    for name, shown in (("ours", f"{ratio:.2f} x {REFERENCE}"), (REFERENCE, "")):
        yield seconds_row(f"{COLD_PATCHES} patches, new process", name, [start[name] for start in starts], shown)
    count = options.memory_patches
    result = in_fresh_process(
        "from sdgmnet import SDGMNet, describe_patches",
        f"pixels = np.full(({count}, 64, 64), 7, dtype=np.uint8); encoder = SDGMNet().eval()",
        "describe_patches(encoder, pixels)",
    )
    beyond = result["megabytes"] - count * 128 * 4 / 2**20
    yield memory_row(f"describing {count} patches", "ours", beyond, "beyond patches and descriptors")


def measure_kernels(options: Options, on_progress: OnProgress) -> Iterator[Row]:
    """Each build that this processor runs against the one that is compiled for it, and torch, by CPU time.

    Threads that wait count as work: compare with OMP_NUM_THREADS=1."""
    pixels, encoder = torch.rand(options.patches, 1, 32, 32), SDGMNet().eval()

    def describe_with(choice: str) -> None:
        with build.forced(choice):
            describe_patches(encoder, pixels)

    choices = ("compile", *runnable_targets(), "none")
    methods = {choice: (partial(describe_with, choice), float(options.patches)) for choice in choices}
    timings = alternate(methods, options.repeats, "kernels", on_progress, clock=time.process_time)
    for timing in timings.values():
        yield rate_row("inference, SDGMNET_KERNELS", timing, "patches per CPU second", timings["compile"])


infer = command("infer", measure_inference)
kernels = command("kernels", measure_kernels)

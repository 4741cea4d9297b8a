"""How fast: descriptors in turns in one run, as rates with their spread, beside the machine's own matrix product."""

import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sdgmnet.data.patchset import PatchSet
from sdgmnet.data.sampler import PairSampler
from sdgmnet.encoders import SDGMNet
from sdgmnet.engine import TRAINING, Engine, build_trunk, choose_chunk, choose_engine, describe_patches
from sdgmnet.features.describe import StageTimer, describe_image, descriptor_from_encoder
from sdgmnet.features.match import match
from sdgmnet.loss import SDGMLoss
from sdgmnet.loss.mining import Triplets
from sdgmnet.loss.sdgm import pseudo_loss
from sdgmnet.training.step import dropout_masks, train_step

FORWARD_FLOP = 78e6  # a patch through the encoder: 39.1 million multiplications and as many additions
TRAINING_FLOP = 3 * FORWARD_FLOP
USERS_BATCH = 512  # of kornia's modules, as people call them


@dataclass(frozen=True)
class Timing:
    name: str
    rates: list[float]  # units of work a second, one an alternation

    @property
    def median(self) -> float:
        return float(np.median(self.rates))

    def against(self, other: "Timing") -> float:
        """Median of the ratios within the same alternation: what disturbs both cancels."""
        return float(np.median(np.array(self.rates) / np.array(other.rates)))


def alternate(candidates: dict[str, tuple[Callable[[], object], float]], repeats: int) -> dict[str, Timing]:
    """Run name -> (call, units of work) in turns after one warm-up each."""
    for call, _ in candidates.values():
        call()
    rates: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, (call, work) in candidates.items():
            gc.collect()
            began = time.perf_counter()
            call()
            rates[name].append(work / (time.perf_counter() - began))
    return {name: Timing(name, values) for name, values in rates.items()}


def matrix_product(side: int = 2048, times: int = 4) -> tuple[Callable[[], object], float]:
    """The machine's limit: float32 products, in floating point operations."""
    a, b = torch.randn(side, side), torch.randn(side, side)

    def multiply() -> None:
        for _ in range(times):
            a @ b

    return multiply, times * 2.0 * side**3


def plain_triplets(anchor: Tensor, positive: Tensor, cos_threshold: float) -> Triplets:
    """Mining as the published code does it: dense similarity matrices, a four-way maximum, all of it through autograd."""
    s, s_aa, s_pp = anchor @ positive.T, anchor @ anchor.T, positive @ positive.T
    nearest = torch.max(torch.max(s, s.T), torch.max(s_aa, s_pp))
    nearest = nearest - 10 * torch.eye(len(anchor))
    nearest = nearest - 10 * (nearest >= cos_threshold).to(nearest.dtype)
    cos_neg = nearest.max(dim=0).values
    admissible = cos_neg > -1
    theta_pos = torch.acos(s.diagonal().clamp(max=1 - 1e-5))
    return Triplets(theta_pos, torch.acos(cos_neg.clamp(-1, 1 - 1e-5)), admissible)


def plain_loss(loss: SDGMLoss, anchor: Tensor, positive: Tensor) -> Tensor:
    triplets = plain_triplets(anchor, positive, float(np.cos(loss.min_negative_angle)))
    return pseudo_loss(triplets, *loss.modulate(triplets, 1.0), loss.alpha)


def training_steps(pairs: int, engine: Engine = "auto", recompute: bool = False) -> dict[str, Callable[[], None]]:
    """One step of training, ours and the plain formulation's, ready to be called."""
    sides = torch.rand(2, pairs, 1, 32, 32)
    keep = dropout_masks(0, 0, pairs, SDGMNet.feature_shape, 0.3)
    assert keep is not None
    encoder, plain_encoder, loss, plain_state = SDGMNet().train(), SDGMNet().train(), SDGMLoss(), SDGMLoss()
    optimizer, plain_optimizer = (
        torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4) for one in (encoder, plain_encoder)
    )
    engine = choose_engine(engine, encoder)
    trunk, chunk = build_trunk(encoder, engine, recompute), choose_chunk(engine, encoder, TRAINING) or pairs

    def ours() -> None:
        train_step(encoder, loss, optimizer, sides, keep, progress=1.0, chunk_size=chunk, trunk=trunk)

    def plain() -> None:
        anchor, positive = (plain_encoder.encode(sides[side], keep[side]).descriptors for side in range(2))
        value = plain_loss(plain_state, anchor, positive)
        plain_optimizer.zero_grad(set_to_none=True)
        value.backward()
        plain_optimizer.step()

    return {"ours": ours, "plain": plain}


def training(pairs: int, repeats: int, engine: Engine = "auto") -> dict[str, Timing]:
    """Training steps in pairs a second: ours, the plain formulation, and the limit by matrix products."""
    steps = training_steps(pairs, engine)
    product, flop = matrix_product()
    limit = (product, flop / (2 * TRAINING_FLOP))
    return alternate({**{name: (step, pairs) for name, step in steps.items()}, "limit": limit}, repeats)


def training_memory(pairs: int, who: str, recompute: bool = False) -> dict[str, Any]:
    """Seconds and growth of peak memory of one training step, beyond batch, masks and weights."""
    return in_fresh_process(
        "from bench.speed import training_steps",
        f"step = training_steps({pairs}, recompute={recompute})[{who!r}]",
        "step()",
    )


def unit_pairs(count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(count)
    a = torch.randn(count, 128, generator=generator)
    p = a + 0.6 * torch.randn(count, 128, generator=generator)
    return F.normalize(a, dim=1).requires_grad_(), F.normalize(p, dim=1).requires_grad_()


def losses(pairs: int, repeats: int) -> dict[str, Timing]:
    """Mining and loss alone, forward and backward, in pairs a second."""
    a, p = unit_pairs(pairs)
    loss, plain_state = SDGMLoss(), SDGMLoss()

    def ours() -> None:
        torch.autograd.grad(loss(a, p), (a, p))

    def plain() -> None:
        torch.autograd.grad(plain_loss(plain_state, a, p), (a, p))

    times = max(1, 4096 // pairs)  # a few milliseconds are too short to time once

    def often(call: Callable[[], None]) -> tuple[Callable[[], object], float]:
        def repeated() -> None:
            for _ in range(times):
                call()

        return repeated, float(pairs * times)

    return alternate({"ours": often(ours), "plain": often(plain)}, repeats)


def best_batch(calls: dict[int, Callable[[], object]], rounds: int = 2) -> int:
    """The batch size whose call is quickest, of several rounds in turns after a first one that warms up."""
    seconds = dict.fromkeys(calls, float("inf"))
    for turn in range(rounds + 1):
        for size, call in calls.items():
            began = time.perf_counter()
            call()
            if turn:
                seconds[size] = min(seconds[size], time.perf_counter() - began)
    return min(seconds, key=lambda size: seconds[size])


def inference(patches: int, repeats: int) -> dict[str, Timing]:
    """Patches a second: our engines, kornia's modules as their users call them (512) and at their best size, the limit.

    Ours and the peer it is judged by describe all the patches, the others a part that is enough to know their rate.
    """
    import kornia.feature

    pixels = torch.rand(patches, 1, 32, 32)
    ours = SDGMNet().eval()
    candidates: dict[str, tuple[Callable[[], object], float]] = {
        "ours": (lambda: describe_patches(ours, pixels), patches),
    }
    part = pixels[: min(patches, 2048)]
    candidates["ours, eager"] = (lambda: describe_patches(ours, part, engine="eager"), len(part))

    def peer(module: torch.nn.Module, size: int, some: Tensor) -> Callable[[], object]:
        def call() -> None:
            with torch.inference_mode():
                for chunk in some.split(size):
                    module(chunk)

        return call

    for name in ("HyNet", "HardNet", "SOSNet"):
        module = getattr(kornia.feature, name)(pretrained=False).eval()
        some = pixels if name == "HyNet" else part
        candidates[f"kornia {name}, {USERS_BATCH}"] = (peer(module, USERS_BATCH, some), len(some))
        best = best_batch({size: peer(module, size, part[:512]) for size in (16, 32, 64, 128, 256)})
        candidates[f"kornia {name}, best ({best})"] = (peer(module, best, part), len(part))
    product, flop = matrix_product()
    return alternate({**candidates, "limit": (product, flop / FORWARD_FLOP)}, repeats)


def batches(pairs: int, repeats: int) -> dict[str, Timing]:
    """Batches of training pairs, sampled and augmented, in pairs a second."""
    patches = np.random.default_rng(0).integers(0, 256, (4 * pairs, 64, 64), dtype=np.uint8)
    sampler = PairSampler([PatchSet("random", patches, np.arange(4 * pairs) // 2)], seed=0)
    return alternate({"ours": (lambda: sampler.batch(0, pairs), pairs)}, repeats)


def matching(count: int, repeats: int) -> dict[str, Timing]:
    """`count` unit descriptors against as many, in matchings a second: mutual and ratio test, and the bare product.

    The peer is OpenCV's brute-force matcher, twice: both nearest one way, and the nearest the other way for the mutual test.
    """
    import cv2

    a, b = (side.detach() for side in unit_pairs(count))
    first, second = a.numpy(), b.numpy()

    def opencv() -> list[Any]:
        matcher = cv2.BFMatcher(cv2.NORM_L2)
        back = [found.trainIdx for found in matcher.match(second, first)]
        both = matcher.knnMatch(first, second, k=2)
        return [
            best
            for best, other in both
            if best.distance < 0.9 * other.distance and back[best.trainIdx] == best.queryIdx
        ]

    calls = {"ours": lambda: match(first, second, ratio=0.9), "product": lambda: a @ b.T, "OpenCV": opencv}
    return alternate({name: (call, 1.0) for name, call in calls.items()}, repeats)


STAGES = ("reading", "finding keypoints", "cutting patches", "describing", "matching")


def pictures(paths: tuple[Path, Path], repeats: int) -> tuple[dict[str, list[float]], list[float], int]:
    """Two images from their files to mutual matches: seconds of our stages, of the same by OpenCV's SIFT, and keypoints.

    OpenCV's is the script that people write: read, detectAndCompute, brute force with cross-check.
    """
    import cv2

    descriptor = descriptor_from_encoder(SDGMNet().eval())

    def ours() -> tuple[list[float], int]:
        timer = StageTimer()
        first, second = (describe_image(path, descriptor=descriptor, size=None, timer=timer) for path in paths)
        with timer("matching"):
            match(first, second)
        return [timer.seconds[stage] for stage in STAGES], len(first.keypoints.xy) + len(second.keypoints.xy)

    def opencv() -> float:
        began = time.perf_counter()
        sift = cv2.SIFT.create()
        first, second = (
            sift.detectAndCompute(np.asarray(cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)), None)[1] for path in paths
        )
        cv2.BFMatcher(cv2.NORM_L2, crossCheck=True).match(first, second)
        return time.perf_counter() - began

    _, keypoints = ours()
    opencv()
    stages: list[list[float]] = []
    script: list[float] = []
    for _ in range(repeats):
        stages.append(ours()[0])
        script.append(opencv())
    return (
        {name: list(column) for name, column in zip(STAGES, zip(*stages, strict=True), strict=True)},
        script,
        keypoints,
    )


def matching_memory(count: int) -> dict[str, Any]:
    """Growth of peak memory while matching."""
    return in_fresh_process(
        "import sdgmnet; from bench.speed import unit_pairs",
        f"a, b = (side.detach().numpy() for side in unit_pairs({count})); sdgmnet.match(a[:100], b[:100])",
        "sdgmnet.match(a, b, ratio=0.9)",
    )


MEASURE = """
import json, re, sys, time
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
    """Seconds and growth of peak memory of a piece of code in a new interpreter, imports and preparation aside.

    more: a name the code gives to a dict of further results.
    """
    code = MEASURE.format(imports=imports, prepare=prepare, work=work, more=more)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def cold_start(patches: int = 4000) -> dict[str, dict[str, Any]]:
    """Describing a few thousand patches in a fresh process: what a user of one image waits for."""
    pixels = f"pixels = torch.rand({patches}, 1, 32, 32)"
    ours = in_fresh_process(
        "import sdgmnet; from sdgmnet import SDGMNet, describe_patches",
        f"{pixels}; encoder = sdgmnet.SDGMNet().eval()",
        "sdgmnet.describe_patches(encoder, pixels)",
    )
    peer = in_fresh_process(
        "import kornia.feature",
        f"{pixels}; encoder = kornia.feature.HyNet(pretrained=False).eval(); torch.set_grad_enabled(False)",
        "[encoder(chunk) for chunk in pixels.split(512)]",
    )
    return {"ours": ours, "kornia HyNet, 512": peer}


def describing_memory(patches: int) -> dict[str, Any]:
    """Growth of peak memory while describing, beyond the patches and the descriptors themselves."""
    result = in_fresh_process(
        "import sdgmnet; from sdgmnet import SDGMNet, describe_patches",
        f"pixels = np.full(({patches}, 64, 64), 7, dtype=np.uint8); encoder = sdgmnet.SDGMNet().eval()",
        "sdgmnet.describe_patches(encoder, pixels)",
    )
    return {**result, "megabytes": result["megabytes"] - patches * 128 * 4 / 2**20}


def loss_memory(pairs: int) -> dict[str, dict[str, Any]]:
    """Growth of peak memory of one forward and backward pass of the loss."""
    imports = "import sdgmnet; from sdgmnet import SDGMLoss; from bench.speed import plain_loss, unit_pairs"
    prepare = f"a, p = unit_pairs({pairs}); loss = sdgmnet.SDGMLoss()"
    return {
        "ours": in_fresh_process(imports, prepare, "torch.autograd.grad(loss(a, p), (a, p))"),
        "plain": in_fresh_process(imports, prepare, "torch.autograd.grad(plain_loss(loss, a, p), (a, p))"),
    }

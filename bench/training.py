"""Training step, loss with mining, and batches of pairs: ours against the plain formulation."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bench.command import Row, command, memory_row, rate_row, share_row
from bench.options import Options
from bench.timing import Timing, alternate, in_fresh_process, matrix_product
from sdgmnet.data.patchset import PatchSet
from sdgmnet.data.sampler import PairSampler
from sdgmnet.encoders import SDGMNet
from sdgmnet.engine import TRAINING, build_trunk, choose_chunk, choose_engine
from sdgmnet.loss import SDGMLoss
from sdgmnet.loss.mining import Triplets
from sdgmnet.loss.sdgm import pseudo_loss
from sdgmnet.registry import Engine
from sdgmnet.report import OnProgress, no_progress, track
from sdgmnet.training.step import dropout_masks, train_step

FORWARD_FLOP = 78e6  # of a patch through the encoder: 39.1 million multiplications and as many additions
PAIR_FLOP = 2 * 3 * FORWARD_FLOP  # two patches; the backward pass takes twice the forward pass
# N, method, whether the trunk is computed again in the backward pass
MEMORY_STEPS = ((256, "ours", False), (1024, "ours", False), (1024, "plain", False), (8192, "ours", True))
MEMORY_LOSS = 8192


def plain_triplets(anchor: Tensor, positive: Tensor, cos_threshold: float) -> Triplets:
    """Mining as in the published code: dense similarity matrices and a four-way maximum, all through autograd."""
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
    """One training step by our code and one by the plain formulation."""
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


def time_training(
    pairs: int, repeats: int, engine: Engine = "auto", on_progress: OnProgress = no_progress
) -> dict[str, Timing]:
    """Pairs per second: ours, the plain formulation, and the limit by matrix products."""
    steps = {name: (step, float(pairs)) for name, step in training_steps(pairs, engine).items()}
    methods = {**steps, "limit": matrix_product(PAIR_FLOP)}
    return alternate(methods, repeats, "training steps", on_progress)


def measure_training(options: Options, on_progress: OnProgress) -> Iterator[Row]:
    timings = time_training(options.pairs, options.repeats, on_progress=on_progress)
    what = f"training step, N = {options.pairs}"
    for timing in timings.values():
        yield rate_row(what, timing, "pairs/s", timings["plain"])
    yield share_row(what, timings["ours"], timings["limit"])
    for pairs, method, recompute in track(MEMORY_STEPS, "memory of training steps", on_progress):
        result = in_fresh_process(
            "from bench.training import training_steps",
            f"step = training_steps({pairs}, recompute={recompute})[{method!r}]",
            "step()",
        )
        name = f"{method}, recomputing" if recompute else method
        yield memory_row(f"training step, N = {pairs}", name, result["megabytes"], f"{result['seconds']:.1f} s")


def unit_pairs(count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(count)
    a = torch.randn(count, 128, generator=generator)
    p = a + 0.6 * torch.randn(count, 128, generator=generator)
    return F.normalize(a, dim=1).requires_grad_(), F.normalize(p, dim=1).requires_grad_()


def time_loss(pairs: int, repeats: int, on_progress: OnProgress = no_progress) -> dict[str, Timing]:
    """Mining and loss, forward and backward, in pairs per second."""
    a, p = unit_pairs(pairs)
    loss, plain_state = SDGMLoss(), SDGMLoss()
    times = max(1, 4096 // pairs)  # a few milliseconds are too short to time once

    def ours() -> None:
        for _ in range(times):
            torch.autograd.grad(loss(a, p), (a, p))

    def plain() -> None:
        for _ in range(times):
            torch.autograd.grad(plain_loss(plain_state, a, p), (a, p))

    work = float(pairs * times)
    return alternate({"ours": (ours, work), "plain": (plain, work)}, repeats, f"loss, N = {pairs}", on_progress)


def measure_loss(options: Options, on_progress: OnProgress) -> Iterator[Row]:
    for pairs in sorted({256, options.pairs, 4096, 8192}):
        timings = time_loss(pairs, options.repeats if pairs <= 1024 else min(3, options.repeats), on_progress)
        for timing in timings.values():
            yield rate_row(f"loss and mining, N = {pairs}", timing, "pairs/s", timings["plain"])
    what, megabytes = f"loss and mining, N = {MEMORY_LOSS}", {}
    for method, call in (("ours", "loss(a, p)"), ("plain", "plain_loss(loss, a, p)")):
        megabytes[method] = in_fresh_process(
            "from sdgmnet import SDGMLoss; from bench.training import plain_loss, unit_pairs",
            f"a, p = unit_pairs({MEMORY_LOSS}); loss = SDGMLoss()",
            f"torch.autograd.grad({call}, (a, p))",
        )["megabytes"]
    yield memory_row(
        what, "ours", megabytes["ours"], f"1/{megabytes['plain'] / max(megabytes['ours'], 1):.0f} of plain"
    )
    yield memory_row(what, "plain", megabytes["plain"])


def measure_data(options: Options, on_progress: OnProgress) -> Iterator[Row]:
    """Batches of training pairs, sampled and augmented."""
    pairs = options.pairs
    patches = np.random.default_rng(0).integers(0, 256, (4 * pairs, 64, 64), dtype=np.uint8)
    sampler = PairSampler([PatchSet("random", patches, np.arange(4 * pairs) // 2)], seed=0)
    methods = {"ours": (lambda: sampler.batch(0, pairs), float(pairs))}
    timing = alternate(methods, options.repeats, "batches", on_progress)["ours"]
    yield rate_row(f"making a batch, N = {pairs}", timing, "pairs/s")


train = command("train", measure_training)
loss = command("loss", measure_loss)
data = command("data", measure_data)

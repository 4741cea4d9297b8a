"""One iteration of Algorithm 1: patches -> descriptors -> loss -> optimiser. Chunks and ranks compute one big batch."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from sdgmnet.data.sampler import PairSampler
from sdgmnet.distributed import ALONE, World
from sdgmnet.encoders import Encoded, Encoder
from sdgmnet.engine import Trunk, device_of
from sdgmnet.errors import InputError
from sdgmnet.loss.registry import call_loss
from sdgmnet.loss.teacher import angle_distillation
from sdgmnet.training.config import TrainConfig

MASK_BLOCK = 64  # samples per random stream of dropout


class Teacher(NamedTuple):
    """A trained encoder that a smaller one learns from."""

    describe: Callable[[Tensor], Tensor]  # patches (n, 1, 32, 32) -> descriptors (n, D) of unit length
    weight: float
    card: dict[str, Any]


def train_step(
    encoder: Encoder,
    loss: nn.Module,
    optimizer: torch.optim.Optimizer,
    sides: Tensor,
    keep: Tensor | None,
    *,
    progress: float,
    chunk_size: int,
    joint_batchnorm: bool = False,
    trunk: Trunk | None = None,
    teacher: Teacher | None = None,
    world: World = ALONE,
) -> Tensor:
    """sides (2, N, 1, 32, 32): anchors, positives; keep (2, N, *encoder.feature_shape): dropout's mask. Returns the loss.

    trunk: `encoder.trunk` by another engine, see `engine.build_trunk`.
    teacher: its `angle_distillation` is added to the loss.
    world: each rank gives its rows of the batch; the step is that of the whole batch.
    """
    needs = getattr(loss, "needs", ())
    anchor, positive = encode_sides(
        encoder, sides, keep, chunk_size, joint_batchnorm, with_maps="maps" in needs, trunk=trunk, world=world
    )
    more = {"anchor_encoded": anchor, "positive_encoded": positive} if needs else {}
    value = call_loss(loss, anchor.descriptors, positive.descriptors, progress=progress, **more)
    if not value.requires_grad:
        raise InputError(
            f"{type(loss).__name__} returned a value without a gradient: compute it from anchor and positive with torch only."
        )
    if teacher is not None:
        value = value + teacher.weight * distil(teacher, sides, anchor.descriptors, positive.descriptors, world)
    optimizer.zero_grad(set_to_none=True)
    value.backward()
    world.sum_gradients(encoder.parameters())
    optimizer.step()
    return value.detach()


def distil(teacher: Teacher, sides: Tensor, anchor: Tensor, positive: Tensor, world: World = ALONE) -> Tensor:
    """`angle_distillation` of descriptors of the whole batch, from this rank's patches (2, n, 1, 32, 32)."""
    with torch.no_grad():
        taught = torch.stack([teacher.describe(side) for side in sides])
    return angle_distillation(anchor, positive, *world.gather_sides(taught))


def encode_sides(
    encoder: Encoder,
    sides: Tensor,
    keep: Tensor | None,
    chunk_size: int,
    joint_batchnorm: bool = False,
    with_maps: bool = False,
    trunk: Trunk | None = None,
    world: World = ALONE,
) -> tuple[Encoded, Encoded]:
    """Anchors and positives of the whole batch of all ranks, encoded.

    A trunk that treats every patch independently runs in chunks; one with BatchNorm inside runs on a whole side. BatchNorm
    statistics are per side, as in the published code, or over both sides with `joint_batchnorm`. Feature maps are large and
    only kept with `with_maps`.
    """
    count = sides.shape[1]
    encoder.check_patches(sides.flatten(0, 1))
    # of chunkable encoders, only the eager trunk returns maps
    trunk = encoder.trunk if trunk is None or (with_maps and encoder.chunkable) else trunk
    if not encoder.chunkable:
        return _encode_whole(encoder, trunk, sides, keep, joint_batchnorm, with_maps, world)
    features, first = [], []
    for side in range(2):
        for start in range(0, count, chunk_size):
            rows = slice(start, start + chunk_size)
            patches, kept = sides[side, rows], None if keep is None else keep[side, rows]
            made, block = trunk(patches, kept)
            features.append(made)
            first += [] if block is None or not with_maps else [block]
    together = _of_all_ranks(torch.cat(features), world)
    if joint_batchnorm:
        raw = encoder.normalise_batch(together)
    else:
        raw = torch.cat([encoder.normalise_batch(half) for half in together.split(len(together) // 2)])
    return _two_sides(encoder.finish(raw, _of_all_ranks(torch.cat(first), world) if with_maps else None))


def _of_all_ranks(both: Tensor, world: World) -> Tensor:
    """Anchors and positives of one rank (2 n, ...) -> all anchors, then all positives (2 N, ...)."""
    return both if world.size == 1 else world.gather_sides(both.unflatten(0, (2, -1))).flatten(0, 1)


def _encode_whole(
    encoder: Encoder,
    trunk: Trunk,
    sides: Tensor,
    keep: Tensor | None,
    joint_batchnorm: bool,
    with_maps: bool,
    world: World,
) -> tuple[Encoded, Encoded]:
    """One pass per side, or one for both. Inner BatchNorm layers synchronise the ranks by themselves."""
    if joint_batchnorm:
        features, first = trunk(sides.flatten(0, 1), None if keep is None else keep.flatten(0, 1))
        raw = encoder.normalise_batch(_of_all_ranks(features, world))
        return _two_sides(encoder.finish(raw, _of_all_ranks(first, world) if with_maps and first is not None else None))
    encoded = []
    for side in range(2):
        features, first = trunk(sides[side], None if keep is None else keep[side])
        raw = encoder.normalise_batch(world.gather(features))
        encoded.append(encoder.finish(raw, world.gather(first) if with_maps and first is not None else None))
    return encoded[0], encoded[1]


def _two_sides(both: Encoded) -> tuple[Encoded, Encoded]:
    count = len(both.raw) // 2
    anchor, positive = (
        Encoded(both.descriptors[rows], both.raw[rows], tuple(one[rows] for one in both.maps))
        for rows in (slice(0, count), slice(count, None))
    )
    return anchor, positive


def draw_batch(
    encoder: Encoder, sampler: PairSampler, config: TrainConfig, step: int, world: World = ALONE
) -> tuple[Tensor, Tensor | None]:
    """Patches (2, n, 1, 32, 32) of one step and dropout's mask: a rank's rows of the whole batch."""
    device, rows = device_of(encoder), world.rows(config.batch_size)
    sides = sampler.batch(step, config.batch_size, device, config.augmentation, rows)
    shape = encoder.feature_shape
    return sides, dropout_masks(config.seed, step, config.batch_size, shape, config.dropout, device, rows)


def dropout_masks(
    seed: int,
    step: int,
    count: int,
    shape: tuple[int, ...],
    rate: float,
    device: torch.device | str = "cpu",
    rows: slice | None = None,
) -> Tensor | None:
    """Dropout's mask of both sides, (2, count, *shape) bool, or of these rows only; True is kept. None for rate 0.

    A pure function of (seed, step, side, block of 64 samples): chunks, recomputation and ranks see the same mask.
    """
    if rate == 0:
        return None
    border = round(rate * 65536)  # 16 random bits per feature: the rate is exact to 1e-5
    first, last, _ = (rows or slice(None)).indices(count)
    masks = np.empty((2, last - first, *shape), dtype=bool)
    for side in range(2):
        for block in range(first // MASK_BLOCK, -(-last // MASK_BLOCK)):
            bits = np.random.Generator(np.random.SFC64([seed, step, side, block]))
            drawn = bits.integers(65536, size=(MASK_BLOCK, *shape), dtype=np.uint16)
            start = block * MASK_BLOCK
            low, high = max(start, first), min(start + MASK_BLOCK, last)
            masks[side, low - first : high - first] = drawn[low - start : high - start] >= border
    return torch.from_numpy(masks).to(device)

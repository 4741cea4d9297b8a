"""The middle layers of L2Net by batchnorm.cpp: equal to torch's layers within rounding. BatchNorm is over the whole batch."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sdgmnet.encoders import L2Net
from sdgmnet.native.trunk import (
    PLAIN,
    can_replace,
    needed_library,
    pack_filter,
    pack_transposed,
    packed_size,
    unpack_filter,
)

LAYERS = range(1, 6)  # numbers in the table of vectors.h; the first layer has one input channel and is torch's
SIDES = (32, 32, 16, 16, 8, 8)  # rows of each layer's maps


class Norm(NamedTuple):
    """BatchNorm of a layer's maps as value * scale + shift, one number per channel."""

    scale: Tensor
    shift: Tensor


def is_available(encoder: nn.Module) -> bool:
    """Whether this is an unmodified L2Net in float32 on a CPU, and the library is available."""
    return type(encoder) is L2Net and repr(encoder.middle) == _as_made() and can_replace(encoder.middle)


@functools.cache
def _as_made() -> str:
    """All layers with their sizes, strides, biases and settings."""
    with torch.device("meta"):
        return repr(L2Net().middle)


def _norms(encoder: L2Net) -> list[nn.BatchNorm2d]:
    return [module for module in encoder.middle if isinstance(module, nn.BatchNorm2d)]


@torch.autocast("cpu", enabled=False)
def trunk(encoder: L2Net, patches: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor]:
    """`encoder.trunk` in training, with the convolutions between the first and the last by C++."""
    if not all(norm.training for norm in _norms(encoder)):  # some BatchNorm in eval mode
        return encoder.trunk(patches, keep)
    first = encoder.first(encoder.standardise(patches))
    weights = [module.weight for module in encoder.middle if isinstance(module, nn.Conv2d)]
    raw = _Middle.apply(first, torch.get_num_threads(), _norms(encoder)[:-1], *weights)
    return encoder.reduce(encoder.middle[-2:](raw), keep), first


@torch.autocast("cpu", enabled=False)
def describe(encoder: L2Net, patches: Tensor) -> Tensor:
    """(B, 1, 32, 32) -> descriptors (B, 128), as `encoder(patches)` in eval mode."""
    lanes, threads = needed_library().sdgmnet_lanes(), torch.get_num_threads()
    maps, moved = to_blocks(encoder.first(encoder.standardise(patches)), lanes), as_it_is(32)
    weights = [module.weight for module in encoder.middle if isinstance(module, nn.Conv2d)]
    for layer, weight, norm in zip(LAYERS, weights, _norms(encoder), strict=True):
        made = torch.empty(len(patches), len(weight) * SIDES[layer] ** 2, **PLAIN)
        layer_forward(layer, weight, moved, maps, made, None, None, threads)
        maps, moved = made, running_norm(norm)
    last = encoder.middle[-2:](from_blocks(maps, len(weights[-1]), lanes))
    return encoder.normalise(encoder.normalise_batch(encoder.reduce(last)))


class _Middle(torch.autograd.Function):
    """The first maps after BatchNorm (B, 32, 32, 32) -> the last ones before it (B, 128, 8, 8)."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, threads: int, norms: Sequence[nn.BatchNorm2d], *weights: Tensor) -> Tensor:
        lanes, count = needed_library().sdgmnet_lanes(), len(first)
        maps, moved = [to_blocks(first, lanes)], [as_it_is(32)]
        for layer, weight in zip(LAYERS, weights, strict=True):
            channels, inner = len(weight), layer < LAYERS[-1]
            made = torch.empty(count, channels * SIDES[layer] ** 2, **PLAIN)
            means, squares = (torch.empty(count, channels, **PLAIN) for _ in range(2)) if inner else (None, None)
            layer_forward(layer, weight, moved[-1], maps[-1], made, means, squares, threads)
            maps.append(made)
            if means is not None and squares is not None:
                moved.append(batch_norm(norms[layer - 1], means.double(), squares.double(), SIDES[layer] ** 2))
        ctx.threads = threads
        ctx.save_for_backward(*maps[:-1], *(part for one in moved for part in one), *weights)
        return from_blocks(maps[-1], len(weights[-1]), lanes)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        native, saved, depth = needed_library(), ctx.saved_tensors, len(LAYERS)
        lanes, count = native.sdgmnet_lanes(), len(upstream)
        maps, parts, weights = saved[:depth], saved[depth : 3 * depth], saved[3 * depth :]
        moved = [Norm(*parts[2 * layer : 2 * layer + 2]) for layer in range(depth)]
        # The last BatchNorm is torch's, so the incoming gradient is that of the maps before it.
        channels = len(weights[-1])
        own, mean, product = as_it_is(channels), torch.zeros(channels, **PLAIN), torch.zeros(channels, **PLAIN)
        gated = own_maps = to_blocks(upstream, lanes)
        gradients = []
        for layer in reversed(LAYERS):
            weight, below = weights[layer - 1], moved[layer - 1]
            below_gated = torch.empty_like(maps[layer - 1])
            sums, products = (torch.empty(count, weight.shape[1], **PLAIN) for _ in range(2))
            gradient = torch.zeros(ctx.threads, packed_size(weight, lanes), **PLAIN)
            transposed = pack_transposed(weight, lanes)
            given = _pointers(transposed, *own, mean, product, own_maps, gated, *below, maps[layer - 1])
            made = _pointers(below_gated, sums, products, gradient)
            native.sdgmnet_layer_backward(layer, *given, *made, count, ctx.threads)
            gradients.append(unpack_filter(gradient.sum(0), weight.shape, lanes))
            area = count * SIDES[layer - 1] ** 2
            mean, product = ((one.double().sum(0) / area).float() for one in (sums, products))
            own, own_maps, gated = below, maps[layer - 1], below_gated
        return from_blocks(gated, 32, lanes), None, None, *reversed(gradients)


def layer_forward(
    layer: int,
    weight: Tensor,
    moved: Norm,
    maps: Tensor,
    made: Tensor,
    means: Tensor | None,
    squares: Tensor | None,
    threads: int,
) -> None:
    """One convolution into `made` of the maps below, after their BatchNorm and ReLU; with the moments of `made` if given."""
    native = needed_library()
    packed = pack_filter(weight, native.sdgmnet_lanes())
    room = [None if one is None else one.data_ptr() for one in (means, squares)]
    native.sdgmnet_layer_forward(layer, *_pointers(packed, *moved, maps, made), *room, len(maps), threads)


def as_it_is(channels: int) -> Norm:
    return Norm(torch.ones(channels, **PLAIN), torch.zeros(channels, **PLAIN))


def batch_norm(norm: nn.BatchNorm2d, means: Tensor, squares: Tensor, area: int) -> Norm:
    """From the means and sums of squared deviations (B, C) of patches to those of the batch; updates the running moments."""
    mean, total = means.mean(0), area * len(means)
    scatter = squares.sum(0) + area * (means - mean).square().sum(0)
    with torch.no_grad():
        assert norm.running_mean is not None and norm.running_var is not None and norm.momentum is not None
        norm.running_mean.lerp_(mean.float(), norm.momentum)
        norm.running_var.lerp_((scatter / (total - 1)).float(), norm.momentum)
        if norm.num_batches_tracked is not None:
            norm.num_batches_tracked += 1
    scale = torch.rsqrt(scatter / total + norm.eps)
    return Norm(scale.float(), (-mean * scale).float())


def running_norm(norm: nn.BatchNorm2d) -> Norm:
    assert norm.running_mean is not None and norm.running_var is not None
    scale = torch.rsqrt(norm.running_var + norm.eps)
    return Norm(scale, -norm.running_mean * scale)


def to_blocks(maps: Tensor, lanes: int) -> Tensor:
    """(B, C, H, W) -> [B][C / lanes][H][W][lanes], (B, C * H * W)."""
    by_pixels = maps.permute(0, 2, 3, 1).unflatten(3, (-1, lanes))
    return by_pixels.permute(0, 3, 1, 2, 4).reshape(len(maps), -1).contiguous()


def from_blocks(blocks: Tensor, channels: int, lanes: int) -> Tensor:
    """The inverse for square maps, in channels_last layout as torch's own in training."""
    side = round((blocks.shape[1] / channels) ** 0.5)
    by_pixels = blocks.reshape(-1, channels // lanes, side, side, lanes).permute(0, 2, 3, 1, 4)
    return by_pixels.flatten(3).permute(0, 3, 1, 2)


def _pointers(*tensors: Tensor) -> list[int]:
    assert all(one.dtype == torch.float32 and one.is_contiguous() for one in tensors)
    return [one.data_ptr() for one in tensors]

"""The trunk of SDGMNet and FastSDGMNet by trunk.cpp, up to dropout and the last convolution: torch's layers within rounding."""

import functools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sdgmnet.encoders import Encoder, FastSDGMNet, FilterResponseNorm, SDGMNet
from sdgmnet.errors import InputError
from sdgmnet.native.build import library

EPSILON = 1e-6  # of FilterResponseNorm, as in trunk.cpp
NETWORKS: dict[type[Encoder], int] = {SDGMNet: 0, FastSDGMNet: 1}  # as trunk.cpp numbers them
PLAIN: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}  # independent of torch's defaults


def is_available(encoder: nn.Module) -> bool:
    """Whether this is an unmodified encoder of NETWORKS in float32 on a CPU, and the library is available."""
    if type(encoder) not in NETWORKS:
        return False
    if shapes_of(encoder) != _shapes()[type(encoder)]:
        return False
    norms = [module for module in encoder.modules() if isinstance(module, FilterResponseNorm)]
    return all(norm.epsilon == EPSILON for norm in norms) and can_replace(encoder)


def shapes_of(module: nn.Module) -> list[tuple[int, ...]]:
    return [tuple(parameter.shape) for parameter in module.parameters()]


def can_replace(module: nn.Module) -> bool:
    """Whether the library can run in place of a module: float32 on a CPU, without hooks."""
    tensors = [*module.parameters(), *module.buffers()]
    plain = all(one.device.type == "cpu" and one.dtype in (torch.float32, torch.int64) for one in tensors)
    hooked = any(one._forward_hooks or one._forward_pre_hooks for one in module.modules())
    return plain and not hooked and library() is not None


@functools.cache
def _shapes() -> dict[type[nn.Module], list[tuple[int, ...]]]:
    with torch.device("meta"):
        return {kind: shapes_of(kind()) for kind in NETWORKS}


def maps(encoder: SDGMNet, patches: Tensor, spare: list[Tensor] | None = None) -> Tensor:
    """(B, 1, 32, 32) -> maps (B, *encoder.feature_shape), differentiable with respect to the encoder's parameters.

    spare: list of memory for activations, taken from it and returned after the backward pass. New memory at every step,
    half a megabyte per patch, would cost a tenth of the step.
    """
    parameters = _trunk_parameters(encoder)
    if patches.device.type != "cpu" or patches.dtype != torch.float32 or patches.shape[1:] != (1, 32, 32):
        raise InputError(
            f"the native engine takes float32 patches (B, 1, 32, 32) on the CPU, not {patches.dtype} "
            f"{tuple(patches.shape)} on {patches.device}: use the eager engine."
        )
    if patches.requires_grad:
        raise InputError("the native engine does not compute gradients of patches: use the eager engine.")
    threads = torch.get_num_threads()
    if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in parameters):
        return _Maps.apply(type(encoder), patches, threads, spare, *parameters)
    packed = pack(parameters, needed_library().sdgmnet_lanes())
    return _forward(type(encoder), patches.contiguous(), packed, None, threads)


def describe(encoder: SDGMNet, packed: Tensor, patches: Tensor) -> Tensor:
    """(B, 1, 32, 32) -> descriptors (B, 128), as `encoder(patches)` without gradients; `packed` is `pack_trunk(encoder)`."""
    made = _forward(type(encoder), patches.contiguous(), packed, None, torch.get_num_threads())
    return F.normalize(encoder.normalise_batch(encoder.reduce(made)), dim=1)


def pack_trunk(encoder: SDGMNet) -> Tensor:
    """The trunk's parameters as trunk.cpp reads them; needed once for any number of patches."""
    return pack(_trunk_parameters(encoder), needed_library().sdgmnet_lanes())


def halve(patches: Tensor) -> Tensor:
    """(B, 64, 64) uint8 -> (B, 1, 32, 32) in [0, 1]: `engine.prepare` within rounding."""
    if patches.device.type != "cpu" or patches.dtype != torch.uint8 or patches.shape[1:] != (64, 64):
        raise InputError(f"patches to halve must be uint8 (B, 64, 64), not {patches.dtype} {tuple(patches.shape)}.")
    patches, made = patches.contiguous(), torch.empty(len(patches), 1, 32, 32, **PLAIN)
    needed_library().sdgmnet_halve(patches.data_ptr(), len(patches), made.data_ptr(), torch.get_num_threads())
    return made


def _trunk_parameters(encoder: SDGMNet) -> list[nn.Parameter]:
    return [*encoder.input.parameters(), *encoder.first.parameters(), *encoder.middle.parameters()]


def _forward(kind: type[Encoder], patches: Tensor, packed: Tensor, kept: Tensor | None, threads: int) -> Tensor:
    made = torch.empty(len(patches), *kind.feature_shape, **PLAIN)
    where = None if kept is None else kept.data_ptr()
    needed_library().sdgmnet_forward(
        NETWORKS[kind], packed.data_ptr(), patches.data_ptr(), len(patches), made.data_ptr(), where, threads
    )
    return made


class _Maps(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, kind: type[Encoder], patches: Tensor, threads: int, spare: list[Tensor] | None, *parameters: Tensor
    ) -> Tensor:
        native = needed_library()
        patches = patches.contiguous()
        packed = pack(parameters, native.sdgmnet_lanes())
        kept = _memory(len(patches), native.sdgmnet_kept_floats(NETWORKS[kind]), spare)
        made = _forward(kind, patches, packed, kept, threads)
        ctx.kind, ctx.threads, ctx.spare = kind, threads, spare
        ctx.save_for_backward(patches, packed, kept, *parameters)
        return made

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        native = needed_library()
        patches, packed, kept, *parameters = ctx.saved_tensors
        lanes = native.sdgmnet_lanes()
        transposed = torch.cat([pack_transposed(weights, lanes) for weights in reversed(parameters[8::5])])
        upstream = upstream.contiguous()
        gradients = torch.zeros(ctx.threads, len(packed), **PLAIN)
        native.sdgmnet_backward(
            NETWORKS[ctx.kind], packed.data_ptr(), transposed.data_ptr(), patches.data_ptr(), len(patches), kept.data_ptr(),
            upstream.data_ptr(), gradients.data_ptr(), ctx.threads,
        )  # fmt: skip
        if ctx.spare is not None and all(one is not kept for one in ctx.spare):
            ctx.spare.append(kept)
        return None, None, None, None, *unpack(gradients.sum(0), parameters, lanes)


def _memory(count: int, floats: int, spare: list[Tensor] | None) -> Tensor:
    found = next((place for place, one in enumerate(spare or []) if one.shape == (count, floats)), None)
    if spare is None or found is None:
        return torch.empty(count, floats, **PLAIN)
    lent = spare.pop(found)
    torch.autograd.graph.increment_version(lent)  # torch raises an error where an older graph still uses it
    return lent


@torch.autocast("cpu", enabled=False)
def pack(parameters: Sequence[Tensor], lanes: int) -> Tensor:
    """All parameters in one row as trunk.cpp reads them: the input's three, then weights, bias, gamma, beta, tau per layer."""

    def flat(parameter: Tensor) -> Tensor:
        if parameter.ndim == 4:
            return pack_filter(parameter, lanes)
        return parameter.detach() if len(parameter) > 1 else parameter.detach().expand(lanes)

    return torch.cat([flat(parameter) for parameter in parameters])


# G of Winograd's F(4x4, 3x3): a filter becomes G filter Gt (winograd.h).
G = torch.tensor(
    [[1 / 4, 0, 0], [-1 / 6, -1 / 6, -1 / 6], [-1 / 6, 1 / 6, -1 / 6],
     [1 / 24, 1 / 12, 1 / 6], [1 / 24, -1 / 12, 1 / 6], [0, 0, 1]], **PLAIN,
)  # fmt: skip


def is_tiled(shape: Sequence[int]) -> bool:
    """Whether a filter (outputs, inputs, 3, 3) has stride 1, which is by Winograd: those keep the number of channels."""
    return shape[0] == shape[1]


@torch.autocast("cpu", enabled=False)
def pack_filter(weights: Tensor, lanes: int) -> Tensor:
    """(outputs, inputs, 3, 3) -> [output pair][input block][tap][input][output of the pair], flat.

    Of stride 1: [place][output pair][input][output of the pair], with 36 places. Of a single input: [tap][output].
    """
    weights = weights.detach()
    outputs, inputs = weights.shape[:2]
    if inputs == 1:
        return weights.reshape(outputs, 9).T.flatten()
    if is_tiled(weights.shape):
        places = torch.einsum("xa,oiab,yb->xyoi", G, weights, G)
        return places.reshape(36, outputs // (2 * lanes), 2 * lanes, inputs).transpose(2, 3).flatten()
    blocks = weights.reshape(outputs // (2 * lanes), 2 * lanes, inputs // lanes, lanes, 9)
    return blocks.permute(0, 2, 4, 3, 1).flatten()


def pack_transposed(weights: Tensor, lanes: int) -> Tensor:
    """The transposed filter, for gradients of maps: inputs and outputs exchanged; of stride 1 also rotated by 180 degrees."""
    transposed = weights.transpose(0, 1)
    return pack_filter(transposed.flip(2, 3) if is_tiled(weights.shape) else transposed, lanes)


@torch.autocast("cpu", enabled=False)
def unpack_filter(row: Tensor, shape: Sequence[int], lanes: int) -> Tensor:
    """The gradient of a filter from the gradient of its packed form."""
    outputs, inputs = shape[:2]
    if inputs == 1:
        return row.reshape(9, outputs).T.reshape(tuple(shape))
    if is_tiled(shape):
        places = row.reshape(36, outputs // (2 * lanes), inputs, 2 * lanes).transpose(2, 3)
        return torch.einsum("xa,xyoi,yb->oiab", G, places.reshape(6, 6, outputs, inputs), G)
    blocks = row.reshape(outputs // (2 * lanes), inputs // lanes, 9, lanes, 2 * lanes)
    return blocks.permute(0, 4, 1, 3, 2).reshape(tuple(shape))


def packed_size(parameter: Tensor, lanes: int) -> int:
    """Length of a parameter in the row of `pack`."""
    tiled = parameter.ndim == 4 and is_tiled(parameter.shape)
    return max(4 * parameter.numel() if tiled else parameter.numel(), lanes)  # 36 places for 9 taps


def unpack(row: Tensor, parameters: list[Tensor], lanes: int) -> list[Tensor]:
    """The inverse of `pack`, for gradients."""
    gradients, start = [], 0
    for parameter in parameters:
        count = packed_size(parameter, lanes)
        part, start = row[start : start + count], start + count
        if parameter.ndim == 4:
            part = unpack_filter(part, parameter.shape, lanes)
        gradients.append(part.reshape(parameter.shape) if parameter.numel() > 1 else part[:1])
    return gradients


def needed_library() -> Any:
    loaded = library()
    if loaded is None:
        raise RuntimeError("the native engine is not available here: check is_available() first.")
    return loaded

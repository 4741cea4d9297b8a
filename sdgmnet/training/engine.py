"""How the trunk of an encoder runs in training: by torch or natively, keeping its activations or computing them again."""

from collections.abc import Callable
from functools import partial
from typing import Any, get_args

import torch
from torch import Tensor

from sdgmnet.encoders import Encoder, L2Net, SDGMNet
from sdgmnet.engine import Engine
from sdgmnet.errors import InputError
from sdgmnet.native import batchnorm
from sdgmnet.native import trunk as native
from sdgmnet.native.build import library, why_not

# Patches (B, 1, 32, 32), dropout's mask -> features (B, 128), and the first maps where it gives them.
Trunk = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor | None]]
NATIVE = ("sdgmnet", "l2net")  # encoders that have a native trunk

EAGER_CHUNK = 64  # patches whose activations stay in a CPU's cache
NATIVE_CHUNK = 1024  # keeps to the cache by itself: the fewer calls, the better its threads are used


def choose_engine(name: Engine, device: torch.device, encoder: str = "sdgmnet") -> Engine:
    """The engine to write into the configuration: a matter of what is there, never of timing."""
    if name not in get_args(Engine):
        raise InputError(f"--engine is one of {', '.join(get_args(Engine))}, not {name!r}.")
    if encoder not in NATIVE:
        if name == "native":
            raise InputError(f"--engine native runs {' and '.join(NATIVE)}, not {encoder}: use --engine eager.")
        return "eager"
    if name == "auto":
        return "native" if device.type == "cpu" and library() is not None else "eager"
    if name == "native" and device.type != "cpu":
        raise InputError(f"--engine native runs on a CPU, not on {device}: use --engine eager, or --device cpu.")
    if name == "native" and library() is None:
        raise InputError(f"--engine native cannot be built here ({why_not()}): use --engine eager.")
    return name


def choose_chunk(engine: Engine, device: torch.device) -> int | None:
    """Patches that go through the trunk at once, None for all: what keeps a CPU's caches and threads busy."""
    return {"native": NATIVE_CHUNK, "eager": EAGER_CHUNK}[engine] if device.type == "cpu" else None


def build_trunk(encoder: Encoder, engine: str, recompute: bool = False) -> Trunk:
    """The encoder's trunk by that engine. Of an encoder that looks across the batch, it wants whole sides."""
    if isinstance(encoder, L2Net):  # with BatchNorm that ranks share, only torch has it
        is_native = engine == "native" and batchnorm.is_available(encoder)
        return partial(batchnorm.trunk, encoder) if is_native else encoder.trunk

    spare: list[Tensor] = []

    def native_trunk(patches: Tensor, keep: Tensor | None) -> tuple[Tensor, None]:
        assert isinstance(encoder, SDGMNet)
        return encoder.reduce(native.maps(encoder, patches, spare), keep), None

    trunk: Trunk = native_trunk if engine == "native" else encoder.trunk
    if not recompute:
        return trunk

    parameters = [parameter for parameter in encoder.parameters() if parameter.requires_grad]
    return lambda patches, keep: (_Recomputed.apply(trunk, patches, keep, *parameters), None)


class _Recomputed(torch.autograd.Function):
    """A trunk that keeps nothing of its forward pass but the input, and runs once more when its gradient is asked for.

    The mask is an argument, so the second pass drops what the first one dropped without any random state.
    """

    @staticmethod
    def forward(ctx: Any, trunk: Trunk, patches: Tensor, keep: Tensor | None, *parameters: Tensor) -> Tensor:
        ctx.trunk, ctx.parameters = trunk, parameters
        ctx.save_for_backward(patches, keep)
        with torch.no_grad():
            return trunk(patches, keep)[0]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        patches, keep = ctx.saved_tensors
        with torch.enable_grad():
            features = ctx.trunk(patches, keep)[0]
        return None, None, None, *torch.autograd.grad(features, ctx.parameters, upstream, allow_unused=True)

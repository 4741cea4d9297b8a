"""How the trunk of an encoder runs in training: plainly or compiled, keeping its activations or computing them again."""

import os
import shutil
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from sdgmnet.encoders import SDGMNet
from sdgmnet.errors import InputError

Engine = Literal["auto", "eager", "compiled"]
Trunk = Callable[[Tensor, Tensor | None], Tensor]  # patches (B, 1, 32, 32), dropout's mask -> features (B, 128)

COMPILING_PAYS_FROM = 50_000  # pairs of a run: half a minute of compiling is won back by then


def has_compiler() -> bool:
    """Whether torch.compile can build code for the CPU here."""
    return any(shutil.which(name) for name in (os.environ.get("CXX", ""), "g++", "clang++") if name)


def choose_engine(name: Engine, device: torch.device, pairs: int) -> Engine:
    """The engine to write into the configuration: a matter of what is there and how long the run is, never of timing."""
    if name == "auto":
        return "compiled" if device.type == "cpu" and has_compiler() and pairs >= COMPILING_PAYS_FROM else "eager"
    if name == "compiled" and device.type == "cpu" and not has_compiler():
        raise InputError("--engine compiled needs a C++ compiler (g++ or clang++): install one, or use --engine eager.")
    return name


def build_trunk(encoder: SDGMNet, engine: str, recompute: bool = False) -> Trunk:
    def plain(patches: Tensor, keep: Tensor | None) -> Tensor:
        return encoder.trunk(patches, keep)[0]

    trunk: Trunk = torch.compile(plain, dynamic=False) if engine == "compiled" else plain
    if not recompute:
        return trunk

    parameters = [parameter for parameter in encoder.parameters() if parameter.requires_grad]
    return lambda patches, keep: _Recomputed.apply(trunk, patches, keep, *parameters)


class _Recomputed(torch.autograd.Function):
    """A trunk that keeps nothing of its forward pass but the input, and runs once more when its gradient is asked for.

    The mask is an argument, so the second pass drops what the first one dropped without any random state.
    """

    @staticmethod
    def forward(ctx: Any, trunk: Trunk, patches: Tensor, keep: Tensor | None, *parameters: Tensor) -> Tensor:
        ctx.trunk, ctx.parameters = trunk, parameters
        ctx.save_for_backward(patches, keep)
        with torch.no_grad():
            return trunk(patches, keep)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        patches, keep = ctx.saved_tensors
        with torch.enable_grad():
            features = ctx.trunk(patches, keep)
        return None, None, None, *torch.autograd.grad(features, ctx.parameters, upstream, allow_unused=True)

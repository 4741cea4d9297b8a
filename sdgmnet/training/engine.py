"""How the trunk of an encoder runs in training: plainly or compiled, keeping its activations or computing them again."""

import os
import shutil
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

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

    def twice(patches: Tensor, keep: Tensor | None) -> Tensor:
        # The mask is an argument, so the second pass drops what the first one dropped without any random state.
        features: Tensor = checkpoint(trunk, patches, keep, use_reentrant=False, preserve_rng_state=False)
        return features

    return twice

"""How an encoder runs: by torch ("eager") or by our C++ ("native"), in chunks. Patches -> descriptors."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from sdgmnet.encoders import Encoder, FastSDGMNet, L2Net, SDGMNet
from sdgmnet.errors import InputError
from sdgmnet.native import batchnorm
from sdgmnet.native import trunk as native
from sdgmnet.native.build import why_not
from sdgmnet.registry import Engine

# Patches (B, 1, 32, 32) and dropout's mask -> features (B, 128), and the first feature maps where the trunk returns them.
Trunk = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor | None]]


class ChunkSizes(NamedTuple):
    """Patches per forward pass, as measured fastest. None: the whole batch."""

    eager: int  # activations stay in a CPU's cache
    native: int
    native_fast: int
    native_l2net: int | None
    cuda: int | None


RANGE_TOLERANCE = 1e-3  # of float patches, for rounding

# The native engine uses the cache by itself; with gradients, fewer calls keep its threads busier.
INFERENCE = ChunkSizes(eager=64, native=512, native_fast=2048, native_l2net=128, cuda=4096)
TRAINING = ChunkSizes(eager=64, native=1024, native_fast=1024, native_l2net=None, cuda=None)


def choose_engine(engine: Engine, encoder: Encoder) -> Engine:
    """ "eager" or "native". "auto" is native wherever it can run this encoder; it is never chosen by timing."""
    if engine not in get_args(Engine):
        raise InputError(f"engine must be one of {', '.join(get_args(Engine))}, not {engine!r}.")
    if engine == "eager" or native.is_available(encoder) or batchnorm.is_available(encoder):
        return "eager" if engine == "eager" else "native"
    if engine == "native":
        reason = why_not() or "it runs SDGMNet, FastSDGMNet and L2Net in float32 on a CPU"
        raise InputError(f"the engine native cannot be used ({reason}): use the engine eager.")
    return "eager"


def choose_chunk(engine: Engine, encoder: Encoder, sizes: ChunkSizes) -> int | None:
    """Patches per forward pass with a chosen engine; None for all."""
    if device_of(encoder).type != "cpu":
        return sizes.cuda
    if engine == "eager":
        return sizes.eager
    if isinstance(encoder, L2Net):
        return sizes.native_l2net
    return sizes.native_fast if isinstance(encoder, FastSDGMNet) else sizes.native


def device_of(encoder: Encoder) -> torch.device:
    return next(encoder.parameters()).device


# Training


def build_trunk(encoder: Encoder, engine: Engine, recompute: bool = False) -> Trunk:
    """The encoder's trunk by that engine. The trunk of L2Net and TFeat needs a whole side of a batch.

    recompute: activations are computed again in the backward pass instead of kept. Dropout's mask is an argument, so both
    passes drop the same without any random state.
    """
    if isinstance(encoder, L2Net):  # BatchNorm synchronised over ranks is only in torch
        is_native = engine == "native" and batchnorm.is_available(encoder)
        return partial(batchnorm.trunk, encoder) if is_native else encoder.trunk

    spare: list[Tensor] = []

    def native_trunk(patches: Tensor, keep: Tensor | None) -> tuple[Tensor, None]:
        assert isinstance(encoder, SDGMNet)
        return encoder.reduce(native.maps(encoder, patches, spare), keep), None

    trunk: Trunk = native_trunk if engine == "native" else encoder.trunk
    if recompute:
        return partial(checkpoint, trunk, use_reentrant=False, preserve_rng_state=False)
    return trunk


# Inference


def use_threads(count: int) -> None:
    """Let torch and OpenCV use so many threads."""
    import cv2

    torch.set_num_threads(count)
    cv2.setNumThreads(count)


def describe_patches(
    encoder: Encoder, patches: np.ndarray | Tensor, *, batch_size: int | None = None, engine: Engine = "auto"
) -> np.ndarray:
    """Descriptors (N, D) float32, in order, of patches (N, S, S) or (N, 1, S, S).

    uint8 patches have the range 0..255, float ones [0, 1]. S is the encoder's patch size, or twice that (patches are halved
    with the filter used in training), or 65 (HPatches). The encoder keeps its mode and stays on its device.

    Args:
        batch_size: patches per forward pass; memory is bounded by it. None: the fastest.
        engine: "eager" is torch; "native" is our C++ for the CPU, several times as fast and equal to it within 1e-5;
            "auto" is native where it is available.
    """
    if batch_size is not None and batch_size < 1:
        raise InputError(f"batch_size must be at least 1, not {batch_size}.")
    patches = _check(encoder, patches)
    engine = choose_engine(engine, encoder)
    out = np.empty((len(patches), encoder.descriptor_size), dtype=np.float32)
    chunk = batch_size or choose_chunk(engine, encoder, INFERENCE) or len(patches)
    _compute_chunks(encoder, patches, chunk, _describer(encoder, engine), out)
    return out


def _describer(encoder: Encoder, engine: Engine) -> Callable[[Tensor], Tensor]:
    """Patches (B, S, S) -> descriptors (B, D), by a chosen engine."""
    if engine == "native" and isinstance(encoder, SDGMNet):
        packed = native.pack_trunk(encoder)

        def describe(patches: Tensor) -> Tensor:
            is_double = patches.dtype == torch.uint8 and patches.shape[-1] == 2 * encoder.patch_size
            pixels = native.halve(patches) if is_double else prepare(patches, encoder.patch_size)
            return native.describe(encoder, packed, pixels)

        return describe
    compute = partial(batchnorm.describe, encoder) if engine == "native" and isinstance(encoder, L2Net) else encoder
    return lambda patches: compute(prepare(patches, encoder.patch_size))


def feature_lengths(encoder: Encoder, patches: np.ndarray | Tensor) -> np.ndarray:
    """‖x‖ (N,) float64 of the features before normalisation, of patches (N, S, S) as for `describe_patches`."""
    patches = _check(encoder, patches)
    out = np.empty(len(patches))

    def lengths(patches: Tensor) -> Tensor:
        pixels = prepare(patches, encoder.patch_size)
        return torch.linalg.vector_norm(encoder.encode(pixels).raw.double(), dim=1)

    _compute_chunks(encoder, patches, INFERENCE.eager, lengths, out)
    return out


def _compute_chunks(
    encoder: Encoder, patches: np.ndarray | Tensor, size: int, compute: Callable[[Tensor], Tensor], out: np.ndarray
) -> None:
    """out[i] = compute(patches)[i], chunk by chunk, in evaluation mode."""
    device, target = device_of(encoder), torch.from_numpy(out)
    with _evaluation_mode(encoder), torch.inference_mode():
        for start in range(0, len(patches), size):
            chunk = patches[start : start + size]
            if isinstance(chunk, np.ndarray):  # a copy: torch takes no read-only or reversed arrays
                kind = np.uint8 if chunk.dtype == np.uint8 else np.float32
                chunk = torch.from_numpy(np.array(chunk, kind, order="C"))
            _check_range(chunk, start)
            target[start : start + size] = compute(chunk.to(device))


@contextmanager
def _evaluation_mode(encoder: Encoder) -> Iterator[None]:
    modes = [(module, module.training) for module in encoder.modules()]
    encoder.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _check(encoder: Encoder, patches: np.ndarray | Tensor) -> np.ndarray | Tensor:
    """The patches as (N, S, S), or InputError."""
    if not isinstance(encoder, Encoder):
        raise InputError(
            f"the first argument must be an encoder, such as SDGMNet.from_pretrained(), not a {type(encoder).__name__}: "
            "describe_patches(encoder, patches)."
        )
    patches = patches if isinstance(patches, Tensor) else np.asarray(patches)
    patches = patches[:, 0] if patches.ndim == 4 and patches.shape[1] == 1 else patches
    sides = (encoder.patch_size, 2 * encoder.patch_size, 2 * encoder.patch_size + 1)
    if patches.ndim != 3 or patches.shape[1] != patches.shape[2] or patches.shape[1] not in sides:
        sizes = ", ".join(f"{side} x {side}" for side in sides[:-1]) + f" or {sides[-1]} x {sides[-1]}"
        raise InputError(f"patches must be (N, S, S) of {sizes} pixels, not {tuple(patches.shape)}.")
    floating = patches.is_floating_point() if isinstance(patches, Tensor) else patches.dtype.kind == "f"
    if not floating and patches.dtype not in (torch.uint8, np.dtype(np.uint8)):
        raise InputError(f"patches must be uint8 or floats in [0, 1], not {patches.dtype}.")
    return patches


def _check_range(patches: Tensor, start: int) -> None:
    """InputError unless float patches (B, S, S) are in [0, 1], within rounding; `start` is the number of the first."""
    if patches.dtype == torch.uint8:
        return
    low, high = patches.flatten(1).aminmax(dim=1)
    wrong = ((low >= -RANGE_TOLERANCE) & (high <= 1 + RANGE_TOLERANCE)).logical_not()  # also true for NaN
    if wrong.any():
        row = int(wrong.nonzero()[0])
        if not bool(torch.isfinite(patches[row]).all()):
            raise InputError(f"patches must be finite: patch {start + row} holds NaN or infinite values.")
        raise InputError(
            f"patches of floats must lie in [0, 1]: patch {start + row} holds values from {low[row].item():.4g} to "
            f"{high[row].item():.4g}; divide them by 255, clip them, or give uint8."
        )


# Resampling


def prepare(patches: Tensor, patch_size: int) -> Tensor:
    """(B, S, S) uint8 or float -> input of the encoder: (B, 1, patch_size, patch_size) float32 in [0, 1].

    HPatches' 65 pixels are resampled as in the published evaluations, by OpenCV's bilinear filter over the whole patch.
    """
    pixels = patches.float() / 255 if patches.dtype == torch.uint8 else patches.float()
    if pixels.shape[-1] == patch_size:
        return pixels[:, None]
    if pixels.shape[-1] == 2 * patch_size:
        return halve(pixels)[:, None]
    return F.interpolate(pixels[:, None], size=(patch_size, patch_size), mode="bilinear", align_corners=False)


def halve(pixels: Tensor) -> Tensor:
    """(B, 2S, 2S) -> (B, S, S) float with the separable filter [1, 3, 3, 1] / 8, renormalised at the borders."""
    side = pixels.shape[-1]
    matrix = resample_matrix(pixels.new_zeros(1), pixels.new_full((1,), side), side, side // 2)[0]
    return matrix @ pixels @ matrix.T


def resample_matrix(start: Tensor, length: Tensor, source_side: int, target_side: int) -> Tensor:
    """Matrices (B, target_side, source_side) that resample [start, start + length), start and length (B,) in pixels.

    The triangle filter is truncated at the ends of the range and normalised.
    """
    scale = (length / target_side)[:, None, None]
    source = torch.arange(source_side, device=start.device, dtype=start.dtype) + 0.5 - start[:, None, None]
    target = torch.arange(target_side, device=start.device, dtype=start.dtype)[:, None] + 0.5
    weight = (1 - (source - target * scale).abs() / scale.clamp_min(1)).clamp_min(0)
    weight = weight * ((source > 0) & (source < length[:, None, None]))
    return weight / weight.sum(dim=2, keepdim=True)

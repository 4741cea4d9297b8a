"""Patches -> descriptors with a trained encoder, in chunks: memory stays bounded whatever their number."""

from collections.abc import Callable
from functools import partial
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sdgmnet.encoders import Encoder, L2Net, SDGMNet
from sdgmnet.errors import InputError
from sdgmnet.native import batchnorm, trunk
from sdgmnet.native.build import why_not

# ---- inference


EAGER_CHUNK = 64  # activations of 64 patches stay in a CPU's cache: faster than larger batches
NATIVE_CHUNK = 512
LAYERS_CHUNK = 128  # native too, but a layer after the other
CUDA_CHUNK = 4096
ENGINES = ("auto", "eager", "native")

Engine = Literal["auto", "eager", "native"]


def use_threads(count: int) -> None:
    """Let torch and OpenCV use so many threads."""
    import cv2

    torch.set_num_threads(count)
    cv2.setNumThreads(count)


def describe_patches(
    encoder: Encoder, patches: np.ndarray | Tensor, *, batch_size: int | None = None, engine: Engine = "auto"
) -> np.ndarray:
    """Descriptors (N, D) float32, in order, of patches (N, S, S) or (N, 1, S, S).

    uint8 patches are read as 0..255, float ones as [0, 1]. S is the encoder's patch size, or twice that: then patches are
    halved with the filter used in training; or HPatches' 65. The encoder is left in the mode it was found in, on the device
    it is on.

    engine: "eager" is torch as it is; "native" is our own C++ for the CPU, two to three times as fast and equal to it within
    1e-5, built in seconds on first use; "auto" is native wherever it can be had. Both work in chunks of `batch_size`.
    """
    patches = patches if isinstance(patches, Tensor) else np.asarray(patches)
    patches = patches[:, 0] if patches.ndim == 4 and patches.shape[1] == 1 else patches
    check(encoder, patches)
    device = next(encoder.parameters()).device
    if batch_size is not None and batch_size < 1:
        raise InputError(f"batch_size must be at least 1, not {batch_size}.")
    engine = choose_engine(engine, encoder)
    describe: Callable[[Tensor], Tensor] = encoder
    default = CUDA_CHUNK if device.type == "cuda" else EAGER_CHUNK
    if engine == "native" and isinstance(encoder, SDGMNet):
        describe, default = partial(trunk.describe, encoder), NATIVE_CHUNK
    elif engine == "native" and isinstance(encoder, L2Net):
        describe, default = partial(batchnorm.describe, encoder), LAYERS_CHUNK
    batch_size = batch_size or default
    out = np.empty((len(patches), encoder.descriptor_size), dtype=np.float32)
    modes = [(module, module.training) for module in encoder.modules()]
    encoder.eval()
    try:
        with torch.inference_mode():
            for start in range(0, len(patches), batch_size):
                chunk = patches[start : start + batch_size]
                # A copy of the chunk: torch takes no read-only or reversed views of arrays.
                chunk = chunk if isinstance(chunk, Tensor) else torch.from_numpy(_plain(chunk))
                pixels = prepare(chunk.to(device), encoder.patch_size)
                described = describe(pixels)
                out[start : start + batch_size] = described.float().cpu().numpy()
    finally:
        for module, training in modes:
            module.training = training
    return out


def feature_lengths(encoder: Encoder, patches: np.ndarray) -> np.ndarray:
    """‖x‖ (N,) float64 of the features before normalisation, of patches (N, S, S) as for `describe_patches`."""
    check(encoder, patches)
    device = next(encoder.parameters()).device
    training = encoder.training
    encoder.eval()
    lengths = [np.empty(0)]
    try:
        with torch.inference_mode():
            for start in range(0, len(patches), EAGER_CHUNK):
                chunk = torch.from_numpy(_plain(patches[start : start + EAGER_CHUNK])).to(device)
                raw = encoder.encode(prepare(chunk, encoder.patch_size)).raw
                lengths.append(torch.linalg.vector_norm(raw.double(), dim=1).cpu().numpy())
    finally:
        encoder.train(training)
    return np.concatenate(lengths)


def choose_engine(engine: Engine, encoder: Encoder) -> Engine:
    if engine not in ENGINES:
        raise InputError(f"engine is one of {', '.join(ENGINES)}, not {engine!r}.")
    is_native = trunk.is_available(encoder) or batchnorm.is_available(encoder)
    if engine == "auto":
        return "native" if is_native else "eager"
    if engine == "native" and not is_native:
        reason = why_not() or "it runs an SDGMNet or L2Net in float32 on a CPU"
        raise InputError(f"the engine native cannot be had ({reason}): use the engine eager.")
    return engine


def _plain(chunk: np.ndarray) -> np.ndarray:
    return np.array(chunk, dtype=np.uint8 if chunk.dtype == np.uint8 else np.float32, order="C")


def prepare(patches: Tensor, patch_size: int) -> Tensor:
    """(B, S, S) uint8 or float -> what the encoder takes: (B, 1, patch_size, patch_size) float32 in [0, 1].

    HPatches' 65 pixels are read as the published evaluations do, by OpenCV's bilinear filter over the whole patch.
    """
    pixels = patches.float() / 255 if patches.dtype == torch.uint8 else patches.float()
    if pixels.shape[-1] == patch_size:
        return pixels[:, None]
    if pixels.shape[-1] == 2 * patch_size:
        return halve(pixels)[:, None]
    return F.interpolate(pixels[:, None], size=(patch_size, patch_size), mode="bilinear", align_corners=False)


def check(encoder: Encoder, patches: np.ndarray | Tensor) -> None:
    sides = (encoder.patch_size, 2 * encoder.patch_size, 2 * encoder.patch_size + 1)
    if patches.ndim != 3 or patches.shape[1] != patches.shape[2] or patches.shape[1] not in sides:
        sizes = ", ".join(f"{side} x {side}" for side in sides[:-1]) + f" or {sides[-1]} x {sides[-1]}"
        raise InputError(f"patches must be (N, S, S) of {sizes} pixels, not {tuple(patches.shape)}.")
    floating = patches.is_floating_point() if isinstance(patches, Tensor) else patches.dtype.kind == "f"
    if not floating and patches.dtype not in (torch.uint8, np.dtype(np.uint8)):
        raise InputError(f"patches must be uint8 or floats in [0, 1], not {patches.dtype}.")


# ---- resampling


def resample_matrix(start: Tensor, length: Tensor, source_side: int, target_side: int) -> Tensor:
    """Matrices (B, target_side, source_side) that resample [start, start + length), start and length (B,) in pixels.

    The triangle is cut off at the ends of the range and normalised.
    """
    scale = (length / target_side)[:, None, None]
    source = torch.arange(source_side, device=start.device, dtype=start.dtype) + 0.5 - start[:, None, None]
    target = torch.arange(target_side, device=start.device, dtype=start.dtype)[:, None] + 0.5
    weight = (1 - (source - target * scale).abs() / scale.clamp_min(1)).clamp_min(0)
    weight = weight * ((source > 0) & (source < length[:, None, None]))
    return weight / weight.sum(dim=2, keepdim=True)


def halve(pixels: Tensor) -> Tensor:
    """(B, 2S, 2S) -> (B, S, S) float with the separable filter [1, 3, 3, 1] / 8, renormalised at the borders."""
    side = pixels.shape[-1]
    matrix = resample_matrix(pixels.new_zeros(1), pixels.new_full((1,), side), side, side // 2)[0]
    return matrix @ pixels @ matrix.T

"""Patches -> descriptors with a trained encoder, in chunks: memory stays bounded whatever their number."""

import numpy as np
import torch
from torch import Tensor

from sdgmnet.encoders import SDGMNet
from sdgmnet.errors import InputError
from sdgmnet.resampling import halve

CHUNK = 64  # activations of 64 patches stay in a CPU's cache: faster than larger batches
CUDA_CHUNK = 4096


def describe_patches(encoder: SDGMNet, patches: np.ndarray | Tensor, *, batch_size: int | None = None) -> np.ndarray:
    """Descriptors (N, D) float32, in order, of patches (N, S, S) or (N, 1, S, S).

    uint8 patches are read as 0..255, float ones as [0, 1]. S is the encoder's patch size, or twice that: then patches are
    halved with the filter used in training. The encoder is left in the mode it was found in, on the device it is on.
    """
    patches = patches if isinstance(patches, Tensor) else np.asarray(patches)
    patches = patches[:, 0] if patches.ndim == 4 and patches.shape[1] == 1 else patches
    if patches.ndim != 3 or patches.shape[1:] not in _accepted(encoder):
        sizes = " or ".join(f"{height} x {width}" for height, width in _accepted(encoder))
        raise InputError(f"patches must be (N, S, S) of {sizes} pixels, not {tuple(patches.shape)}.")
    if patches.dtype not in (torch.uint8, np.dtype(np.uint8)) and not _is_floating(patches):
        raise InputError(f"patches must be uint8 or floats in [0, 1], not {patches.dtype}.")
    device = next(encoder.parameters()).device
    batch_size = batch_size or (CUDA_CHUNK if device.type == "cuda" else CHUNK)
    out = np.empty((len(patches), encoder.descriptor_size), dtype=np.float32)
    modes = [(module, module.training) for module in encoder.modules()]
    encoder.eval()
    try:
        with torch.inference_mode():
            for start in range(0, len(patches), batch_size):
                chunk = patches[start : start + batch_size]
                # A copy of the chunk: torch takes no read-only or reversed views of arrays.
                chunk = chunk if isinstance(chunk, Tensor) else torch.from_numpy(np.array(chunk, order="C"))
                pixels = prepare(chunk.to(device), encoder.patch_size)
                out[start : start + batch_size] = encoder(pixels).float().cpu().numpy()
    finally:
        for module, training in modes:
            module.training = training
    return out


def prepare(patches: Tensor, patch_size: int) -> Tensor:
    """(B, S, S) uint8 or float -> what the encoder takes: (B, 1, patch_size, patch_size) float32 in [0, 1]."""
    pixels = patches.float() / 255 if patches.dtype == torch.uint8 else patches.float()
    return (pixels if pixels.shape[-1] == patch_size else halve(pixels))[:, None]


def _is_floating(patches: np.ndarray | Tensor) -> bool:
    return (
        patches.is_floating_point() if isinstance(patches, Tensor) else bool(np.issubdtype(patches.dtype, np.floating))
    )


def _accepted(encoder: SDGMNet) -> tuple[tuple[int, int], tuple[int, int]]:
    return (encoder.patch_size, encoder.patch_size), (2 * encoder.patch_size, 2 * encoder.patch_size)

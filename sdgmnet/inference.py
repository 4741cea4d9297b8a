"""Patches -> descriptors with a trained encoder, in chunks: memory stays bounded whatever their number."""

from collections.abc import Callable
from typing import Any, Literal
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from sdgmnet import openvino_graph
from sdgmnet.encoders import SDGMNet
from sdgmnet.errors import InputError
from sdgmnet.resampling import halve

CHUNK = 64  # activations of 64 patches stay in a CPU's cache: faster than larger batches
CUDA_CHUNK = 4096
ENGINES = ("eager", "openvino")

Engine = Literal["eager", "openvino"]


def describe_patches(
    encoder: SDGMNet, patches: np.ndarray | Tensor, *, batch_size: int | None = None, engine: Engine = "eager"
) -> np.ndarray:
    """Descriptors (N, D) float32, in order, of patches (N, S, S) or (N, 1, S, S).

    uint8 patches are read as 0..255, float ones as [0, 1]. S is the encoder's patch size, or twice that: then patches are
    halved with the filter used in training. The encoder is left in the mode it was found in, on the device it is on.

    engine: "eager" is torch as it is, in chunks of `batch_size`; "openvino" (extra `fast`, CPU only) is about twice as fast
    from some 1500 patches on, and equal to it within 1e-5. It has to be asked for: a test process that had used it was seen
    to crash now and then, for a reason not found yet (docs/results.md).
    """
    patches = patches if isinstance(patches, Tensor) else np.asarray(patches)
    patches = patches[:, 0] if patches.ndim == 4 and patches.shape[1] == 1 else patches
    check(encoder, patches)
    device = next(encoder.parameters()).device
    check_engine(engine, device)
    if engine == "openvino":
        return _openvino(encoder, patches.numpy() if isinstance(patches, Tensor) else patches)
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


def check_engine(engine: str, device: torch.device) -> None:
    if engine not in ENGINES:
        raise InputError(f"engine is one of {', '.join(ENGINES)}, not {engine!r}.")
    if engine == "openvino" and not (device.type == "cpu" and openvino_graph.is_available()):
        raise InputError("the engine openvino needs the encoder on the CPU and pip install 'sdgmnet[fast]'.")


# The last graph of each encoder, with the state of the weights it was built from: describing image after image builds it once.
_graphs: WeakKeyDictionary[SDGMNet, tuple[Any, Callable[[np.ndarray], np.ndarray]]] = WeakKeyDictionary()


def _openvino(encoder: SDGMNet, patches: np.ndarray) -> np.ndarray:
    dtype = np.uint8 if patches.dtype == np.uint8 else np.float32
    weights = tuple((tensor.data_ptr(), tensor._version) for tensor in encoder.state_dict().values())
    state = (patches.shape[1], dtype, torch.get_num_threads(), weights)
    known = _graphs.get(encoder)
    if known is None or known[0] != state:
        known = (state, openvino_graph.compile_encoder(encoder, patches.shape[1], dtype))
        _graphs[encoder] = known
    return known[1](patches)


def prepare(patches: Tensor, patch_size: int) -> Tensor:
    """(B, S, S) uint8 or float -> what the encoder takes: (B, 1, patch_size, patch_size) float32 in [0, 1]."""
    pixels = patches.float() / 255 if patches.dtype == torch.uint8 else patches.float()
    return (pixels if pixels.shape[-1] == patch_size else halve(pixels))[:, None]


def check(encoder: SDGMNet, patches: np.ndarray | Tensor) -> None:
    sides = (encoder.patch_size, 2 * encoder.patch_size)
    if patches.ndim != 3 or patches.shape[1] != patches.shape[2] or patches.shape[1] not in sides:
        sizes = " or ".join(f"{side} x {side}" for side in sides)
        raise InputError(f"patches must be (N, S, S) of {sizes} pixels, not {tuple(patches.shape)}.")
    floating = patches.is_floating_point() if isinstance(patches, Tensor) else patches.dtype.kind == "f"
    if not floating and patches.dtype not in (torch.uint8, np.dtype(np.uint8)):
        raise InputError(f"patches must be uint8 or floats in [0, 1], not {patches.dtype}.")

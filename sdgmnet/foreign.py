"""Descriptors of other libraries as functions of patches: ONNX files, and kornia's modules with their published weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sdgmnet.arrays import demand_bounded_zip, reason_of
from sdgmnet.errors import InputError
from sdgmnet.inference import prepare

KORNIA = ("HardNet", "HyNet", "SOSNet", "TFeat")
CHUNK = 512


def load_onnx(path: Path | str) -> Callable[[np.ndarray], np.ndarray]:
    """From a file whose one input is patches (batch, 1, S, S) float32 in [0, 1]; its first output is taken."""
    if not Path(path).is_file():
        raise InputError(f"{path} does not exist: write one with sdgmnet export onnx.")
    try:
        import onnxruntime
    except ImportError:
        raise InputError(
            "ONNX files are run by onnxruntime, which is not installed here: pip install 'sdgmnet[onnx]'."
        ) from None
    try:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has its own exceptions for each way a file can be broken
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path} cannot be loaded as ONNX ({reason}): write it again.") from error
    given = session.get_inputs()
    shape = given[0].shape if given else []
    fits = len(given) == 1 and len(shape) == 4 and shape[1] == 1 and shape[2] == shape[3] and isinstance(shape[2], int)
    if not fits or isinstance(shape[0], int) or given[0].type != "tensor(float)":
        taken = [(one.shape, one.type) for one in given]
        raise InputError(f"{path} does not take float patches (batch, 1, side, side) of any batch, but {taken}.")
    name, side = given[0].name, shape[2]
    return lambda patches: describe_in_chunks(
        lambda pixels: session.run(None, {name: pixels.numpy()})[0], patches, side
    )


def load_kornia(spec: str) -> Callable[[np.ndarray], np.ndarray]:
    """NAME or NAME:FILE. Without a file kornia fetches its own weights, or finds them where torch keeps what it fetched."""
    import kornia.feature

    name, _, path = spec.partition(":")
    if name not in KORNIA:
        raise InputError(f"kornia:{name} is not known: {', '.join(f'kornia:{one}' for one in KORNIA)} are.")
    if path and not Path(path).is_file():
        raise InputError(f"{path} does not exist: give the file of kornia's {name} weights, or none to fetch them.")
    try:
        module = getattr(kornia.feature, name)(pretrained=not path)
        if path:
            demand_bounded_zip(path)
            module.load_state_dict(state_dict(torch.load(path, map_location="cpu", weights_only=True)))
        if not all(torch.isfinite(tensor).all() for tensor in module.state_dict().values()):
            raise ValueError("some weights are NaN or infinite")
    except Exception as error:  # no network, a broken pickle, other weights: each fails in its own way
        place = f"{path}: " if path else ""
        raise InputError(
            f"{place}kornia's {name} cannot be loaded ({reason_of(error)}): give its weights as kornia:{name}:FILE."
        ) from error
    return module_on_patches(module.eval())


def state_dict(content: Any) -> Any:
    """Published files keep the weights by themselves, or beside other things."""
    return content.get("state_dict", content) if isinstance(content, dict) else content


def module_on_patches(module: nn.Module, side: int = 32) -> Callable[[np.ndarray], np.ndarray]:
    def describe(pixels: Tensor) -> np.ndarray:
        with torch.inference_mode():
            return module(pixels).numpy()

    return lambda patches: describe_in_chunks(describe, patches, side)


def describe_in_chunks(describe: Callable[[Tensor], np.ndarray], patches: np.ndarray, side: int) -> np.ndarray:
    """Descriptors (N, D) float32 of patches (N, S, S) uint8, S being the side, twice the side, or one more than that."""
    if patches.ndim != 3 or patches.shape[1:] not in {(s, s) for s in (side, 2 * side, 2 * side + 1)}:
        raise InputError(
            f"patches must be (N, S, S) of {side}, {2 * side} or {2 * side + 1} pixels, not {patches.shape}."
        )
    parts = [
        describe(prepare(torch.from_numpy(np.array(patches[start : start + CHUNK])), side))
        for start in range(0, len(patches), CHUNK)
    ]
    return np.concatenate(parts).astype(np.float32) if parts else np.zeros((0, 128), dtype=np.float32)

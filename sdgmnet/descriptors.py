"""What can be evaluated, by one grammar: `[label=]spec`.

A spec is `sift`, `rootsift`, weights that ship, a .safetensors or .onnx file, a folder (of a run, in Hugging Face's layout, or
of HPatches' descriptor files), `tfeat:FILE`, or `kornia:NAME[:FILE]`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sdgmnet.encoders import Encoder, load_encoder, load_tfeat
from sdgmnet.engine import describe_patches, prepare
from sdgmnet.errors import InputError
from sdgmnet.features.describe import SIZE, DescribeFn, Descriptor, Features, Image, describe_image, descriptor_of
from sdgmnet.features.keypoints import Keypoints
from sdgmnet.features.sift import rootsift, rootsift_of_image, sift, sift_of_image
from sdgmnet.pretrained import ALIAS, find_weights, shipped_names
from sdgmnet.storage import digest, reason_of, require_bounded_zip

# ---- descriptors


HANDCRAFTED = {"sift": (sift, sift_of_image), "rootsift": (rootsift, rootsift_of_image)}
TFEAT_PREFIX, KORNIA_PREFIX = "tfeat:", "kornia:"


def split_label(text: str) -> tuple[str, str]:
    """Label and spec. Either may hold a "=" itself: the cut is the first that leaves something there is."""
    cuts = [("", text)] + [(text[:i], text[i + 1 :]) for i, letter in enumerate(text) if letter == "="]
    names = {*HANDCRAFTED, ALIAS, *shipped_names()}
    there = (cut for cut in cuts if cut[1] in names or (cut[1] and file_of(cut[1]).exists()))
    return next(there, cuts[min(1, len(cuts) - 1)])


def file_of(spec: str) -> Path:
    """What of a spec is a path: all, or what follows tfeat: or kornia:NAME:."""
    if spec.startswith(KORNIA_PREFIX):
        return Path(spec.removeprefix(KORNIA_PREFIX).partition(":")[2] or spec)
    return Path(spec.removeprefix(TFEAT_PREFIX))


def identity(spec: str) -> str:
    """What tells a descriptor from all others, whatever comes to lie at the same path: its name, and a digest of its weights."""
    _, spec = split_label(spec)
    if spec in HANDCRAFTED:
        return spec
    path = file_of(spec) if spec.startswith((TFEAT_PREFIX, KORNIA_PREFIX)) else find_weights(spec)
    if not path.is_file():
        return spec  # loading will say so
    prefix = next((one for one in (TFEAT_PREFIX, KORNIA_PREFIX) if spec.startswith(one)), "")
    kind = spec.split(":")[1] if prefix == KORNIA_PREFIX else ""
    return f"{prefix}{kind}{Path(spec).name} {digest(path)}"


def parse_descriptor(text: str) -> Descriptor:
    label, spec = split_label(text)
    if spec in HANDCRAFTED:
        of_patches, of_image = HANDCRAFTED[spec]
        return Descriptor(label or spec, of_patches, (), of_image)
    if spec.startswith(TFEAT_PREFIX):
        tfeat = load_tfeat(spec.removeprefix(TFEAT_PREFIX))
        return Descriptor(label or "tfeat", lambda patches: describe_patches(tfeat, patches), ())
    if spec.startswith(KORNIA_PREFIX):
        name = spec.removeprefix(KORNIA_PREFIX)
        return Descriptor(label or f"kornia {name.partition(':')[0]}", load_kornia(name), ())
    path = Path(spec)
    if path.suffix == ".onnx":
        return Descriptor(label or path.stem, load_onnx(path), ())
    if is_descriptor_folder(path):
        return Descriptor(label or path.resolve().name, no_patches(path), (), descriptors=path)
    if path.suffix == ".safetensors" or path.is_dir() or spec in {ALIAS, *shipped_names()}:
        encoder, card = load_encoder(spec)
        name = label or (path.resolve().name if path.is_dir() else path.stem)
        trained_on, scenes = (tuple(card.get(key) or ()) for key in ("trained_on", "scenes"))
        return Descriptor(name, lambda patches: describe_patches(encoder, patches), trained_on, scenes=scenes)
    raise InputError(
        f"{text!r} is no descriptor: give sift, rootsift, {ALIAS} (the best weights that ship), tfeat:FILE, kornia:NAME, a "
        ".safetensors or .onnx file or the folder of a training run, with an optional label in front, as in mine=runs/one."
    )


def no_patches(folder: Path) -> DescribeFn:
    """What a folder of descriptors answers when asked to describe patches."""

    def refuse(patches: np.ndarray) -> np.ndarray:
        raise InputError(f"{folder} holds descriptors of HPatches' strips, for sdgmnet evaluate hpatches only.")

    return refuse


def is_descriptor_folder(path: Path) -> bool:
    """Whether it holds HPatches' descriptor files: a folder a sequence, with ref.csv."""
    return path.is_dir() and any((folder / "ref.csv").is_file() for folder in path.iterdir())


# ---- foreign


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
            require_bounded_zip(path)
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


DescriptorLike = str | Descriptor | Encoder


def describe(
    image: Image,
    keypoints: Keypoints | None = None,
    *,
    descriptor: DescriptorLike = ALIAS,
    limit: int | None = None,
    upright: bool = False,
    size: int | None = SIZE,
) -> Features:
    """Describe the DoG keypoints of an image, strongest first, or the keypoints that are given.

    Args:
        image: a file, an array (H, W) or (H, W, 3) in RGB, or a tensor (H, W), (C, H, W) or (1, C, H, W); whole numbers are
            read as 0..255 (uint8) or by as many bits as they use (uint16), floats as [0, 1].
        keypoints: describe these instead of detecting any; all of them are kept, in their order.
        descriptor: a descriptor, such as "sdgmnet", "rootsift" or the path of own weights; or an encoder.
        limit: at most so many keypoints, by response.
        upright: take the image as it stands: every angle is 0, and a place gives one keypoint.
        size: longest side; larger images are made smaller while they are worked on, None leaves them as they are. Keypoints
            are in the image's own pixels.
    """
    return describe_image(
        image, keypoints, descriptor=as_descriptor(descriptor), limit=limit, upright=upright, size=size
    )


def as_descriptor(descriptor: DescriptorLike) -> Descriptor:
    if isinstance(descriptor, str):
        return parse_descriptor(descriptor)
    if isinstance(descriptor, Descriptor):
        return descriptor
    return descriptor_of(descriptor)

"""Descriptors by name, in one grammar: `[label=]spec[@window]`. `DESCRIPTORS` lists every form of a spec and what loads it.

The window is the side of the patches in sigmas; without it, it is that of the weights.
"""

import os
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sdgmnet.errors import InputError
from sdgmnet.features.describe import (
    LONGEST_SIDE,
    DescribeFn,
    Descriptor,
    Features,
    describe_image,
    descriptor_from_encoder,
)
from sdgmnet.features.keypoints import Keypoints
from sdgmnet.features.opencv_contrib import MAKERS, describe_by_opencv
from sdgmnet.features.sift import rootsift, rootsift_at_keypoints, sift, sift_at_keypoints
from sdgmnet.pretrained import ALIAS, find_weights, require_weights, shipped_names
from sdgmnet.registry import WINDOW, is_window
from sdgmnet.storage import digest, parse_json, reason_of, require_bounded_zip, require_file

if TYPE_CHECKING:  # the forms of a descriptor stand in help texts, which need no torch
    from torch import Tensor, nn

    from sdgmnet.encoders import Encoder
    from sdgmnet.features.describe import Image

    DescriptorLike = str | Descriptor | Encoder

KORNIA = ("HardNet", "HyNet", "SOSNet", "TFeat", "MKD")
WEIGHT_SUFFIXES = (".safetensors", ".onnx", ".pt", ".pth", ".params", ".bin")  # what looks like a path
CHUNK = 512  # patches per call of an ONNX or kornia module


def load_weights(spec: str) -> Descriptor:
    """A shipped name, a .safetensors file, or a folder of a training run or in Hugging Face's layout."""
    from sdgmnet.encoders import load_encoder

    encoder, card = load_encoder(spec)
    path = Path(spec)
    trained_on, scenes = (tuple(card.get(key) or ()) for key in ("trained_on", "scenes"))
    label = path.resolve().name if path.is_dir() else path.stem
    return descriptor_from_encoder(encoder, label)._replace(trained_on=trained_on, scenes=scenes)


def load_folder(spec: str) -> Descriptor:
    """Descriptor files of HPatches, one sub-folder with ref.csv per sequence; or weights."""
    folder = Path(spec)
    if not has_descriptor_files(folder):
        return load_weights(spec)

    def refuse(patches: np.ndarray) -> np.ndarray:
        raise InputError(f"{folder} holds descriptors of HPatches patches only: use it with sdgmnet evaluate hpatches.")

    return Descriptor(folder.resolve().name, refuse, csv_folder=folder)


def has_descriptor_files(folder: Path) -> bool:
    return any((sequence / "ref.csv").is_file() for sequence in folder.iterdir())


def load_onnx(spec: str) -> Descriptor:
    """A model whose one input is patches (batch, 1, S, S) float32 in [0, 1]; its first output is taken."""
    path = Path(spec)
    require_file(path, "write one with sdgmnet export onnx")
    try:
        import onnxruntime
    except ImportError:
        raise InputError(f"{path} needs onnxruntime, which is not installed: pip install 'sdgmnet[onnx]'.") from None
    try:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has its own exceptions for each way a file can be broken
        raise InputError(f"{path} is not an ONNX model that onnxruntime can run: export it again.") from error
    inputs = session.get_inputs()
    shape = inputs[0].shape if len(inputs) == 1 else []
    has_patches = len(shape) == 4 and shape[1] == 1 and shape[2] == shape[3] and isinstance(shape[2], int)
    if not has_patches or isinstance(shape[0], int) or inputs[0].type != "tensor(float)":
        found = [(one.shape, one.type) for one in inputs]
        raise InputError(
            f"{path} must take float patches (batch, 1, side, side) with a free batch size, not {found}: "
            "write one with sdgmnet export onnx --input patches."
        )
    name = inputs[0].name
    describe = in_chunks(lambda pixels: session.run(None, {name: pixels.numpy()})[0], shape[2])
    return Descriptor(path.stem, describe, window=_window_in(session.get_modelmeta().custom_metadata_map, path))


def _window_in(metadata: dict[str, str], path: Path) -> float:
    """The window in the card of an ONNX model; models from elsewhere have none."""
    try:
        card = parse_json(metadata.get("card", "{}"))
    except ValueError:  # of another program
        card = {}
    window = card.get("window", WINDOW) if isinstance(card, dict) else WINDOW
    if not is_window(window):
        raise InputError(f"{path}: window in its card must be a number from 1 to 100, not {window!r}: export it again.")
    return float(window)


def load_kornia(spec: str) -> Descriptor:
    """NAME or NAME:FILE. Without a file kornia downloads its own weights, or finds them in torch's cache."""
    import kornia.feature
    import torch

    name, _, path = spec.partition(":")
    if name == "MKD":  # kernels alone: its whitening is learned, and would be downloaded
        kernels = kornia.feature.MKDDescriptor(32, whitening=None)  # type: ignore[arg-type]  # annotated too narrowly
        return Descriptor("kornia MKD", in_chunks(_inference(kernels), 32))
    if path:
        require_file(path, f"give a file of kornia's {name} weights, or none to download them")
    try:
        module = getattr(kornia.feature, name)(pretrained=not path).eval()
        if path:
            require_bounded_zip(path)
            content = torch.load(path, map_location="cpu", weights_only=True)  # the weights, or they under "state_dict"
            module.load_state_dict(content.get("state_dict", content) if isinstance(content, dict) else content)
        if not all(torch.isfinite(tensor).all() for tensor in module.state_dict().values()):
            raise ValueError("some weights are NaN or infinite")
    except Exception as error:  # no network, a broken pickle, other weights: each fails in its own way
        reason = f"{path}: {reason_of(error)}" if path else reason_of(error)
        raise InputError(f"kornia:{name} cannot be loaded ({reason}): give weights, kornia:{name}:FILE.") from error

    return Descriptor(f"kornia {name}", in_chunks(_inference(module), 32))


def _inference(module: "nn.Module") -> Callable[["Tensor"], np.ndarray]:
    import torch

    def describe(pixels: "Tensor") -> np.ndarray:
        with torch.inference_mode():
            return module(pixels).numpy()

    return describe


def load_opencv(name: str) -> Descriptor:
    """A descriptor of OpenCV's contrib modules, computed at keypoints."""

    def refuse(patches: np.ndarray) -> np.ndarray:
        raise InputError(f"opencv:{name} is computed at keypoints of an image, not from patches.")

    return Descriptor(f"OpenCV {name}", refuse, describe_at_keypoints=describe_by_opencv(name))


def in_chunks(describe: Callable[["Tensor"], np.ndarray], side: int) -> DescribeFn:
    """Turn a function of pixels (B, 1, side, side) in [0, 1] into one of patches (N, S, S) uint8 of the usual sides."""
    import torch

    from sdgmnet.engine import prepare

    def describe_patches(patches: np.ndarray) -> np.ndarray:
        if patches.ndim != 3 or patches.shape[1:] not in {(s, s) for s in (side, 2 * side, 2 * side + 1)}:
            sides = f"{side}, {2 * side} or {2 * side + 1}"
            raise InputError(f"patches must be (N, S, S) with S {sides}, not {patches.shape}.")
        chunks = (np.array(patches[start : start + CHUNK]) for start in range(0, len(patches), CHUNK))
        parts = [describe(prepare(torch.from_numpy(chunk), side)) for chunk in chunks]
        return np.concatenate(parts).astype(np.float32) if parts else np.zeros((0, 128), dtype=np.float32)

    return describe_patches


def load_tfeat(path: str) -> Descriptor:
    """The published weights of TFeat."""
    from sdgmnet.encoders import load_tfeat as load

    return descriptor_from_encoder(load(path), "tfeat")


# Form of a spec -> its loader. Lower case is literal, capitals are the user's: `name`, `prefix:...` (the loader gets what
# follows the colon), `FILE.suffix` or `FOLDER`. A new descriptor is one more line.
DESCRIPTORS: dict[str, Callable[[str], Descriptor]] = {
    ALIAS: load_weights,
    "sift": lambda _: Descriptor("sift", sift, describe_at_keypoints=sift_at_keypoints),
    "rootsift": lambda _: Descriptor("rootsift", rootsift, describe_at_keypoints=rootsift_at_keypoints),
    "FILE.safetensors": load_weights,
    "FILE.onnx": load_onnx,
    "FOLDER": load_folder,
    "tfeat:FILE": load_tfeat,
    "kornia:NAME[:FILE]": load_kornia,
    "opencv:NAME": load_opencv,
}


def accepted_forms() -> str:
    """The forms of a spec, for help texts and errors."""
    explained = {name: f"{name} (shipped weights)" for name in shipped_names()}
    explained |= {
        ALIAS: f"{ALIAS} (the best shipped weights)",
        "FOLDER": "FOLDER (of a training run, or with config.json and model.safetensors)",
        "kornia:NAME[:FILE]": f"kornia:NAME[:FILE] ({', '.join(KORNIA)})",
        "opencv:NAME": f"opencv:NAME ({', '.join(MAKERS)}; with opencv-contrib-python-headless)",
    }
    names = (*DESCRIPTORS, *(name for name in shipped_names() if name not in DESCRIPTORS))
    *first, last = (explained.get(name, name) for name in names)
    return f"{', '.join(first)} or {last}"


COMPARED = (  # a help text
    f"Descriptors to compare: {accepted_forms()}. Each may have a label, as in mine=runs/one, and patches of another window "
    "than its weights', in sigmas, as in sdgmnet@20."
)


def load_descriptor(descriptor: "DescriptorLike") -> Descriptor:
    """Of `[label=]spec`, or of an encoder; a Descriptor is returned as it is."""
    if isinstance(descriptor, Descriptor):
        return descriptor
    if not isinstance(descriptor, str):
        return descriptor_from_encoder(descriptor)
    label, spec = split_label(descriptor)
    spec, window = split_window(spec)
    form = require_form(descriptor)
    load = DESCRIPTORS.get(form, load_weights)
    loaded = load(spec.partition(":")[2] if ":" in form else spec)
    if window is not None:
        if loaded.describe_at_keypoints is not None:
            raise InputError(
                f"{descriptor!r}: {spec} is not computed from patches and has no window; leave out @{window:g}."
            )
        loaded = loaded._replace(label=f"{loaded.label}@{window:g}", window=window)
    return loaded._replace(label=label or loaded.label, fingerprint=descriptor_fingerprint(descriptor))


def load_descriptors(texts: Sequence[str], *, unique_labels: bool = True) -> list[Descriptor]:
    """At least one descriptor. By default each needs its own label, which identifies its rows in tables."""
    require_descriptors(texts)
    descriptors = [load_descriptor(text) for text in texts]
    labels = [one.label for one in descriptors]
    repeated = sorted({label for label in labels if labels.count(label) > 1})
    if unique_labels and repeated:
        raise InputError(f"two descriptors have the label {repeated[0]!r}: give labels, as in one=... two=...")
    return descriptors


def require_descriptors(texts: Sequence[str], *, of_patches: bool = False) -> None:
    """InputError unless there is at least one descriptor and each exists, and describes patches if it must; loads nothing."""
    if not texts:
        raise InputError(f"give at least one descriptor: {accepted_forms()}.")
    for text in texts:
        if require_form(text) == "opencv:NAME" and of_patches:
            raise InputError(f"{text} is computed at keypoints of an image, not from patches: leave it out.")


def require_form(text: str) -> str:
    """The form of `[label=]spec`, whose files exist, or InputError; loads nothing."""
    spec = split_window(split_label(text)[1])[0]
    form = form_of(spec)
    if form is None:
        is_path = "/" in spec or os.sep in spec or Path(spec).suffix.lower() in WEIGHT_SUFFIXES
        if is_path and not Path(spec).exists():
            raise InputError(f"{spec} does not exist: a descriptor is {accepted_forms()}.")
        names = [name for name in (*DESCRIPTORS, *shipped_names()) if name.islower() and ":" not in name]
        near = get_close_matches(spec.lower(), names, 1, 0.5)
        hint = f"; did you mean {near[0]}? Give" if near else ": give"
        raise InputError(f"{text!r} is not a descriptor{hint} {accepted_forms()}; with a label, mine=runs/one.")
    require_parts(form, spec)
    return form


def require_parts(form: str, spec: str) -> None:
    """InputError for a name that kornia or OpenCV does not have, and for weights that do not exist; loads nothing."""
    name, _, path = spec.partition(":")[2].partition(":")
    prefix = form.partition(":")[0]
    known = {"kornia": KORNIA, "opencv": tuple(MAKERS)}.get(prefix)
    if known is not None and name not in known:
        by_lower_case = {one.lower(): one for one in known}
        near = get_close_matches(name.lower(), by_lower_case, 1)
        hint = f"; did you mean {prefix}:{by_lower_case[near[0]]}?" if near else "."
        raise InputError(f"{prefix}:{name} is not known: choose from {', '.join(known)}{hint}")
    if spec.startswith("kornia:MKD:"):
        raise InputError("kornia:MKD has no weights: leave out the file.")
    if form.startswith("kornia:") and path and not Path(path).is_file():
        raise InputError(f"{path} does not exist: give a file of kornia's {name} weights, or none to download them.")
    if form.startswith("tfeat:") and not _path_in(spec).is_file():
        raise InputError(f"{_path_in(spec)} does not exist: give the file of TFeat's published weights.")
    if form == "FILE.onnx" and not Path(spec).is_file():
        raise InputError(f"{spec} does not exist: write one with sdgmnet export onnx.")
    if form == "FILE.safetensors" or (form == "FOLDER" and not has_descriptor_files(Path(spec))):
        require_weights(find_weights(spec))


def form_of(spec: str) -> str | None:
    """The form that a spec has, or None."""
    if spec in DESCRIPTORS or spec in shipped_names():
        return spec
    path = Path(spec)
    for form in DESCRIPTORS:
        prefix, colon, _ = form.partition(":")
        is_file = form.startswith("FILE.") and path.suffix == Path(form).suffix
        if (colon and spec.startswith(f"{prefix}:")) or is_file or (form == "FOLDER" and path.is_dir()):
            return form
    return None


def split_label(text: str) -> tuple[str, str]:
    """Label and spec. Either may contain "=": the label ends at the first one that leaves a known name or an existing path."""
    cuts = [("", text)] + [(text[:i], text[i + 1 :]) for i, letter in enumerate(text) if letter == "="]
    names = {*DESCRIPTORS, *shipped_names()}
    known = (cut for cut in cuts if (spec := split_window(cut[1])[0]) in names or (spec and _path_in(spec).exists()))
    return next(known, cuts[min(1, len(cuts) - 1)])


def split_window(spec: str) -> tuple[str, float | None]:
    """Spec and window of `spec@window`; None without one. A path that exists is a spec as it is."""
    before, at, after = spec.rpartition("@")
    if not at or not after.replace(".", "", 1).isdecimal() or _path_in(spec).exists():
        return spec, None
    if not is_window(float(after)):
        raise InputError(f"{spec!r}: a window must be from 1 to 100 sigmas, not {after}.")
    return before, float(after)


def with_window(descriptor: str, window: float | None) -> str:
    """The descriptor with another window, as in sdgmnet@20; None leaves it."""
    if window is None:
        return descriptor
    spec = split_label(descriptor)[1]
    if split_window(spec)[1] is not None:
        raise InputError(f"{descriptor} has a window already: leave out --window.")
    if _path_in(f"{spec}@{window:g}").exists():
        raise InputError(f"{spec}@{window:g} exists, and would be taken instead of {spec} with --window: rename it.")
    return f"{descriptor}@{window:g}"


def _path_in(spec: str) -> Path:
    """The path in a spec: all of it, or the FILE of prefix:FILE or prefix:NAME:FILE."""
    form = form_of(spec) or ""
    if ":" not in form:
        return Path(spec)
    rest = spec.partition(":")[2]
    return Path(rest.partition(":")[2] or spec) if "NAME" in form else Path(rest)


def descriptor_fingerprint(text: str) -> str:
    """Name and digest of the weights, the same wherever they lie: what tells whether descriptors can be compared."""
    spec, window = split_window(split_label(text)[1])
    at = "" if window is None else f"@{window:g}"
    form = form_of(spec) or ""
    prefix, colon, _ = form.partition(":")
    path = _path_in(spec) if colon else find_weights(spec)
    if (form == spec and DESCRIPTORS.get(form, load_weights) is not load_weights) or not path.is_file():
        return spec + at
    kind = spec.split(":")[1] if "NAME" in form else ""
    return f"{prefix if colon else ''}{colon}{kind}{Path(spec).name}{at} {digest(path)}"


def describe(
    image: "Image",
    keypoints: Keypoints | None = None,
    *,
    descriptor: "DescriptorLike" = ALIAS,
    limit: int | None = None,
    upright: bool = False,
    size: int | None = LONGEST_SIDE,
) -> Features:
    """Detect DoG keypoints in an image and describe them, strongest first; or describe the given keypoints.

    Args:
        image: a file, an array (H, W) or (H, W, 3) in RGB, or a tensor (H, W), (C, H, W) or (1, C, H, W); uint8, uint16 (the
            upper eight of the bits in use are taken) or float in [0, 1].
        keypoints: describe these instead of detecting any; all of them, in their order.
        descriptor: a name or path, such as "sdgmnet", "rootsift" or "runs/mine"; or an encoder.
        limit: the maximum number of keypoints, strongest first.
        upright: set every angle to 0, with one keypoint per location.
        size: the longest side; larger images are resized for detection and description. None keeps the size. Keypoints are
            always in pixels of the original image.
    """
    loaded = load_descriptor(descriptor)
    return describe_image(image, keypoints, descriptor=loaded, limit=limit, upright=upright, size=size)

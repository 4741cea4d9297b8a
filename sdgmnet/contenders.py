"""What can be evaluated, by one grammar: `[label=]spec`.

A spec is `sift`, `rootsift`, weights that ship, a .safetensors or .onnx file, a folder (of a run, in Hugging Face's layout, or
of HPatches' descriptor files), `tfeat:FILE`, or `kornia:NAME[:FILE]`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sdgmnet.errors import InputError
from sdgmnet.features.keypoints import Keypoints
from sdgmnet.files import digest
from sdgmnet.foreign import load_kornia, load_onnx
from sdgmnet.handcrafted import rootsift, rootsift_of_image, sift, sift_of_image
from sdgmnet.inference import describe_patches
from sdgmnet.pretrained import ALIAS, find_weights, load_encoder, load_tfeat, shipped_names

DescribeFn = Callable[[np.ndarray], np.ndarray]
HANDCRAFTED = {"sift": (sift, sift_of_image), "rootsift": (rootsift, rootsift_of_image)}
TFEAT, KORNIA = "tfeat:", "kornia:"


class Contender(NamedTuple):
    label: str
    describe: DescribeFn  # patches (N, 64, 64) uint8 -> descriptors (N, D)
    trained_on: tuple[str, ...]  # names of the sets it was trained on; empty for hand-made ones
    describe_image: Callable[[np.ndarray, Keypoints], np.ndarray] | None = (
        None  # where whole pictures have a way of their own
    )
    scenes: tuple[str, ...] = ()  # that the sets it was trained on show, and other sets may show as well
    descriptors: Path | None = None  # where descriptors of HPatches' strips are all there is


def split_label(text: str) -> tuple[str, str]:
    """Label and spec. Either may hold a "=" itself: the cut is the first that leaves something there is."""
    cuts = [("", text)] + [(text[:i], text[i + 1 :]) for i, letter in enumerate(text) if letter == "="]
    names = {*HANDCRAFTED, ALIAS, *shipped_names()}
    there = (cut for cut in cuts if cut[1] in names or (cut[1] and file_of(cut[1]).exists()))
    return next(there, cuts[min(1, len(cuts) - 1)])


def file_of(spec: str) -> Path:
    """What of a spec is a path: all, or what follows tfeat: or kornia:NAME:."""
    if spec.startswith(KORNIA):
        return Path(spec.removeprefix(KORNIA).partition(":")[2] or spec)
    return Path(spec.removeprefix(TFEAT))


def identity(spec: str) -> str:
    """What tells a contender from all others, whatever comes to lie at the same path: its name, and a digest of its weights."""
    _, spec = split_label(spec)
    if spec in HANDCRAFTED:
        return spec
    path = file_of(spec) if spec.startswith((TFEAT, KORNIA)) else find_weights(spec)
    if not path.is_file():
        return spec  # loading will say so
    prefix = next((one for one in (TFEAT, KORNIA) if spec.startswith(one)), "")
    kind = spec.split(":")[1] if prefix == KORNIA else ""
    return f"{prefix}{kind}{Path(spec).name} {digest(path)}"


def parse_contender(text: str) -> Contender:
    label, spec = split_label(text)
    if spec in HANDCRAFTED:
        of_patches, of_image = HANDCRAFTED[spec]
        return Contender(label or spec, of_patches, (), of_image)
    if spec.startswith(TFEAT):
        tfeat = load_tfeat(spec.removeprefix(TFEAT))
        return Contender(label or "tfeat", lambda patches: describe_patches(tfeat, patches), ())
    if spec.startswith(KORNIA):
        name = spec.removeprefix(KORNIA)
        return Contender(label or f"kornia {name.partition(':')[0]}", load_kornia(name), ())
    path = Path(spec)
    if path.suffix == ".onnx":
        return Contender(label or path.stem, load_onnx(path), ())
    if is_descriptor_folder(path):
        return Contender(label or path.resolve().name, no_patches(path), (), descriptors=path)
    if path.suffix == ".safetensors" or path.is_dir() or spec in {ALIAS, *shipped_names()}:
        encoder, card = load_encoder(spec)
        name = label or (path.resolve().name if path.is_dir() else path.stem)
        trained_on, scenes = (tuple(card.get(key) or ()) for key in ("trained_on", "scenes"))
        return Contender(name, lambda patches: describe_patches(encoder, patches), trained_on, scenes=scenes)
    raise InputError(
        f"{text!r} is no contender: give sift, rootsift, {ALIAS} (the best weights that ship), tfeat:FILE, kornia:NAME, a "
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

"""`sdgmnet export ...`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sdgmnet.errors import InputError
from sdgmnet.options import Out, Positional
from sdgmnet.pretrained import find_weights, require_weights
from sdgmnet.report import progress_bars

WITHOUT_WEIGHTS = {"sift": "SIFT", "rootsift": "RootSIFT"}


def require_exportable(source: str) -> None:
    """InputError if a source has no weights, or does not exist."""
    if source in WITHOUT_WEIGHTS and not Path(source).is_dir():
        raise InputError(f"{WITHOUT_WEIGHTS[source]} has no weights to export: name shipped weights, a file or a run.")
    require_weights(find_weights(source))


@dataclass(frozen=True)
class OnnxArguments:
    """Export weights as an ONNX model: patches (batch, 1, 32, 32) in [0, 1] -> descriptors (batch, 128) of unit length.

    For example:

        sdgmnet export onnx sdgmnet -o model.onnx
        sdgmnet export onnx runs/mine -o mine.onnx --input image

    Any batch size works. Resize patches of 64 x 64 pixels to 32 x 32 first. Needs onnx: pip install 'sdgmnet[onnx]'.

    With --input image the model cuts the patches itself: image (1, 1, H, W) in [0, 1] and keypoints (N, 4) -> descriptors
    (N, 128). A keypoint is x, y, sigma, angle: pixel centres at integers, angles in radians, clockwise.
    """

    weights: Positional[str]
    """A .safetensors file, the folder of a training run, or the name of shipped weights."""
    out: Out
    """Output file (.onnx)."""
    input: Literal["patches", "image"] = "patches"
    """What the model takes: patches, or an image and keypoints."""


def onnx(arguments: OnnxArguments) -> None:
    if arguments.out.is_dir():
        raise InputError(f"{arguments.out} is a folder: give a file name, as in -o model.onnx.")
    if arguments.out.suffix.lower() != ".onnx":
        raise InputError(f"{arguments.out}: the model is written to an ONNX file: -o {arguments.out.stem}.onnx.")
    require_exportable(arguments.weights)
    from sdgmnet.encoders import load_encoder
    from sdgmnet.export import export_onnx

    encoder, card = load_encoder(arguments.weights)
    with progress_bars() as on_progress:
        on_progress("exporting ONNX", 0, 0)
        export_onnx(encoder, arguments.out, card, takes=arguments.input)
    print(f"Written to {arguments.out}.")


@dataclass(frozen=True)
class WeightsArguments:
    """Export weights in half precision: a .safetensors file and a JSON model card, or a folder in Hugging Face's layout.

    For example:

        sdgmnet export weights runs/mine -o mine.safetensors
        sdgmnet export weights runs/mine -o mine --full

    The command compares descriptors of a test image (pip install 'sdgmnet[demo]') in half and single precision, and stops with
    an error if any component differs by more than 0.001.
    """

    weights: Positional[str]
    """A .safetensors file, the folder of a training run, or the name of shipped weights."""
    out: Out
    """Output file (.safetensors), or folder for config.json and model.safetensors."""
    full: bool = False
    """Export in single precision (float32)."""
    note: str | None = None
    """Text for the model card, such as the training data or the licence."""


def weights(arguments: WeightsArguments) -> None:
    require_exportable(arguments.weights)
    out = arguments.out
    if out.exists() and out.resolve() == find_weights(arguments.weights).resolve():
        raise InputError(f"{out} is the file to export: choose another -o.")
    if out.is_dir() and (out / "log.jsonl").exists():
        raise InputError(f"{out} is the folder of a training run: choose another -o.")
    from sdgmnet.encoders import load_encoder, save_encoder
    from sdgmnet.export import halved

    encoder, card = load_encoder(arguments.weights)
    if not arguments.full:
        with progress_bars() as on_progress:
            on_progress("comparing half and single precision", 0, 0)
            encoder = halved(encoder)
    if arguments.note is not None:
        card = {**card, "note": arguments.note}
    if out.suffix == ".safetensors":
        save_encoder(encoder, out, card)
    else:
        encoder.save_pretrained(out, card)
    print(f"Written to {out}.")

"""`sdgmnet export ...`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sdgmnet.errors import InputError
from sdgmnet.options import Out, Positional
from sdgmnet.pretrained import find_weights, require_weights
from sdgmnet.registry import is_window
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
        sdgmnet export weights runs/first --average runs/trained_on --share 0.7 -o mine.safetensors

    The command compares descriptors of a test image (pip install 'sdgmnet[demo]') in half and single precision, and stops with
    an error if any component differs by more than 0.001.
    """

    weights: Positional[str]
    """A .safetensors file, the folder of a training run, or the name of shipped weights."""
    out: Out
    """Output file (.safetensors), or folder for config.json and model.safetensors."""
    full: bool = False
    """Export in single precision (float32)."""
    window: float | None = None
    """Side of the patches that the exported weights describe, in sigmas of the keypoints; default: that of training."""
    average: str | None = None
    """Weights whose training started from these (--init), or from the same weights: the mean of both is exported."""
    share: float | None = None
    """Share of --average in the mean; default: 0.5."""
    note: str | None = None
    """Text for the model card, such as the training data or the licence."""


def weights(arguments: WeightsArguments) -> None:
    sources = [arguments.weights, *([] if arguments.average is None else [arguments.average])]
    for one in sources:
        require_exportable(one)
    out, share = arguments.out, 0.5 if arguments.share is None else arguments.share
    if arguments.share is not None and arguments.average is None:
        raise InputError("--share is that of --average in the mean: give --average too.")
    if not 0 <= share <= 1:
        raise InputError(f"--share must be from 0 to 1, not {share:g}.")
    if arguments.window is not None and not is_window(arguments.window):
        raise InputError(f"--window must be from 1 to 100 sigmas, not {arguments.window:g}.")
    if out.exists() and out.resolve() in [find_weights(one).resolve() for one in sources]:
        raise InputError(f"{out} is the file to export: choose another -o.")
    if out.is_dir() and (out / "log.jsonl").exists():
        raise InputError(f"{out} is the folder of a training run: choose another -o.")
    from sdgmnet.encoders import load_encoder, save_encoder
    from sdgmnet.export import average, halved

    encoder, card = load_encoder(arguments.weights)
    if arguments.average is not None:
        other, other_card = load_encoder(arguments.average)
        if arguments.window is None and encoder.window != other.window:
            raise InputError(
                f"{arguments.weights} describes patches of {encoder.window:g} sigmas, {arguments.average} of "
                f"{other.window:g}: give --window for the mean."
            )
        encoder, card = average(encoder, card, other, other_card, share)
    if not arguments.full:
        with progress_bars() as on_progress:
            on_progress("comparing half and single precision", 0, 0)
            encoder = halved(encoder)
    if arguments.window is not None:
        encoder.window = arguments.window
    if arguments.note is not None:
        card = {**card, "note": arguments.note}
    if out.suffix == ".safetensors":
        save_encoder(encoder, out, card)
    else:
        encoder.save_pretrained(out, card)
    print(f"Written to {out}.")


@dataclass(frozen=True)
class BundlerArguments:
    """Export a sparse model to Bundler's format: cameras and points, and the list of images.

    For example:

        sdgmnet export bundler model/sparse/0 -o bundle.out

    The list is written as bundle.list.txt. Image names are relative to model/images.
    """

    model: Positional[Path]
    """Folder with a text model of COLMAP, such as sparse/0 of sdgmnet reconstruct."""
    out: Out
    """Output file (.out)."""


def bundler(arguments: BundlerArguments) -> None:
    if arguments.out.suffix.lower() != ".out":
        raise InputError(f"{arguments.out}: the model is written to a file of Bundler: -o {arguments.out.stem}.out.")
    from sdgmnet.sfm.bundler import write_bundler

    write_bundler(arguments.model, arguments.out)
    print(f"Written to {arguments.out} and {arguments.out.with_suffix('.list.txt')}.")


@dataclass(frozen=True)
class OpenMVGArguments:
    """Export keypoints, descriptors and verified matches to OpenMVG's format.

    For example:

        sdgmnet export openmvg model -o matches

    OpenMVG numbers images by their names: let it list model/images. Descriptors are written as uint8, as those of its SIFT.
    """

    workspace: Positional[Path]
    """Folder of sdgmnet reconstruct."""
    out: Out
    """New folder for NAME.feat, NAME.desc, matches.f.txt and image_describer.json."""


def openmvg(arguments: OpenMVGArguments) -> None:
    from sdgmnet.sfm.openmvg import write_openmvg
    from sdgmnet.sfm.workspace import Workspace

    images, pairs = write_openmvg(Workspace(arguments.workspace), arguments.out)
    print(f"Written to {arguments.out}: {images} images, {pairs} verified pairs.")


@dataclass(frozen=True)
class ImcArguments:
    """Export features, and matches, to the h5 files of the Image Matching Challenge (image-matching-benchmark).

    For example:

        sdgmnet describe photos -o features.h5 --keypoints 2048 --as-stored
        sdgmnet match photos -o matches.h5 --features features.h5 --pairs exhaustive
        sdgmnet export imc features.h5 --matches matches.h5 -o submission/phototourism/scene

    Keys are the names of images without extension. Matches have a key per pair, the later name first.
    """

    features: Positional[Path]
    """h5 file from sdgmnet describe."""
    out: Out
    """New folder for keypoints.h5, descriptors.h5, scores.h5, scales.h5, angles.h5 and matches.h5."""
    matches: Path | None = None
    """h5 file from sdgmnet match; default: no matches.h5."""


def imc(arguments: ImcArguments) -> None:
    from sdgmnet.features.imc import write_imc

    with progress_bars() as on_progress:
        images, pairs, matched = write_imc(
            arguments.features, arguments.out, arguments.matches, on_progress=on_progress
        )
    counted = f", {pairs} pairs, {matched} with matches" if arguments.matches is not None else ""
    print(f"Written to {arguments.out}: {images} images{counted}.")

"""`sdgmnet export ...`."""

from dataclasses import dataclass

import tyro

from sdgmnet.commands.data import Out
from sdgmnet.errors import InputError


@dataclass(frozen=True)
class OnnxArguments:
    """Write weights as ONNX: patches (batch, 1, 32, 32) in [0, 1] -> descriptors (batch, 128) of unit length.

        sdgmnet export onnx sdgmnet -o model.onnx
        sdgmnet export onnx runs/mine -o mine.onnx

    The batch is free. Patches of 64 pixels are halved first, as describe_patches does. Needs pip install 'sdgmnet[onnx]'.
    """

    weights: tyro.conf.Positional[str]
    """A .safetensors file, the folder of a training run, or a name of weights that ship with the package."""
    out: Out
    """The file to write."""


def onnx(words: list[str]) -> None:
    arguments = tyro.cli(OnnxArguments, prog="sdgmnet export onnx", args=words)
    if arguments.out.is_dir():
        raise InputError(f"{arguments.out} is a folder: give the file to write, as in -o model.onnx.")
    from sdgmnet.export import export_onnx
    from sdgmnet.pretrained import load_encoder

    encoder, card = load_encoder(arguments.weights)
    export_onnx(encoder, arguments.out, card)
    print(f"Written to {arguments.out}.")

"""Encoder -> files for others: ONNX for programs without torch, and weights in half precision."""

import copy
import json
import logging
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sdgmnet.data.synthetic.demo import read_image
from sdgmnet.encoders import Encoder, L2Net, SDGMNet
from sdgmnet.engine import describe_patches
from sdgmnet.errors import InputError
from sdgmnet.features.keypoints import detect
from sdgmnet.features.patches import cut_patches
from sdgmnet.storage import new_file

INPUT, OUTPUT = "patches", "descriptors"
HALF_TOLERANCE = 1e-3  # largest change of a descriptor's component when weights are stored in half precision


class Inference(nn.Module):
    """An encoder's forward pass in eval mode without looking at the batch size, which export would make a constant."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, patches: Tensor) -> Tensor:
        features, _ = self.encoder.trunk(patches)
        if isinstance(self.encoder, SDGMNet | L2Net):
            features = self.encoder.norm(features)
        return self.encoder.normalise(features)


def export_onnx(encoder: Encoder, path: Path | str, card: dict[str, Any] | None = None) -> None:
    """Write an ONNX model: patches (batch, 1, 32, 32) float32 in [0, 1] -> descriptors (batch, 128), any batch size.

    The card is stored as JSON in the file's metadata. The encoder stays in its mode.
    """
    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if missing:
        raise InputError(f"{' and '.join(missing)} must be installed to write ONNX: pip install 'sdgmnet[onnx]'.")
    example = torch.rand(2, 1, encoder.patch_size, encoder.patch_size, device=next(encoder.parameters()).device)
    modes = [(module, module.training) for module in encoder.modules()]
    log = logging.getLogger("torch.onnx")
    level = log.level
    try:
        log.setLevel(logging.ERROR)  # it warns about missing torchvision, which is not needed
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                Inference(encoder).eval(),
                (example,),
                dynamo=True,
                input_names=[INPUT],
                output_names=[OUTPUT],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                verbose=False,
            )
    finally:
        log.setLevel(level)
        for module, training in modes:
            module.training = training
    assert program is not None
    program.model.metadata_props["card"] = json.dumps({**(card or {}), "window": encoder.window})
    with new_file(path) as part:
        program.save(str(part), external_data=False)


def halved(encoder: Encoder) -> Encoder:
    """The encoder with its weights in half precision, for storage; refused if descriptors of a real image change."""
    half = copy.deepcopy(encoder).half()
    image = read_image("camera.png")
    patches = cut_patches(image, detect(image, 1000), window=encoder.window)
    change = np.abs(describe_patches(encoder, patches) - describe_patches(copy.deepcopy(half).float(), patches)).max()
    if not change <= HALF_TOLERANCE:
        raise InputError(
            f"half precision changes descriptors by {change:.2g}, more than {HALF_TOLERANCE:g}: keep single precision (--full)."
        )
    return half

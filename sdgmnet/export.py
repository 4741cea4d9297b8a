"""Encoder -> files for others: ONNX for programs without torch, and weights in half precision."""

import copy
import json
import logging
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from sdgmnet.data.synthetic.demo import read_image
from sdgmnet.encoders import Encoder, L2Net, SDGMNet
from sdgmnet.engine import describe_patches, resample_matrix
from sdgmnet.errors import InputError
from sdgmnet.features.keypoints import detect
from sdgmnet.features.patches import cut_patches
from sdgmnet.features.patches_torch import cut_patches as cut_in_graph
from sdgmnet.storage import new_file

OUTPUT = "descriptors"
OnnxInput = Literal["patches", "image"]
SETTINGS = ("iterations", "step", "batch_size", "seed")  # of a card, that tell a run from others
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


class ImageInference(nn.Module):
    """Image (1, 1, H, W) in [0, 1] and keypoints (N, 4) -> descriptors (N, 128): the patches are cut in the graph."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.inference, self.window, self.side = Inference(encoder), encoder.window, 2 * encoder.patch_size

    def forward(self, image: Tensor, keypoints: Tensor) -> Tensor:
        patches = cut_in_graph(image, keypoints, self.window, self.side)
        start, length = image.new_zeros(1), image.new_full((1,), self.side)
        halve = resample_matrix(start, length, self.side, self.side // 2)[0].T
        # Products of two matrices: onnxruntime refuses an empty stack of matrices, which no keypoints would give.
        rows = (patches.reshape(-1, self.side) @ halve).reshape(-1, self.side, self.side // 2).transpose(1, 2)
        columns = (rows.reshape(-1, self.side) @ halve).reshape(-1, self.side // 2, self.side // 2).transpose(1, 2)
        return self.inference(columns[:, None])


def export_onnx(
    encoder: Encoder, path: Path | str, card: dict[str, Any] | None = None, *, takes: OnnxInput = "patches"
) -> None:
    """Write an ONNX model of float32 tensors, whose output is descriptors (N, 128), for any N.

    takes: "patches", (N, 1, 32, 32) in [0, 1]; or "image", (1, 1, H, W) in [0, 1] of any size, with keypoints (N, 4): x, y,
    sigma, angle in the convention of `sdgmnet.features.keypoints`. The card is stored as JSON in the file's metadata. The
    encoder stays in its mode.
    """
    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if missing:
        raise InputError(f"{' and '.join(missing)} must be installed to write ONNX: pip install 'sdgmnet[onnx]'.")
    module, example, names, sizes = what_to_export(encoder, takes)
    modes = [(part, part.training) for part in encoder.modules()]
    log = logging.getLogger("torch.onnx")
    level = log.level
    try:
        log.setLevel(logging.ERROR)  # it warns about missing torchvision, which is not needed
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                module.eval(),
                example,
                dynamo=True,
                input_names=names,
                output_names=[OUTPUT],
                dynamic_shapes=sizes,
                verbose=False,
            )
    finally:
        log.setLevel(level)
        for part, training in modes:
            part.training = training
    assert program is not None
    program.model.metadata_props["card"] = json.dumps({**(card or {}), "window": encoder.window})
    with new_file(path) as target:
        program.save(str(target), external_data=False)


def what_to_export(
    encoder: Encoder, takes: OnnxInput
) -> tuple[nn.Module, tuple[Tensor, ...], list[str], tuple[dict[int, Any], ...]]:
    """The module, an example of its inputs, their names and their free sizes."""
    device, free = next(encoder.parameters()).device, torch.export.Dim
    if takes == "patches":
        patches = torch.rand(2, 1, encoder.patch_size, encoder.patch_size, device=device)
        return Inference(encoder), (patches,), ["patches"], ({0: free("batch")},)
    image = torch.rand(1, 1, 301, 401, device=device)
    keypoints = torch.tensor([[200.0, 150.0, 4.0, 0.5]] * 3, device=device)
    sizes = {2: free("height"), 3: free("width")}, {0: free("count")}
    return ImageInference(encoder), (image, keypoints), ["image", "keypoints"], sizes


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


def average(
    encoder: Encoder, card: dict[str, Any], other: Encoder, other_card: dict[str, Any], share: float
) -> tuple[Encoder, dict[str, Any]]:
    """The mean of both weights, parameter by parameter, with `share` of the other.

    It is useful where the training of one started from the other, or both from the same weights. The card is the first one's
    with the training data of both and the other's settings as `averaged`, without scores, which do not hold for the mean.
    """
    if type(encoder) is not type(other):
        raise InputError(
            f"a {type(encoder).__name__} and a {type(other).__name__} have no mean: average weights of one encoder."
        )
    mean, theirs = copy.deepcopy(encoder), other.state_dict()
    mean.load_state_dict(
        {
            name: ((1 - share) * own.double() + share * theirs[name].double()).to(own.dtype)
            if own.is_floating_point()
            else own
            for name, own in encoder.state_dict().items()
        }
    )
    both = {name: sorted({*(card.get(name) or []), *(other_card.get(name) or [])}) for name in ("trained_on", "scenes")}
    averaged = {"share": share, **{name: other_card[name] for name in SETTINGS if name in other_card}}
    return mean, {**{name: value for name, value in card.items() if name != "fpr95"}, **both, "averaged": averaged}

"""`python -m reproduce fig3`: an encoder, drawn from the module: kernel sizes, channels, strides, norms and shapes."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from torch import Tensor, nn

from reproduce.arguments import Fig3Arguments
from reproduce.output import draw_arrow
from sdgmnet.encoders import ENCODERS, load_encoder
from sdgmnet.plots.style import COLUMN, SMALL, printed, save_print
from sdgmnet.report import Section

SHORT = {
    "FilterResponseNorm": "FRN",
    "ThresholdedLinearUnit": "TLU",
    "BatchNorm1d": "BN",
    "BatchNorm2d": "BN",
    "InstanceNorm2d": "IN",
}
FILLS = {"weights": "#fdd49e", "other": "#deebf7", "ends": "#f0f0f0"}


def fig3(arguments: Fig3Arguments) -> None:
    known = ENCODERS.get(arguments.encoder)
    encoder = load_encoder(arguments.encoder)[0] if known is None else known()
    layers, title = read_layers(encoder), type(encoder).__name__
    rows = [[one.text, "×".join(map(str, one.shape)), str(one.parameters)] for one in layers]
    results = {"encoder": title, "layers": [one._asdict() for one in layers]}
    section = Section(title, "", ("layer", "shape", "parameters"), rows)
    arguments.deliver("fig3", results, [section], lambda stem: draw_fig3(title, layers, stem))


class Layer(NamedTuple):
    """A box of the figure: one layer with weights, what follows it, and its output shape."""

    text: str
    kind: str  # of FILLS
    shape: tuple[int, ...]  # without the batch
    parameters: int


@torch.inference_mode()
def read_layers(encoder: nn.Module) -> list[Layer]:
    """From the patch to the descriptor. The leaves of the module are assumed to run in the order they were registered.

    What a module does by functions is found by looking: preprocessing by the input of the first leaf, dropout by the encoder's
    `dropout` and `feature_shape`, and normalisation by the descriptors' lengths.
    """
    leaves = [one for one in encoder.modules() if not list(one.children())]
    side = int(getattr(encoder, "patch_size", 32))
    patches = torch.rand(2, 1, side, side, generator=torch.Generator().manual_seed(0))
    training = encoder.training
    encoder.eval()
    received: list[Tensor] = []
    hook = leaves[0].register_forward_pre_hook(lambda _, inputs: received.append(inputs[0]))
    try:
        descriptors = encoder(patches)
        hook.remove()
        x = received[0] if received else patches
        layers = [Layer("patch", "ends", tuple(patches.shape[1:]), 0)]
        if not torch.equal(x, patches):
            layers.append(Layer(_preparation(x), "other", tuple(x.shape[1:]), 0))
        dropout = float(getattr(encoder, "dropout", 0.0) or 0.0)
        layers += _boxes(leaves, x, dropout, getattr(encoder, "feature_shape", ()))
    finally:
        encoder.train(training)
    is_unit = bool(torch.allclose(descriptors.norm(dim=1), torch.ones(2), atol=1e-4))
    return layers + [Layer("unit length", "other", tuple(descriptors.shape[1:]), 0)] * is_unit


def _boxes(leaves: Sequence[nn.Module], x: Tensor, dropout: float, feature_shape: Sequence[int]) -> list[Layer]:
    """A new box begins at every layer with weights or pooling; dropout comes before the last one whose input has its shape."""
    boxes = list[tuple[list[nn.Module], tuple[int, ...]]]()  # leaves, output shape
    place = None
    for leaf in leaves:
        if isinstance(leaf, nn.Linear | nn.BatchNorm1d):
            x = x.flatten(1)
        shape, x = tuple(x.shape[1:]), leaf(x)
        if not boxes or isinstance(leaf, nn.Conv2d | nn.Linear | nn.MaxPool2d | nn.AvgPool2d):
            place = len(boxes) if shape == tuple(feature_shape) else place
            boxes.append(([], ()))
        boxes[-1] = ([*boxes[-1][0], leaf], tuple(x.shape[1:]))
    layers: list[Layer] = []
    for number, (box, shape) in enumerate(boxes):
        if dropout and number == place:
            layers.append(Layer(f"dropout {dropout:g}", "other", tuple(feature_shape), 0))
        parameters = sum(value.numel() for one in box for value in one.parameters())
        kind = "weights" if isinstance(box[0], nn.Conv2d | nn.Linear) else "other"
        layers.append(Layer(" · ".join(describe(one) for one in box), kind, shape, parameters))
    return layers


def _preparation(prepared: Tensor) -> str:
    """What was done to the patches before the first module, as far as mean and standard deviation show."""
    mean, std = prepared.mean(dim=(1, 2, 3)), prepared.std(dim=(1, 2, 3))
    is_standard = bool((mean.abs() < 1e-3).all() and ((std - 1).abs() < 1e-3).all())
    return "mean 0, deviation 1" if is_standard else "prepared"


def describe(module: nn.Module) -> str:
    name = SHORT.get(type(module).__name__, type(module).__name__)
    bias = ", no bias" if getattr(module, "bias", None) is None else ""
    if isinstance(module, nn.Conv2d):
        size = "×".join(str(one) for one in module.kernel_size)
        stride = "" if set(module.stride) == {1} else f" /{module.stride[0]}"
        return f"conv {size}{stride}, {module.in_channels}→{module.out_channels}{bias}"
    if isinstance(module, nn.Linear):
        return f"linear {module.in_features}→{module.out_features}{bias}"
    if isinstance(module, nn.MaxPool2d | nn.AvgPool2d):
        return f"{name.removesuffix('2d')} {module.kernel_size}"
    return name


def draw_fig3(title: str, layers: Sequence[Layer], stem: Path | str) -> list[Path]:
    """From top to bottom, one box per layer; right of it the output shape and the number of parameters."""
    step, box_height, box_width = 0.27, 0.2, 2.3
    height = 0.47 + step * len(layers)
    with printed():
        figure = Figure(figsize=(COLUMN, height))
        axis = figure.add_axes((0, 0, 1, 1))
        axis.set(xlim=(0, COLUMN), ylim=(0, height))
        axis.axis("off")
        axis.text(0.08, height - 0.14, title, va="center", parse_math=False, fontweight="bold", fontsize=SMALL + 1)
        for x, text in ((2.82, "out"), (3.42, "learned")):
            axis.text(x, height - 0.14, text, ha="right", va="center", fontsize=SMALL, color="0.35")
        for number, layer in enumerate(layers):
            y = height - 0.42 - number * step
            corner, style = (0.1, y - box_height / 2), "round,pad=0,rounding_size=0.04"
            fill = FILLS[layer.kind]
            box = FancyBboxPatch(corner, box_width - 0.1, box_height, boxstyle=style, facecolor=fill, edgecolor="0.35")
            axis.add_patch(box)
            fitting = (
                72 * (box_width - 0.2) / (0.55 * len(layer.text))
            )  # points: letters are about half as wide as high
            axis.text(0.05 + box_width / 2, y, layer.text, ha="center", va="center", fontsize=min(SMALL - 0.5, fitting))
            size = "×".join(str(one) for one in (*layer.shape[1:], layer.shape[0]))
            axis.text(2.86, y, size, ha="right", va="center", fontsize=SMALL)
            if layer.parameters:
                count = f"{layer.parameters:,}".replace(",", "\N{NO-BREAK SPACE}")
                axis.text(3.42, y, count, ha="right", va="center", fontsize=SMALL)
            if number:
                above, below = (1.2, y + step - box_height / 2), (1.2, y + box_height / 2)
                draw_arrow(axis, above, below, "0.35", linewidth=0.6, head=5)
        total = f"{sum(one.parameters for one in layers):,}".replace(",", "\N{NO-BREAK SPACE}")
        axis.text(3.42, 0.1, f"{total} in all", ha="right", va="center", fontsize=SMALL)
        return save_print(figure, stem)

"""Fig. 3 drawn from the module itself: kernel sizes, channels, strides, norms and shapes are read from it."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from torch import Tensor, nn

from sdgmnet.plots import COLUMN, SMALL, printed, save_print

SHORT = {
    "FilterResponseNorm": "FRN",
    "ThresholdedLinearUnit": "TLU",
    "BatchNorm1d": "BN",
    "BatchNorm2d": "BN",
    "InstanceNorm2d": "IN",
}
FILLS = {"weights": "#fdd49e", "other": "#deebf7", "ends": "#f0f0f0"}


class Layer(NamedTuple):
    """A box of the figure: one layer with weights, what follows it, and the shape that leaves it."""

    text: str
    kind: str  # of FILLS
    shape: tuple[int, ...]  # without the batch
    parameters: int


def read_layers(encoder: nn.Module) -> list[Layer]:
    """From the patch to the descriptor. The leaves of the module are taken to run in the order they were registered.

    What a module does by functions is found by looking: what reaches the first leaf, dropout by the encoder's own `dropout` and
    `feature_shape`, and unit length by the descriptors' lengths.
    """
    leaves = [one for one in encoder.modules() if not list(one.children())]
    side = int(getattr(encoder, "patch_size", 32))
    training = encoder.training
    encoder.eval()
    try:
        with torch.inference_mode():
            layers = _read(encoder, leaves, side)
    finally:
        encoder.train(training)
    return layers


def _read(encoder: nn.Module, leaves: Sequence[nn.Module], side: int) -> list[Layer]:
    patches = torch.rand(2, 1, side, side, generator=torch.Generator().manual_seed(0))
    received: list[Tensor] = []
    hook = leaves[0].register_forward_pre_hook(lambda _, inputs: received.append(inputs[0]))
    descriptors = encoder(patches)
    hook.remove()
    layers = [Layer("patch", "ends", tuple(patches.shape[1:]), 0)]
    if received and not torch.equal(received[0], patches):
        layers.append(Layer(_preparation(received[0]), "other", tuple(received[0].shape[1:]), 0))
    x, boxes = (received[0] if received else patches), list[list[nn.Module]]()
    shapes = list[tuple[int, ...]]()
    dropout, place = float(getattr(encoder, "dropout", 0.0) or 0.0), None
    for leaf in leaves:
        if isinstance(leaf, nn.Linear | nn.BatchNorm1d):
            x = x.flatten(1)
        if has_filters(leaf) or not boxes or (isinstance(leaf, nn.MaxPool2d | nn.AvgPool2d)):
            if tuple(x.shape[1:]) == tuple(getattr(encoder, "feature_shape", ())):
                place = len(boxes)  # the last layer that takes what dropout sees
            boxes.append([])
            shapes.append(())
        x = leaf(x)
        boxes[-1].append(leaf)
        shapes[-1] = tuple(x.shape[1:])
    for number, (box, shape) in enumerate(zip(boxes, shapes, strict=True)):
        text = " · ".join(describe(one) for one in box)
        if dropout and number == place:
            layers.append(Layer(f"dropout {dropout:g}", "other", layers[-1].shape, 0))
        parameters = sum(value.numel() for one in box for value in one.parameters())
        layers.append(Layer(text, "weights" if has_filters(box[0]) else "other", shape, parameters))
    is_unit = bool(torch.allclose(descriptors.norm(dim=1), torch.ones(2), atol=1e-4))
    return layers + [Layer("unit length", "other", tuple(descriptors.shape[1:]), 0)] * is_unit


def has_filters(module: nn.Module) -> bool:
    return isinstance(module, nn.Conv2d | nn.Linear)


def _preparation(prepared: Tensor) -> str:
    """What was done to the patches before the first module, as far as their mean and deviation tell."""
    mean, std = prepared.mean(dim=(1, 2, 3)), prepared.std(dim=(1, 2, 3))
    is_standard = bool((mean.abs() < 1e-3).all() and ((std - 1).abs() < 1e-3).all())
    return "mean 0, deviation 1" if is_standard else "prepared"


def describe(module: nn.Module) -> str:
    name = SHORT.get(type(module).__name__, type(module).__name__)
    if isinstance(module, nn.Conv2d):
        size = "×".join(str(one) for one in module.kernel_size)
        stride = "" if set(module.stride) == {1} else f" /{module.stride[0]}"
        bias = "" if module.bias is not None else ", no bias"
        return f"conv {size}{stride}, {module.in_channels}→{module.out_channels}{bias}"
    if isinstance(module, nn.Linear):
        return f"linear {module.in_features}→{module.out_features}{'' if module.bias is not None else ', no bias'}"
    if isinstance(module, nn.MaxPool2d | nn.AvgPool2d):
        return f"{name.removesuffix('2d')} {module.kernel_size}"
    return name


def draw_fig3(title: str, layers: Sequence[Layer], stem: Path | str) -> list[Path]:
    """From top to bottom, a box a layer; right of it the shape that leaves it and the numbers it learns."""
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
            axis.add_patch(
                FancyBboxPatch(
                    (0.1, y - box_height / 2),
                    box_width - 0.1,
                    box_height,
                    boxstyle="round,pad=0,rounding_size=0.04",
                    facecolor=FILLS[layer.kind],
                    edgecolor="0.35",
                )
            )
            fitting = (
                72 * (box_width - 0.2) / (0.55 * len(layer.text))
            )  # points: a letter is about half as wide as high
            axis.text(0.05 + box_width / 2, y, layer.text, ha="center", va="center", fontsize=min(SMALL - 0.5, fitting))
            size = "×".join(str(one) for one in (*layer.shape[1:], layer.shape[0]))
            axis.text(2.86, y, size, ha="right", va="center", fontsize=SMALL)
            if layer.parameters:
                count = f"{layer.parameters:,}".replace(",", "\N{NO-BREAK SPACE}")
                axis.text(3.42, y, count, ha="right", va="center", fontsize=SMALL)
            if number:
                axis.annotate(
                    "",
                    xy=(1.2, y + box_height / 2),
                    xytext=(1.2, y + step - box_height / 2),
                    arrowprops={
                        "arrowstyle": "-|>",
                        "color": "0.35",
                        "linewidth": 0.6,
                        "mutation_scale": 5,
                        "shrinkA": 0,
                        "shrinkB": 0,
                    },
                )
        total = f"{sum(one.parameters for one in layers):,}".replace(",", "\N{NO-BREAK SPACE}")
        axis.text(3.42, 0.1, f"{total} in all", ha="right", va="center", fontsize=SMALL)
        return save_print(figure, stem)

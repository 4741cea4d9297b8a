"""Encoders: patches -> unit descriptors."""

from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sdgmnet.errors import InputError


class Encoded(NamedTuple):
    """All that a loss may ask of an encoder."""

    descriptors: Tensor  # (B, D), unit length
    raw: Tensor  # (B, D), before normalisation
    maps: tuple[Tensor, ...]  # intermediate feature maps (B, C, H, W), first and last block


class FilterResponseNorm(nn.Module):
    r"""Normalises each channel of each sample by its own energy, so that samples do not depend on their batch.

    .. math:: y = \gamma x / \sqrt{\nu^2 + \epsilon} + \beta, \quad \nu^2 = \mathrm{mean}_{H,W}\, x^2
    """

    def __init__(self, channels: int, epsilon: float = 1e-6) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.gamma = nn.Parameter(torch.ones(channels))
        self.beta = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        inverse_scale = torch.rsqrt(x.square().mean(dim=(2, 3), keepdim=True) + self.epsilon)
        return x * (inverse_scale * self.gamma[:, None, None]) + self.beta[:, None, None]


class ThresholdedLinearUnit(nn.Module):
    r""":math:`y = \max(x, \tau)` with a learned threshold a channel, started at -1."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.tau = nn.Parameter(torch.full((channels,), -1.0))

    def forward(self, x: Tensor) -> Tensor:
        return torch.maximum(x, self.tau[:, None, None])


def _block(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1)
    return nn.Sequential(convolution, FilterResponseNorm(outputs), ThresholdedLinearUnit(outputs))


class SDGMNet(nn.Module):
    """The paper's encoder (Fig. 3), HyNet's: L2Net's seven convolutions with FRN and TLU in place of BatchNorm and ReLU.

    Args:
        dropout: rate before the last convolution.

    Shape:
        patches (B, 1, 32, 32) in [0, 1] -> descriptors (B, 128) of unit length.

    Example:
        >>> encoder = SDGMNet().eval()
        >>> encoder(torch.rand(5, 1, 32, 32)).shape
        torch.Size([5, 128])
    """

    patch_size = 32
    descriptor_size = 128
    feature_shape = (128, 8, 8)  # what dropout sees

    def __init__(self, dropout: float = 0.3) -> None:
        super().__init__()
        if not 0 <= dropout < 1:
            raise InputError(f"dropout is a rate in [0, 1), not {dropout}.")
        self.dropout = dropout
        self.input = nn.Sequential(FilterResponseNorm(1), ThresholdedLinearUnit(1))
        self.first = _block(1, 32)
        self.middle = nn.Sequential(
            _block(32, 32), _block(32, 64, stride=2), _block(64, 64), _block(64, 128, stride=2), _block(128, 128)
        )
        self.last = nn.Conv2d(128, self.descriptor_size, kernel_size=8, bias=False)
        self.norm = nn.BatchNorm1d(self.descriptor_size, affine=False)

    def forward(self, patches: Tensor) -> Tensor:
        return self.encode(patches).descriptors

    def encode(self, patches: Tensor, keep: Tensor | None = None) -> Encoded:
        """Descriptors and what came before them.

        keep (B, 128, 8, 8) bool: which features dropout leaves, in training; None draws them from torch's own generator.
        """
        self.check_patches(patches)
        features, first = self.trunk(patches, keep)
        raw = self.normalise_batch(features)
        return Encoded(F.normalize(raw, dim=1), raw, (first, raw[:, :, None, None]))

    def trunk(self, patches: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """All that treats each patch alone: (B, 1, 32, 32) -> features (B, 128) before BatchNorm, and the first maps."""
        first = self.first(self.input(patches))
        return self.reduce(self.middle(first), keep), first

    def reduce(self, maps: Tensor, keep: Tensor | None = None) -> Tensor:
        """Dropout and the last convolution: (B, 128, 8, 8) -> (B, 128). Its filter covers the map: a matrix product."""
        if self.training:
            maps = F.dropout(maps, self.dropout) if keep is None else maps * (keep / (1 - self.dropout))
        return F.linear(maps.flatten(1), self.last.weight.flatten(1))

    def normalise_batch(self, features: Tensor) -> Tensor:
        """The one layer that looks across the batch: BatchNorm without affine parameters, (B, 128) -> (B, 128)."""
        if self.training and len(features) == 1:
            raise InputError(
                "training needs at least 2 patches in a batch (BatchNorm); call .eval() to describe one patch."
            )
        if len(features) == 0:
            return features
        normalised: Tensor = self.norm(features)
        return normalised

    def check_patches(self, patches: Tensor) -> None:
        _check_patches(patches, self.patch_size)

    @staticmethod
    def from_pretrained(source: Path | str | None = None) -> "SDGMNet":
        """An encoder with trained weights, in eval mode. Nothing is downloaded.

        Args:
            source: a name of weights that ship with the package, a .safetensors file, the folder of a training run, or a
                folder in Hugging Face's layout (config.json and model.safetensors). None: the best that ship.
        """
        from sdgmnet.pretrained import ALIAS, load_encoder

        return load_encoder(ALIAS if source is None else source)[0]

    def save_pretrained(self, folder: Path | str, card: dict[str, Any] | None = None) -> None:
        """Write model.safetensors and config.json, Hugging Face's layout; `card` says where the weights come from."""
        from sdgmnet.pretrained import save_folder

        save_folder(self, folder, card)


class TFeat(nn.Module):
    """TFeat, a shallow peer whose published weights are at hand: two convolutions and a linear layer, tanh after each.

    Shape:
        patches (B, 1, 32, 32) -> descriptors (B, 128) in (-1, 1), not of unit length: compare by Euclidean distance.
    """

    patch_size = 32
    descriptor_size = 128

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.InstanceNorm2d(1), nn.Conv2d(1, 32, 7), nn.Tanh(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 6), nn.Tanh()
        )
        self.descr = nn.Sequential(
            nn.Linear(64 * 8 * 8, self.descriptor_size), nn.Tanh()
        )  # named as in published files

    def forward(self, patches: Tensor) -> Tensor:
        _check_patches(patches, self.patch_size)
        descriptors: Tensor = self.descr(self.features(patches).flatten(1))
        return descriptors


def _check_patches(patches: Tensor, side: int) -> None:
    if patches.ndim != 4 or patches.shape[1:] != (1, side, side):
        raise InputError(
            f"this encoder takes patches (B, 1, {side}, {side}) in [0, 1], "
            f"not {tuple(patches.shape)}; describe_patches resamples 64 x 64 patches."
        )


ENCODERS: dict[str, type[SDGMNet]] = {"sdgmnet": SDGMNet}
Encoder = SDGMNet | TFeat  # what describes patches

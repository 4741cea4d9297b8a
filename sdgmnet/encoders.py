"""Encoders: patches -> descriptors, of unit length but for TFeat's."""

from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sdgmnet.errors import InputError


class Encoded(NamedTuple):
    """All that a loss may ask of an encoder."""

    descriptors: Tensor  # (B, D), what is compared: of unit length, but for TFeat's
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


class Encoder(nn.Module):
    """What all encoders share: a name in `ENCODERS`, the size of patches and descriptors, and the way to and from disk.

    Each has `encode(patches, keep)`, and `trunk(patches, keep)` for all before the last normalisations.
    """

    patch_size = 32
    descriptor_size = 128
    feature_shape = (128, 8, 8)  # what dropout sees
    chunkable = True  # in training the trunk treats each patch alone: a batch may go through it in chunks

    def __init__(self, dropout: float) -> None:
        super().__init__()
        if not 0 <= dropout < 1:
            raise InputError(f"dropout is a rate in [0, 1), not {dropout}.")
        self.dropout = dropout

    def forward(self, patches: Tensor) -> Tensor:
        return self.encode(patches).descriptors

    def encode(self, patches: Tensor, keep: Tensor | None = None) -> Encoded:
        """Descriptors and what came before them.

        keep (B, 128, 8, 8) bool: which features dropout leaves, in training; None draws them from torch's own generator.
        """
        self.check_patches(patches)
        features, first = self.trunk(patches, keep)
        return self.finish(self.normalise_batch(features), first)

    def trunk(self, patches: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(B, 1, 32, 32) -> features (B, 128) before the last BatchNorm, and the first maps (B, C, H, W)."""
        raise NotImplementedError

    def normalise_batch(self, features: Tensor) -> Tensor:
        """What looks across the batch after the trunk, (B, 128) -> (B, 128)."""
        raise NotImplementedError

    def normalise(self, raw: Tensor) -> Tensor:
        """(B, 128) -> descriptors."""
        return F.normalize(raw, dim=1)

    def finish(self, raw: Tensor, first: Tensor | None) -> Encoded:
        """All that a loss may ask for, of the features after BatchNorm; without the maps where `first` is None."""
        maps = () if first is None else (first, raw[:, :, None, None])
        return Encoded(self.normalise(raw), raw, maps)

    def check_patches(self, patches: Tensor) -> None:
        side = self.patch_size
        if patches.ndim != 4 or patches.shape[1:] != (1, side, side):
            raise InputError(
                f"this encoder takes patches (B, 1, {side}, {side}) in [0, 1], "
                f"not {tuple(patches.shape)}; describe_patches resamples 64 x 64 patches."
            )

    @classmethod
    def from_pretrained(cls, source: Path | str | None = None) -> Self:
        """An encoder with trained weights, in eval mode. Nothing is downloaded.

        Args:
            source: a name of weights that ship with the package, a .safetensors file, the folder of a training run, or a
                folder in Hugging Face's layout (config.json and model.safetensors). None: the best that ship.
        """
        from sdgmnet.pretrained import ALIAS, load_encoder

        source = ALIAS if source is None else source
        encoder = load_encoder(source)[0]
        if not isinstance(encoder, cls):
            name = type(encoder).__name__
            raise InputError(f"{source} holds a {name}, not a {cls.__name__}: use {name}.from_pretrained.")
        return encoder

    def save_pretrained(self, folder: Path | str, card: dict[str, Any] | None = None) -> None:
        """Write model.safetensors and config.json, Hugging Face's layout; `card` says where the weights come from."""
        from sdgmnet.pretrained import save_folder

        save_folder(self, folder, card)


class _SevenConvolutions(Encoder):
    """The end that L2Net and HyNet share: dropout, a convolution over the whole map, BatchNorm, unit length."""

    last: nn.Conv2d
    norm: nn.BatchNorm1d

    def reduce(self, maps: Tensor, keep: Tensor | None = None) -> Tensor:
        """Dropout and the last convolution: (B, 128, 8, 8) -> (B, 128). Its filter covers the map: a matrix product."""
        if self.training:
            maps = F.dropout(maps, self.dropout) if keep is None else maps * (keep / (1 - self.dropout))
        return F.linear(maps.flatten(1), self.last.weight.flatten(1))

    def normalise_batch(self, features: Tensor) -> Tensor:
        """BatchNorm without affine parameters, (B, 128) -> (B, 128)."""
        if self.training and len(features) == 1:
            raise InputError(
                "training needs at least 2 patches in a batch (BatchNorm); call .eval() to describe one patch."
            )
        if len(features) == 0:
            return features
        normalised: Tensor = self.norm(features)
        return normalised


class SDGMNet(_SevenConvolutions):
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

    def __init__(self, dropout: float = 0.3) -> None:
        super().__init__(dropout)
        self.input = nn.Sequential(FilterResponseNorm(1), ThresholdedLinearUnit(1))
        self.first = _block(1, 32)
        self.middle = nn.Sequential(
            _block(32, 32), _block(32, 64, stride=2), _block(64, 64), _block(64, 128, stride=2), _block(128, 128)
        )
        self.last = nn.Conv2d(128, self.descriptor_size, kernel_size=8, bias=False)
        self.norm = nn.BatchNorm1d(self.descriptor_size, affine=False)

    def trunk(self, patches: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """All that treats each patch alone: (B, 1, 32, 32) -> features (B, 128) before BatchNorm, and the first maps."""
        first = self.first(self.input(patches))
        return self.reduce(self.middle(first), keep), first


class L2Net(_SevenConvolutions):
    """L2Net's encoder, which HardNet, CDFDesc and SOSNet took over.

    Seven convolutions without bias, BatchNorm without affine parameters after each, ReLU after all but the last. Each
    patch is brought to mean 0 and deviation 1 first, (x - mean) / (std + 1e-7), as HardNet's and CDFDesc's code has it; L2Net
    takes the mean image of its training set off before, `mean_image`, which is 0 otherwise.

    Args:
        dropout: rate before the last convolution.

    Shape:
        patches (B, 1, 32, 32) in [0, 1] -> descriptors (B, 128) of unit length.
    """

    chunkable = False  # BatchNorm inside: in training a patch depends on its batch from the first layer on
    mean_image: Tensor  # (32, 32)

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__(dropout)
        self.register_buffer("mean_image", torch.zeros(self.patch_size, self.patch_size))
        self.first = nn.Sequential(*_plain_convolution(1, 32))
        self.middle = nn.Sequential(
            nn.ReLU(),
            *_plain_block(32, 32),
            *_plain_block(32, 64, stride=2),
            *_plain_block(64, 64),
            *_plain_block(64, 128, stride=2),
            *_plain_block(128, 128),
        )
        self.last = nn.Conv2d(128, self.descriptor_size, kernel_size=8, bias=False)
        self.norm = nn.BatchNorm1d(self.descriptor_size, affine=False)

    def trunk(self, patches: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(B, 1, 32, 32) -> features (B, 128) before the last BatchNorm, and the maps after the first BatchNorm."""
        first = self.first(self.standardise(patches))
        return self.reduce(self.middle(first), keep), first

    def standardise(self, patches: Tensor) -> Tensor:
        """Each patch to mean 0 and deviation 1."""
        if self.training and len(patches) == 0:
            raise InputError("training needs at least 2 patches in a batch (BatchNorm).")
        patches = patches - self.mean_image
        centred = patches - patches.mean(dim=(2, 3), keepdim=True)
        std = (centred.square().sum(dim=(2, 3), keepdim=True) / (self.patch_size**2 - 1)).sqrt()
        scaled = centred / (std + 1e-7)
        if self.training:
            # One channel lies as well by channels as by pixels; said to be by pixels, all maps do: 1.5 times as fast on a CPU.
            size = self.patch_size
            scaled = scaled.contiguous().as_strided(scaled.shape, (size * size, 1, size, 1))
        return scaled


class TFeat(Encoder):
    """TFeat, a shallow peer: two convolutions and a linear layer, tanh after each. Published weights are at hand.

    Shape:
        patches (B, 1, 32, 32) -> descriptors (B, 128) in (-1, 1), not of unit length: compare by Euclidean distance.
    """

    def __init__(self, dropout: float = 0.0) -> None:
        if dropout:
            raise InputError(f"TFeat has no dropout: give a rate of 0, not {dropout}.")
        super().__init__(dropout)
        self.features = nn.Sequential(
            nn.InstanceNorm2d(1), nn.Conv2d(1, 32, 7), nn.Tanh(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 6), nn.Tanh()
        )
        self.descr = nn.Sequential(
            nn.Linear(64 * 8 * 8, self.descriptor_size), nn.Tanh()
        )  # named as in published files

    def trunk(self, patches: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """All of it: (B, 1, 32, 32) -> descriptors (B, 128), and the maps (B, 32, 26, 26) of the first convolution."""
        first = self.features[:3](patches)
        return self.descr(self.features[3:](first).flatten(1)), first

    def normalise_batch(self, features: Tensor) -> Tensor:
        return features

    def normalise(self, raw: Tensor) -> Tensor:
        return raw


def _plain_convolution(inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False)
    return [convolution, nn.BatchNorm2d(outputs, affine=False)]


def _plain_block(inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
    return [*_plain_convolution(inputs, outputs, stride), nn.ReLU()]


def initialise_orthogonally(encoder: Encoder, gain: float = 0.6) -> None:
    """HardNet's and CDFDesc's start: filters as orthogonal as can be, biases 0.01."""
    for module in encoder.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.orthogonal_(module.weight, gain)
            if module.bias is not None:
                nn.init.constant_(module.bias, 0.01)


ENCODERS: dict[str, type[SDGMNet | L2Net | TFeat]] = {"sdgmnet": SDGMNet, "l2net": L2Net, "tfeat": TFeat}

"""Encoders: patches (B, 1, 32, 32) -> descriptors (B, 128), of unit length except TFeat's."""

from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sdgmnet.errors import InputError
from sdgmnet.pretrained import ALIAS, MODEL, find_weights, read_weights, write_weights
from sdgmnet.storage import reason_of, require_bounded_zip

DROPOUT = 0.3  # of weights whose card does not have it


class Encoded(NamedTuple):
    """Everything a loss can need from an encoder."""

    descriptors: Tensor  # (B, D) of unit length, except TFeat's
    raw: Tensor  # (B, D), before normalisation
    maps: tuple[Tensor, ...]  # feature maps (B, C, H, W) of the first and the last block


class FilterResponseNorm(nn.Module):
    r"""Normalises each channel of each sample by its own energy, so a sample does not depend on its batch.

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
    r""":math:`y = \max(x, \tau)` with one learned threshold per channel, initially -1."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.tau = nn.Parameter(torch.full((channels,), -1.0))

    def forward(self, x: Tensor) -> Tensor:
        return torch.maximum(x, self.tau[:, None, None])


def _block(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1)
    return nn.Sequential(convolution, FilterResponseNorm(outputs), ThresholdedLinearUnit(outputs))


class Encoder(nn.Module):
    """Base of all encoders in `ENCODERS`: sizes, the order of the stages, loading and saving."""

    patch_size = 32
    descriptor_size = 128
    feature_shape = (128, 8, 8)  # input of dropout
    chunkable = True  # in training the trunk handles each patch independently, so a batch can go through it in chunks

    def __init__(self, dropout: float) -> None:
        super().__init__()
        if not 0 <= dropout < 1:
            raise InputError(f"dropout must lie in [0, 1), not {dropout}.")
        self.dropout = dropout

    def forward(self, patches: Tensor) -> Tensor:
        return self.encode(patches).descriptors

    def encode(self, patches: Tensor, keep: Tensor | None = None) -> Encoded:
        """Descriptors, and the raw features and maps they were made from.

        keep (B, 128, 8, 8) bool: the features that dropout keeps in training; None draws them from torch's generator.
        """
        self.check_patches(patches)
        features, first = self.trunk(patches, keep)
        return self.finish(self.normalise_batch(features), first)

    def trunk(self, patches: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(B, 1, 32, 32) -> features (B, 128) before the last BatchNorm, and the first maps (B, C, H, W)."""
        raise NotImplementedError

    def normalise_batch(self, features: Tensor) -> Tensor:
        """The last BatchNorm, (B, 128) -> (B, 128)."""
        raise NotImplementedError

    def normalise(self, raw: Tensor) -> Tensor:
        """(B, 128) -> descriptors."""
        return F.normalize(raw, dim=1)

    def finish(self, raw: Tensor, first: Tensor | None) -> Encoded:
        """From features after BatchNorm to `Encoded`; without maps where `first` is None."""
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
            source: the name of shipped weights, a .safetensors file, the folder of a training run, or a folder in Hugging
                Face's layout (config.json and model.safetensors). None: the best shipped weights.
        """
        source = ALIAS if source is None else source
        encoder = load_encoder(source)[0]
        if not isinstance(encoder, cls):
            name = type(encoder).__name__
            raise InputError(f"{source} holds a {name}, not a {cls.__name__}: use {name}.from_pretrained.")
        return encoder

    def save_pretrained(self, folder: Path | str, card: dict[str, Any] | None = None) -> None:
        """Write Hugging Face's layout: model.safetensors, and the card (origin of the weights) as config.json."""
        folder = Path(folder)
        if folder.is_file():
            raise InputError(f"{folder} is a file: give a folder.")
        save_encoder(self, folder / MODEL, {"library_name": "sdgmnet", **(card or {})}, folder / "config.json")


class _SevenConvolutions(Encoder):
    """The last stages of L2Net and HyNet: dropout, a convolution over the whole map, BatchNorm, unit length."""

    last: nn.Conv2d
    norm: nn.BatchNorm1d

    def reduce(self, maps: Tensor, keep: Tensor | None = None) -> Tensor:
        """Dropout and the last convolution, (B, 128, 8, 8) -> (B, 128). It covers the whole map, so it is a matrix product."""
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
        first = self.first(self.input(patches))
        return self.reduce(self.middle(first), keep), first


class L2Net(_SevenConvolutions):
    """L2Net's encoder, also that of HardNet, CDFDesc and SOSNet.

    Seven convolutions without bias, BatchNorm without affine parameters after each, ReLU after all but the last. Each patch
    is standardised first, (x - mean) / (std + 1e-7), as in the code of HardNet and CDFDesc. L2Net subtracts the mean image of
    its training set before that: `mean_image`, which is 0 for the others.

    Args:
        dropout: rate before the last convolution.

    Shape:
        patches (B, 1, 32, 32) in [0, 1] -> descriptors (B, 128) of unit length.
    """

    chunkable = False  # inner BatchNorm: in training a patch depends on its batch from the first layer
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
        first = self.first(self.standardise(patches))
        return self.reduce(self.middle(first), keep), first

    def standardise(self, patches: Tensor) -> Tensor:
        """Each patch to mean 0 and standard deviation 1."""
        if self.training and len(patches) == 0:
            raise InputError("training needs at least 2 patches in a batch (BatchNorm).")
        patches = patches - self.mean_image
        centred = patches - patches.mean(dim=(2, 3), keepdim=True)
        std = (centred.square().sum(dim=(2, 3), keepdim=True) / (self.patch_size**2 - 1)).sqrt()
        scaled = centred / (std + 1e-7)
        if self.training:
            # Strides of channels_last, in which torch then keeps all maps: 1.5 times as fast on a CPU. The memory of one
            # channel is the same either way.
            size = self.patch_size
            scaled = scaled.contiguous().as_strided(scaled.shape, (size * size, 1, size, 1))
        return scaled


class TFeat(Encoder):
    """TFeat: two convolutions and a linear layer, tanh after each; `load_tfeat` reads the published weights.

    Shape:
        patches (B, 1, 32, 32) -> descriptors (B, 128) in (-1, 1), not of unit length: compare by Euclidean distance.
    """

    def __init__(self, dropout: float = 0.0) -> None:
        if dropout:
            raise InputError(f"TFeat has no dropout: give 0, not {dropout}.")
        super().__init__(dropout)
        self.features = nn.Sequential(
            nn.InstanceNorm2d(1), nn.Conv2d(1, 32, 7), nn.Tanh(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 6), nn.Tanh()
        )
        # Named as in the published files.
        self.descr = nn.Sequential(nn.Linear(64 * 8 * 8, self.descriptor_size), nn.Tanh())

    def trunk(self, patches: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(B, 1, 32, 32) -> descriptors (B, 128), and the maps (B, 32, 26, 26) of the first convolution."""
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
    """Initialisation of HardNet and CDFDesc: orthogonal filters, biases 0.01."""
    for module in encoder.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.orthogonal_(module.weight, gain)
            if module.bias is not None:
                nn.init.constant_(module.bias, 0.01)


ENCODERS: dict[str, type[SDGMNet | L2Net | TFeat]] = {"sdgmnet": SDGMNet, "l2net": L2Net, "tfeat": TFeat}


def load_encoder(source: Path | str = ALIAS) -> tuple[Encoder, dict[str, Any]]:
    """The encoder of a source of weights (see pretrained.py) in eval mode, and its card."""
    path = find_weights(source)
    tensors, card = read_weights(path)
    name, dropout = card.get("encoder"), card.get("dropout", DROPOUT)
    if not isinstance(name, str) or name not in ENCODERS:
        raise InputError(f"{path} is for the encoder {name!r}, which is not one of {', '.join(ENCODERS)}.")
    if not isinstance(dropout, (int, float)) or not 0 <= dropout < 1:
        raise InputError(f"{path}: dropout in its card must lie in [0, 1), not {dropout!r}.")
    try:
        encoder = ENCODERS[name](dropout)
    except InputError as error:
        raise InputError(f"{path}: its card does not match the encoder ({error})") from error
    try:
        encoder.load_state_dict(tensors)  # converts half precision to single
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"{path} does not match the encoder {name}: {reason}") from error
    if not _is_finite(encoder):
        raise InputError(f"{path} holds NaN or infinite weights: use another file.")
    return encoder.eval(), card


def save_encoder(encoder: Encoder, path: Path | str, card: dict[str, Any], card_path: Path | None = None) -> None:
    """Write `path` (.safetensors) with the card inside it, and the card as a JSON file next to it."""
    name = next((name for name, kind in ENCODERS.items() if type(encoder) is kind), None)
    if name is None:
        kind = type(encoder).__name__
        raise InputError(f"a {kind} cannot be saved: it is not one of the encoders {', '.join(ENCODERS)}.")
    write_weights(encoder.state_dict(), path, {"encoder": name, "dropout": encoder.dropout, **card}, card_path)


def load_tfeat(path: Path | str) -> TFeat:
    """TFeat from its authors' file, a torch pickle: only tensors are read from it, no code is run."""
    if not Path(path).is_file():
        raise InputError(f"{str(path)!r} is not a file: give the published file of TFeat's weights, as in tfeat:FILE.")
    encoder = TFeat()
    try:
        require_bounded_zip(path)
        encoder.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
        if not _is_finite(encoder):
            raise ValueError("some are NaN or infinite")
    except Exception as error:  # a damaged pickle can raise anything
        raise InputError(f"{path} does not hold TFeat's weights ({reason_of(error)}): download it again.") from error
    return encoder.eval()


def _is_finite(encoder: Encoder) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in encoder.state_dict().values())

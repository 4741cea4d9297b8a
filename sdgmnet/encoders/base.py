"""What all encoders share: patches (B, 1, 32, 32) -> descriptors (B, 128)."""

from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sdgmnet.errors import InputError
from sdgmnet.pretrained import ALIAS, MODEL, download, is_hub_name, write_readme
from sdgmnet.registry import WINDOW


class Encoded(NamedTuple):
    """Everything a loss can need from an encoder."""

    descriptors: Tensor  # (B, D) of unit length, except TFeat's
    raw: Tensor  # (B, D), before normalisation
    maps: tuple[Tensor, ...]  # feature maps (B, C, H, W) of the first and the last block


class Encoder(nn.Module):
    """Base of all encoders in `ENCODERS`: sizes, the order of the stages, loading and saving."""

    patch_size = 32
    descriptor_size = 128
    window: float = WINDOW  # side of the patches it was trained on, in sigmas of their keypoints
    feature_shape = (128, 8, 8)  # input of dropout
    chunkable = True  # in training the trunk handles each patch independently, so a batch can go through it in chunks

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        if not 0 <= dropout < 1:
            raise InputError(f"dropout must lie in [0, 1), not {dropout}.")
        self.dropout = dropout

    def forward(self, patches: Tensor) -> Tensor:
        return self.encode(patches).descriptors

    def encode(self, patches: Tensor, keep: Tensor | None = None) -> Encoded:
        """Descriptors, and the raw features and maps they were made from.

        keep (B, *feature_shape) bool: the features that dropout keeps in training; None draws them from torch's generator.
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
        if not isinstance(patches, Tensor):
            raise InputError(
                f"an encoder takes a torch tensor, not a {type(patches).__name__}; describe_patches takes numpy arrays too."
            )
        if patches.ndim != 4 or patches.shape[1:] != (1, side, side):
            raise InputError(
                f"this encoder takes patches (B, 1, {side}, {side}) in [0, 1], "
                f"not {tuple(patches.shape)}; describe_patches resamples 64 x 64 patches."
            )
        if not patches.is_floating_point():
            raise InputError(
                f"this encoder takes patches of floats in [0, 1], not {patches.dtype}: divide uint8 patches by 255, or use "
                "describe_patches, which does."
            )

    @classmethod
    def from_pretrained(cls, source: Path | str | None = None, *, revision: str | None = None) -> Self:
        """An encoder with trained weights, in eval mode. Nothing is downloaded unless `source` is a name on the Hub.

        Args:
            source: the name of shipped weights, a .safetensors file, the folder of a training run, a folder in Hugging
                Face's layout (config.json and model.safetensors), or organisation/name on the Hugging Face Hub, which
                needs huggingface_hub (pip install 'sdgmnet[hub]'). What exists as a path, or whose first folder does, is
                never looked up there. None: the best shipped weights.
            revision: branch, tag or commit on the Hub.
        """
        from sdgmnet.encoders import load_encoder

        source = ALIAS if source is None else source
        if is_hub_name(source):
            source = download(str(source), revision)
        elif revision is not None:
            raise InputError(f"revision is for names on the Hugging Face Hub: {source} is local.")
        encoder = load_encoder(source)[0]
        if not isinstance(encoder, cls):
            name = type(encoder).__name__
            raise InputError(f"{source} holds a {name}, not a {cls.__name__}: use {name}.from_pretrained.")
        return encoder

    def save_pretrained(self, folder: Path | str, card: dict[str, Any] | None = None) -> None:
        """Write Hugging Face's layout: model.safetensors, the card (origin of the weights) as config.json, and README.md.

        A README.md that exists is kept. `hf upload organisation/name FOLDER` publishes the folder.
        """
        from sdgmnet.encoders import save_encoder

        folder = Path(folder)
        if folder.is_file():
            raise InputError(f"{folder} is a file: give a folder.")
        card = {"library_name": "sdgmnet", **(card or {})}
        save_encoder(self, folder / MODEL, card, folder / "config.json")
        write_readme(folder, type(self).__name__, {**card, "window": self.window})


class SevenConvolutions(Encoder):
    """The last stages of L2Net and HyNet: dropout, a convolution over the whole map, BatchNorm, unit length."""

    last: nn.Conv2d
    norm: nn.BatchNorm1d

    def reduce(self, maps: Tensor, keep: Tensor | None = None) -> Tensor:
        """Dropout and the last convolution, (B, *feature_shape) -> (B, 128). It covers the whole map: a matrix product."""
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


def is_finite(encoder: Encoder) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in encoder.state_dict().values())

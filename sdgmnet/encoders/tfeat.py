"""The encoder of TFeat."""

from pathlib import Path

import torch
from torch import Tensor, nn

from sdgmnet.encoders.base import Encoder, is_finite
from sdgmnet.errors import InputError
from sdgmnet.storage import reason_of, require_bounded_zip


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


def load_tfeat(path: Path | str) -> TFeat:
    """TFeat from its authors' file, a torch pickle: only tensors are read from it, no code is run."""
    if not Path(path).is_file():
        raise InputError(f"{str(path)!r} is not a file: give the published file of TFeat's weights, as in tfeat:FILE.")
    encoder = TFeat()
    try:
        require_bounded_zip(path)
        encoder.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
        if not is_finite(encoder):
            raise ValueError("some are NaN or infinite")
    except Exception as error:  # a damaged pickle can raise anything
        raise InputError(f"{path} does not hold TFeat's weights ({reason_of(error)}): download it again.") from error
    return encoder.eval()

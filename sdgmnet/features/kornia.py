"""Keypoints <-> kornia's local affine frames (LAFs), and a kornia `LocalFeature` with our descriptor.

kornia's angles are counter-clockwise, and the scale of a LAF is half the side of the patch. Both have pixel centres at
integers. With these LAFs, kornia computes our descriptors:

    encoder = SDGMNet.from_pretrained()
    laf_descriptor(encoder)(image, to_lafs(keypoints, encoder.window))
"""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from sdgmnet.encoders import Encoder, SDGMNet
from sdgmnet.engine import halve
from sdgmnet.errors import InputError
from sdgmnet.features.describe import require_limits
from sdgmnet.features.keypoints import Keypoints
from sdgmnet.features.patches import local_frames
from sdgmnet.registry import WINDOW

if TYPE_CHECKING:
    from kornia.feature import LAFDescriptor, LocalFeature


def to_lafs(keypoints: Keypoints, window: float = WINDOW) -> Tensor:
    """(1, N, 2, 3) float32, for an image (1, C, H, W): patches `window` sigmas wide, as the encoder's window says."""
    return torch.from_numpy(local_frames(keypoints, window))[None]


def from_lafs(lafs: Tensor, response: Tensor | None = None, window: float = WINDOW) -> Keypoints:
    """Keypoints of the LAFs (1, N, 2, 3) of one image, in their order.

    Affine shape is lost: sigma keeps the area of the patch, `window` sigmas wide, the angle the direction of its x axis.
    response (1, N) or (N,), as kornia's detectors return it; default: 1.
    """
    if lafs.ndim != 4 or lafs.shape[0] != 1 or lafs.shape[2:] != (2, 3):
        raise InputError(f"LAFs must be (1, N, 2, 3), of one image, not {tuple(lafs.shape)}.")
    frames = lafs[0].detach().cpu().to(torch.float64).numpy()
    area = np.abs(np.linalg.det(frames[:, :, :2]))
    angle = np.arctan2(frames[:, 1, 0], frames[:, 0, 0]) % (2 * np.pi)
    strength = np.ones(len(frames)) if response is None else response.detach().cpu().to(torch.float64).numpy().ravel()
    if len(strength) != len(frames):
        raise InputError(f"{len(frames)} LAFs have {len(strength)} responses: give one per LAF.")
    return Keypoints(frames[:, :, 2].copy(), np.sqrt(area) * 2 / window, angle, strength)


class HalvedPatches(nn.Module):
    """Patches (B, 1, 64, 64) in [0, 1] -> the encoder's descriptors of the patches halved as in `describe_patches`."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, patches: Tensor) -> Tensor:
        descriptors: Tensor = self.encoder(halve(patches[:, 0])[:, None])
        return descriptors


def laf_descriptor(encoder: Encoder) -> "LAFDescriptor":
    """The encoder as a `kornia.feature.LAFDescriptor`: image (B, 1, H, W) in [0, 1] and LAFs (B, N, 2, 3) -> (B, N, 128).

    kornia cuts patches of twice the encoder's size, as `describe` does. Of patches that it cuts at the encoder's own size
    (`LAFDescriptor(encoder, 32)`) the descriptors are less similar to ours: in the median a cosine of 0.98 instead of 0.9999.
    """
    from kornia.feature import LAFDescriptor

    return LAFDescriptor(HalvedPatches(encoder), 2 * encoder.patch_size)


def local_feature(
    encoder: Encoder | None = None,
    detector: nn.Module | None = None,
    *,
    limit: int = 2000,
    upright: bool = False,
    scaling: float | None = None,
) -> "LocalFeature":
    """A detector of kornia's and our descriptor as a `kornia.feature.LocalFeature`: images (B, 1, H, W) in [0, 1] ->
    LAFs (B, N, 2, 3), responses (B, N) and descriptors (B, N, 128).

    Args:
        encoder: default: the shipped weights.
        detector: a module that returns LAFs and responses; default: the DoG detector of `SIFTFeatureScaleSpace`.
        limit: number of keypoints of the default detector. kornia fills up missing ones with zero LAFs: see `laf_is_filled`.
        upright: the default detector's LAFs are not oriented.
        scaling: multiplier of the detector's LAFs; default: for a `ScaleSpaceDetector`, whose LAFs are multiples of sigma,
            what gives patches of the encoder's window, else 1.
    """
    from kornia.feature import LocalFeature, ScaleSpaceDetector, SIFTFeatureScaleSpace

    require_limits(limit, None)
    encoder = SDGMNet.from_pretrained() if encoder is None else encoder
    if detector is None:
        detector = SIFTFeatureScaleSpace(limit, upright=upright).detector
    elif upright:
        raise InputError("upright is for the default detector: give a detector without an orientation module instead.")
    if scaling is None:
        scaling = encoder.window / (2 * detector.mr_size) if isinstance(detector, ScaleSpaceDetector) else 1.0
    if not 0 < scaling < float("inf"):
        raise InputError(f"scaling must be positive, not {scaling}.")
    return LocalFeature(detector, laf_descriptor(encoder), scaling)

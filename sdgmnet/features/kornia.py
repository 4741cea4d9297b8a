"""Keypoints <-> kornia's local affine frames (LAFs).

kornia's angles are counter-clockwise, and the scale of a LAF is half the side of the patch. Both have pixel centres at
integers. With these LAFs, kornia computes our descriptors:

    encoder = SDGMNet.from_pretrained()
    kornia.feature.LAFDescriptor(encoder, patch_size=32)(image, to_lafs(keypoints, encoder.window))
"""

import numpy as np
import torch
from torch import Tensor

from sdgmnet.errors import InputError
from sdgmnet.features.keypoints import Keypoints
from sdgmnet.features.patches import local_frames
from sdgmnet.registry import WINDOW


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

"""Keypoints <-> kornia's local affine frames (LAFs).

kornia counts angles the other way round, and its frames hold half the side of the patch where we hold sigma, a twelfth of the
side. Both count pixel centres from integers. With frames made here,

    kornia.feature.LAFDescriptor(SDGMNet.from_pretrained(), patch_size=32)(image, to_lafs(keypoints))

are our descriptors: the encoder takes kornia's patches (B, 1, 32, 32) in [0, 1] as they are.
"""

import numpy as np
import torch
from torch import Tensor

from sdgmnet.errors import InputError
from sdgmnet.features.keypoints import Keypoints
from sdgmnet.features.patches import SIDE_IN_SIGMAS, local_frames


def to_lafs(keypoints: Keypoints) -> Tensor:
    """(1, N, 2, 3) float32, for an image (1, C, H, W)."""
    return local_frames(keypoints)


def from_lafs(lafs: Tensor, response: Tensor | None = None) -> Keypoints:
    """Keypoints of the frames (1, N, 2, 3) of one image, in their order.

    A frame that is more than turned and scaled loses its affine shape: sigma keeps the patch's area, the angle the direction
    of its x axis. response (1, N) or (N,), as kornia's detectors give it; 1 where there is none.
    """
    if lafs.ndim != 4 or lafs.shape[0] != 1 or lafs.shape[2:] != (2, 3):
        raise InputError(f"frames are (1, N, 2, 3), those of one image, not {tuple(lafs.shape)}.")
    frames = lafs[0].detach().cpu().to(torch.float64).numpy()
    area = np.abs(np.linalg.det(frames[:, :, :2]))
    angle = np.arctan2(frames[:, 1, 0], frames[:, 0, 0]) % (2 * np.pi)
    strength = np.ones(len(frames)) if response is None else response.detach().cpu().to(torch.float64).numpy().ravel()
    if len(strength) != len(frames):
        raise InputError(f"{len(frames)} frames have {len(strength)} responses: give one each.")
    return Keypoints(frames[:, :, 2].copy(), np.sqrt(area) * 2 / SIDE_IN_SIGMAS, angle, strength)

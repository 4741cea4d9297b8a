"""Keypoints -> patches: side 12 sigma, turned to the keypoint's angle, antialiased from an image pyramid."""

import numpy as np
import torch
from kornia.feature import extract_patches_from_pyramid
from torch import Tensor

from sdgmnet.features.keypoints import Keypoints

SIDE_IN_SIGMAS = 12.0


def local_frames(keypoints: Keypoints) -> Tensor:
    """kornia's local affine frames (1, N, 2, 3): the patch is the square [-1, 1]^2 seen through the frame.

    The first column is the patch's x axis in the picture. With angles clockwise on a picture whose y points down this is the
    ordinary rotation matrix; kornia's own helper takes the angle the other way round.
    """
    half_side = keypoints.sigma * SIDE_IN_SIGMAS / 2
    cos, sin = half_side * np.cos(keypoints.angle), half_side * np.sin(keypoints.angle)
    frames = np.stack([np.stack([cos, -sin, keypoints.xy[:, 0]], 1), np.stack([sin, cos, keypoints.xy[:, 1]], 1)], 1)
    return torch.from_numpy(frames.astype(np.float32))[None]


def cut_patches(image: np.ndarray, keypoints: Keypoints, side: int = 64) -> np.ndarray:
    """Patches (N, side, side) uint8 of a gray image (H, W) uint8. What lies outside the picture repeats its border."""
    picture = torch.from_numpy(image.astype(np.float32))[None, None]
    patches = extract_patches_from_pyramid(picture, local_frames(keypoints), side)[0, :, 0]
    return patches.round_().clamp_(0, 255).to(torch.uint8).numpy()


def inside(keypoints: Keypoints, width: int, height: int) -> np.ndarray:
    """Which patches lie wholly within the picture: (N,) bool."""
    reach = keypoints.sigma * SIDE_IN_SIGMAS / 2 * (np.abs(np.cos(keypoints.angle)) + np.abs(np.sin(keypoints.angle)))
    x, y = keypoints.xy.T
    return (x - reach >= 0) & (y - reach >= 0) & (x + reach <= width - 1) & (y + reach <= height - 1)

"""SIFT and RootSIFT, of patches and at keypoints of an image."""

import cv2
import numpy as np

from sdgmnet.errors import InputError
from sdgmnet.features.compact import unit
from sdgmnet.features.keypoints import Keypoints, opencv_sift, to_opencv

SIFT_VARIANT = "OpenCV's SIFT on the 64-pixel patch, upright, its 4 x 4 grid exactly covering the patch"


def sift(patches: np.ndarray) -> np.ndarray:
    """SIFT of patches (N, 64, 64) uint8 at full resolution: (N, 128) float32 of unit length.

    One keypoint at the centre of each patch. OpenCV's grid spans six times the keypoint's size, hence a sixth of the side.
    """
    if patches.ndim != 3 or patches.shape[1] != patches.shape[2] or patches.dtype != np.uint8:
        raise InputError(f"patches must be (N, side, side) uint8, not {patches.dtype} {patches.shape}.")
    side = patches.shape[1]
    middle = cv2.KeyPoint((side - 1) / 2, (side - 1) / 2, side / 6, 0)
    extractor = cv2.SIFT.create()
    descriptors = np.zeros((len(patches), 128), dtype=np.float32)
    for row, patch in enumerate(patches):
        descriptors[row] = extractor.compute(np.ascontiguousarray(patch), [middle])[1][0]
    return unit(descriptors)


def rootsift(patches: np.ndarray) -> np.ndarray:
    """RootSIFT: the square root of L1-normalised SIFT, which has unit length."""
    return _root(sift(patches))


def sift_at_keypoints(image: np.ndarray, keypoints: Keypoints) -> np.ndarray:
    """OpenCV's own SIFT of an image (H, W) uint8 at given keypoints: (N, 128) float32 of unit length."""
    if not len(keypoints.xy):
        return np.zeros((0, 128), dtype=np.float32)
    highest = max(0, int(np.log2(min(image.shape))) - 1)
    return unit(np.asarray(opencv_sift().compute(image, to_opencv(keypoints, highest))[1], dtype=np.float32))


def rootsift_at_keypoints(image: np.ndarray, keypoints: Keypoints) -> np.ndarray:
    return _root(sift_at_keypoints(image, keypoints))


def _root(descriptors: np.ndarray) -> np.ndarray:
    return np.sqrt(descriptors / np.maximum(descriptors.sum(axis=1, keepdims=True), 1e-12))

"""Descriptors of OpenCV's contrib modules at given keypoints, with the settings that OpenCV's documentation has for SIFT's.

The module cv2.xfeatures2d is in the package opencv-contrib-python-headless, which replaces opencv-python-headless.
"""

from collections.abc import Callable
from typing import Any

import cv2
import numpy as np

from sdgmnet.errors import InputError
from sdgmnet.features.keypoints import Keypoints, to_opencv

FAR = 1e4
SIFT_SCALE = 6.75  # side of the region in keypoint sizes, for SIFT's keypoints
MAKERS: dict[str, Callable[[Any], Any]] = {  # of cv2.xfeatures2d
    "VGG": lambda module: module.VGG_create(scale_factor=SIFT_SCALE),
    "BoostDesc": lambda module: module.BoostDesc_create(scale_factor=SIFT_SCALE),
    "BEBLID": lambda module: module.BEBLID_create(SIFT_SCALE),
    "TEBLID": lambda module: module.TEBLID_create(SIFT_SCALE),
    "DAISY": lambda module: module.DAISY_create(use_orientation=True),
}


def describe_by_opencv(name: str) -> Callable[[np.ndarray, Keypoints], np.ndarray]:
    """Image (H, W) uint8 and keypoints -> descriptors (N, D) float32.

    Binary ones have a number for each bit: the squared distance of two is their Hamming distance.
    """
    module = getattr(cv2, "xfeatures2d", None)
    if module is None:
        raise InputError(
            f"opencv:{name} needs OpenCV's contrib modules: pip uninstall opencv-python-headless, then "
            "pip install opencv-contrib-python-headless."
        )
    extractor = MAKERS[name](module)
    width = extractor.descriptorSize() * (8 if extractor.descriptorType() == cv2.CV_8U else 1)

    def describe(image: np.ndarray, keypoints: Keypoints) -> np.ndarray:
        # What OpenCV drops lies far from all descriptors, and each from each other: it is matched to nothing.
        out = np.zeros((len(keypoints.xy), width), dtype=np.float32)
        out[:, 0] = FAR * (1 + np.arange(len(out)))
        given = to_opencv(keypoints)
        for number, one in enumerate(given):
            one.class_id = number  # OpenCV drops keypoints that it cannot describe
        if given:
            kept, found = extractor.compute(image, given)
            if len(kept):
                rows = np.unpackbits(found, axis=1) if found.dtype == np.uint8 else found
                out[[one.class_id for one in kept]] = np.nan_to_num(rows)
        return out

    return describe

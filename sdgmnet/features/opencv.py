"""A drop-in replacement for cv2.SIFT.

It has the methods of cv2.Feature2D without being a subclass: those crash in OpenCV 5. Everything that takes keypoints and
descriptors, such as matchers and drawing, works; C++ code that takes the object itself does not
(cv2.BOWImgDescriptorExtractor).
"""

from collections.abc import Sequence

import cv2
import numpy as np

from sdgmnet.encoders import Encoder, SDGMNet
from sdgmnet.errors import InputError
from sdgmnet.features.describe import (
    Descriptor,
    as_uint8,
    describe_keypoints,
    descriptor_from_encoder,
    require_limits,
)
from sdgmnet.features.keypoints import detect, from_opencv, to_opencv

CvKeypoints = tuple[cv2.KeyPoint, ...]


class OpenCVFeatures:
    """DoG keypoints and their descriptors with OpenCV's method names.

    Images are (H, W), or (H, W, 3) and (H, W, 4) in OpenCV's BGR. A keypoint's `size` is 2 sigma, as in SIFT: a window
    of 12 sigma spans six sizes. For keypoints whose size is that of the patch (ORB, BRISK), divide it by half the window.

    Args:
        descriptor: an encoder, or `sdgmnet.descriptors.load_descriptor("rootsift")`; default: the shipped weights.
        limit: the maximum number of keypoints, strongest first.
        upright: set every angle to 0, with one keypoint per location.
    """

    def __init__(
        self, descriptor: Descriptor | Encoder | None = None, *, limit: int | None = None, upright: bool = False
    ) -> None:
        require_limits(limit, None)
        descriptor = SDGMNet.from_pretrained() if descriptor is None else descriptor
        self.descriptor = descriptor if isinstance(descriptor, Descriptor) else descriptor_from_encoder(descriptor)
        self.limit, self.upright = limit, upright
        self.size = self.descriptor.describe(np.zeros((1, 64, 64), dtype=np.uint8)).shape[1]

    def detect(self, image: np.ndarray, mask: np.ndarray | None = None) -> CvKeypoints:
        """Keypoints, strongest first; with a mask (H, W) uint8, those on pixels where it is not 0."""
        gray = gray_of_bgr(image)
        if mask is not None and (mask.shape != gray.shape or mask.dtype != np.uint8):
            raise InputError(f"the mask must be uint8 {gray.shape}, as the image, not {mask.dtype} {mask.shape}.")
        return tuple(to_opencv(detect(gray, self.limit, upright=self.upright, mask=mask)))

    def compute(
        self, image: np.ndarray, keypoints: Sequence[cv2.KeyPoint], descriptors: object = None
    ) -> tuple[CvKeypoints, np.ndarray | None]:
        """All keypoints as given, and their descriptors (N, D) float32; None without keypoints, as in OpenCV. The argument
        `descriptors`, OpenCV's buffer for the result, is not used."""
        if not len(keypoints):
            return (), None
        given = from_opencv(keypoints)
        described = describe_keypoints(gray_of_bgr(image), given, self.descriptor, upright=self.upright)
        return tuple(keypoints), described.descriptors

    def detectAndCompute(
        self,
        image: np.ndarray,
        mask: np.ndarray | None = None,
        descriptors: object = None,
        useProvidedKeypoints: bool = False,
    ) -> tuple[CvKeypoints, np.ndarray | None]:
        if useProvidedKeypoints:
            raise InputError("call compute(image, keypoints) to describe given keypoints.")
        return self.compute(image, self.detect(image, mask))

    def descriptorSize(self) -> int:
        return self.size

    def descriptorType(self) -> int:
        return int(cv2.CV_32F)

    def defaultNorm(self) -> int:
        return int(cv2.NORM_L2)

    def getDefaultName(self) -> str:
        return f"Feature2D.{self.descriptor.label}"


def gray_of_bgr(image: np.ndarray) -> np.ndarray:
    """(H, W) uint8 of an image in OpenCV's channel order."""
    image = np.asarray(image)
    channels = image.shape[2] if image.ndim == 3 else 1
    if image.ndim not in (2, 3) or channels not in (1, 3, 4) or 0 in image.shape:
        raise InputError(f"an image must be an array (H, W), or (H, W, 3) in BGR, not {image.shape}.")
    pixels = as_uint8(image)
    if channels == 1:
        return pixels.reshape(image.shape[:2])
    return cv2.cvtColor(pixels, cv2.COLOR_BGR2GRAY if channels == 3 else cv2.COLOR_BGRA2GRAY)

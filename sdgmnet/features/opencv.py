"""Our features called as OpenCV's are, for programs that hold a cv2.SIFT today.

It has the methods of cv2.Feature2D without being one: subclasses of that crash in OpenCV 5. Matchers, drawing and all else
that takes keypoints and descriptors work as ever; only C++ code that wants the object itself, as cv2.BOWImgDescriptorExtractor
does, cannot have it.
"""

from collections.abc import Sequence

import cv2
import numpy as np

from sdgmnet.encoders import Encoder, SDGMNet
from sdgmnet.errors import InputError
from sdgmnet.features.describe import Descriptor, as_uint8, describe_keypoints, descriptor_from_encoder
from sdgmnet.features.keypoints import detect, from_opencv, to_opencv

CvKeypoints = tuple[cv2.KeyPoint, ...]


class OpenCVFeatures:
    """DoG keypoints and their descriptors behind OpenCV's names.

    Images are (H, W), or (H, W, 3) and (H, W, 4) in OpenCV's BGR. A keypoint's `size` is read as SIFT means it, twice its
    sigma: the patch spans six sizes. Detectors that mean the patch itself (ORB, BRISK) want `size / 6`.

    Args:
        descriptor: a descriptor, such as "sdgmnet", "rootsift" or the path of own weights; or an encoder.
        limit: detect at most so many keypoints, by response.
        upright: take the image as it stands: every angle is 0, and a place gives one keypoint.
    """

    def __init__(
        self, descriptor: Descriptor | Encoder | None = None, *, limit: int | None = None, upright: bool = False
    ) -> None:
        descriptor = SDGMNet.from_pretrained() if descriptor is None else descriptor
        self.contender = descriptor if isinstance(descriptor, Descriptor) else descriptor_from_encoder(descriptor)
        self.limit, self.upright = limit, upright
        self.size = self.contender.describe(np.zeros((1, 64, 64), dtype=np.uint8)).shape[1]

    def detect(self, image: np.ndarray, mask: np.ndarray | None = None) -> CvKeypoints:
        """Keypoints, strongest first; with a mask (H, W) uint8 only those on pixels where it is not 0."""
        gray = gray_of_bgr(image)
        found = detect(gray, upright=self.upright)
        if mask is not None:
            if mask.shape != gray.shape or mask.dtype != np.uint8:
                raise InputError(
                    f"a mask is uint8 and as large as the image, {gray.shape}, not {mask.dtype} {mask.shape}."
                )
            column, row = np.floor(found.xy + 0.5).astype(int).T
            found = found.select(mask[row.clip(0, len(mask) - 1), column.clip(0, mask.shape[1] - 1)] != 0)
        return tuple(to_opencv(found.select(np.arange(len(found.xy))[: self.limit])))

    def compute(
        self, image: np.ndarray, keypoints: Sequence[cv2.KeyPoint], descriptors: object = None
    ) -> tuple[CvKeypoints, np.ndarray | None]:
        """The keypoints as given, none left out, and their descriptors (N, D) float32; None where there is no keypoint, as
        OpenCV does. `descriptors`, OpenCV's place for the result, is not used."""
        if not len(keypoints):
            return (), None
        given = from_opencv(keypoints)
        described = describe_keypoints(gray_of_bgr(image), given, self.contender, upright=self.upright)
        return tuple(keypoints), described.descriptors

    def detectAndCompute(
        self,
        image: np.ndarray,
        mask: np.ndarray | None = None,
        descriptors: object = None,
        useProvidedKeypoints: bool = False,
    ) -> tuple[CvKeypoints, np.ndarray | None]:
        if useProvidedKeypoints:
            raise InputError("to describe keypoints of your own, call compute(image, keypoints).")
        return self.compute(image, self.detect(image, mask))

    def descriptorSize(self) -> int:
        return self.size

    def descriptorType(self) -> int:
        return int(cv2.CV_32F)

    def defaultNorm(self) -> int:
        return int(cv2.NORM_L2)

    def getDefaultName(self) -> str:
        return f"Feature2D.{self.contender.label}"


def gray_of_bgr(image: np.ndarray) -> np.ndarray:
    """(H, W) uint8 of an image as OpenCV holds it."""
    image = np.asarray(image)
    channels = image.shape[2] if image.ndim == 3 else 1
    if image.ndim not in (2, 3) or channels not in (1, 3, 4) or 0 in image.shape:
        raise InputError(f"an image is an array (H, W), or (H, W, 3) in BGR, not {image.shape}.")
    pixels = as_uint8(image)
    if channels == 1:
        return pixels.reshape(image.shape[:2])
    return cv2.cvtColor(pixels, cv2.COLOR_BGR2GRAY if channels == 3 else cv2.COLOR_BGRA2GRAY)

"""Features with the methods and attributes of scikit-image's `SIFT` and `ORB`. scikit-image itself is not needed.

Keypoints are (row, column), with pixel centres at integers. `scales` are sigma in pixels. `orientations` are in radians from
the column axis towards the row axis, as in `ORB`; `SIFT` measures from the row axis: pi / 2 minus ours.
"""

import numpy as np

from sdgmnet.encoders import Encoder, SDGMNet
from sdgmnet.errors import InputError
from sdgmnet.features.describe import Descriptor, as_gray, describe_keypoints, descriptor_from_encoder, require_limits
from sdgmnet.features.keypoints import Keypoints, detect


class SkimageFeatures:
    """DoG keypoints and their descriptors with scikit-image's method names.

    Images are (H, W), or (H, W, 3) in RGB; uint8, uint16 or floats in [0, 1].

    Args:
        descriptor: an encoder, or `sdgmnet.descriptors.load_descriptor("rootsift")`; default: the shipped weights.
        n_keypoints: the maximum number of keypoints, strongest first; None: no limit.
        upright: set every orientation to 0, with one keypoint per location.

    Attributes, set by the methods:
        keypoints: (N, 2) float64, (row, column).
        scales, orientations, responses: (N,) float64.
        descriptors: (N, D) float32.
    """

    keypoints: np.ndarray
    scales: np.ndarray
    orientations: np.ndarray
    responses: np.ndarray
    descriptors: np.ndarray

    def __init__(
        self, descriptor: Descriptor | Encoder | None = None, *, n_keypoints: int | None = None, upright: bool = False
    ) -> None:
        require_limits(n_keypoints, None)
        descriptor = SDGMNet.from_pretrained() if descriptor is None else descriptor
        self.descriptor = descriptor if isinstance(descriptor, Descriptor) else descriptor_from_encoder(descriptor)
        self.n_keypoints, self.upright = n_keypoints, upright

    def detect(self, image: np.ndarray) -> None:
        """Set `keypoints`, `scales`, `orientations` and `responses`, strongest first."""
        self._detect(as_gray(image))

    def extract(
        self,
        image: np.ndarray,
        keypoints: np.ndarray,
        scales: np.ndarray | None = None,
        orientations: np.ndarray | None = None,
    ) -> None:
        """Set `descriptors`, of all given keypoints (N, 2) in their order.

        scales, orientations (N,): as `detect` sets them; default: sigma 1.6, the smallest that SIFT describes in the image's
        own resolution, and 0.
        """
        row_column = np.asarray(keypoints, dtype=np.float64)
        count = len(row_column)
        sigma = np.full(count, 1.6) if scales is None else np.asarray(scales, dtype=np.float64)
        angle = np.zeros(count) if orientations is None else np.asarray(orientations, dtype=np.float64)
        if row_column.shape != (count, 2) or sigma.shape != (count,) or angle.shape != (count,):
            shapes = f"{row_column.shape}, {sigma.shape} and {angle.shape}"
            raise InputError(f"keypoints must be (N, 2), scales and orientations (N,), not {shapes}.")
        if not (np.isfinite(row_column).all() and np.isfinite(angle + sigma).all() and (sigma > 0).all()):
            raise InputError("keypoints and orientations must be finite, scales positive.")
        xy = row_column[:, ::-1].copy()
        self._extract(as_gray(image), Keypoints(xy, sigma, angle, np.ones(count)))

    def detect_and_extract(self, image: np.ndarray) -> None:
        """Set all attributes."""
        gray = as_gray(image)
        self._extract(gray, self._detect(gray))

    def _detect(self, gray: np.ndarray) -> Keypoints:
        found = detect(gray, self.n_keypoints, upright=self.upright)
        self.keypoints, self.scales = found.xy[:, ::-1].copy(), found.sigma
        self.orientations, self.responses = found.angle, found.response
        return found

    def _extract(self, gray: np.ndarray, keypoints: Keypoints) -> None:
        self.descriptors = describe_keypoints(gray, keypoints, self.descriptor, upright=self.upright).descriptors

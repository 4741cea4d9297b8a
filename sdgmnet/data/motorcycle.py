"""The stereo pair of a motorcycle inside the scikit-image wheel, with its true disparity (Middlebury 2014)."""

from typing import NamedTuple

import cv2
import numpy as np

from sdgmnet.data.demo import picture_path, read_picture


class StereoPair(NamedTuple):
    left: np.ndarray  # (H, W, 3) uint8, RGB
    right: np.ndarray  # (H, W, 3) uint8, RGB
    disparity: (
        np.ndarray
    )  # (H, W): the pixel (x, y) of the left is (x - disparity, y) in the right; not finite: unknown


def read_motorcycle() -> StereoPair:
    left, right = (
        cv2.cvtColor(read_picture(f"motorcycle_{side}.png", cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
        for side in ("left", "right")
    )
    with np.load(picture_path("motorcycle_disp.npz")) as file:
        disparity = file["arr_0"].astype(np.float64)
    return StereoPair(left, right, disparity)


def true_places(disparity: np.ndarray, xy: np.ndarray) -> np.ndarray:
    """Where places (N, 2) of the left picture are in the right one: (N, 2), NaN where that is not known.

    The disparity of the nearest pixel is taken: between two pixels at an edge there is no third depth.
    """
    column, row = np.rint(xy).astype(np.int64).T
    height, width = disparity.shape
    shift = disparity[row.clip(0, height - 1), column.clip(0, width - 1)]
    return np.column_stack([xy[:, 0] - np.where(np.isfinite(shift), shift, np.nan), xy[:, 1]])

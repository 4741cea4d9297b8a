"""Where points of one image of a plane are in another: homographies (3, 3), places (N, 2) in pixels, centres at integers."""

import numpy as np

Size = tuple[int, int]  # width, height


def through(homography: np.ndarray, xy: np.ndarray) -> np.ndarray:
    """Places (N, 2) seen through the homography; what goes to infinity goes far away."""
    mapped = np.column_stack([xy, np.ones(len(xy))]) @ homography.T
    return mapped[:, :2] / np.where(np.abs(mapped[:, 2:]) < 1e-12, 1e-12, mapped[:, 2:])


def true_places(homography: np.ndarray, xy: np.ndarray, size: Size) -> np.ndarray:
    """As `through`, but infinite for points behind the other camera, whose formula gives a place although nobody sees them.

    Homographies know no scale nor sign, so that "in front" needs a point that is: the middle of the image, of `size`, that
    the points are in.
    """
    side = np.column_stack([xy, np.ones(len(xy))]) @ homography[2]
    middle = homography[2] @ ((size[0] - 1) / 2, (size[1] - 1) / 2, 1.0)
    return np.where((side * middle > 0)[:, None], through(homography, xy), np.inf)


def is_inside(places: np.ndarray, size: Size) -> np.ndarray:
    """Which places (N, 2) lie within an image, its outermost pixels' centres included: (N,) bool."""
    return np.all((places >= 0) & (places <= np.array(size) - 1), axis=1)


def distance(wanted: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Between places of the same row, (N,) pixels; infinite where the wanted one is."""
    return np.linalg.norm(wanted - places, axis=1)

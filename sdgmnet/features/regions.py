"""Image -> blobs by the determinant of the Hessian, corners by Harris-Laplace, and the dominant orientation of keypoints.

Both detectors share one scale space: four levels per octave, pixel centres at integers. The image is assumed to have a blur of
half a pixel. Responses are for gray levels in [0, 1].
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import cv2
import numpy as np

from sdgmnet.features.keypoints import Keypoints
from sdgmnet.features.patches import cut_frames

MIN_SIGMA = 1.6  # pixels, of the first level with detections
LEVELS = 4  # per octave
BELOW = 2  # levels below the first with detections, at 1 / sqrt(2) of its scale: Harris' derivatives are taken there
OWN_BLUR = 0.5
MIN_SIDE = 16  # of an octave, in its pixels: its smallest regions, ten sigmas wide, just fit
CONTRAST = 0.03  # of the faintest Gaussian blob that is detected
HARRIS = 0.04  # Harris and Stephens' factor of the squared trace
ANGLE_CELLS, ANGLE_REACH = 48, 7.5  # of the patch for orientation: cells per side, sigmas from centre to border
BINS = 36
PATCHES_AT_ONCE = 2048

Places = tuple[np.ndarray, np.ndarray, np.ndarray]  # level, row, column


class Octave(NamedTuple):
    levels: np.ndarray  # (LEVELS + BELOW + 1, H, W) float32
    sigma: np.ndarray  # of each level, in pixels of this octave
    step: int  # pixels of the image per pixel of this octave


def scale_space(image: np.ndarray) -> Iterator[Octave]:
    """Octaves of a gray image (H, W) uint8; detections are on levels BELOW ... BELOW + LEVELS - 1 of each."""
    sigma = MIN_SIGMA * 2 ** ((np.arange(LEVELS + BELOW + 1) - BELOW) / LEVELS)
    first = cv2.GaussianBlur(image.astype(np.float32) / 255, (0, 0), float(np.sqrt(sigma[0] ** 2 - OWN_BLUR**2)))
    step = 1
    while min(first.shape) >= MIN_SIDE:
        levels = [first]
        for before, after in pairwise(sigma):
            levels.append(cv2.GaussianBlur(levels[-1], (0, 0), float(np.sqrt(after**2 - before**2))))
        yield Octave(np.stack(levels), sigma, step)
        first, step = np.ascontiguousarray(levels[LEVELS][::2, ::2]), step * 2


def hessian_blobs(image: np.ndarray) -> Keypoints:
    """Maxima over location and scale of the scale-normalised determinant of the Hessian, strongest first; every angle is 0.

    image (H, W) uint8. A Gaussian blob of standard deviation s is detected with sigma = s.
    """
    found = [np.empty((0, 4))]
    for octave in scale_space(image):
        response = np.stack([_hessian(level, sigma) for level, sigma in zip(octave.levels, octave.sigma, strict=True)])
        # A Gaussian blob of height c has second derivatives of c / 4 at its own scale.
        places = _maxima(response, (CONTRAST / 4) ** 2, over_scale=True)
        offset, value = _fit_peak(response, places, (0, 1, 2))
        found.append(_in_image(octave, places, offset, value))
    return _strongest_first(np.concatenate(found))


def harris_corners(image: np.ndarray) -> Keypoints:
    """Harris-Laplace: maxima of Harris' measure over location where the Laplacian is extremal over scale, strongest first.

    image (H, W) uint8; every angle is 0. Derivatives are taken at sigma / sqrt(2) and integrated over sigma. A Gaussian blob of
    standard deviation s is detected with sigma = s; the corner of two endless edges looks the same at every scale, and is not.
    """
    found = [np.empty((0, 4))]
    for octave in scale_space(image):
        measure = np.zeros_like(octave.levels)
        for number in range(BELOW, BELOW + LEVELS):
            taken = number - BELOW
            measure[number] = _harris(octave.levels[taken], octave.sigma[taken], octave.sigma[number])
        # Of a Gaussian blob of height c, both eigenvalues are c^2 / 55 at its own scale.
        places = _maxima(measure, (1 - 4 * HARRIS) * (CONTRAST**2 / 55) ** 2, over_scale=False)
        laplacian = np.stack([_laplacian(*level) for level in zip(octave.levels, octave.sigma, strict=True)])
        below, here, above = (laplacian[places[0] + step, places[1], places[2]] for step in (-1, 0, 1))
        extremal = (here > below) & (here >= above)
        places = (places[0][extremal], places[1][extremal], places[2][extremal])
        offset, value = _fit_peak(measure, places, (1, 2))
        offset[:, 0] = _fit_peak(laplacian, places, (0,))[0][:, 0]
        found.append(_in_image(octave, places, offset, value))
    return _strongest_first(np.concatenate(found))


def _derivative(level: np.ndarray, along_x: Sequence[float], along_y: Sequence[float]) -> np.ndarray:
    kernel_x, kernel_y = (np.array(one, dtype=np.float32) for one in (along_x, along_y))
    return cv2.sepFilter2D(level, cv2.CV_32F, kernel_x, kernel_y, borderType=cv2.BORDER_REPLICATE)


def _second_derivatives(level: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    only, once, twice = (0, 1, 0), (-0.5, 0, 0.5), (1, -2, 1)
    return _derivative(level, twice, only), _derivative(level, once, once), _derivative(level, only, twice)


def _hessian(level: np.ndarray, sigma: float) -> np.ndarray:
    xx, xy, yy = _second_derivatives(level)
    return (xx * yy - xy * xy) * np.float32(sigma**4)


def _laplacian(level: np.ndarray, sigma: float) -> np.ndarray:
    xx, _, yy = _second_derivatives(level)
    return np.abs(xx + yy) * np.float32(sigma**2)


def _harris(level: np.ndarray, derivation_sigma: float, integration_sigma: float) -> np.ndarray:
    """det(M) - HARRIS trace(M)^2 of the second-moment matrix M."""
    only, once = (0, 1, 0), (-0.5, 0, 0.5)
    scale = np.float32(derivation_sigma)
    x, y = _derivative(level, once, only) * scale, _derivative(level, only, once) * scale
    xx, xy, yy = (cv2.GaussianBlur(one, (0, 0), float(integration_sigma)) for one in (x * x, x * y, y * y))
    return xx * yy - xy * xy - np.float32(HARRIS) * (xx + yy) ** 2


def _maxima(response: np.ndarray, threshold: float, *, over_scale: bool) -> Places:
    """Local maxima above the threshold on the levels with detections, away from the border."""
    around = np.ones((3, 3), dtype=np.uint8)
    highest = [cv2.dilate(level, around) for level in response]
    found = []
    for number in range(BELOW, BELOW + LEVELS):
        level = response[number]
        peak = (level > threshold) & (level >= highest[number])
        if over_scale:
            peak &= (level > highest[number - 1]) & (level >= highest[number + 1])
        peak[[0, -1], :] = peak[:, [0, -1]] = False
        row, column = np.nonzero(peak)
        found.append((np.full(len(row), number), row, column))
    level, row, column = (np.concatenate(one) for one in zip(*found, strict=True))
    return level, row, column


def _fit_peak(response: np.ndarray, places: Places, axes: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """The maximum of the quadratic through a peak and its neighbours along `axes` (0 level, 1 row, 2 column).

    Returns offsets (N, 3), at most one sample in each direction, and the value there (N,).
    """

    def at(*steps: tuple[int, int]) -> np.ndarray:
        moved = list(places)
        for axis, step in steps:
            moved[axis] = moved[axis] + step
        return response[moved[0], moved[1], moved[2]].astype(np.float64)

    count, centre = len(places[0]), at()
    slope, bend = np.empty((count, len(axes))), np.empty((count, len(axes), len(axes)))
    for i, a in enumerate(axes):
        slope[:, i] = (at((a, 1)) - at((a, -1))) / 2
        bend[:, i, i] = at((a, 1)) + at((a, -1)) - 2 * centre
        for j, b in enumerate(axes[:i]):
            mixed = at((a, 1), (b, 1)) + at((a, -1), (b, -1)) - at((a, 1), (b, -1)) - at((a, -1), (b, 1))
            bend[:, i, j] = bend[:, j, i] = mixed / 4
    best = np.clip(-np.einsum("nij,nj->ni", np.linalg.pinv(bend), slope), -1, 1)
    offset = np.zeros((count, 3))
    offset[:, list(axes)] = best
    return offset, centre + np.einsum("ni,ni->n", slope, best) / 2


def _in_image(octave: Octave, places: Places, offset: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Rows (x, y, sigma, response) in pixels of the image."""
    level, row, column = (place + offset[:, axis] for axis, place in enumerate(places))
    sigma = octave.sigma[0] * 2 ** (level / LEVELS)
    return np.column_stack([column * octave.step, row * octave.step, sigma * octave.step, value])


def _strongest_first(rows: np.ndarray) -> Keypoints:
    x, y, sigma, response = rows[np.lexsort((rows[:, 2], rows[:, 1], rows[:, 0], -rows[:, 3]))].T
    return Keypoints(np.column_stack([x, y]), sigma, np.zeros(len(x)), response)


def main_angles(image: np.ndarray, keypoints: Keypoints) -> np.ndarray:
    """The dominant orientation of the gradient around each keypoint (Lowe 2004, section 5): (N,) radians, clockwise.

    A histogram of 36 directions of the gradients at the keypoint's scale, weighted by a Gaussian of 1.5 sigma, is smoothed; the
    angle is the peak of the parabola through its highest bin and the two next to it.
    """
    starts = range(0, len(keypoints.xy), PATCHES_AT_ONCE)
    parts = [keypoints.select(slice(start, start + PATCHES_AT_ONCE)) for start in starts]
    return np.concatenate([np.empty(0), *(_main_angles(image, part.xy, part.sigma) for part in parts)])


def _main_angles(image: np.ndarray, xy: np.ndarray, sigma: np.ndarray) -> np.ndarray:
    frames = np.zeros((len(xy), 2, 3))
    frames[:, 0, 0] = frames[:, 1, 1] = sigma * ANGLE_REACH
    frames[:, :, 2] = xy
    patches = cut_frames(image, frames, ANGLE_CELLS).astype(np.float32)
    along = ((np.arange(ANGLE_CELLS) + 0.5) * 2 / ANGLE_CELLS - 1) * ANGLE_REACH  # in sigmas
    inner = along[np.abs(along) <= 3 * 1.5]
    smooth = np.exp(-((inner[:, None] - along[None]) ** 2) / 2).astype(np.float32)
    derive = ((along[None] - inner[:, None]) * smooth).astype(np.float32)
    x, y = smooth @ patches @ derive.T, derive @ patches @ smooth.T
    weight = np.hypot(x, y) * np.exp(-(inner[:, None] ** 2 + inner[None] ** 2) / (2 * 1.5**2))
    place = np.arctan2(y, x) * (BINS / (2 * np.pi)) % BINS
    low = np.floor(place).astype(np.int64)
    share, first = place - low, np.arange(len(xy))[:, None, None] * BINS
    size = len(xy) * BINS
    histogram = np.bincount((first + low % BINS).ravel(), (weight * (1 - share)).ravel(), size)
    histogram += np.bincount((first + (low + 1) % BINS).ravel(), (weight * share).ravel(), size)
    histogram, smoother = histogram.reshape(-1, BINS), (1, 4, 6, 4, 1)
    histogram = np.sum([part * np.roll(histogram, step - 2, axis=1) for step, part in enumerate(smoother)], axis=0)
    best = histogram.argmax(axis=1)
    before, here, after = (histogram[np.arange(len(best)), (best + step) % BINS] for step in (-1, 0, 1))
    bend = 2 * here - before - after
    summit = np.where(bend > 0, (after - before) / (2 * np.where(bend > 0, bend, 1)), 0)
    return (best + summit) * (2 * np.pi / BINS) % (2 * np.pi)

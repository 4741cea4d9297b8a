"""Image -> keypoints and their descriptors."""

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from torch import Tensor

from sdgmnet.encoders import Encoder
from sdgmnet.engine import describe_patches
from sdgmnet.errors import InputError
from sdgmnet.features.images import eight_bits, read_gray
from sdgmnet.features.keypoints import CONTRAST, Keypoints, detect
from sdgmnet.features.patches import cut_patches

SIZE = 2400  # pixels of the longest side: the detector takes 235 bytes a pixel, a gigabyte for a photo of this size
Image = str | PathLike[str] | np.ndarray | Tensor


DescribeFn = Callable[[np.ndarray], np.ndarray]


class Descriptor(NamedTuple):
    label: str
    describe: DescribeFn  # patches (N, 64, 64) uint8 -> descriptors (N, D)
    trained_on: tuple[str, ...]  # names of the sets it was trained on; empty for hand-made ones
    describe_image: Callable[[np.ndarray, Keypoints], np.ndarray] | None = (
        None  # where whole images have a way of their own
    )
    scenes: tuple[str, ...] = ()  # that the sets it was trained on show, and other sets may show as well
    descriptors: Path | None = None  # where descriptors of HPatches' strips are all there is


class Features(NamedTuple):
    """What is known of an image. Keypoints: pixel centres at integers, angles clockwise in radians, sigma in pixels."""

    keypoints: Keypoints
    descriptors: np.ndarray  # (N, D) float32
    size: tuple[int, int]  # width, height


def describe_image(
    image: Image,
    keypoints: Keypoints | None = None,
    *,
    descriptor: Descriptor,
    limit: int | None = None,
    upright: bool = False,
    size: int | None = SIZE,
) -> Features:
    """Describe the DoG keypoints of an image, strongest first, or the keypoints that are given.

    Args:
        image: a file, an array (H, W) or (H, W, 3) in RGB, or a tensor (H, W), (C, H, W) or (1, C, H, W); whole numbers are
            read as 0..255 (uint8) or by as many bits as they use (uint16), floats as [0, 1].
        keypoints: describe these instead of detecting any; all of them are kept, in their order.
        descriptor: a descriptor, such as "sdgmnet", "rootsift" or the path of own weights; or an encoder.
        limit: at most so many keypoints, by response.
        upright: take the image as it stands: every angle is 0, and a place gives one keypoint.
        size: longest side; larger images are made smaller while they are worked on, None leaves them as they are. Keypoints
            are in the image's own pixels.
    """
    gray = as_gray(image)
    whole = gray.shape[1], gray.shape[0]
    gray = shrink(gray, size)
    smaller = gray.shape[1], gray.shape[0]
    keypoints = detect(gray, limit, upright=upright) if keypoints is None else rescale(keypoints, whole, smaller)
    described = describe_keypoints(gray, keypoints, descriptor, upright=upright)
    return Features(rescale(described.keypoints, smaller, whole), described.descriptors, whole)


def find_keypoints(
    gray: np.ndarray,
    limit: int | None = None,
    *,
    upright: bool = False,
    size: int | None = SIZE,
    contrast: float = CONTRAST,
) -> Keypoints:
    """DoG keypoints of a gray image (H, W) uint8 in its own pixels, found while it is made no larger than `size`."""
    smaller = shrink(gray, size)
    found = detect(smaller, limit, upright=upright, contrast=contrast)
    return rescale(found, (smaller.shape[1], smaller.shape[0]), (gray.shape[1], gray.shape[0]))


def describe_keypoints(
    gray: np.ndarray, keypoints: Keypoints, contender: Descriptor, *, upright: bool = False
) -> Features:
    """Keypoints of a gray image (H, W) uint8, with their descriptors."""
    if upright:
        keypoints = keypoints._replace(angle=np.zeros(len(keypoints.xy)))
    if contender.describe_image is not None:
        descriptors = contender.describe_image(gray, keypoints)
    else:
        descriptors = contender.describe(cut_patches(gray, keypoints))
    return Features(keypoints, np.asarray(descriptors, dtype=np.float32), (gray.shape[1], gray.shape[0]))


def shrink(gray: np.ndarray, size: int | None) -> np.ndarray:
    """The image with a longest side of at most `size`."""
    longest = max(gray.shape)
    if size is None or longest <= size:
        return gray
    width, height = (max(1, round(side * size / longest)) for side in (gray.shape[1], gray.shape[0]))
    return cv2.resize(gray, (width, height), interpolation=cv2.INTER_AREA)


def rescale(keypoints: Keypoints, old: tuple[int, int], new: tuple[int, int]) -> Keypoints:
    """Keypoints of an image of the size `old` (width, height) in the same image of the size `new`."""
    if old == new:
        return keypoints
    scale = np.array(new) / np.array(old)
    return keypoints._replace(xy=(keypoints.xy + 0.5) * scale - 0.5, sigma=keypoints.sigma * np.sqrt(scale.prod()))


def as_gray(image: Image) -> np.ndarray:
    """(H, W) uint8 of whatever an image is given as."""
    if isinstance(image, (str, PathLike)):
        return read_gray(Path(image))
    array = image.detach().cpu().numpy() if isinstance(image, Tensor) else np.asarray(image)
    if isinstance(image, Tensor) and array.ndim == 4 and len(array) == 1:
        array = array[0]
    if isinstance(image, Tensor) and array.ndim == 3:
        array = np.moveaxis(array, 0, 2)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] != 3) or 0 in array.shape:
        kind = "tensor (H, W), (C, H, W) or (1, C, H, W)" if isinstance(image, Tensor) else "array (H, W) or (H, W, 3)"
        raise InputError(f"an image is an {kind}, not {tuple(array.shape)}.")
    pixels = as_bytes(array)
    return pixels if pixels.ndim == 2 else cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY)


def as_bytes(array: np.ndarray) -> np.ndarray:
    if array.dtype == np.uint8:
        return np.ascontiguousarray(array)
    if array.dtype == np.uint16:
        return eight_bits(array)
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise InputError("the image holds NaN or infinite values.")
        if array.min() < 0 or array.max() > 1:
            raise InputError("an image of floats lies in [0, 1]; give 0..255 as uint8.")
        return np.rint(array * 255).astype(np.uint8)
    raise InputError(f"an image is uint8, uint16 or float, not {array.dtype}.")


def descriptor_of(encoder: Encoder, label: str = "encoder") -> Descriptor:
    """An encoder as something that describes patches."""
    return Descriptor(label, lambda patches: describe_patches(encoder, patches), ())

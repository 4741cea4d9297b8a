"""Image -> keypoints and their descriptors."""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import cv2
import numpy as np

from sdgmnet.errors import InputError
from sdgmnet.features.images import read_gray, upper_eight_bits
from sdgmnet.features.keypoints import CONTRAST, Keypoints, detect
from sdgmnet.features.patches import cut_patches
from sdgmnet.heap import reused_heap
from sdgmnet.registry import WINDOW

if TYPE_CHECKING:  # torch is loaded when an encoder is: commands that only parse their options do not wait for it
    from torch import Tensor

    from sdgmnet.encoders import Encoder

    Image = str | PathLike[str] | np.ndarray | Tensor

LONGEST_SIDE = 2400  # pixels; the detector needs 235 bytes per pixel, a gigabyte for a photo of this size

SMALLEST_SIDE = 16  # that an image can be resized to
UPRIGHT_HELP = (
    "Measure on eight pairs of neighbours by name whether --upright gives more inliers, and decide for the folder."
)

ROUNDING = 1e-6  # by which a float image may leave [0, 1], as resized ones do

Item = TypeVar("Item")
Prepared = TypeVar("Prepared")
Result = TypeVar("Result")
DescribeFn = Callable[[np.ndarray], np.ndarray]


class Descriptor(NamedTuple):
    label: str
    describe: DescribeFn  # patches (N, 64, 64) uint8 -> descriptors (N, D)
    trained_on: tuple[str, ...] = ()  # names of the PatchSets
    # image (H, W) uint8 and keypoints -> descriptors (N, D): SIFT's own way, instead of patches
    describe_at_keypoints: Callable[[np.ndarray, Keypoints], np.ndarray] | None = None
    scenes: tuple[str, ...] = ()  # shown by these PatchSets: other sets may show them too
    csv_folder: Path | None = None  # descriptors computed elsewhere, of HPatches patches only
    window: float = WINDOW  # side of the patches that `describe` takes, in sigmas of their keypoints
    fingerprint: str = ""  # name and digest of the weights: tells whether descriptors can be compared


class Features(NamedTuple):
    """Keypoints: pixel centres at integers, angles clockwise in radians, sigma in pixels."""

    keypoints: Keypoints
    descriptors: np.ndarray  # (N, D) float32
    size: tuple[int, int]  # width, height

    def __repr__(self) -> str:
        count, dimensions = self.descriptors.shape
        return f"Features({count} keypoints, {dimensions} dimensions, image of {self.size[0]} x {self.size[1]} pixels)"


class StageTimer:
    """Seconds per stage, summed by name: `with timer("matching"): ...`."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - began


class Located(NamedTuple):
    """An image that has been read, and the keypoints to describe in it."""

    gray: np.ndarray  # (H, W) uint8 at the size at which it is described
    keypoints: Keypoints  # in its pixels
    size: tuple[int, int]  # width, height of the original


def describe_image(
    image: "Image",
    keypoints: Keypoints | None = None,
    *,
    descriptor: Descriptor,
    limit: int | None = None,
    upright: bool = False,
    size: int | None = LONGEST_SIDE,
) -> Features:
    """As `sdgmnet.describe`, with a loaded descriptor."""
    return describe_located(locate(image, keypoints, limit=limit, upright=upright, size=size), descriptor)


def locate(
    image: "Image",
    keypoints: Keypoints | None = None,
    *,
    limit: int | None = None,
    upright: bool = False,
    size: int | None = LONGEST_SIDE,
    contrast: float = CONTRAST,
    mask: np.ndarray | None = None,
    timer: StageTimer | None = None,
) -> Located:
    """Read an image and detect its keypoints, or take the given ones: the part of `describe_image` without an encoder.

    mask: (H, W) uint8; no keypoints are detected where it is 0. A timer gets the seconds of each stage.
    """
    require_limits(limit, size)
    timed = StageTimer() if timer is None else timer
    with timed("reading"):
        gray = as_gray(image)
        original = gray.shape[1], gray.shape[0]
        gray = shrink(gray, size)
        resized = gray.shape[1], gray.shape[0]
    with timed("finding keypoints"):
        if keypoints is None:
            keypoints = detect(gray, limit, upright=upright, contrast=contrast, mask=resize_mask(mask, resized))
        else:
            keypoints = rescale(keypoints, original, resized)
            keypoints = keypoints._replace(angle=np.zeros(len(keypoints.xy))) if upright else keypoints
    return Located(gray, keypoints, original)


def describe_located(located: Located, descriptor: Descriptor, timer: StageTimer | None = None) -> Features:
    gray, keypoints, original = located
    described = describe_keypoints(gray, keypoints, descriptor, timer=timer)
    resized = gray.shape[1], gray.shape[0]
    return Features(rescale(described.keypoints, resized, original), described.descriptors, original)


def overlapped(
    items: Iterable[Item], prepare: Callable[[Item], Prepared], finish: Callable[[Prepared], Result]
) -> Generator[tuple[Item, Future[Result]], None, None]:
    """Each item with finish(prepare(item)): a thread finishes one item while the caller's thread prepares the next.

    Detecting keypoints leaves processors idle that describing those of the image before can use. The caller's thread detects,
    since glibc reuses large blocks in the main thread alone. `result()` of a future raises what either function raised.
    """
    waiting: deque[tuple[Item, Future[Result]]] = deque()
    with reused_heap(), ThreadPoolExecutor(1) as pool:
        try:
            for item in items:
                try:
                    future = pool.submit(finish, prepare(item))
                except Exception as error:
                    future = Future()
                    future.set_exception(error)
                waiting.append((item, future))
                if len(waiting) > 1:
                    yield waiting.popleft()
            yield from waiting
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def require_limits(limit: int | None, size: int | None) -> None:
    if limit is not None and limit < 1:
        raise InputError(f"limit must be at least 1, or None for all keypoints, not {limit}.")
    if size is not None and size < SMALLEST_SIDE:
        raise InputError(f"size must be at least {SMALLEST_SIDE}, not {size}.")


def find_keypoints(
    gray: np.ndarray,
    limit: int | None = None,
    *,
    upright: bool = False,
    size: int | None = LONGEST_SIDE,
    contrast: float = CONTRAST,
    mask: np.ndarray | None = None,
) -> Keypoints:
    """DoG keypoints of a gray image (H, W) uint8 in its own pixels; detection runs at a longest side of at most `size`.

    mask: (H, W) uint8; no keypoints are detected where it is 0.
    """
    located = locate(gray, limit=limit, upright=upright, size=size, contrast=contrast, mask=mask)
    return rescale(located.keypoints, (located.gray.shape[1], located.gray.shape[0]), located.size)


def describe_keypoints(
    gray: np.ndarray,
    keypoints: Keypoints,
    descriptor: Descriptor,
    *,
    upright: bool = False,
    timer: StageTimer | None = None,
) -> Features:
    """Keypoints of a gray image (H, W) uint8, with their descriptors."""
    timed = StageTimer() if timer is None else timer
    if upright:
        keypoints = keypoints._replace(angle=np.zeros(len(keypoints.xy)))
    if descriptor.describe_at_keypoints is not None:
        with timed("describing"):
            descriptors = descriptor.describe_at_keypoints(gray, keypoints)
    else:
        with timed("cutting patches"):
            patches = cut_patches(gray, keypoints, window=descriptor.window)
        with timed("describing"):
            descriptors = descriptor.describe(patches)
    return Features(keypoints, np.asarray(descriptors, dtype=np.float32), (gray.shape[1], gray.shape[0]))


def shrink(gray: np.ndarray, size: int | None) -> np.ndarray:
    """The image with a longest side of at most `size`."""
    longest = max(gray.shape)
    if size is None or longest <= size:
        return gray
    width, height = (max(1, round(side * size / longest)) for side in (gray.shape[1], gray.shape[0]))
    return cv2.resize(gray, (width, height), interpolation=cv2.INTER_AREA)


def resize_mask(mask: np.ndarray | None, size: tuple[int, int]) -> np.ndarray | None:
    """The mask at a size (width, height), by nearest neighbour."""
    if mask is None or (mask.shape[1], mask.shape[0]) == size:
        return mask
    return cv2.resize(mask, size, interpolation=cv2.INTER_NEAREST)


def rescale(keypoints: Keypoints, old: tuple[int, int], new: tuple[int, int]) -> Keypoints:
    """Keypoints of an image of size `old` (width, height) in the same image resized to `new`."""
    if old == new:
        return keypoints
    scale = np.array(new) / np.array(old)
    return keypoints._replace(xy=(keypoints.xy + 0.5) * scale - 0.5, sigma=keypoints.sigma * np.sqrt(scale.prod()))


def as_gray(image: "Image") -> np.ndarray:
    """(H, W) uint8 of a file, an array (RGB) or a tensor."""
    if isinstance(image, (str, PathLike)):
        return read_gray(Path(image))
    is_tensor = not isinstance(image, np.ndarray) and hasattr(image, "detach")  # without loading torch
    array: np.ndarray = image.detach().cpu().numpy() if is_tensor else np.asarray(image)  # type: ignore[union-attr]
    if is_tensor and array.ndim == 4 and len(array) == 1:
        array = array[0]
    if is_tensor and array.ndim == 3:
        array = np.moveaxis(array, 0, 2)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] != 3) or 0 in array.shape:
        kind = "a tensor (H, W), (C, H, W) or (1, C, H, W)" if is_tensor else "an array (H, W) or (H, W, 3)"
        raise InputError(f"an image must be {kind}, not {tuple(array.shape)}.")
    pixels = as_uint8(array)
    return pixels if pixels.ndim == 2 else cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY)


def as_uint8(array: np.ndarray) -> np.ndarray:
    """uint8 as it is, the upper eight of the bits in use of uint16, floats in [0, 1] times 255."""
    if array.dtype == np.uint8:
        return np.ascontiguousarray(array)
    if array.dtype == np.uint16:
        return upper_eight_bits(array)
    if array.dtype.kind != "f":
        raise InputError(f"an image must be uint8, uint16 or float, not {array.dtype}.")
    if not (array.min() >= -ROUNDING and array.max() <= 1 + ROUNDING):
        raise InputError("a float image must be finite and in [0, 1]; give 0..255 as uint8.")
    return np.rint(array * 255).astype(np.uint8)


def descriptor_from_encoder(encoder: "Encoder", label: str = "encoder") -> Descriptor:
    from sdgmnet.engine import describe_patches

    return Descriptor(label, lambda patches: describe_patches(encoder, patches), window=encoder.window)

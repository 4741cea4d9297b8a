"""The embedded data sets: `--data demo`, a stereo pair and a hard pair, from the images in the scikit-image wheel.

Nothing is downloaded. Each image of `--data demo` is seen in several synthetic views, matched by geometry and never by
appearance.
"""

from importlib.resources import files as package_files
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

from sdgmnet.data.patchset import PatchSet, PatchTable, random_test_pairs
from sdgmnet.data.synthetic.views import Viewing, patches_of_views, rotation
from sdgmnet.errors import InputError
from sdgmnet.report import OnProgress, no_progress, track

TRAIN_IMAGES = (
    "astronaut.png", "brick.png", "chelsea.png", "coffee.png", "grass.png", "hubble_deep_field.jpg", "ihc.png",
    "motorcycle_left.png", "retina.jpg", "text.png",
)  # fmt: skip
TEST_IMAGES = ("camera.png", "coins.png", "gravel.png", "moon.png", "rocket.jpg")
VIEWING = Viewing()
TEST_PAIRS = 5000


def read_demo(on_progress: OnProgress = no_progress) -> tuple[PatchSet, PatchSet]:
    """The training and the test set, from disjoint images; the same arrays every time."""
    train, test = (
        build(name, images, on_progress) for name, images in (("demo-train", TRAIN_IMAGES), ("demo-test", TEST_IMAGES))
    )
    return train, test.with_test_pairs(random_test_pairs(test, TEST_PAIRS))


def build(name: str, images: tuple[str, ...], on_progress: OnProgress = no_progress) -> PatchSet:
    patches, table = [], PatchTable()
    for number, image in enumerate(track(images, f"cutting patches, {name}", on_progress)):
        seen = patches_of_views(read_image(image), np.random.default_rng([number, len(images)]), VIEWING)
        patches.append(seen.patches)
        table.add(seen.point, seen.keypoints, image=number, view=seen.view)
        table.end_piece(int(seen.point.max(initial=-1)) + 1, seen.ambiguous)
    arrays = table.arrays()
    origin = {"source": "scikit-image images", "pictures": list(images), "views": VIEWING.views}
    return PatchSet(name, np.concatenate(patches), arrays["point_id"], conflicts=arrays["conflicts"], origin=origin)


def image_path(name: str) -> Path:
    """Of an image in the scikit-image wheel."""
    try:
        return Path(str(package_files("skimage"))) / "data" / name
    except ModuleNotFoundError:
        raise InputError("the demo data need scikit-image's images: pip install 'sdgmnet[demo]'.") from None


def read_image(name: str, mode: int = cv2.IMREAD_GRAYSCALE) -> np.ndarray:
    """An image of the scikit-image wheel, gray uint8 by default."""
    path = image_path(name)
    image = cv2.imread(str(path), mode)
    if image is None:
        raise InputError(f"{path} is missing or unreadable: pip install --force-reinstall scikit-image.")
    return image


class StereoPair(NamedTuple):
    left: np.ndarray  # (H, W, 3) uint8, RGB
    right: np.ndarray  # (H, W, 3) uint8, RGB
    disparity: np.ndarray  # (H, W): pixel (x, y) of the left is (x - disparity, y) in the right; not finite: unknown


def read_motorcycle() -> StereoPair:
    left, right = (
        cv2.cvtColor(read_image(f"motorcycle_{side}.png", cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
        for side in ("left", "right")
    )
    with np.load(image_path("motorcycle_disp.npz")) as file:
        return StereoPair(left, right, file["arr_0"].astype(np.float64))


def true_places(disparity: np.ndarray, xy: np.ndarray) -> np.ndarray:
    """Pixels (N, 2) of the left image in the right one: (N, 2), NaN where unknown.

    The disparity of the nearest pixel is used: interpolating across an edge would invent a depth.
    """
    column, row = np.rint(xy).astype(np.int64).T
    height, width = disparity.shape
    shift = disparity[row.clip(0, height - 1), column.clip(0, width - 1)]
    return np.column_stack([xy[:, 0] - np.where(np.isfinite(shift), shift, np.nan), xy[:, 1]])


class WarpedPair(NamedTuple):
    first: np.ndarray  # (H, W, 3) uint8, RGB
    second: np.ndarray  # (H, W, 3) uint8, RGB
    homography: np.ndarray  # (3, 3), from the first to the second


HARD_IMAGE = "motorcycle_left.png"
HARD_CHANGES = (  # what `read_hard_pair` does, for people
    "rotated by 25°, scaled by 0.85, foreshortened 3.5 times along one direction, darkened (0.7 times the brightness, gamma "
    "1.3), blurred (sigma 0.6 pixels), noise (standard deviation 2 % of the range), JPEG quality 80"
)


def read_hard_pair() -> WarpedPair:
    """A photo, and the same photo as from the side, in less light. The same arrays every time."""
    first = cv2.cvtColor(read_image(HARD_IMAGE, cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
    height, width = first.shape[:2]
    turn, axis, foreshortening = np.radians(25), np.radians(20), np.diag([3.5**0.5, 3.5**-0.5])
    centre, homography = np.array([width / 2, height / 2]), np.eye(3)
    homography[:2, :2] = 0.85 * rotation(turn) @ rotation(axis) @ foreshortening @ rotation(-axis)
    homography[:2, 2] = centre - homography[:2, :2] @ centre
    warped = np.asarray(cv2.warpPerspective(first, homography, (width, height)), dtype=np.float64)
    view = np.asarray(cv2.GaussianBlur(0.7 * (warped / 255) ** 1.3, (0, 0), 0.6), dtype=np.float64)
    view += np.random.default_rng(0).normal(0, 0.02, view.shape)
    exposed = cv2.cvtColor(np.clip(view * 255 + 0.5, 0, 255).astype(np.uint8), cv2.COLOR_RGB2BGR)
    coded = cv2.imencode(".jpg", exposed, [cv2.IMWRITE_JPEG_QUALITY, 80])[1]
    second = np.asarray(cv2.imdecode(coded, cv2.IMREAD_COLOR), dtype=np.uint8)
    return WarpedPair(first, cv2.cvtColor(second, cv2.COLOR_BGR2RGB), homography)

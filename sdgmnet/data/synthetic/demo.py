"""The embedded data sets: `--data demo` and a stereo pair, from the images in the scikit-image wheel. Nothing is downloaded.

Each image is seen in several synthetic views, matched by geometry and never by appearance.
"""

from importlib.resources import files as package_files
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

from sdgmnet.data.patchset import PatchSet, PatchTable, random_test_pairs
from sdgmnet.data.synthetic.views import Viewing, patches_of_views
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

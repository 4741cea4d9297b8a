"""The embedded data set, `--data demo`: patches from the images inside the scikit-image wheel. Nothing is downloaded.

Each image is seen in several views (`views.py`), matched by geometry and never by appearance.
"""

from importlib.resources import files as package_files
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

from sdgmnet.data.patchset import PatchSet, random_test_pairs
from sdgmnet.data.synthetic.views import Viewing, patches_of_views
from sdgmnet.errors import InputError

# ---- data.demo


TRAIN_PICTURES = (
    "astronaut.png", "brick.png", "chelsea.png", "coffee.png", "grass.png", "hubble_deep_field.jpg", "ihc.png",
    "motorcycle_left.png", "retina.jpg", "text.png",
)  # fmt: skip
TEST_PICTURES = ("camera.png", "coins.png", "gravel.png", "moon.png", "rocket.jpg")
VIEWING = Viewing()
TEST_PAIRS = 5000


def read_demo() -> tuple[PatchSet, PatchSet]:
    """The training and the test set, from disjoint images; the same arrays every time."""
    train, test = build("demo-train", TRAIN_PICTURES), build("demo-test", TEST_PICTURES)
    return train, test.with_test_pairs(random_test_pairs(test, TEST_PAIRS))


def build(name: str, pictures: tuple[str, ...]) -> PatchSet:
    patches, ids, conflicts, first_id = [], [], [], 0
    for number, picture in enumerate(pictures):
        seen = patches_of_views(read_picture(picture), np.random.default_rng([number, len(pictures)]), VIEWING)
        patches.append(seen.patches)
        ids.append(seen.point + first_id)
        conflicts.append(seen.conflicts + first_id)
        first_id += int(seen.point.max(initial=-1)) + 1
    origin = {"source": "scikit-image images", "pictures": list(pictures), "views": VIEWING.views}
    return PatchSet(
        name, np.concatenate(patches), np.concatenate(ids), conflicts=np.concatenate(conflicts), origin=origin
    )


def picture_path(name: str) -> Path:
    """Where the scikit-image wheel has an image."""
    try:
        return Path(str(package_files("skimage"))) / "data" / name
    except ModuleNotFoundError:
        raise InputError("the demo data need scikit-image's images: pip install 'sdgmnet[demo]'.") from None


def read_picture(name: str, mode: int = cv2.IMREAD_GRAYSCALE) -> np.ndarray:
    """An image of the scikit-image wheel, gray uint8 unless `mode` says otherwise."""
    path = picture_path(name)
    picture = cv2.imread(str(path), mode)
    if picture is None:
        raise InputError(
            f"{path} is missing or unreadable: reinstall scikit-image (pip install --force-reinstall scikit-image)."
        )
    return picture


# ---- data.motorcycle


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
    """Where places (N, 2) of the left image are in the right one: (N, 2), NaN where that is not known.

    The disparity of the nearest pixel is taken: between two pixels at an edge there is no third depth.
    """
    column, row = np.rint(xy).astype(np.int64).T
    height, width = disparity.shape
    shift = disparity[row.clip(0, height - 1), column.clip(0, width - 1)]
    return np.column_stack([xy[:, 0] - np.where(np.isfinite(shift), shift, np.nan), xy[:, 1]])

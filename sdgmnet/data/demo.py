"""The embedded data set, `--data demo`: patches from the pictures inside the scikit-image wheel. Nothing is downloaded.

Each picture is seen in several views (`views.py`), matched by geometry and never by appearance.
"""

from importlib.resources import files as package_files
from pathlib import Path

import cv2
import numpy as np

from sdgmnet.data.patchset import PatchSet, random_test_pairs
from sdgmnet.data.views import Viewing, patches_of_views
from sdgmnet.errors import InputError

TRAIN_PICTURES = (
    "astronaut.png", "brick.png", "chelsea.png", "coffee.png", "grass.png", "hubble_deep_field.jpg", "ihc.png",
    "motorcycle_left.png", "retina.jpg", "text.png",
)  # fmt: skip
TEST_PICTURES = ("camera.png", "coins.png", "gravel.png", "moon.png", "rocket.jpg")
VIEWING = Viewing()
TEST_PAIRS = 5000


def read_demo() -> tuple[PatchSet, PatchSet]:
    """The training and the test set, from disjoint pictures; the same arrays every time."""
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
    origin = {"source": "scikit-image pictures", "pictures": list(pictures), "views": VIEWING.views}
    return PatchSet(
        name, np.concatenate(patches), np.concatenate(ids), conflicts=np.concatenate(conflicts), origin=origin
    )


def picture_path(name: str) -> Path:
    """Where the scikit-image wheel has a picture."""
    try:
        return Path(str(package_files("skimage"))) / "data" / name
    except ModuleNotFoundError:
        raise InputError("the demo data need scikit-image's pictures: pip install 'sdgmnet[demo]'.") from None


def read_picture(name: str, mode: int = cv2.IMREAD_GRAYSCALE) -> np.ndarray:
    """A picture of the scikit-image wheel, gray uint8 unless `mode` says otherwise."""
    path = picture_path(name)
    picture = cv2.imread(str(path), mode)
    if picture is None:
        raise InputError(
            f"{path} is missing or unreadable: reinstall scikit-image (pip install --force-reinstall scikit-image)."
        )
    return picture

"""The choice of --upright by measurement."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from sdgmnet.descriptors import load_descriptor
from sdgmnet.errors import InputError
from sdgmnet.features.collection import DescribeOptions
from sdgmnet.features.describe import Features
from sdgmnet.features.upright import MEASURED_PAIRS, measure_upright, prefers_upright
from tests.features.samples import keypoints_at, noise_image, unit_rows, write_image


def moved(image: np.ndarray, degrees: float, shift: float) -> np.ndarray:
    height, width = image.shape
    warp = cv2.getRotationMatrix2D((width / 2, height / 2), degrees, 0.95)
    warp[:, 2] += shift
    return cv2.warpAffine(image, warp, (width, height), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REFLECT)


@pytest.mark.parametrize(("last", "expected"), [(0.0, True), (90.0, False)])
def test_a_rotated_image_is_noticed(last: float, expected: bool, tmp_path: Path) -> None:
    image = noise_image(320, 280)
    images = {
        f"{n}.png": write_image(tmp_path / f"{n}.png", moved(image, last if n == 3 else 0, 3.0 * n)) for n in range(4)
    }
    chosen, words = measure_upright(images, load_descriptor("rootsift"), DescribeOptions(400))
    assert chosen is expected, words
    assert words.startswith("3 overlapping pairs")


def test_the_pairs_are_spread_and_each_image_is_described_once_per_way() -> None:
    described: list[tuple[str, bool]] = []
    xy = np.random.default_rng(0).uniform(0, 300, (60, 2))

    def same(name: str, upright: bool) -> Features:
        described.append((name, upright))
        if name == "0":
            raise InputError("0 is damaged.")
        return Features(keypoints_at(xy), unit_rows(60, 16, 0), (300, 300))

    images = [str(number) for number in range(1000)]
    chosen, words = prefers_upright(images, same)
    assert not chosen and words.startswith(f"{MEASURED_PAIRS - 1} overlapping pairs")  # as many inliers both ways
    names = {name for name, _ in described}
    assert {"998", "999"} <= names and len(described) == len(set(described)) <= 4 * MEASURED_PAIRS
    assert not prefers_upright(images[:1], same)[0] and not prefers_upright([], same)[0]


def test_images_that_do_not_overlap_decide_nothing() -> None:
    """A few inliers by chance, more of them without angles."""

    def unrelated(name: str, upright: bool) -> Features:
        xy = np.random.default_rng(int(name)).uniform(0, 300, (12, 2))
        return Features(keypoints_at(xy), unit_rows(12, 16, 0 if upright else int(name)), (300, 300))

    chosen, words = prefers_upright(["1", "2", "3"], unrelated)
    assert not chosen and words.startswith("0 overlapping pairs")

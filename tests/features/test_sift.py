"""SIFT and RootSIFT, of patches and at keypoints."""

import re
from collections.abc import Callable

import cv2
import numpy as np
import pytest

from sdgmnet.errors import InputError
from sdgmnet.features.keypoints import detect
from sdgmnet.features.sift import rootsift, rootsift_at_keypoints, sift, sift_at_keypoints
from tests.features.samples import noise_image

BOTH = pytest.mark.parametrize("describe", [sift, rootsift])
Describe = Callable[[np.ndarray], np.ndarray]


@pytest.fixture(scope="module")
def patches() -> np.ndarray:
    """Smooth random images with gray levels 60 to 120, so that there is room to change the lighting."""
    rng = np.random.default_rng(0)
    images = np.stack([cv2.GaussianBlur(rng.normal(size=(64, 64)), (0, 0), 3) for _ in range(12)])
    low, high = images.min(axis=(1, 2), keepdims=True), images.max(axis=(1, 2), keepdims=True)
    return np.rint(60 + 60 * (images - low) / (high - low)).astype(np.uint8)


@BOTH
def test_descriptors_have_unit_length_and_depend_on_the_patch_alone(describe: Describe, patches: np.ndarray) -> None:
    descriptors = describe(patches)
    assert descriptors.shape == (12, 128) and descriptors.dtype == np.float32 and (descriptors >= 0).all()
    assert np.allclose(np.linalg.norm(descriptors, axis=1), 1, atol=1e-5)
    assert describe(patches[:0]).shape == (0, 128)
    assert np.array_equal(describe(patches[2:3])[0], descriptors[2])
    assert np.array_equal(describe(patches[::-1]), descriptors[::-1])
    flat = [np.full((64, 64), level, dtype=np.uint8) for level in (0, 128, 255)]
    mixed = describe(np.stack([*flat, patches[0]]))
    assert np.isfinite(mixed).all() and np.array_equal(mixed[3], descriptors[0])


def test_rootsift_is_the_root_of_sift_over_its_sum(patches: np.ndarray) -> None:
    for plain, root in zip(sift(patches), rootsift(patches), strict=True):
        total = sum(float(value) for value in plain)
        assert np.allclose(root, [np.sqrt(float(value) / total) for value in plain], atol=1e-6)


@pytest.mark.parametrize(("row", "column"), [(0, 0), (0, 3), (1, 2), (2, 1), (3, 0), (3, 3)])
def test_the_grid_covers_the_patch_exactly(row: int, column: int) -> None:
    """A dot in the middle of one of 4 x 4 squares of 16 pixels belongs to that cell of the grid alone."""
    patch = np.full((1, 64, 64), 100, dtype=np.uint8)
    patch[0, 16 * row + 7 : 16 * row + 9, 16 * column + 7 : 16 * column + 9] = 200
    energy = (sift(patch).reshape(4, 4, 8) ** 2).sum(axis=2)
    assert energy[row, column] > 0.8


def test_a_vertical_edge_is_a_gradient_along_x() -> None:
    """Upright: the first of the eight directions is along x whatever the patch shows, no orientation is estimated."""
    patch = np.full((1, 64, 64), 50, dtype=np.uint8)
    patch[0, :, 32:] = 200
    across = sift(patch).reshape(16, 8).sum(axis=0)
    along = sift(patch.transpose(0, 2, 1)).reshape(16, 8).sum(axis=0)
    assert across.argmax() == 0 and across[0] > 0.9 * across.sum()
    assert along.argmax() in (2, 6) and along.max() > 0.9 * along.sum()


@BOTH
@pytest.mark.parametrize(
    "wrong",
    [np.zeros((2, 64, 64)), np.zeros((64, 64), dtype=np.uint8), np.zeros((2, 64, 32), dtype=np.uint8)],
    ids=["float", "2-D", "oblong"],
)
def test_wrong_kinds_are_refused(describe: Describe, wrong: np.ndarray) -> None:
    with pytest.raises(InputError, match=re.escape(f"{wrong.dtype} {wrong.shape}")):
        describe(wrong)


def test_sift_of_an_image_is_opencvs_own() -> None:
    """The pyramid level is rebuilt from the scale: the descriptors are those of OpenCV's own keypoints."""
    image, same = noise_image(), 0
    extractor = cv2.SIFT.create(enable_precise_upscale=True)
    own = extractor.detect(image, None)
    pairs = zip(own, extractor.compute(image, own)[1], strict=True)
    expected = {(*k.pt, k.size, round(k.angle, 3)): d for k, d in pairs}
    keypoints = detect(image)
    described, root = sift_at_keypoints(image, keypoints), rootsift_at_keypoints(image, keypoints)
    for xy, sigma, angle, mine in zip(keypoints.xy, keypoints.sigma, keypoints.angle, described, strict=True):
        theirs = expected[(*xy, 2 * sigma, round(float(np.rad2deg(angle)), 3))]
        same += float(mine @ theirs / np.linalg.norm(theirs)) > 0.999
    assert len(keypoints.xy) > 100 and same >= 0.98 * len(keypoints.xy)
    assert sift_at_keypoints(image, keypoints.select(np.arange(0))).shape == (0, 128)
    np.testing.assert_allclose(np.linalg.norm(root, axis=1), 1, atol=1e-5)

"""Keypoints and the patches cut around them: pixel centres, patch size and the sign of the angle."""

import math
from collections.abc import Iterator

import cv2
import numpy as np
import pytest
import torch
from kornia.feature import extract_patches_from_pyramid

from sdgmnet.errors import InputError
from sdgmnet.features.keypoints import Keypoints, detect
from sdgmnet.features.kornia import to_lafs
from sdgmnet.features.patches import cut_frames, cut_patches, inside, local_frames
from tests.features.samples import noise_image

NONE = Keypoints(np.empty((0, 2)), np.empty(0), np.empty(0), np.empty(0))


def keypoint(x: float, y: float, sigma: float, angle: float) -> Keypoints:
    return Keypoints(np.array([[x, y]]), np.array([sigma]), np.array([angle]), np.ones(1))


def expected_places(x: float, y: float, sigma: float, angle: float, side: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """Where cell (row, column) of the patch lies in the image, written out cell by cell."""
    places_x, places_y = np.empty((side, side)), np.empty((side, side))
    for row in range(side):
        for column in range(side):
            right, down = ((2 * column + 1) / side - 1) * 6 * sigma, ((2 * row + 1) / side - 1) * 6 * sigma
            places_x[row, column] = x + math.cos(angle) * right - math.sin(angle) * down
            places_y[row, column] = y + math.sin(angle) * right + math.cos(angle) * down
    return places_x, places_y


@pytest.fixture(scope="module")
def image() -> np.ndarray:
    return noise_image()


@pytest.fixture
def opencv_threads() -> Iterator[None]:
    threads = cv2.getNumThreads()
    yield
    cv2.setNumThreads(threads)


def test_detection_is_a_function_of_the_image(image: np.ndarray, opencv_threads: None) -> None:
    results = []
    for threads in (1, 2, 4, 1):
        cv2.setNumThreads(threads)
        results.append(detect(image))
    assert len(results[0].xy) > 100
    for other in results[1:]:
        assert all(np.array_equal(one, two) for one, two in zip(results[0], other, strict=True))


def test_detection_is_sorted_by_strength(image: np.ndarray) -> None:
    found = detect(image)
    assert (np.diff(found.response) <= 0).all()
    strongest = detect(image, 25)
    assert len(strongest.xy) == 25
    assert all(np.array_equal(few, many[:25]) for few, many in zip(strongest, found, strict=True))
    assert len(detect(image, 10**6).xy) == len(found.xy)


def test_detection_is_opencvs_in_our_units(image: np.ndarray) -> None:
    found = detect(image)
    opencv = cv2.SIFT.create(enable_precise_upscale=True)
    originals = {(k.pt[0], k.pt[1], k.size / 2, k.response): k.angle for k in opencv.detect(image, None)}
    assert len(found.xy) >= len(originals)
    for (x, y), sigma, response in zip(found.xy[:50], found.sigma[:50], found.response[:50], strict=True):
        assert (x, y, sigma, response) in originals
    assert (found.angle >= 0).all() and 6 < found.angle.max() <= 2 * np.pi
    assert all(column.dtype == np.float64 for column in found)


@pytest.mark.parametrize("size", [2.2, 3.5, 6.0, 11.0])
def test_a_blob_is_found_where_it_is(size: float) -> None:
    """Gaussian blobs: at their centres, with pixel centres at integers, and of their size, in every octave.

    OpenCV's default would put each a quarter of a pixel to the right and down.
    """
    y, x = np.mgrid[:160, :180]
    errors = []
    for centre in np.random.default_rng(0).uniform([80, 70], [100, 90], (12, 2)):
        blob = 40 + 180 * np.exp(-((x - centre[0]) ** 2 + (y - centre[1]) ** 2) / (2 * size**2))
        found = detect(blob.round().astype(np.uint8), 1)
        errors += list(found.xy - centre)  # OpenCV passes over a few
        assert all(0.8 < sigma / size < 1 for sigma in found.sigma)
    assert len(errors) >= 6
    assert np.abs(np.mean(errors, axis=0)).max() < 0.05
    assert np.abs(errors).max() < 0.3


def test_nothing_to_detect() -> None:
    found = detect(np.full((100, 120), 77, dtype=np.uint8))
    assert found.xy.shape == (0, 2) and all(len(column) == 0 for column in found)


@pytest.mark.parametrize("sigma", [1.7, 2.5, 4.3, 9.0, 13.0])
@pytest.mark.parametrize("angle", [0.0, 0.6, np.pi / 2, -2.3, 4.0])
def test_cells_lie_where_they_should(sigma: float, angle: float) -> None:
    """On images whose gray level is the coordinate, a patch shows where each of its cells was read."""
    x, y = 127.3, 126.1
    ramp = np.tile(np.arange(256, dtype=np.uint8), (256, 1))
    expected = expected_places(x, y, sigma, angle)
    for coordinate, places in zip((ramp, np.ascontiguousarray(ramp.T)), expected, strict=True):
        patch = cut_patches(coordinate, keypoint(x, y, sigma, angle))[0]
        error = patch.astype(float) - places
        assert np.abs(error).max() <= 0.52  # rounded to whole gray levels
        assert abs(error.mean()) < 0.06  # a shift by half a pixel would be seen at once


def test_many_keypoints_keep_their_order() -> None:
    ramp = np.tile(np.arange(256, dtype=np.uint8), (256, 1))
    rng = np.random.default_rng(1)
    count = 200
    many = Keypoints(
        rng.uniform(90, 165, (count, 2)), rng.uniform(1.5, 10, count), rng.uniform(-7, 7, count), np.ones(count)
    )
    patches = cut_patches(ramp, many)
    assert patches.shape == (count, 64, 64) and patches.dtype == np.uint8
    middles = patches[:, 31:33, 31:33].mean(axis=(1, 2))
    assert np.abs(middles - many.xy[:, 0]).max() < 0.6
    assert np.array_equal(cut_patches(ramp, many.select(np.array([150])))[0], patches[150])


def test_outside_the_image_its_border_is_repeated() -> None:
    ramp = np.tile(np.arange(50, 250, dtype=np.uint8), (200, 1))
    for x, y in ((3.0, 100.0), (197.0, 100.0), (100.0, 2.0)):
        patch = cut_patches(ramp, keypoint(x, y, 2.0, 0.0))[0]
        expected = 50 + expected_places(x, y, 2.0, 0.0)[0].clip(0, 199)
        assert np.abs(patch - expected).max() <= 0.52


def test_large_patches_are_smoothed_before_they_are_reduced() -> None:
    """Stripes finer than a cell of the patch become gray instead of a false pattern."""
    stripes = np.tile(np.array([0, 255], dtype=np.uint8), (400, 200))
    patch = cut_patches(stripes, keypoint(200.0, 200.0, 25.0, 0.0))[0]
    assert np.abs(patch.astype(float) - 127.5).max() < 30


def test_no_keypoints(image: np.ndarray) -> None:
    patches = cut_patches(image, NONE)
    assert patches.shape == (0, 64, 64) and patches.dtype == np.uint8
    assert inside(NONE, 100, 100).shape == (0,)


def test_inside_means_all_four_corners() -> None:
    rng = np.random.default_rng(2)
    width, height = 150, 110
    many = Keypoints(
        rng.uniform(0, [width, height], (500, 2)), rng.uniform(1, 8, 500), rng.uniform(-7, 7, 500), np.ones(500)
    )
    expected = []
    for (x, y), sigma, angle in zip(many.xy, many.sigma, many.angle, strict=True):
        corners = [
            (
                x + 6 * sigma * (math.cos(angle) * right - math.sin(angle) * down),
                y + 6 * sigma * (math.sin(angle) * right + math.cos(angle) * down),
            )
            for right in (-1, 1)
            for down in (-1, 1)
        ]
        expected.append(all(0 <= u <= width - 1 and 0 <= v <= height - 1 for u, v in corners))
    assert 50 < sum(expected) < 450
    assert inside(many, width, height).tolist() == expected


def test_patches_are_those_of_kornia(image: np.ndarray) -> None:
    """kornia reads the same places in its own way; its pyramid smooths a little more."""
    keypoints = detect(image)
    keypoints = keypoints.select(inside(keypoints, image.shape[1], image.shape[0]))
    tensor = torch.from_numpy(image.astype(np.float32))[None, None]
    expected = extract_patches_from_pyramid(tensor, to_lafs(keypoints), 64)[0, :, 0].numpy()
    error = np.abs(cut_patches(image, keypoints) - expected).mean(axis=(1, 2))
    reduced = keypoints.sigma * 12 / 64 >= 2
    assert (~reduced).sum() > 100 and reduced.sum() > 0
    assert error[~reduced].max() < 0.3  # rounding to whole gray levels is 0.25 of it
    assert error[reduced].max() < 4


def test_an_image_too_large_to_be_read_is_refused() -> None:
    with pytest.raises(InputError, match="too large"):
        cut_patches(np.zeros((2, 40_000), dtype=np.uint8), keypoint(5.0, 1.0, 2.0, 0.0))


def test_frames_of_keypoints_give_their_patches(image: np.ndarray) -> None:
    found = detect(image, 60)
    frames = local_frames(found).astype(np.float64)
    assert np.array_equal(cut_frames(image, frames, 64), cut_patches(image, found))
    assert cut_frames(image, frames[:0], 65).shape == (0, 65, 65)


@pytest.mark.parametrize("size", [9.0, 30.0, 55.0])
@pytest.mark.parametrize("sign", [1, -1])
def test_cells_of_a_frame_go_through_the_homography_one_by_one(size: float, sign: int) -> None:
    """On images whose gray level is the coordinate. A homography is the same with all signs turned."""
    homography = sign * np.array([[0.8, 0.15, 20], [-0.1, 0.9, 31], [4e-4, -3e-4, 1.0]])
    frame = np.array([[[0.9 * size, -0.4 * size, 131.2], [0.5 * size, 0.7 * size, 118.7]]])
    ramp = np.tile(np.arange(256, dtype=np.uint8), (256, 1))
    across = cut_frames(ramp, frame, 65, homography)[0].astype(float)
    down = cut_frames(np.ascontiguousarray(ramp.T), frame, 65, homography)[0].astype(float)
    errors = []
    for row in range(65):
        for column in range(65):
            right, below = (2 * column + 1) / 65 - 1, (2 * row + 1) / 65 - 1
            place = [one[0] * right + one[1] * below + one[2] for one in frame[0]]
            u, v, depth = (one[0] * place[0] + one[1] * place[1] + one[2] for one in homography)
            errors.append((across[row, column] - u / depth, down[row, column] - v / depth))
    assert np.abs(errors).max() <= 0.6  # rounded to whole gray levels
    assert np.abs(np.mean(errors, axis=0)).max() < 0.06


def test_a_patch_made_smaller_by_the_homography_is_smoothed() -> None:
    stripes = np.tile(np.array([0, 255], dtype=np.uint8), (400, 200))
    frame = np.array([[[40.0, 0, 50], [0, 40, 50]]])
    patch = cut_frames(stripes, frame, 32, np.diag([4.0, 4, 1]))[0]
    assert np.abs(patch.astype(float) - 127.5).max() < 30

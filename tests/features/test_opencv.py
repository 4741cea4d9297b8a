"""The drop-in replacement next to OpenCV's own SIFT."""

import cv2
import numpy as np
import pytest
import torch

from sdgmnet.descriptors import describe, load_descriptor
from sdgmnet.encoders import SDGMNet
from sdgmnet.errors import InputError
from sdgmnet.features.opencv import OpenCVFeatures
from tests.features.samples import noise_image

ROOTSIFT = load_descriptor("rootsift")


@pytest.fixture(scope="module")
def image() -> np.ndarray:
    return noise_image()


@pytest.fixture(scope="module")
def ours() -> OpenCVFeatures:
    torch.manual_seed(0)
    return OpenCVFeatures(SDGMNet().eval(), limit=150)


def attributes(keypoints: tuple[cv2.KeyPoint, ...]) -> list[tuple]:
    return sorted((*one.pt, one.size, one.angle, one.response) for one in keypoints)


def test_answers_what_sift_answers(ours: OpenCVFeatures) -> None:
    sift, flat = cv2.SIFT.create(), np.full((90, 80), 7, dtype=np.uint8)
    for question in ("descriptorSize", "descriptorType", "defaultNorm"):
        assert getattr(ours, question)() == getattr(sift, question)()
    assert ours.getDefaultName() == "Feature2D.encoder"
    assert not isinstance(ours, cv2.Feature2D)
    assert ours.detectAndCompute(flat, None) == sift.detectAndCompute(flat, None) == ((), None)
    assert ours.compute(flat, []) == ((), None)


def test_detects_and_describes_as_describe_does(ours: OpenCVFeatures, image: np.ndarray) -> None:
    keypoints, descriptors = ours.detectAndCompute(image, None)
    expected = describe(image, descriptor=ours.descriptor, limit=150)
    assert descriptors is not None and descriptors.dtype == np.float32 and descriptors.shape == (150, 128)
    assert isinstance(keypoints, tuple) and all(type(one) is cv2.KeyPoint for one in keypoints)
    np.testing.assert_allclose(descriptors, expected.descriptors, atol=1e-4)
    same, again = ours.compute(image, ours.detect(image))
    assert attributes(same) == attributes(keypoints) and np.array_equal(again, descriptors)


def test_compute_keeps_the_keypoints_and_their_order(ours: OpenCVFeatures, image: np.ndarray) -> None:
    """Also those of other detectors, at the border, turned upright, or twice."""
    corners = cv2.FastFeatureDetector.create(threshold=60).detect(image, None)[:20]  # they have no angle: -1
    given = [cv2.KeyPoint(0, 0, 30.0, 15.0), *corners, cv2.KeyPoint(399, 359, 4.0), corners[3]]
    assert corners[0].angle == -1
    kept, descriptors = ours.compute(image, given)
    assert descriptors is not None and len(descriptors) == len(given)
    assert [id(one) for one in kept] == [id(one) for one in given]
    np.testing.assert_allclose(descriptors[4], descriptors[-1], atol=1e-6)
    upright = cv2.KeyPoint(*corners[3].pt, corners[3].size, 0.0)
    np.testing.assert_allclose(descriptors[4], ours.compute(image, [upright])[1][0], atol=1e-6)


def test_colour_is_bgr(ours: OpenCVFeatures, image: np.ndarray) -> None:
    colour = np.dstack([image, np.roll(image, 40, axis=1), np.roll(image, 90, axis=0)])
    gray = cv2.cvtColor(colour, cv2.COLOR_BGR2GRAY)
    expected = ours.detectAndCompute(gray, None)
    with_alpha = np.dstack([colour, np.zeros_like(image)])
    for same in (colour, with_alpha, gray[:, :, None], gray.astype(np.float64) / 255, gray.astype(np.uint16) * 257):
        keypoints, descriptors = ours.detectAndCompute(same, None)
        assert attributes(keypoints) == attributes(expected[0]) and np.array_equal(descriptors, expected[1])


def test_masks_choose_what_opencv_chooses(image: np.ndarray) -> None:
    """Its rule, written out: the pixel nearest to the keypoint decides."""
    ours, mask = OpenCVFeatures(ROOTSIFT), np.zeros_like(image)
    mask[100:220, 60:300] = 1
    found, unmasked = ours.detect(image, mask), ours.detect(image)
    expected = [one for one in unmasked if mask[int(one.pt[1] + 0.5), int(one.pt[0] + 0.5)]]
    assert 20 < len(found) < len(unmasked) and attributes(found) == attributes(tuple(expected))
    few = OpenCVFeatures(ROOTSIFT, limit=10).detect(image, mask)  # the strongest of those on the mask
    assert attributes(few) == attributes(found[:10])
    assert ours.detectAndCompute(image, np.zeros_like(image)) == ((), None)


def test_opencvs_matchers_and_drawing_take_it(image: np.ndarray) -> None:
    """A turned image is matched: BFMatcher, FLANN, a homography by USAC, and drawMatches."""
    ours = OpenCVFeatures(ROOTSIFT, limit=300)
    move = np.vstack([cv2.getRotationMatrix2D((200, 180), 25, 1.0), [0, 0, 1]])
    turned = cv2.warpPerspective(image, move, (400, 360), flags=cv2.INTER_CUBIC)
    (first, a), (second, b) = ours.detectAndCompute(image), ours.detectAndCompute(turned)
    matches = cv2.BFMatcher(ours.defaultNorm(), crossCheck=True).match(a, b)
    pairs = np.array([(*first[m.queryIdx].pt, *second[m.trainIdx].pt) for m in matches])
    found, inliers = cv2.findHomography(pairs[:, :2], pairs[:, 2:], cv2.USAC_MAGSAC, 2.0)
    assert inliers.sum() > 60
    corners = np.array([[[100.0, 100]], [[300, 100]], [[300, 260]], [[100, 260]]])
    error = cv2.perspectiveTransform(corners, found) - cv2.perspectiveTransform(corners, move)
    assert np.abs(error).max() < 1
    assert len(cv2.FlannBasedMatcher({"algorithm": 1, "trees": 4}, {"checks": 64}).knnMatch(a, b, k=2)) == len(a)
    assert cv2.drawMatches(image, first, turned, second, matches[:20], None).shape == (360, 800, 3)


def test_upright(image: np.ndarray) -> None:
    keypoints, descriptors = OpenCVFeatures(ROOTSIFT, limit=20, upright=True).detectAndCompute(image)
    assert {one.angle for one in keypoints} == {0.0} and len({(one.pt, one.size) for one in keypoints}) == 20
    expected = describe(image, descriptor="rootsift", limit=20, upright=True)
    np.testing.assert_allclose(descriptors, expected.descriptors, atol=1e-5)


def test_bad_input_is_refused(ours: OpenCVFeatures, image: np.ndarray) -> None:
    for call, said in (
        (lambda: ours.compute(image, [cv2.KeyPoint(5, 5, 3), cv2.KeyPoint(5, 5, 0)]), "keypoint 1"),
        (lambda: ours.detectAndCompute(image, None, None, True), "compute"),
        (lambda: ours.detect(np.zeros((5, 5, 2), dtype=np.uint8)), "5, 5, 2"),
        (lambda: ours.detect(image, image[:50]), "mask"),
    ):
        with pytest.raises(InputError, match=said):
            call()

"""The class next to scikit-image's own, and under its matching and RANSAC."""

import numpy as np
import pytest

from sdgmnet.descriptors import describe, load_descriptor
from sdgmnet.errors import InputError
from sdgmnet.features.skimage import SkimageFeatures
from tests.features.samples import noise_image

feature = pytest.importorskip("skimage.feature")
measure = pytest.importorskip("skimage.measure")
transform = pytest.importorskip("skimage.transform")

IMAGE = noise_image()
ROOTSIFT = load_descriptor("rootsift")


@pytest.fixture(scope="module")
def ours() -> SkimageFeatures:
    return SkimageFeatures(n_keypoints=300)


def test_detects_and_describes_as_describe_does(ours: SkimageFeatures) -> None:
    assert ours.detect_and_extract(IMAGE) is None
    expected = describe(IMAGE, limit=300)
    assert np.array_equal(ours.keypoints, expected.keypoints.xy[:, ::-1])
    assert np.array_equal(ours.scales, expected.keypoints.sigma)
    assert np.array_equal(ours.orientations, expected.keypoints.angle)
    np.testing.assert_allclose(ours.descriptors, expected.descriptors, atol=1e-4)
    whole, places = ours.descriptors, ours.keypoints
    ours.detect(IMAGE)
    ours.extract(IMAGE, ours.keypoints, ours.scales, ours.orientations)
    assert np.array_equal(ours.keypoints, places) and np.array_equal(ours.descriptors, whole)


def test_ransac_finds_the_transform_between_two_images(ours: SkimageFeatures) -> None:
    """Images as scikit-image makes them: float64 in [0, 1], up to rounding."""
    true = transform.SimilarityTransform(scale=1.1, rotation=0.4, translation=(60, -40))  # in (x, y)
    other = transform.warp(IMAGE, true.inverse, mode="reflect")
    ours.detect_and_extract(IMAGE)
    keypoints, descriptors = ours.keypoints, ours.descriptors
    ours.detect_and_extract(other)
    matches = feature.match_descriptors(descriptors, ours.descriptors, cross_check=True, max_ratio=0.9)
    source, target = keypoints[matches[:, 0]][:, ::-1], ours.keypoints[matches[:, 1]][:, ::-1]
    model, inlier = measure.ransac(
        (source, target), transform.SimilarityTransform, min_samples=2, residual_threshold=2, max_trials=500, rng=0
    )
    assert inlier.sum() > 60
    np.testing.assert_allclose(model.params, true.params, atol=0.5)
    np.testing.assert_allclose((model.scale, model.rotation), (1.1, 0.4), atol=5e-3)


def test_attributes_mean_what_they_mean_in_skimage() -> None:
    """Of the keypoints that both find: the same place, sigma and direction. SIFT's places are a quarter of a pixel off, to the
    lower right, as those of OpenCV without precise upscaling."""
    sift, ours = feature.SIFT(), SkimageFeatures(ROOTSIFT)
    sift.detect(IMAGE)
    ours.detect(IMAGE)
    distance = np.linalg.norm(ours.keypoints[:, None] - sift.positions[None], axis=2)
    distance += np.abs(np.log(ours.scales[:, None] / sift.sigmas[None]))
    turned = np.angle(np.exp(1j * (ours.orientations[:, None] - (np.pi / 2 - sift.orientations[None]))))
    near = np.argwhere((distance < 0.7) & (np.abs(turned) < np.pi / 2))
    assert len(near) > 0.5 * min(len(ours.scales), len(sift.scales))
    one, two = near.T
    assert np.abs(np.median(ours.keypoints[one] - sift.positions[two], axis=0) + 0.25).max() < 0.05
    assert np.median(np.abs(turned[one, two])) < 0.15
    assert np.median(np.abs(ours.scales[one] / sift.sigmas[two] - 1)) < 0.1


def test_extract_of_skimages_corners() -> None:
    corners = feature.corner_peaks(feature.corner_harris(IMAGE), min_distance=8, num_peaks=50)
    ours = SkimageFeatures(ROOTSIFT)
    ours.extract(IMAGE, corners)
    assert ours.descriptors.shape == (len(corners), 128)
    ours.extract(IMAGE, np.empty((0, 2)))
    assert ours.descriptors.shape == (0, 128)
    for wrong in (np.zeros((3, 3)), np.full((3, 2), np.nan)):
        with pytest.raises(InputError, match="keypoints"):
            ours.extract(IMAGE, wrong)
    with pytest.raises(InputError, match="scales"):
        ours.extract(IMAGE, corners, np.ones(3))

"""DoG keypoints: OpenCV's, in our units and order."""

from collections.abc import Iterator

import cv2
import numpy as np
import pytest

from sdgmnet.features.keypoints import detect
from tests.features.samples import blob_image, noise_image


@pytest.fixture
def opencv_threads() -> Iterator[None]:
    threads = cv2.getNumThreads()
    yield
    cv2.setNumThreads(threads)


def test_detection_is_a_function_of_the_image_strongest_first(opencv_threads: None) -> None:
    image, results = noise_image(), []
    for threads in (1, 2, 4, 1):
        cv2.setNumThreads(threads)
        results.append(detect(image))
    found = results[0]
    assert len(found.xy) > 100 and (np.diff(found.response) <= 0).all()
    for other in results[1:]:
        assert all(np.array_equal(one, two) for one, two in zip(found, other, strict=True))
    strongest = detect(image, 25)
    assert len(strongest.xy) == 25 and len(detect(image, 10**6).xy) == len(found.xy)
    assert all(np.array_equal(few, many[:25]) for few, many in zip(strongest, found, strict=True))
    nothing = detect(np.full((100, 120), 77, dtype=np.uint8))
    assert nothing.xy.shape == (0, 2) and all(len(column) == 0 for column in nothing)


def test_detection_is_opencvs_in_our_units() -> None:
    image = noise_image()
    found = detect(image)
    opencv = cv2.SIFT.create(enable_precise_upscale=True)
    originals = {(k.pt[0], k.pt[1], k.size / 2, k.response) for k in opencv.detect(image, None)}
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
    errors = []
    for centre in np.random.default_rng(0).uniform([80, 70], [100, 90], (12, 2)):
        found = detect(blob_image(centre, size, 180, 40), 1)
        errors += list(found.xy - centre)  # OpenCV passes over a few
        assert all(0.8 < sigma / size < 1 for sigma in found.sigma)
    assert len(errors) >= 6
    assert np.abs(np.mean(errors, axis=0)).max() < 0.05
    assert np.abs(errors).max() < 0.3

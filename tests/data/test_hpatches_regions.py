"""Which regions become patches: overlap, thinning, what lies inside, and the jitter, each against plain counting."""

import itertools
import math

import cv2
import numpy as np
import pytest

from sdgmnet.data.hpatches.regions import (
    DETECTORS,
    JITTERS,
    MAGNIFICATION,
    choose_regions,
    compose,
    draw,
    overlaps,
    region_frames,
    thin,
    within,
)
from tests.data.samples import random_keypoints
from tests.features.samples import noise_image

PERSPECTIVE = np.array([[0.9, 0.2, -14], [-0.12, 1.05, 11], [3e-4, -2e-4, 1.0]])


def counted_overlap(a: tuple[float, float, float], b: tuple[float, float, float], cells: int = 400) -> float:
    """Intersection over union of circles (x, y, radius), by counting the cells of a grid over both."""
    if math.hypot(a[0] - b[0], a[1] - b[1]) >= a[2] + b[2]:
        return 0.0
    low = [min(a[k] - a[2], b[k] - b[2]) for k in range(2)]
    high = [max(a[k] + a[2], b[k] + b[2]) for k in range(2)]
    x, y = np.meshgrid(*(np.linspace(low[k], high[k], cells) for k in range(2)))
    first, second = (np.hypot(x - c[0], y - c[1]) <= c[2] for c in (a, b))
    return float((first & second).sum() / (first | second).sum())


def test_overlap_of_a_circle_and_its_image() -> None:
    maps = draw(JITTERS["t"], (40,), np.random.default_rng(0))
    maps = np.concatenate([maps, [np.eye(2, 3)], [[[0.3, 0, 0], [0, 0.3, 0]]], [[[1.0, 0, 5], [0, 1, 0]]]])
    along = np.linspace(-2.6, 2.6, 521)
    x, y = np.meshgrid(along, along)
    circle = x**2 + y**2 <= 1
    for one, computed in zip(maps, overlaps(maps), strict=True):
        inverse = np.linalg.inv(one[:, :2])
        u, v = (row[0] * (x - one[0, 2]) + row[1] * (y - one[1, 2]) for row in inverse)
        image = u**2 + v**2 <= 1
        assert computed == pytest.approx((circle & image).sum() / (circle | image).sum(), abs=0.01)
    assert overlaps(maps[:0]).shape == (0,)


@pytest.mark.parametrize("seed", range(3))
def test_thinning_keeps_one_of_those_that_overlap(seed: int) -> None:
    keypoints = random_keypoints(70, seed, 20.0)
    circles = [(x, y, sigma) for (x, y), sigma in zip(keypoints.xy, keypoints.sigma, strict=True)]
    kept = thin(keypoints, np.random.default_rng(seed)).tolist()
    assert kept == sorted(set(kept)) and 15 < len(kept) < 65
    for one in range(70):
        most = max(counted_overlap(circles[one], circles[other], 60) for other in kept if other != one)
        assert most < 0.52 if one in kept else most > 0.48


def border_inside(frame: np.ndarray, homography: np.ndarray, width: int, height: int) -> bool:
    """Points all along the border of the square, mapped one by one; behind is where the orientation changes."""
    part, one, step = np.linspace(-1, 1, 21), np.ones(21), 1e-3
    right, down = np.concatenate([part, part, -one, one]), np.concatenate([-one, one, part, part])
    x, y = (row[0] * right + row[1] * down + row[2] for row in frame)

    def mapped(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        u, v, depth = (row[0] * x + row[1] * y + row[2] for row in homography)
        return u / depth, v / depth

    here, east, south = mapped(x, y), mapped(x + step, y), mapped(x, y + step)
    sense = (east[0] - here[0]) * (south[1] - here[1]) - (east[1] - here[1]) * (south[0] - here[0])
    inside = (here[0] >= 0) & (here[0] <= width - 1) & (here[1] >= 0) & (here[1] <= height - 1)
    return bool((inside & (sense > 0)).all())


@pytest.mark.parametrize(
    "homography",
    [
        np.eye(3),
        PERSPECTIVE,
        -PERSPECTIVE,
        np.array([[1, 0, 0], [0, 1, 0], [-0.01, 0, 1.0]]),  # what lies right of x = 100 is behind the viewer
        np.array([[-1, 0, 200], [0, 1, 0], [0, 0, 1.0]]),  # a mirror
    ],
)
def test_inside_means_the_whole_square(homography: np.ndarray) -> None:
    keypoints = random_keypoints(300, 5, 200.0)
    frames = region_frames(keypoints._replace(sigma=keypoints.sigma / 2))
    expected = [border_inside(frame, homography, 190, 150) for frame in frames]
    assert within(frames, homography, (190, 150)).tolist() == expected
    assert (sum(expected) > 10) == (homography[0, 0] != -1)
    assert np.array_equal(within(frames, None, (190, 150)), within(frames, np.eye(3), (190, 150)))


@pytest.mark.parametrize(("noise", "published"), [("e", 0.85), ("h", 0.72), ("t", 0.60)])
def test_jitter_fills_its_ranges_and_gives_the_published_overlaps(noise: str, published: float) -> None:
    jitter = JITTERS[noise]
    maps = draw(jitter, (5, 800), np.random.default_rng(0)).reshape(-1, 2, 3)
    across, down = maps[:, :, 0], maps[:, :, 1]
    assert np.allclose((across * down).sum(axis=1), 0)  # scaled along the patch's own axes, then turned
    wide, high = np.log2(np.linalg.norm(across, axis=1)), np.log2(np.linalg.norm(down, axis=1))
    turn = np.degrees(np.arctan2(across[:, 1], across[:, 0]))
    for values, most in zip((turn, maps[:, :, 2].ravel(), (wide + high) / 2, wide - high), jitter, strict=True):
        assert np.abs(values).max() <= most + 1e-9
        assert values.min() < -0.95 * most and values.max() > 0.95 * most and abs(values.mean()) < 0.05 * most
    assert np.median(overlaps(maps)) == pytest.approx(published, abs=0.01)


def applied(frame: np.ndarray, point: list[float]) -> list[float]:
    return [row[0] * point[0] + row[1] * point[1] + row[2] for row in frame]


def test_a_region_reaches_five_scales_from_its_centre_and_is_jittered_in_its_own_axes() -> None:
    keypoints = random_keypoints(6, 7)
    frames, maps = region_frames(keypoints), draw(JITTERS["h"], (2, 6), np.random.default_rng(2))
    jittered = compose(frames, maps)
    for image, number, corner in itertools.product(range(2), range(6), ([-1, -1], [1, 0.5], [0, 0])):
        expected = applied(frames[number], applied(maps[image, number], corner))
        assert applied(jittered[image, number], corner) == pytest.approx(expected)
    for (x, y), sigma, angle, frame in zip(keypoints.xy, keypoints.sigma, keypoints.angle, frames, strict=True):
        reach = 5 * sigma
        assert applied(frame, [1, 0]) == pytest.approx([x + reach * math.cos(angle), y + reach * math.sin(angle)])
        assert applied(frame, [0, 1]) == pytest.approx([x - reach * math.sin(angle), y + reach * math.cos(angle)])


def test_chosen_regions_keep_all_the_rules() -> None:
    image = noise_image(300, 260)
    homographies = (PERSPECTIVE, -PERSPECTIVE, np.eye(3), np.diag([0.7, 0.7, 1.0]), np.diag([1.4, 1.4, 1.0]))
    sizes = ((300, 260), (280, 260), (300, 240), (215, 185), (400, 350))
    regions = choose_regions(image, homographies, sizes, 120, np.random.default_rng(0))
    assert len(regions.frames) == 120 == len(regions.detector) == len(regions.keypoints.xy)
    assert np.bincount(regions.detector).tolist() == [40, 40, 40]
    assert (regions.keypoints.sigma >= 1.6).all()
    assert np.allclose(np.linalg.norm(regions.frames[:, :, 0], axis=1), MAGNIFICATION * regions.keypoints.sigma)
    for frame in regions.frames:
        assert border_inside(frame, np.eye(3), 300, 260)
    for number, (homography, (width, height)) in enumerate(zip(homographies, sizes, strict=True)):
        for noise in JITTERS:
            assert all(border_inside(frame, homography, width, height) for frame in regions.jittered[noise][number])
    circles = [(x, y, sigma) for (x, y), sigma in zip(regions.keypoints.xy, regions.keypoints.sigma, strict=True)]
    for one in range(0, 120, 6):
        assert max(counted_overlap(circles[one], circles[k], 60) for k in range(120) if k != one) < 0.52
    assert all(overlap.shape == (5, 120) for overlap in regions.overlap.values())
    medians = [np.median(regions.overlap[noise]) for noise in "eht"]
    assert medians == pytest.approx([0.85, 0.72, 0.60], abs=0.04)
    for number in range(len(DETECTORS)):
        assert (np.diff(regions.keypoints.response[regions.detector == number]) <= 0).all()


def test_a_detector_with_few_regions_leaves_its_share_to_the_others() -> None:
    y, x = np.mgrid[:240, :240]
    blobs = np.full((240, 240), 60.0)
    for row, column in itertools.product((60, 120, 180), repeat=2):
        blobs += 150 * np.exp(-((x - column) ** 2 + (y - row) ** 2) / (2 * 4.0**2))
    regions = choose_regions(blobs.astype(np.uint8), (np.eye(3),), ((240, 240),), 9, np.random.default_rng(3))
    assert len(regions.frames) == 9  # the three detectors agree, and of each blob one is kept
    places = sorted((round(x / 60), round(y / 60)) for x, y in regions.keypoints.xy)
    assert places == list(itertools.product((1, 2, 3), repeat=2))


def test_nothing_to_choose() -> None:
    flat = np.full((100, 100), 128, dtype=np.uint8)
    assert len(choose_regions(flat, (np.eye(3),), ((100, 100),), 10, np.random.default_rng(0)).frames) == 0
    image = cv2.resize(noise_image(), (200, 180))
    away = np.array([[1, 0, 900], [0, 1, 0], [0, 0, 1.0]])
    assert len(choose_regions(image, (away,), ((200, 180),), 10, np.random.default_rng(0)).frames) == 0

"""Synthetic views: the geometry checked numerically, the light, and the patches that come out."""

import math
from typing import Any

import cv2
import numpy as np
import pytest

from sdgmnet.data.match_rule import MATCHING, VIEWS, ambiguous_pairs
from sdgmnet.data.synthetic import views
from sdgmnet.data.synthetic.sets import PHOTO_VIEWING
from sdgmnet.data.synthetic.views import Viewing, mutual_matches, patches_of_views, random_homography, relight, warp
from sdgmnet.features.geometry import map_points
from tests.data.samples import random_keypoints
from tests.data.test_match_rule import verdict_of


def test_matches_are_mutual_and_every_pair_without_a_competitor_is_found() -> None:
    reprojected, found = random_keypoints(300, seed=4, extent=80), random_keypoints(400, seed=5, extent=80)
    near = [[verdict_of(reprojected, i, found, j, VIEWS) == MATCHING for j in range(400)] for i in range(300)]
    close = np.array(near)
    points, keypoints = mutual_matches(reprojected, found, VIEWS)
    assert len(points) > 20 and close[points, keypoints].all()
    assert len(np.unique(points)) == len(np.unique(keypoints)) == len(points)
    alone = close & (close.sum(axis=1) == 1)[:, None] & (close.sum(axis=0) == 1)[None]
    assert alone.sum() > 5
    alone[points, keypoints] = False
    assert not alone.any()


def test_a_point_finds_itself_among_its_neighbours() -> None:
    keypoints = random_keypoints(300, seed=6)
    order = np.random.default_rng(7).permutation(300)
    points, found = mutual_matches(keypoints, keypoints.select(order), VIEWS)
    assert points.tolist() == list(range(300))
    assert np.array_equal(order[found], points)


def test_views_are_turned_by_45_degrees_and_tilted_threefold_at_most() -> None:
    """Without perspective the shape of the map at the centre stays within these ranges; perspective adds a little."""
    rng = np.random.default_rng(0)
    scales, tilts, turns = [], [], []
    around = np.array([[320.0, 240.0], [320.001, 240.0], [320.0, 240.001]])
    for _ in range(300):
        centre, right_of, below = map_points(random_homography(rng, 640, 480, Viewing()), around)[0]
        jacobian = np.column_stack([right_of - centre, below - centre]) / 1e-3
        left, size, right = np.linalg.svd(jacobian)
        assert np.linalg.det(jacobian) > 0  # never a mirror image
        turn = left @ right
        scales.append(math.sqrt(size[0] * size[1]))
        tilts.append(size[0] / size[1])
        turns.append(abs(math.degrees(math.atan2(turn[1, 0], turn[0, 0]))))
    assert np.quantile(scales, 0.01) > 1 / 1.8 and np.quantile(scales, 0.99) < 1.8
    assert np.quantile(tilts, 0.99) < 3 * 1.35 and max(tilts) > 2.5
    assert 40 < np.quantile(turns, 0.98) < 55


def test_relighting_keeps_the_image_and_may_compress_it() -> None:
    gray = np.tile(np.linspace(40, 215, 200).astype(np.uint8), (150, 1))
    plain, again = ([relight(gray, np.random.default_rng(seed), Viewing()) for seed in range(6)] for _ in range(2))
    for version, same in zip(plain, again, strict=True):
        assert version.shape == gray.shape and version.dtype == np.uint8 and np.array_equal(version, same)
        assert np.corrcoef(version.ravel(), gray.ravel())[0, 1] > 0.5
    assert len({version.tobytes() for version in plain}) == 6
    stored = [relight(gray, np.random.default_rng(seed), Viewing(jpeg=True)) for seed in range(6)]
    assert 0 < sum(not np.array_equal(one, other) for one, other in zip(plain, stored, strict=True)) < 6


@pytest.mark.parametrize("supersampling", [1, 2, 3])
def test_a_view_shows_pixels_where_the_homography_puts_them(supersampling: int) -> None:
    """A smooth blob's centre of mass is reprojected as its keypoint would be, whatever the supersampling."""
    y, x = np.mgrid[0:160, 0:200]
    gray = (255 * np.exp(-((x - 90.0) ** 2 + (y - 70.0) ** 2) / (2 * 8.0**2))).astype(np.uint8)
    homography = np.array([[0.8, 0.2, 9.0], [-0.1, 0.7, 30.0], [0.0, 0.0, 1.0]])
    view = warp(gray, homography, supersampling).astype(np.float64)
    centre = [(view * x).sum() / view.sum(), (view * y).sum() / view.sum()]
    expected = map_points(homography, np.array([[90.0, 70.0]]))[0][0]
    assert centre == pytest.approx(expected.tolist(), abs=0.05)


def test_supersampling_keeps_small_views_from_aliasing() -> None:
    """Stripes of one pixel seen at a third of the size are an even gray, not stripes of another width."""
    gray = np.tile(np.array([0, 255], dtype=np.uint8), (90, 90))
    homography = np.diag([0.35, 0.35, 1.0])
    rough, fine = (warp(gray, homography, finer)[:28, :56].std() for finer in (1, 3))
    assert fine < rough / 2


def test_patches_of_views_belong_together() -> None:
    rng = np.random.default_rng(0)
    small = rng.integers(0, 255, (40, 50)).astype(np.uint8)
    gray = cv2.GaussianBlur(cv2.resize(small, (500, 400), interpolation=cv2.INTER_CUBIC), (0, 0), 1.5)
    seen = patches_of_views(gray, rng, Viewing(views=4, keypoints=300))
    assert len(seen.patches) == len(seen.point) == len(seen.view) == len(seen.keypoints.xy) > 100
    assert np.bincount(seen.point)[seen.point].min() >= 2
    assert len(set(zip(seen.point.tolist(), seen.view.tolist(), strict=True))) == len(seen.point)
    forbidden = {tuple(pair) for pair in seen.ambiguous.tolist()}
    for view in range(4):  # points that come close in any view are ambiguous
        here = np.flatnonzero(seen.view == view)
        for first, second in ambiguous_pairs(seen.keypoints.select(here), VIEWS):
            assert tuple(sorted((seen.point[here[first]], seen.point[here[second]]))) in forbidden
    assert np.isin(seen.ambiguous, seen.point).all() and (seen.ambiguous[:, 0] < seen.ambiguous[:, 1]).all()


@pytest.mark.parametrize("size", [(1024, 150), (150, 1024), (640, 480)])
def test_views_are_never_folded_or_mirrored(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    rng, (width, height) = np.random.default_rng(0), size
    corners = np.array([[0, 0], [width, 0], [width, height], [0, height]], dtype=np.float64)
    check, refused = views.is_seen_from_the_front, 0

    def counted(*arguments: Any) -> bool:
        nonlocal refused
        refused += not check(*arguments)
        return check(*arguments)

    monkeypatch.setattr(views, "is_seen_from_the_front", counted)
    for _ in range(300):
        homography = random_homography(rng, width, height, PHOTO_VIEWING)
        for x, y in corners:
            u, v, w = homography @ [x, y, 1.0]
            jacobian = (homography[:2, :2] - np.outer([u / w, v / w], homography[2, :2])) / w
            assert w > 0 and np.linalg.det(jacobian) > 0
    assert (refused > 0) == (size != (640, 480))  # it does happen to strips

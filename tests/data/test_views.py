"""Synthetic views: the geometry checked numerically, the light, and the patches that come out."""

import math

import cv2
import numpy as np
import pytest

from sdgmnet.data.synthetic.sets import PHOTO_VIEWING
from sdgmnet.data.synthetic.views import (
    Viewing,
    _draw_homography,
    carry,
    is_seen_from_the_front,
    patches_of_views,
    random_homography,
    relight,
    same_points,
    seen_through,
    undecided_pairs,
)
from sdgmnet.features.keypoints import Keypoints

SAME, UNDECIDED = Viewing().same, Viewing().undecided


def random_keypoints(count: int, seed: int, extent: float = 60.0) -> Keypoints:
    """Crowded enough that many pairs lie near the borders of the rules."""
    rng = np.random.default_rng(seed)
    xy, sigma = rng.uniform(0, extent, (count, 2)), 2 ** rng.uniform(0.5, 2.5, count)
    return Keypoints(xy, sigma, rng.uniform(-np.pi, 2 * np.pi, count), rng.uniform(size=count))


def within(a: Keypoints, i: int, b: Keypoints, j: int, borders: tuple[float, float, float]) -> bool:
    """The rule in words: distance in the first one's sigmas, octaves between the scales, angle the short way round."""
    distance = math.dist(a.xy[i], b.xy[j]) / a.sigma[i]
    octaves = abs(math.log2(a.sigma[i]) - math.log2(b.sigma[j]))
    turn = abs(math.remainder(a.angle[i] - b.angle[j], 2 * math.pi))
    return distance <= borders[0] and octaves <= borders[1] and turn <= borders[2]


def test_carry_is_the_numeric_derivative_of_the_homography() -> None:
    keypoints = random_keypoints(40, seed=0, extent=400)
    homography = random_homography(np.random.default_rng(1), 400, 300, Viewing())
    assert abs(homography[2, 0]) > 1e-6  # a perspective, not merely an affine map

    def through(x: float, y: float) -> np.ndarray:
        u, v, w = homography @ np.array([x, y, 1.0])
        return np.array([u / w, v / w])

    carried = carry(keypoints, homography)
    step = 1e-4
    for index, (x, y) in enumerate(keypoints.xy):
        along_x = (through(x + step, y) - through(x - step, y)) / (2 * step)
        along_y = (through(x, y + step) - through(x, y - step)) / (2 * step)
        area = abs(along_x[0] * along_y[1] - along_x[1] * along_y[0])
        cos, sin = math.cos(keypoints.angle[index]), math.sin(keypoints.angle[index])
        direction = (through(x + step * cos, y + step * sin) - through(x - step * cos, y - step * sin)) / (2 * step)
        assert np.allclose(carried.xy[index], through(x, y), atol=1e-9)
        assert carried.sigma[index] == pytest.approx(keypoints.sigma[index] * math.sqrt(area), rel=1e-5)
        angle = math.atan2(direction[1], direction[0])
        assert math.remainder(carried.angle[index] - angle, 2 * math.pi) == pytest.approx(0, abs=1e-5)
    assert np.array_equal(carried.response, keypoints.response)


def test_carry_through_a_turn_and_a_doubling() -> None:
    """A quarter turn clockwise on the screen, (x, y) -> (-y, x), twice as large."""
    keypoints = Keypoints(np.array([[3.0, 5.0]]), np.array([2.0]), np.array([0.25]), np.ones(1))
    carried = carry(keypoints, np.array([[0.0, -2.0, 10.0], [2.0, 0.0, 20.0], [0.0, 0.0, 1.0]]))
    assert carried.xy[0].tolist() == pytest.approx([0.0, 26.0])
    assert carried.sigma[0] == pytest.approx(4.0)
    assert carried.angle[0] == pytest.approx(0.25 + np.pi / 2)


def test_same_points_are_mutual_and_within_the_borders() -> None:
    carried, found = random_keypoints(400, seed=2), random_keypoints(500, seed=3)
    points, keypoints = same_points(carried, found, SAME)
    assert len(points) > 20
    assert len(set(points.tolist())) == len(points) and len(set(keypoints.tolist())) == len(keypoints)
    for point, keypoint in zip(points.tolist(), keypoints.tolist(), strict=True):
        assert within(carried, point, found, keypoint, SAME)


def test_every_pair_that_has_no_rival_is_found() -> None:
    carried, found = random_keypoints(200, seed=4, extent=100), random_keypoints(300, seed=5, extent=100)
    close = np.array([[within(carried, i, found, j, SAME) for j in range(300)] for i in range(200)])
    alone = close & (close.sum(axis=1) == 1)[:, None] & (close.sum(axis=0) == 1)[None]
    assert alone.sum() > 5
    returned = set(zip(*(column.tolist() for column in same_points(carried, found, SAME)), strict=True))
    assert set(zip(*(column.tolist() for column in np.nonzero(alone)), strict=True)) <= returned


def test_a_point_finds_itself_among_its_neighbours() -> None:
    keypoints = random_keypoints(300, seed=6)
    order = np.random.default_rng(7).permutation(300)
    points, found = same_points(keypoints, keypoints.select(order), SAME)
    assert points.tolist() == list(range(300))
    assert np.array_equal(order[found], points)


@pytest.mark.parametrize(
    ("shift", "octaves", "turn", "same"),
    [
        (1.49, 0.0, 0.0, True),
        (1.51, 0.0, 0.0, False),
        (0.0, 0.49, 0.0, True),
        (0.0, -0.51, 0.0, False),
        (0.0, 0.0, 0.52, True),
        (0.0, 0.0, -0.53, False),
        (0.0, 0.0, 2 * np.pi - 0.5, True),
        (1.4, 0.4, 0.5, True),
    ],
)
def test_borders_of_sameness(shift: float, octaves: float, turn: float, same: bool) -> None:
    """1.5 sigmas, half an octave, 30 degrees."""
    carried = Keypoints(np.array([[50.0, 50.0]]), np.array([4.0]), np.array([0.1]), np.ones(1))
    found = Keypoints(np.array([[50 + 4 * shift, 50]]), np.array([4 * 2**octaves]), np.array([0.1 + turn]), np.ones(1))
    assert len(same_points(carried, found, SAME)[0]) == int(same)


def test_same_points_of_nothing() -> None:
    some, none = random_keypoints(5, seed=8), random_keypoints(0, seed=8)
    for carried, found in ((some, none), (none, some), (none, none)):
        assert [len(column) for column in same_points(carried, found, SAME)] == [0, 0]


def test_undecided_pairs_hold_whichever_way_round_they_are_seen() -> None:
    keypoints = random_keypoints(80, seed=9)
    expected = {
        (i, j)
        for i in range(80)
        for j in range(i + 1, 80)
        if within(keypoints, i, keypoints, j, UNDECIDED) or within(keypoints, j, keypoints, i, UNDECIDED)
    }
    one_way = sum(
        within(keypoints, i, keypoints, j, UNDECIDED) != within(keypoints, j, keypoints, i, UNDECIDED)
        for i, j in expected
    )
    assert len(expected) > 10 and one_way > 0
    pairs = [tuple(pair) for pair in undecided_pairs(keypoints, UNDECIDED).tolist()]
    assert len(pairs) == len(set(pairs)) and set(pairs) == expected


def test_sameness_is_narrower_than_indecision() -> None:
    assert all(same < undecided for same, undecided in zip(SAME, UNDECIDED, strict=True))


def test_views_are_turned_by_45_degrees_and_tilted_threefold_at_most() -> None:
    """Without perspective the shape of the map at the centre stays within these ranges; perspective adds a little."""
    rng = np.random.default_rng(0)
    scales, tilts, turns = [], [], []
    for _ in range(300):
        homography = random_homography(rng, 640, 480, Viewing())
        middle = Keypoints(np.array([[320.0, 240.0]]), np.ones(1), np.zeros(1), np.ones(1))
        centre = carry(middle, homography).xy[0]
        jacobian = np.empty((2, 2))
        for axis in range(2):
            moved = middle.xy.copy()
            moved[0, axis] += 1e-3
            jacobian[:, axis] = (carry(middle._replace(xy=moved), homography).xy[0] - centre) / 1e-3
        left, size, right = np.linalg.svd(jacobian)
        assert np.linalg.det(jacobian) > 0  # never a mirror image
        turn = left @ right
        scales.append(math.sqrt(size[0] * size[1]))
        tilts.append(size[0] / size[1])
        turns.append(abs(math.degrees(math.atan2(turn[1, 0], turn[0, 0]))))
    assert np.quantile(scales, 0.01) > 1 / 1.8 and np.quantile(scales, 0.99) < 1.8
    assert np.quantile(tilts, 0.99) < 3 * 1.35 and max(tilts) > 2.5
    assert 40 < np.quantile(turns, 0.98) < 55


def test_relighting_keeps_the_picture_and_its_range() -> None:
    gray = np.tile(np.linspace(40, 215, 200).astype(np.uint8), (150, 1))
    versions = [relight(gray, np.random.default_rng(seed), Viewing()) for seed in range(5)]
    for version in versions:
        assert version.shape == gray.shape and version.dtype == np.uint8
        assert np.corrcoef(version.ravel(), gray.ravel())[0, 1] > 0.5
    assert len({version.tobytes() for version in versions}) == 5
    assert np.array_equal(relight(gray, np.random.default_rng(0), Viewing()), versions[0])


def test_a_relit_view_may_be_compressed() -> None:
    gray = np.random.default_rng(0).integers(0, 255, (64, 64)).astype(np.uint8)
    plain = [relight(gray, np.random.default_rng(seed), Viewing()) for seed in range(6)]
    stored = [relight(gray, np.random.default_rng(seed), Viewing(jpeg=True)) for seed in range(6)]
    changed = [not np.array_equal(one, other) for one, other in zip(plain, stored, strict=True)]
    assert 0 < sum(changed) < 6


@pytest.mark.parametrize("supersampling", [1, 2, 3])
def test_a_view_shows_pixels_where_the_homography_puts_them(supersampling: int) -> None:
    """A smooth blob's centre of mass is carried as its keypoint would be, whatever the supersampling."""
    y, x = np.mgrid[0:160, 0:200]
    gray = (255 * np.exp(-((x - 90.0) ** 2 + (y - 70.0) ** 2) / (2 * 8.0**2))).astype(np.uint8)
    homography = np.array([[0.8, 0.2, 9.0], [-0.1, 0.7, 30.0], [0.0, 0.0, 1.0]])
    view = seen_through(gray, homography, supersampling).astype(np.float64)
    centre = [(view * x).sum() / view.sum(), (view * y).sum() / view.sum()]
    expected = carry(Keypoints(np.array([[90.0, 70.0]]), np.ones(1), np.zeros(1), np.ones(1)), homography).xy[0]
    assert centre == pytest.approx(expected.tolist(), abs=0.05)


def test_supersampling_keeps_small_views_from_aliasing() -> None:
    """Stripes of one pixel seen at a third of the size are an even gray, not stripes of another width."""
    gray = np.tile(np.array([0, 255], dtype=np.uint8), (90, 90))
    homography = np.diag([0.35, 0.35, 1.0])
    rough, fine = (seen_through(gray, homography, finer)[:28, :56].std() for finer in (1, 3))
    assert fine < rough / 2


def test_patches_of_views_belong_together() -> None:
    rng = np.random.default_rng(0)
    small = rng.integers(0, 255, (40, 50)).astype(np.uint8)
    gray = cv2.GaussianBlur(cv2.resize(small, (500, 400), interpolation=cv2.INTER_CUBIC), (0, 0), 1.5)
    seen = patches_of_views(gray, rng, Viewing(views=4, keypoints=300))
    assert len(seen.patches) == len(seen.point) == len(seen.view) == len(seen.keypoints.xy) > 100
    assert np.bincount(seen.point)[seen.point].min() >= 2
    assert len(set(zip(seen.point.tolist(), seen.view.tolist(), strict=True))) == len(seen.point)
    forbidden = {tuple(pair) for pair in seen.conflicts.tolist()}
    for view in range(4):  # points that come close in any view conflict
        here = np.flatnonzero(seen.view == view)
        for first, second in undecided_pairs(seen.keypoints.select(here), UNDECIDED):
            assert tuple(sorted((seen.point[here[first]], seen.point[here[second]]))) in forbidden
    assert np.isin(seen.conflicts, seen.point).all() and (seen.conflicts[:, 0] < seen.conflicts[:, 1]).all()


@pytest.mark.parametrize("size", [(1024, 150), (150, 1024), (640, 480)])
def test_views_are_never_folded_or_mirrored(size: tuple[int, int]) -> None:
    rng, (width, height) = np.random.default_rng(0), size
    corners = np.array([[0, 0], [width, 0], [width, height], [0, height]], dtype=np.float64)
    folded = 0
    for _ in range(300):
        homography = random_homography(rng, width, height, PHOTO_VIEWING)
        for x, y in corners:
            u, v, w = homography @ [x, y, 1.0]
            jacobian = (homography[:2, :2] - np.outer([u / w, v / w], homography[2, :2])) / w
            assert w > 0 and np.linalg.det(jacobian) > 0
        folded += not is_seen_from_the_front(_draw_homography(rng, width, height, PHOTO_VIEWING), width, height)
    assert (folded > 0) == (size != (640, 480))  # it does happen on strips

"""Correspondence by geometry, judged on a rendered scene whose every pixel's surface is known."""

from collections.abc import Callable

import numpy as np
import pytest

from sdgmnet.data.photos.correspondences import (
    Correspondences,
    conflicts_of,
    correspond,
    judge_keypoints,
    near_pairs,
    overlapping,
)
from sdgmnet.data.photos.match_rule import DIFFERENT, MATCHING, UNDECIDED, Rule, differences, judge
from sdgmnet.data.photos.reproject import Anchored, Carried, anchor, carry, depths_at, plane_warp, support
from sdgmnet.data.photos.tracks import group, group_consistently, pairs_within
from sdgmnet.features.keypoints import Keypoints, detect
from sdgmnet.sfm.scene import View, project
from tests.sfm.rendered import Rendered, cast

RULE = Rule()


@pytest.fixture(scope="module")
def anchored(rendered: Rendered) -> list[Anchored]:
    parts = zip(rendered.scene.views, rendered.images, rendered.depths, rendered.normals, strict=True)
    return [anchor(view, detect(image), depths, normals) for view, image, depths, normals in parts]


def exact(view: View, one: Anchored, index: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Where keypoints of `one` truly come to lie in `view`, by rays cast at the surfaces: xy, sigma, angle and visibility."""
    step = 1e-3
    xy, angle = one.keypoints.xy[index], one.keypoints.angle[index]
    ahead = np.stack([np.cos(angle), np.sin(angle)], 1) * step
    aside = np.stack([-np.sin(angle), np.cos(angle)], 1) * step
    middle = cast(one.view, xy)[1]
    (here, depth), there, beside = (project(view, cast(one.view, xy + shift)[1]) for shift in (0 * ahead, ahead, aside))
    along, across = (there[0] - here) / step, (beside[0] - here) / step
    area = np.abs(along[:, 0] * across[:, 1] - along[:, 1] * across[:, 0])
    in_front = cast(view, here)[0]
    seen = (np.abs(in_front - depth) < 1e-3 * depth) & (np.linalg.norm(middle, axis=1) < 1e6)
    return here, one.keypoints.sigma[index] * np.sqrt(area), np.arctan2(along[:, 1], along[:, 0]), seen


def test_a_plane_between_pixels_is_interpolated_exactly(rendered: Rendered) -> None:
    view = rendered.scene.views[0]
    xy = np.random.default_rng(0).uniform(5, [view.width - 6, 30], (200, 2))  # the wall above everything
    found = depths_at(rendered.depths[0].astype(np.float32), view, xy)
    np.testing.assert_allclose(found, cast(view, xy)[0], rtol=1e-5)


def test_depth_across_an_edge_or_a_hole_is_not_known() -> None:
    view = View("a", 8, 4, np.eye(3), np.eye(3), np.zeros(3))
    depths = np.full((4, 8), 2.0, dtype=np.float32)
    depths[:, 4:] = 3.0
    depths[0, 0] = 0
    xy = np.array([[2.5, 1.5], [3.5, 1.5], [0.5, 0.5], [7.4, 3.4]])
    np.testing.assert_allclose(depths_at(depths, view, xy), [2, 0, 0, 3])
    smaller = depths_at(depths, view._replace(width=16, height=8), 2 * xy + 0.5)
    np.testing.assert_allclose(smaller, [2, 0, 0, 3])


def test_warp_of_a_plane_is_the_derivative_of_its_projection() -> None:
    rng = np.random.default_rng(3)
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    turn *= np.sign(np.linalg.det(turn))
    intrinsics = np.array([[500.0, 0, 320], [0, 510, 240], [0, 0, 1]])
    one = View("a", 640, 480, intrinsics, turn, rng.normal(size=3))
    small = 0.2 * np.cross(np.eye(3), rng.normal(size=3))
    other = View("b", 640, 480, intrinsics * [[1.2], [1.2], [1]], np.linalg.qr(np.eye(3) + small)[0], np.zeros(3))
    other = other._replace(rotation=other.rotation @ np.diag(np.sign(np.diag(other.rotation))) @ turn)
    xy, depth = rng.uniform(100, 400, (20, 2)), rng.uniform(3, 5, 20)
    normal = rng.normal((0, 0, -3), 1, size=(20, 3))
    normal /= np.linalg.norm(normal, axis=1, keepdims=True)

    def moved(shift: tuple[float, float]) -> np.ndarray:
        inverse = np.linalg.inv(intrinsics)
        rays = np.column_stack([xy + shift, np.ones(20)]) @ inverse.T
        centre = np.column_stack([xy, np.ones(20)]) @ inverse.T * depth[:, None]
        points = rays * ((normal * centre).sum(1) / (normal * rays).sum(1))[:, None]
        return project(other, (points - one.translation) @ one.rotation)[0]

    step = 1e-4
    columns = [(moved(shift) - moved((-shift[0], -shift[1]))) / (2 * step) for shift in ((step, 0.0), (0.0, step))]
    np.testing.assert_allclose(plane_warp(one, other, xy, depth, normal), np.stack(columns, 2), rtol=1e-4, atol=1e-5)


def test_carried_keypoints_lie_where_rays_say(rendered: Rendered, anchored: list[Anchored]) -> None:
    for source, target in ((0, 1), (2, 0)):
        view = rendered.scene.views[target]
        carried = carry(anchored[source], view, rendered.depths[target], RULE)
        assert len(carried.row) > 100
        xy, sigma, angle, seen = exact(view, anchored[source], carried.row)
        # The sphere bends within a pixel and the maps are sampled at pixel centres: small differences remain there.
        pixels, octaves, radians = differences(carried.xy, carried.sigma, carried.angle, xy, sigma, angle)
        assert seen.mean() > 0.99
        assert np.quantile(pixels, 0.99) < 0.5
        assert np.quantile(octaves, 0.99) < 0.1
        assert np.quantile(radians, 0.99) < 0.1


def test_support_is_the_share_of_a_patch_in_sight(rendered: Rendered, anchored: list[Anchored]) -> None:
    """On the wall all of a patch is seen; where the sphere covers part of the wall in the other view, less."""
    one, view = anchored[0], rendered.scene.views[2]
    rows = carry(one, view, rendered.depths[2], RULE).row
    share = support(one, rendered.depths[0], view, rendered.depths[2], rows, RULE)
    small = one.keypoints.sigma[rows] < 3
    assert np.median(share[small]) == 1
    nowhere = support(one, rendered.depths[0], view, np.zeros_like(rendered.depths[2]), rows, RULE)
    assert (nowhere == 0).all()
    assert support(one, rendered.depths[0], view, rendered.depths[2], rows[:0], RULE).shape == (0,)
    assert (support(one, np.zeros_like(rendered.depths[0]), view, rendered.depths[2], rows, RULE) == 0).all()
    assert ((share >= 0) & (share <= 1)).all()
    assert (share < 0.9).any()


def find(rendered: Rendered, anchored: list[Anchored]) -> tuple[Correspondences, np.ndarray]:
    depths_of: Callable[[int], np.ndarray] = rendered.depths.__getitem__
    found = correspond(anchored, depths_of, list(overlapping(rendered.scene)), RULE)
    point = group_consistently(found, lambda pairs: judge_keypoints(anchored, depths_of, found.first, pairs, RULE)[0])
    return found, point


def test_found_correspondences_are_right(rendered: Rendered, anchored: list[Anchored]) -> None:
    """Every two keypoints of a point, edges or not, against the true surfaces; and none lies beyond the far border."""
    found, point = find(rendered, anchored)
    pairs = pairs_within(point)
    assert len(pairs) > 100
    view = np.searchsorted(found.first, pairs, side="right") - 1
    right, beyond = 0, 0
    for here, there in np.unique(view, axis=0):
        one, other = pairs[(view == [here, there]).all(axis=1)].T
        xy, sigma, angle, seen = exact(anchored[there].view, anchored[here], one - found.first[here])
        detected = anchored[there].keypoints.select(other - found.first[there])
        pixels, octaves, radians = differences(xy, sigma, angle, detected.xy, detected.sigma, detected.angle)
        # The border itself is as exact as the maps.
        right += int((seen & (pixels <= 5.3) & (octaves <= 0.28) & (radians <= np.pi / 8 + 0.03)).sum())
        beyond += int(((pixels > 10) | (octaves > 0.5) | (radians > np.pi / 4)).sum())
    assert right / len(pairs) >= 0.99
    assert beyond == 0


def test_points_have_one_keypoint_a_view_and_never_conflict_with_themselves(
    rendered: Rendered, anchored: list[Anchored]
) -> None:
    found, point = find(rendered, anchored)
    view = np.repeat(np.arange(3), np.diff(found.first))
    assert len(np.unique(point * 10 + view)) == len(point)
    conflicts = conflicts_of(found.close, point)
    assert (conflicts[:, 0] < conflicts[:, 1]).all()
    assert len(np.unique(conflicts, axis=0)) == len(conflicts)


def test_the_same_every_time(rendered: Rendered, anchored: list[Anchored]) -> None:
    (one, first), (other, second) = find(rendered, anchored), find(rendered, anchored)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(one.close, other.close)


@pytest.mark.parametrize(
    ("pixels", "octaves", "radians", "sigma", "verdict"),
    [
        (4.9, 0.2, 0.3, 10, MATCHING),
        (5.1, 0.2, 0.3, 10, UNDECIDED),
        (4.9, 0.26, 0.3, 10, UNDECIDED),
        (4.9, 0.2, 0.4, 10, UNDECIDED),
        (0.0, 0.51, 0.0, 10, DIFFERENT),
        (0.0, 0.0, 0.79, 10, DIFFERENT),
        (10.1, 0.0, 0.0, 2, DIFFERENT),
        (10.1, 0.0, 0.0, 5, UNDECIDED),  # a fifth of its patch
        (3.1, 0.0, 0.0, 2, UNDECIDED),  # an eighth of its patch
        (2.9, 0.0, 0.0, 2, MATCHING),
    ],
)
def test_the_rule(pixels: float, octaves: float, radians: float, sigma: float, verdict: int) -> None:
    columns = (np.array([value]) for value in (pixels, octaves, radians, sigma))
    assert judge(*columns, RULE)[0][0] == verdict


def some_keypoints(rng: np.random.Generator, count: int) -> Keypoints:
    sigma = 1.6 * 2 ** rng.exponential(1.2, count)
    return Keypoints(rng.uniform(0, 300, (count, 2)), sigma, rng.uniform(0, 2 * np.pi, count), np.zeros(count))


def test_the_grid_finds_what_brute_force_finds() -> None:
    rng = np.random.default_rng(5)
    here, there = some_keypoints(rng, 300), some_keypoints(rng, 2500)
    carried = Carried(np.arange(300), here.xy, here.sigma, here.angle)
    one, other = (axis.ravel() for axis in np.meshgrid(np.arange(300), np.arange(2500), indexing="ij"))
    apart = differences(
        here.xy[one], here.sigma[one], here.angle[one], there.xy[other], there.sigma[other], there.angle[other]
    )
    verdict, _ = judge(*apart, here.sigma[one], RULE)
    kept = verdict != DIFFERENT
    query, found, verdicts, _ = near_pairs(carried, there, RULE)
    assert kept.sum() > 300
    np.testing.assert_array_equal(np.column_stack([query, found]), np.column_stack([one, other])[kept])
    np.testing.assert_array_equal(verdicts, verdict[kept])


def grouped_slowly(
    view: np.ndarray, edges: np.ndarray, misfit: np.ndarray, forbidden: np.ndarray
) -> list[frozenset[int]]:
    """The definition: best edges first, sets joined unless two of a view or a forbidden pair would come together."""
    groups = [frozenset([one]) for one in range(len(view))]
    apart = {frozenset(pair) for pair in forbidden.tolist()}
    for row in np.lexsort((edges[:, 1], edges[:, 0], misfit)):
        first, second = (next(one for one in groups if end in one) for end in edges[row].tolist())
        joined = first | second
        views = [view[one] for one in joined]
        allowed = len(set(views)) == len(views) and not any(frozenset((a, b)) in apart for a in first for b in second)
        if first != second and allowed:
            groups = [one for one in groups if one not in (first, second)] + [joined]
    return sorted(groups, key=min)


@pytest.mark.parametrize("seed", range(20))
def test_grouping_agrees_with_its_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = 30
    view = rng.integers(0, 6, count)
    edges = np.unique(np.sort(rng.integers(0, count, (60, 2)), axis=1), axis=0)
    edges = edges[view[edges[:, 0]] != view[edges[:, 1]]]
    misfit = rng.integers(0, 5, len(edges)) / 5.0
    forbidden = rng.integers(0, count, (10, 2))
    forbidden = forbidden[forbidden[:, 0] != forbidden[:, 1]]
    point = group(count, view, edges, misfit, forbidden)
    slow = grouped_slowly(view, edges, misfit, forbidden)
    assert [frozenset(np.flatnonzero(point == number).tolist()) for number in range(point.max() + 1)] == slow


def test_a_chain_that_drifts_is_cut_at_its_weakest_link() -> None:
    """0-1-2 in three views: 0 and 2 are each near to 1 but not to each other. The better edge keeps its keypoints."""
    found = Correspondences(
        np.array([0, 1, 2, 3]), np.array([[0, 1], [1, 2]]), np.array([0.8, 0.3]), np.array([[0, 1], [1, 2], [0, 2]])
    )

    def judge_pairs(pairs: np.ndarray) -> np.ndarray:
        assert pairs.tolist() == [[0, 2]]
        return np.array([UNDECIDED])

    point = group_consistently(found, judge_pairs)
    assert point[1] == point[2] != point[0]
    assert conflicts_of(found.close, point).tolist() == [[0, 1]]

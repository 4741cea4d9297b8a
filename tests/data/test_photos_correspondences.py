"""Correspondence by geometry, judged on a rendered scene whose every pixel's surface is known."""

import numpy as np
import pytest

from sdgmnet.data.match_rule import PHOTOS, UNDECIDED, judge
from sdgmnet.data.photos.correspondences import (
    Correspondences,
    PointOptions,
    ambiguous_points,
    correspond,
    judge_keypoints,
    overlapping,
)
from sdgmnet.data.photos.reproject import Model, Surface, depths_at, support, surface_at
from sdgmnet.data.photos.tracks import group, group_consistently, pairs_within, views_of
from sdgmnet.features.keypoints import Keypoints, detect
from sdgmnet.sfm.scene import View, project
from tests.sfm.rendered import Rendered, cast

OPTIONS = PointOptions()
VISIBILITY = OPTIONS.visibility


@pytest.fixture(scope="module")
def exact_model(rendered: Rendered) -> Model:
    parts = zip(rendered.scene.views, rendered.images, rendered.depths, rendered.normals, strict=True)
    surfaces = [surface_at(view, detect(image), depths, normals) for view, image, depths, normals in parts]
    return Model(surfaces, rendered.depths.__getitem__)


def exact(view: View, one: Surface, rows: np.ndarray) -> tuple[Keypoints, np.ndarray]:
    """Keypoints of `one` as they truly look in `view`, by rays cast at the surfaces; and which are visible."""
    step = 1e-3
    xy, angle = one.keypoints.xy[rows], one.keypoints.angle[rows]
    ahead = np.stack([np.cos(angle), np.sin(angle)], 1) * step
    aside = np.stack([-np.sin(angle), np.cos(angle)], 1) * step
    middle = cast(one.view, xy)[1]
    (here, depth), there, beside = (project(view, cast(one.view, xy + shift)[1]) for shift in (0 * ahead, ahead, aside))
    along, across = (there[0] - here) / step, (beside[0] - here) / step
    area = np.abs(along[:, 0] * across[:, 1] - along[:, 1] * across[:, 0])
    in_front = cast(view, here)[0]
    seen = (np.abs(in_front - depth) < 1e-3 * depth) & (np.linalg.norm(middle, axis=1) < 1e6)
    sigma = one.keypoints.sigma[rows] * np.sqrt(area)
    return Keypoints(here, sigma, np.arctan2(along[:, 1], along[:, 0]), np.zeros(len(rows))), seen


def differences(one: Keypoints, other: Keypoints) -> np.ndarray:
    """Pixels, octaves and radians: (3, N)."""
    judged = judge(one, other, PHOTOS)
    return np.stack([judged.pixels, judged.scale * PHOTOS.near_octaves, judged.orientation * PHOTOS.near_radians])


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


def test_reprojected_keypoints_are_where_rays_say(exact_model: Model) -> None:
    for source, target in ((0, 1), (2, 0)):
        found = exact_model.reproject(source, target, VISIBILITY)
        assert len(found.row) > 100
        truth, seen = exact(exact_model.surfaces[target].view, exact_model.surfaces[source], found.row)
        # The sphere bends within a pixel and the maps are sampled at pixel centres: small differences remain there.
        assert seen.mean() > 0.99
        assert (np.quantile(differences(found.keypoints, truth), 0.99, axis=1) < [0.5, 0.1, 0.1]).all()


def test_support_is_the_visible_share_of_a_patch(rendered: Rendered, exact_model: Model) -> None:
    """On the wall all of a patch is visible; where the sphere occludes part of the wall in the other view, less."""
    rows = exact_model.reproject(0, 2, VISIBILITY).row
    share = support(exact_model, 0, 2, rows, VISIBILITY)
    small = exact_model.surfaces[0].keypoints.sigma[rows] < 3
    assert np.median(share[small]) == 1
    assert ((share >= 0) & (share <= 1)).all() and (share < 0.9).any()
    assert support(exact_model, 0, 2, rows[:0], VISIBILITY).shape == (0,)
    for unknown in (0, 2):
        depths = [map * (number != unknown) for number, map in enumerate(rendered.depths)]
        blind = exact_model._replace(depth_map=depths.__getitem__)
        assert (support(blind, 0, 2, rows, VISIBILITY) == 0).all()


@pytest.fixture(scope="module")
def found(rendered: Rendered, exact_model: Model) -> Correspondences:
    return correspond(exact_model, overlapping(rendered.scene), OPTIONS)


def points_of(model: Model, found: Correspondences) -> np.ndarray:
    return group_consistently(
        found, views_of(model.first), lambda pairs: judge_keypoints(model, pairs, OPTIONS).verdict
    )


def test_found_correspondences_are_right(exact_model: Model, found: Correspondences) -> None:
    """Every two keypoints of a point, edges or not, against the true surfaces; and none is beyond the far limits."""
    first, surfaces = exact_model.first, exact_model.surfaces
    pairs = pairs_within(points_of(exact_model, found))
    assert len(pairs) > 100
    view = np.searchsorted(first, pairs, side="right") - 1
    right, beyond = 0, 0
    for here, there in np.unique(view, axis=0):
        one, other = pairs[(view == [here, there]).all(axis=1)].T
        truth, seen = exact(surfaces[there].view, surfaces[here], one - first[here])
        apart = differences(truth, surfaces[there].keypoints.select(other - first[there])).T
        # The limit itself is as exact as the maps.
        right += int((seen & (apart <= [5.3, 0.28, np.pi / 8 + 0.03]).all(axis=1)).sum())
        beyond += int((apart > [10, 0.5, np.pi / 4]).any(axis=1).sum())
    assert right / len(pairs) >= 0.99
    assert beyond == 0


def test_points_have_one_keypoint_per_view_and_results_repeat(
    rendered: Rendered, exact_model: Model, found: Correspondences
) -> None:
    point = points_of(exact_model, found)
    assert len(np.unique(point * 10 + views_of(exact_model.first))) == len(point)
    ambiguous = ambiguous_points(found.close, point)
    assert (ambiguous[:, 0] < ambiguous[:, 1]).all()
    assert len(np.unique(ambiguous, axis=0)) == len(ambiguous)
    again = correspond(exact_model, overlapping(rendered.scene), OPTIONS)
    np.testing.assert_array_equal(found.close, again.close)
    np.testing.assert_array_equal(point, points_of(exact_model, again))


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
    edges, close = np.array([[0, 1], [1, 2]]), np.array([[0, 1], [1, 2], [0, 2]])
    found = Correspondences(edges, np.array([0.8, 0.3]), close)

    def judge_pairs(pairs: np.ndarray) -> np.ndarray:
        assert pairs.tolist() in ([[0, 2]], [])
        return np.full(len(pairs), UNDECIDED)

    point = group_consistently(found, np.arange(3), judge_pairs)
    assert point[1] == point[2] != point[0]
    assert ambiguous_points(found.close, point).tolist() == [[0, 1]]

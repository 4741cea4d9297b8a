"""Where the eye stands, and what it sees."""

import numpy as np
import pytest

from sdgmnet.sfm.scene import View, project
from sdgmnet.sfm.viewer import FINER, HEIGHT, WIDTH, Cloud, draw_side, frustum, looking, place_eye, usual
from tests.sfm.planes import views_around


def test_the_eye_looks_as_the_cameras_do_or_from_their_left() -> None:
    views = views_around(5)
    behind = looking(views, 0, 0)
    np.testing.assert_allclose(behind @ behind.T, np.eye(3), atol=1e-12)
    assert np.linalg.det(behind) == pytest.approx(1)
    mean = np.sum([view.rotation for view in views], axis=0)
    for axis in range(3):
        assert behind[axis] @ mean[axis] / np.linalg.norm(mean[axis]) > 0.99
    from_left = looking(views, 90, 0)
    assert from_left[2] @ behind[0] == pytest.approx(1)  # it looks to what is their right
    from_above = looking(views, 0, 30)
    assert from_above[2] @ behind[1] == pytest.approx(0.5)  # down, by 30 degrees


def test_cameras_around_something_have_a_front_all_the_same() -> None:
    views = []
    for degrees in range(0, 360, 60):
        angle = np.deg2rad(degrees)
        forward = np.array([np.sin(angle), 0, np.cos(angle)])
        rotation = np.stack([np.cross([0, 1.0, 0], forward), [0, 1, 0], forward])
        views.append(View("", 40, 30, np.eye(3), rotation, rotation @ (5 * forward)))
    turned = looking(views, 0, 0)
    np.testing.assert_allclose(turned, views[0].rotation, atol=1e-9)


def test_all_that_is_shown_fits_and_fills_the_picture() -> None:
    shown = np.random.default_rng(0).uniform([-3, -1, 2], [5, 4, 9], (200, 3))
    eye = place_eye(looking(views_around(3), 30, 20), shown)
    pixels, depths = project(eye, shown)
    assert (depths > 0).all()
    assert (pixels >= 0).all() and (pixels < [WIDTH * FINER, HEIGHT * FINER]).all()
    assert (np.ptp(pixels, axis=0) / [WIDTH * FINER, HEIGHT * FINER]).max() > 0.8


def test_a_point_far_away_does_not_shrink_the_scene() -> None:
    points = np.random.default_rng(0).uniform(-1, 1, (1000, 3)) + np.array([0, 0, 5])
    far = np.concatenate([points, [[1e4, 0, 0]]])
    assert np.ptp(usual(far), axis=0).max() < 2
    cloud = Cloud(far, np.zeros((1001, 3), np.uint8))
    picture = draw_side(cloud, views_around(3), 0, 20).astype(int)
    assert (picture.max(axis=2) < 90).mean() > 0.002  # points
    assert ((picture[..., 0] > 150) & (picture[..., 1:].max(axis=2) < 110)).sum() > 100  # cameras


def test_a_frustum_has_the_corners_of_the_picture() -> None:
    (view,) = views_around(1)
    corners = frustum(view, 2.0)
    np.testing.assert_allclose(corners[0], view.centre())
    pixels, depths = project(view, corners[1:])
    np.testing.assert_allclose(depths, 2)
    np.testing.assert_allclose(pixels, [[-0.5, -0.5], [479.5, -0.5], [479.5, 359.5], [-0.5, 359.5]], atol=1e-9)

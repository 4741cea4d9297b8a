import numpy as np
import pytest

from sdgmnet.benchmarks.relative_pose import angular_error, pose_error
from sdgmnet.sfm.scene import project
from tests.sfm.planes import views_around


def places(noise: float, outliers: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    points = rng.uniform([-1.5, -1, 4], [1.5, 1, 6], (300, 3))
    first, second = (project(view, points)[0] + rng.normal(0, noise, (300, 2)) for view in views_around(2))
    second[:outliers] = rng.uniform(0, 300, (outliers, 2))
    return first, second


def test_true_matches_give_the_true_pose() -> None:
    first, second = views_around(2)
    assert pose_error(first, second, places(0, 0)) < 0.01
    assert pose_error(first, second, places(0.1, 100)) < 3
    wrong = second._replace(rotation=views_around(4)[3].rotation)
    assert pose_error(first, wrong, places(0, 0)) > 5


def test_nothing_to_go_by_is_infinitely_wrong() -> None:
    first, second = views_around(2)
    few = np.zeros((3, 2))
    assert pose_error(first, second, (few, few)) == np.inf
    same = np.zeros((50, 2))
    assert pose_error(first, second, (same, same)) >= 0  # whatever comes of it, no crash


def test_the_error_is_the_larger_of_two_angles() -> None:
    first, second = views_around(2)
    rotation = second.rotation @ first.rotation.T
    translation = second.translation - rotation @ first.translation
    assert angular_error(first, second, rotation, -5 * translation) == pytest.approx(0, abs=1e-5)
    turn = np.deg2rad(10)
    about_z = np.array([[np.cos(turn), -np.sin(turn), 0], [np.sin(turn), np.cos(turn), 0], [0, 0, 1]])
    assert angular_error(first, second, about_z @ rotation, translation) == pytest.approx(10)
    direction = translation / np.linalg.norm(translation)
    across = np.cross(direction, [0, 0, 1.0])
    moved = np.cos(2 * turn) * direction + np.sin(2 * turn) * across / np.linalg.norm(across)
    assert angular_error(first, second, about_z @ rotation, moved) == pytest.approx(20)

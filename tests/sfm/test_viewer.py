"""Point clouds: read, rendered, drawn from two sides, and as a page."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sdgmnet.errors import InputError
from sdgmnet.sfm import viewer
from sdgmnet.sfm.scene import View, project
from sdgmnet.sfm.viewer import (
    HEIGHT,
    SUPERSAMPLING,
    WIDTH,
    Cloud,
    ShownModel,
    draw_side,
    fit_view,
    frustum,
    look_rotation,
    read_ply,
    render_cloud,
    save_cloud_image,
    without_outliers,
    write_page,
)
from tests.sfm.planes import views_around

VIEW = View("eye", 60, 40, np.array([[50.0, 0, 29.5], [0, 50, 19.5], [0, 0, 1]]), np.eye(3), np.zeros(3))
RED, BLUE = (255, 0, 0), (0, 0, 255)
# The far point is right behind the near one.
TWO_POINTS = Cloud(np.array([[0.0, 0, 2], [0, 0, 4]]), np.array([RED, BLUE], np.uint8))


def test_the_nearest_point_is_in_front() -> None:
    image = render_cloud(TWO_POINTS, VIEW, point_size=0.16)
    assert tuple(image[20, 30]) == RED and (image == 255).all(-1).sum() > 2000
    back = np.diag([-1.0, 1, -1])
    from_behind = VIEW._replace(rotation=back, translation=-back @ np.array([0, 0, 6.0]))
    assert tuple(render_cloud(TWO_POINTS, from_behind, point_size=0.16)[20, 30]) == BLUE
    assert (render_cloud(TWO_POINTS, VIEW._replace(rotation=back)) == 255).all()  # both are behind the camera


def test_points_that_face_away_are_not_drawn() -> None:
    facing = TWO_POINTS._replace(normals=np.array([[0.0, 0, 1], [0, 0, -1]]))
    assert tuple(render_cloud(facing, VIEW, point_size=0.16)[20, 30]) == BLUE


def test_ply_is_read(tmp_path: Path) -> None:
    floats, colours = ("x", "y", "z", "nx", "ny", "nz"), ("red", "green", "blue")
    kind = np.dtype([(name, "<f4") for name in floats] + [(name, "u1") for name in colours])
    rows = np.array([(1, 2, 3, 0, 0, -1, 9, 8, 7), (4, 5, 6, 0, 0, 1, 1, 2, 3)], kind)
    properties = [f"property float {name}" for name in floats] + [f"property uchar {name}" for name in colours]
    header = "\n".join(["ply", "format binary_little_endian 1.0", "element vertex 2", *properties])
    path = tmp_path / "two.ply"
    path.write_bytes(f"{header}\nend_header\n".encode() + rows.tobytes())
    cloud = read_ply(path)
    assert cloud.points.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert cloud.colours.tolist() == [[9, 8, 7], [1, 2, 3]]
    assert cloud.normals is not None and cloud.normals.tolist() == [[0, 0, -1], [0, 0, 1]]
    save_cloud_image(cloud, VIEW, tmp_path / "two.png")
    assert (tmp_path / "two.png").read_bytes().startswith(b"\x89PNG")
    for content in (path.read_bytes()[:-1], b"solid\n"):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"two\.ply"):
            read_ply(path)


def test_the_view_is_that_of_the_cameras_or_from_their_left_or_above() -> None:
    views = views_around(5)
    behind = look_rotation(views, 0, 0)
    np.testing.assert_allclose(behind @ behind.T, np.eye(3), atol=1e-12)
    assert np.linalg.det(behind) == pytest.approx(1)
    mean = np.sum([view.rotation for view in views], axis=0)
    assert all(behind[axis] @ mean[axis] / np.linalg.norm(mean[axis]) > 0.99 for axis in range(3))
    assert look_rotation(views, 90, 0)[2] @ behind[0] == pytest.approx(1)  # it looks to the right of the cameras
    assert look_rotation(views, 0, 30)[2] @ behind[1] == pytest.approx(0.5)  # down, by 30 degrees


def test_cameras_around_something_have_a_front_all_the_same() -> None:
    views = []
    for degrees in range(0, 360, 60):
        angle = np.deg2rad(degrees)
        forward = np.array([np.sin(angle), 0, np.cos(angle)])
        rotation = np.stack([np.cross([0, 1.0, 0], forward), [0, 1, 0], forward])
        views.append(View("", 40, 30, np.eye(3), rotation, rotation @ (5 * forward)))
    np.testing.assert_allclose(look_rotation(views, 0, 0), views[0].rotation, atol=1e-9)


def test_all_that_is_shown_fits_and_fills_the_image() -> None:
    shown, size = np.random.default_rng(0).uniform([-3, -1, 2], [5, 4, 9], (200, 3)), np.array([WIDTH, HEIGHT])
    pixels, depths = project(fit_view(look_rotation(views_around(3), 30, 20), shown), shown)
    assert (depths > 0).all() and (pixels >= 0).all() and (pixels < size * SUPERSAMPLING).all()
    assert (np.ptp(pixels, axis=0) / size / SUPERSAMPLING).max() > 0.8


def test_a_point_far_away_does_not_shrink_the_scene() -> None:
    points = np.random.default_rng(0).uniform(-1, 1, (1000, 3)) + np.array([0, 0, 5])
    far = np.concatenate([points, [[1e4, 0, 0]]])
    assert np.ptp(without_outliers(far), axis=0).max() < 2
    image = draw_side(Cloud(far, np.zeros((1001, 3), np.uint8)), views_around(3), 0, 20).astype(int)
    assert (image.max(axis=2) < 90).mean() > 0.002  # points
    assert ((image[..., 0] > 150) & (image[..., 1:].max(axis=2) < 110)).sum() > 100  # cameras


def test_a_frustum_has_the_corners_of_the_image() -> None:
    (view,) = views_around(1)
    corners = frustum(view, 2.0)
    np.testing.assert_allclose(corners[0], view.centre())
    pixels, depths = project(view, corners[1:])
    np.testing.assert_allclose(depths, 2)
    np.testing.assert_allclose(pixels, [[-0.5, -0.5], [479.5, -0.5], [479.5, 359.5], [-0.5, 359.5]], atol=1e-9)


def data_in(page: str) -> list[dict[str, Any]]:
    found = re.search(r"const models = (\[.*\]);", page)
    assert found is not None
    models: list[dict[str, Any]] = json.loads(found[1])
    return models


def test_the_page_shows_all_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Together they have at most MAX_POINTS points, each its share."""
    monkeypatch.setattr(viewer, "MAX_POINTS", 300)
    points = np.random.default_rng(0).uniform(-1, 1, (800, 3)) + np.array([0, 0, 5])
    clouds = [Cloud(some, np.zeros(some.shape, np.uint8)) for some in (points, points[:400])]
    first = ShownModel(clouds[0], views_around(3), "first")
    second = ShownModel(clouds[1], views_around(4), "second", ["too <few> points"])
    write_page([first, second], tmp_path / "cloud.html")
    text = (tmp_path / "cloud.html").read_text()
    assert "<section>first</section>" in text and "<title>first</title>" in text
    assert "<section hidden>second<p>too &lt;few&gt; points</p></section>" in text
    data = data_in(text)
    assert [len(one["cameras"]) for one in data] == [6 * 8 * 3, 6 * 8 * 4]
    assert [len(base64.b64decode(one["colours"])) for one in data] == [3 * 200, 3 * 100]


def test_the_page_holds_points_and_cameras_and_loads_nothing(tmp_path: Path) -> None:
    views = views_around(3)
    rng = np.random.default_rng(0)
    points = rng.uniform(-1, 1, (500, 3)) + np.array([0, 0, 5])
    cloud = Cloud(np.concatenate([points, [[1e5, 0, 0]]]), rng.integers(0, 256, (501, 3)).astype(np.uint8))
    write_page([ShownModel(cloud, views, "<boards> & more")], tmp_path / "cloud.html")
    text = (tmp_path / "cloud.html").read_text()
    assert "&lt;boards&gt; &amp; more" in text and "<boards>" not in text
    assert "http" not in text and "src=" not in text and "@" not in text.split("<script>")[0]
    (data,) = data_in(text)
    assert set(re.findall(r"(?<![.\w])data\.(\w+)", text)) == set(data)  # what the script reads
    places = np.frombuffer(base64.b64decode(data["places"]), "<i2").reshape(-1, 3) * data["unit"]
    colours = np.frombuffer(base64.b64decode(data["colours"]), np.uint8).reshape(-1, 3)
    np.testing.assert_array_equal(colours, cloud.colours[:-1])  # the point far away is left out
    # The same shape: all distances in one proportion.
    pairs = rng.integers(0, 500, (200, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    shown, true = (np.linalg.norm(set_[pairs[:, 0]] - set_[pairs[:, 1]], axis=1) for set_ in (places, points))
    assert np.std(shown / true) / np.mean(shown / true) < 0.01
    # Down stays down, ahead is ahead.
    assert np.corrcoef(places[:, 1], points[:, 1])[0, 1] > 0.98 and np.corrcoef(places[:, 2], points[:, 2])[0, 1] > 0.98
    lines = np.reshape(data["cameras"], (-1, 2, 3))
    assert len(lines) == 8 * len(views)
    centres, drawn = np.array([view.centre() for view in views]), lines[::8, 0]
    ratio = np.linalg.norm(drawn[0] - drawn[2]) / np.linalg.norm(centres[0] - centres[2])
    np.testing.assert_allclose(ratio, np.mean(shown / true), rtol=0.01)

from pathlib import Path

import numpy as np
import pytest

from sdgmnet.errors import InputError
from sdgmnet.sfm.scene import View
from sdgmnet.sfm.viewer import Cloud, moved_view, read_ply, render_cloud, save_cloud_picture

VIEW = View("eye", 60, 40, np.array([[50.0, 0, 29.5], [0, 50, 19.5], [0, 0, 1]]), np.eye(3), np.zeros(3))
RED, BLUE = (255, 0, 0), (0, 0, 255)


def two_points() -> Cloud:
    """The far one is right behind the near one."""
    return Cloud(np.array([[0.0, 0, 2], [0, 0, 4]]), np.array([RED, BLUE], np.uint8))


def test_the_nearest_point_is_in_front() -> None:
    picture = render_cloud(two_points(), VIEW, point_size=0.16)
    assert tuple(picture[20, 30]) == RED
    assert (picture == 255).all(-1).sum() > 2000
    behind = render_cloud(two_points(), moved_view(VIEW, back=-6, turn=180), point_size=0.16)
    assert tuple(behind[20, 30]) == BLUE
    assert not (render_cloud(two_points(), moved_view(VIEW, turn=180)) != 255).any()


def test_what_turns_its_back_is_not_drawn() -> None:
    turned = two_points()._replace(normals=np.array([[0.0, 0, 1], [0, 0, -1]]))
    assert tuple(render_cloud(turned, VIEW, point_size=0.16)[20, 30]) == BLUE


def test_moving_right_moves_the_picture_left() -> None:
    for moved in (moved_view(VIEW, right=0.4), moved_view(VIEW, turn=11.3)):
        _, columns, _ = np.nonzero(render_cloud(two_points(), moved, 0.02) != 255)
        assert columns.max() < 29
    rows, _, _ = np.nonzero(render_cloud(two_points(), moved_view(VIEW, tilt=11.3), 0.02) != 255)
    assert rows.max() < 19


def test_ply_is_read(tmp_path: Path) -> None:
    kind = np.dtype(
        [(axis, "<f4") for axis in "xyz"]
        + [(axis, "<f4") for axis in ("nx", "ny", "nz")]
        + [(name, "u1") for name in ("red", "green", "blue")]
    )
    rows = np.array([(1, 2, 3, 0, 0, -1, 9, 8, 7), (4, 5, 6, 0, 0, 1, 1, 2, 3)], kind)
    names = [
        "float x",
        "float y",
        "float z",
        "float nx",
        "float ny",
        "float nz",
        "uchar red",
        "uchar green",
        "uchar blue",
    ]
    header = "\n".join(
        ["ply", "format binary_little_endian 1.0", "element vertex 2", *(f"property {n}" for n in names)]
    )
    path = tmp_path / "two.ply"
    path.write_bytes(f"{header}\nend_header\n".encode() + rows.tobytes())
    cloud = read_ply(path)
    assert cloud.points.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert cloud.colours.tolist() == [[9, 8, 7], [1, 2, 3]]
    assert cloud.normals is not None
    assert cloud.normals.tolist() == [[0, 0, -1], [0, 0, 1]]
    save_cloud_picture(cloud, VIEW, tmp_path / "two.png")
    assert (tmp_path / "two.png").read_bytes().startswith(b"\x89PNG")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match="cut off"):
        read_ply(path)
    path.write_text("solid\n")
    with pytest.raises(InputError, match="not a binary little-endian PLY"):
        read_ply(path)

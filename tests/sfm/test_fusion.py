"""Maps of a rendered scene become points on its surfaces."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sdgmnet.errors import InputError
from sdgmnet.sfm import fusion
from sdgmnet.sfm.depth import DenseOptions, estimate_depths
from sdgmnet.sfm.fusion import fuse
from sdgmnet.sfm.process import Step
from sdgmnet.sfm.scene import save_scene
from sdgmnet.sfm.viewer import read_ply
from sdgmnet.sfm.workspace import map_options_path
from tests.sfm.rendered import FLOOR, RADIUS, SPHERE, WALL, WIDTH, Rendered, write_workspace


def test_fusion_gives_points_on_the_surfaces(workspace: Path, tmp_path: Path) -> None:
    count = fuse(workspace, tmp_path / "fused.ply", threads=1)
    points = read_ply(tmp_path / "fused.ply").points
    assert len(points) == count > 10000
    _, y, z = points.T
    ball = np.abs(np.linalg.norm(points - SPHERE, axis=1) - RADIUS)
    away = np.min([np.abs(y - FLOOR), np.abs(z - WALL), ball], axis=0)
    assert np.median(away) < 0.005  # of a scene 6 units deep, seen with a pixel of 0.02
    assert (away < 0.05).mean() > 0.97
    assert not list(workspace.glob(".fusion-*"))


def test_maps_smaller_than_the_photos_fuse_into_the_same_place(rendered: Rendered, tmp_path: Path) -> None:
    """COLMAP scales the cameras to the maps; half a pixel of a small map must not move the points."""
    write_workspace(rendered, tmp_path / "half")
    estimate_depths(tmp_path / "half", DenseOptions(size=WIDTH // 2, coarsest=WIDTH // 4))
    fuse(tmp_path / "half", tmp_path / "half.ply", threads=1)
    points = read_ply(tmp_path / "half.ply").points
    floor = points[np.abs(points[:, 1] - FLOOR) < 0.1]
    assert len(floor) > 500
    assert abs(np.median(floor[:, 1]) - FLOOR) < 0.005


def test_nothing_to_fuse(rendered: Rendered, tmp_path: Path) -> None:
    save_scene(rendered.scene, tmp_path / "scene.npz")
    with pytest.raises(InputError, match="0 geometric"):
        fuse(tmp_path, tmp_path / "fused.ply")


def test_only_our_own_maps_move_the_cameras(workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """COLMAP's maps and its fusion make the same assumption; moving the cameras would put half a pixel between them."""
    theirs = tmp_path / "theirs"
    shutil.copytree(workspace, theirs)
    given: list[bool] = []

    def run_in_process(step: Any, log: Path, *, out: Path, integer_centres: bool, **arguments: Any) -> Step:
        out.touch()
        given.append(integer_centres)
        return Step(0, 0)

    monkeypatch.setattr(fusion, "run_in_process", run_in_process)
    fuse(theirs, tmp_path / "fused.ply")
    note = json.loads(map_options_path(theirs).read_text())
    map_options_path(theirs).write_text(json.dumps({**note, "maker": "colmap"}))
    fuse(theirs, tmp_path / "fused.ply")
    map_options_path(theirs).unlink()
    fuse(theirs, tmp_path / "fused.ply")
    assert given == [True, False, False]

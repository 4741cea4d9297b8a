"""The largest model of a workspace -> undistorted photos, depth maps and one coloured point cloud, fused by COLMAP."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

from sdgmnet.errors import InputError
from sdgmnet.report import OnProgress, no_progress
from sdgmnet.sfm import colmap_steps
from sdgmnet.sfm.depth import DenseOptions, make_depths
from sdgmnet.sfm.process import run_in_process
from sdgmnet.sfm.scene import load_scene
from sdgmnet.sfm.undistorted import undistort
from sdgmnet.sfm.viewer import read_ply, save_cloud_image
from sdgmnet.sfm.workspace import Workspace, is_finished, map_path, read_map, read_map_options
from sdgmnet.storage import new_file, read_record, write_json

MIN_PIXELS = 5  # that agree on a point
MAX_NORMAL_ERROR = 10.0  # degrees between their normals, COLMAP's default
FUSED = "fused.ply"


def densify(
    workspace: Workspace, size: int, *, seed: int = 0, threads: int = 2, on_progress: OnProgress = no_progress
) -> dict[str, Any]:
    """Make dense/, with undistorted photos, maps and fused.ply, and dense.png.

    Returns the number of points and what made the maps.
    """
    record = workspace.records / "dense.json"
    if record.exists() and (workspace.dense / FUSED).exists():
        before: dict[str, Any] = read_record(record, {"points": int, "engine": str, "maps": str, "size": int})
        if before["size"] == size:
            return before
    undistort(workspace, 0, workspace.dense, size)
    with workspace.timer.stage("dense"):
        options = DenseOptions(size=size, seed=seed)
        engine = make_depths(workspace.dense, options, remake=True, geometric=False, on_progress=on_progress)
        stage = "photometric" if engine == "colmap" else "geometric"
        points = fuse(
            workspace.dense,
            workspace.dense / FUSED,
            min_pixels=MIN_PIXELS,
            max_normal_error=MAX_NORMAL_ERROR,
            stage=stage,
            threads=threads,
        )
    views = load_scene(workspace.dense / "scene.npz").views
    save_cloud_image(read_ply(workspace.dense / FUSED), views[len(views) // 2], workspace.folder / "dense.png")
    made = {"points": points, "engine": engine, "maps": stage, "size": size}
    write_json(record, made)
    return made


def fuse(
    workspace: Path | str,
    out: Path | str,
    *,
    min_pixels: int = 3,
    max_normal_error: float = 20.0,
    stage: str = "geometric",
    threads: int = -1,
) -> int:
    """Fuse the maps of a stage into a coloured PLY with COLMAP's stereo_fusion; returns the number of points.

    A point needs `min_pixels` pixels of all photos whose depths agree and whose normals differ by at most
    `max_normal_error` degrees. threads: -1 for all.
    """
    workspace, out = Path(workspace), Path(out)
    names = [view.name for view in load_scene(workspace / "scene.npz").views]
    finished = [name for name in names if is_finished(workspace, name, stage)]
    shapes = {name: read_map(map_path(workspace, "depth", name, stage)).shape for name in finished}
    if len(shapes) < 2:
        raise InputError(f"{workspace} holds {len(shapes)} {stage} depth maps: estimate the depths first.")
    made_with = read_map_options(workspace)
    with tempfile.TemporaryDirectory(dir=workspace, prefix=".fusion-") as folder, new_file(out) as part:
        fused = Path(folder) / FUSED
        step = run_in_process(
            colmap_steps.fuse_maps,
            workspace / "dense.log",
            workspace=workspace.resolve(),
            scratch=folder,
            out=fused,
            shapes=shapes,
            stage=stage,
            # COLMAP's own maps match its fusion as they are; ours have their pixel centres at integers.
            integer_centres=made_with is not None and made_with["maker"] == "sdgmnet",
            min_pixels=min_pixels,
            max_normal_error=max_normal_error,
            threads=threads,
        )
        shutil.copyfile(fused, part)
    return int(step.result)

"""Depth maps of all photos -> one coloured point cloud, by COLMAP's fusion."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

from sdgmnet.errors import InputError
from sdgmnet.sfm.depth import DenseOptions, make_depths
from sdgmnet.sfm.process import run_alone
from sdgmnet.sfm.reconstruct import Place, Tell
from sdgmnet.sfm.scene import load_scene, save_scene
from sdgmnet.sfm.sparse import alone, read_scene
from sdgmnet.sfm.viewer import read_ply, save_cloud_picture
from sdgmnet.sfm.workspace import is_finished, map_path, noted_options, read_map
from sdgmnet.storage import new_file, new_folder, read_json, read_record, require_room_left, write_json

# ---- reconstruction.fusion


def fuse(
    workspace: Path | str,
    out: Path | str,
    *,
    fewest_pixels: int = 3,
    largest_normal_error: float = 20.0,
    stage: str = "geometric",
    threads: int = -1,
) -> int:
    """Fuse the maps of a stage into a coloured PLY with COLMAP's stereo_fusion; returns the number of points.

    A point needs `fewest_pixels` pixels of all photos whose depths agree and whose normals differ by at most
    `largest_normal_error` degrees. `threads` -1 means all.
    """
    workspace, out = Path(workspace), Path(out)
    scene = load_scene(workspace / "scene.npz")
    shapes = {
        view.name: read_map(map_path(workspace, "depth", view.name, stage)).shape
        for view in scene.views
        if is_finished(workspace, view.name, stage)
    }
    if len(shapes) < 2:
        raise InputError(f"{workspace} holds {len(shapes)} {stage} depth maps: estimate the depths first.")
    with tempfile.TemporaryDirectory(dir=workspace, prefix=".fusion-") as folder, new_file(out) as part:
        beside = Path(folder)
        made = beside / "fused.ply"
        answer = run_alone(
            f"{__name__}:_fuse",
            workspace / "dense.log",
            workspace=str(workspace.resolve()),
            beside=folder,
            out=str(made),
            shapes=shapes,
            stage=stage,
            integers=has_our_maps(workspace),
            fewest_pixels=fewest_pixels,
            largest_normal_error=largest_normal_error,
            threads=threads,
        )
        shutil.copyfile(made, part)
    return int(answer)


def has_our_maps(workspace: Path) -> bool:
    """COLMAP's own maps fit its fusion as they are; ours have their pixel centres at integers."""
    note = noted_options(workspace)
    return note is not None and note["maker"] == "sdgmnet"


def _fuse(
    workspace: str,
    beside: str,
    out: str,
    shapes: dict[str, list[int]],
    stage: str,
    integers: bool,
    fewest_pixels: int,
    largest_normal_error: float,
    threads: int,
) -> int:
    """Fuse through a workspace beside, whose cameras fit the maps: see `centre_on_integers`."""
    import pycolmap

    folder, model = Path(beside), pycolmap.Reconstruction(str(Path(workspace) / "sparse"))
    if integers:
        centre_on_integers(model, shapes)
    (folder / "sparse").mkdir()
    (folder / "stereo").mkdir()
    model.write(str(folder / "sparse"))
    require_room_left(folder)  # COLMAP does not say that its model is cut off
    (folder / "images").symlink_to(Path(workspace) / "images")
    for kind in ("depth_maps", "normal_maps"):
        (folder / "stereo" / kind).symlink_to(Path(workspace) / "stereo" / kind)
    names = sorted(shapes)
    (folder / "stereo" / "fusion.cfg").write_text("".join(f"{name}\n" for name in names))
    (folder / "stereo" / "patch-match.cfg").write_text("".join(f"{name}\n__auto__, 20\n" for name in names))
    options = pycolmap.StereoFusionOptions()
    options.min_num_pixels, options.max_normal_error = fewest_pixels, largest_normal_error
    options.num_threads = threads
    fused = pycolmap.stereo_fusion(out, folder, input_type=stage, options=options, output_type="PLY")
    return int(fused.num_points3D())


def centre_on_integers(model: Any, shapes: dict[str, list[int]]) -> None:
    """Move the principal points of a pycolmap model so that COLMAP's fusion takes integers as pixel centres.

    COLMAP's cameras have pixel centres at halves, but its fusion lets pixel (column, row) of a depth map look along the ray
    through (column, row), after scaling the camera to the size of the map.
    """
    for camera_id in {image.camera_id for image in model.images.values()}:
        names = [image.name for image in model.images.values() if image.camera_id == camera_id]
        shape = next((shapes[name] for name in names if name in shapes), None)
        if shape is not None:
            camera = model.cameras[camera_id]
            camera.principal_point_x -= 0.5 * camera.width / shape[1]
            camera.principal_point_y -= 0.5 * camera.height / shape[0]


# ---- reconstruction.densify


SIZE = 1200  # pixels
FEWEST_PIXELS = 5  # that agree on a point
NORMAL_ERROR = 10.0  # degrees between their normals, COLMAP's
FUSED = "fused.ply"


def densify(place: Place, size: int, *, seed: int = 0, threads: int = 2, tell: Tell) -> dict[str, Any]:
    """dense/ with undistorted photos, maps, fused.ply and dense.png; the number of points, and who made the maps."""
    record = place.notes / "dense.json"
    if record.exists() and (place.dense / FUSED).exists():
        before: dict[str, Any] = read_record(record, {"points": int, "engine": str, "maps": str, "size": int})
        if before["size"] == size:
            return before
    undistort(place, size)
    with place.times.of("dense"):
        engine = make_depths(
            place.dense,
            DenseOptions(size=size, seed=seed),
            lambda done, total, _: tell("dense", done, total),
            remake=True,
            confirm=False,
        )
        stage = "photometric" if engine == "colmap" else "geometric"
        points = fuse(
            place.dense,
            place.dense / FUSED,
            fewest_pixels=FEWEST_PIXELS,
            largest_normal_error=NORMAL_ERROR,
            stage=stage,
            threads=threads,
        )
    views = load_scene(place.dense / "scene.npz").views
    middle = views[len(views) // 2]
    save_cloud_picture(read_ply(place.dense / FUSED), middle, place.folder / "dense.png")
    said = {"points": points, "engine": engine, "maps": stage, "size": size}
    write_json(record, said)
    return said


def undistort(place: Place, size: int) -> None:
    """Photos without lens distortion, once for each size."""
    record = place.notes / "undistorted.json"
    if record.exists() and read_json(record) == {"size": size} and (place.dense / "scene.npz").exists():
        return
    record.unlink(missing_ok=True)
    with place.times.of("undistorting"):
        step = alone(
            f"{__name__}:_undistort",
            place.log,
            model=str(place.sparse / "0"),
            images=str(place.images),
            target=str(place.dense),
            size=size,
        )
    place.times.peak(step.peak_bytes, "undistorting")
    write_json(record, {"size": size})


def _undistort(model: str, images: str, target: str, size: int) -> None:
    import pycolmap

    shutil.rmtree(target, ignore_errors=True)
    with new_folder(target) as part:
        smaller = pycolmap.UndistortCameraOptions()
        smaller.max_image_size = size
        pycolmap.undistort_images(part, model, images, undistort_options=smaller, jpeg_quality=97, num_threads=1)
        require_room_left(
            part
        )  # COLMAP does not say that its files are cut off, and takes all memory when it reads them
        save_scene(read_scene(pycolmap.Reconstruction(part / "sparse"))[0], Path(part) / "scene.npz")

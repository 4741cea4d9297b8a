"""The largest sparse model of a workspace -> depth maps of its photos -> a dense cloud, counted.

As the ETH benchmark does it (PROTOCOLS.md 7.1): photos undistorted to at most 1200 pixels, a point where at least five pixels
agree. With COLMAP's stereo on a GPU the maps are photometric ones, as there; ours are those that other photos confirm.
"""

import shutil
from pathlib import Path
from typing import Any

from sdgmnet.files import demand_room_left, new_folder, read_json, read_record, write_json
from sdgmnet.reconstruction.cloud import read_ply, save_cloud_picture
from sdgmnet.reconstruction.dense import DenseOptions, make_depths
from sdgmnet.reconstruction.fusion import fuse
from sdgmnet.reconstruction.model import Place, Tell
from sdgmnet.reconstruction.sparse import alone, read_scene
from sdgmnet.reconstruction.views import load_scene, save_scene

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
        demand_room_left(
            part
        )  # COLMAP does not say that its files are cut off, and takes all memory when it reads them
        save_scene(read_scene(pycolmap.Reconstruction(part / "sparse"))[0], Path(part) / "scene.npz")

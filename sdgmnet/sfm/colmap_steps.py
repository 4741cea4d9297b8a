"""COLMAP's steps, called by `process.run_in_process`: only this module and `photo_import` import pycolmap.

Arguments and results are representable in JSON. The same photos and options give the same bits: images get their ids before
features are extracted, camera by camera and by name within each; every random choice has a seed; mapping, whose sums depend
on the number of threads, has one thread. The exception is COLMAP's approximate matcher, whose index seldom differs
(docs/results.md).
"""

import math
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from sdgmnet.sfm.database import image_ids, open_database, read_matches
from sdgmnet.sfm.photo_import import Photo
from sdgmnet.sfm.plausibility import MIN_SHARED_POINTS, Mapper, MapperName, ModelFacts, PhotoFacts
from sdgmnet.sfm.scene import SparseScene, View, save_scene
from sdgmnet.storage import new_file, new_folder, require_room_left, write_json

HALF_PIXEL = 0.5  # COLMAP's first pixel has its centre at (0.5, 0.5), ours at (0, 0)
UNDISTORTED = "undistorted.json"  # in a finished workspace for dense stereo
POINTS = "points.ply"  # of the largest model, in the folder of the models
VERIFIED_AT_ONCE = 64  # pairs between two commits: a kill costs at most so many
UNDISTORTED_QUALITY = 97  # of JPEG
GUESSED_FOCAL = 1.2  # times the longer side, COLMAP's own guess


# ---- images and SIFT features


def create_database(path: str, images: str, photos: Sequence[Photo], cameras: str) -> None:
    """A database with a camera per group of photos and their images, but without features."""
    import pycolmap

    with pycolmap.Database.open(path):
        pass
    for group in camera_groups(photos, cameras):
        pycolmap.import_images(path, images, pycolmap.CameraMode.SINGLE, [photo["name"] for photo in group])
        if group[0]["focal"] is not None:
            with pycolmap.Database.open(path) as database:
                image: Any = database.read_image_with_name(group[0]["name"])
                camera = database.read_camera(image.camera_id)
                camera.focal_length = group[0]["focal"] * max(camera.width, camera.height)
                camera.has_prior_focal_length = True
                database.update_camera(camera)


def camera_groups(photos: Sequence[Photo], cameras: str) -> list[list[Photo]]:
    """Photos that share a camera, in the order of their first photo.

    cameras: "auto" (equal size, folder and EXIF focal length), "one" (equal size) or "each" (nothing is shared).
    """
    groups: dict[Any, list[Photo]] = {}
    for photo in photos:
        size = (photo["width"], photo["height"])
        alike = (size, str(Path(photo["name"]).parent), photo["focal"])
        groups.setdefault({"auto": alike, "one": size, "each": photo["name"]}[cameras], []).append(photo)
    return list(groups.values())


def extract_sift(
    path: str, images: str, photos: Sequence[Photo], cameras: str, max_features: int | None, threads: int
) -> None:
    """A database with COLMAP's SIFT features; max_features: None is COLMAP's default, 8192."""
    import pycolmap

    create_database(path, images, photos, cameras)
    options = pycolmap.FeatureExtractionOptions()
    options.num_threads, options.use_gpu = threads, False
    if max_features is not None:
        options.sift.max_num_features = max_features
    names = [photo["name"] for photo in photos]
    pycolmap.extract_features(
        path, images, names, pycolmap.CameraMode.AUTO, extraction_options=options, device=pycolmap.Device.cpu
    )


def match_sift(path: str, pairs: Sequence[tuple[str, str]] | None, seed: int, threads: int) -> None:
    """COLMAP's matches of SIFT features, verified by two-view geometry. Pairs that are in the database are kept.

    pairs: names of images; None for COLMAP's exhaustive matcher, which compares each pair in the other direction.
    """
    import pycolmap

    matching, verification = pycolmap.FeatureMatchingOptions(), pycolmap.TwoViewGeometryOptions()
    matching.num_threads, matching.use_gpu = threads, False
    verification.ransac.random_seed = seed
    if pairs is None:
        pycolmap.match_exhaustive(path, matching, verification_options=verification, device=pycolmap.Device.cpu)
        return
    pair_list = Path(f"{path}.pairs.txt")
    pair_list.write_text("".join(f"{first} {second}\n" for first, second in pairs), encoding="utf-8")
    pairing = pycolmap.ImportedPairingOptions()
    pairing.match_list_path = str(pair_list)
    try:
        pycolmap.match_image_pairs(path, matching, pairing, verification, pycolmap.Device.cpu)
    finally:
        pair_list.unlink(missing_ok=True)


# ---- verified pairs and sparse models


def verify_matches(path: str, seed: int, threads: int) -> None:
    """Two-view geometry, by COLMAP's defaults, of every matched pair that has none yet."""
    import pycolmap

    verifier, geometry = pycolmap.GeometricVerifierOptions(), pycolmap.TwoViewGeometryOptions()
    verifier.num_threads, geometry.ransac.random_seed = threads, seed
    pairing = pycolmap.ExistingMatchedPairingOptions()
    pairing.batch_size = VERIFIED_AT_ONCE
    pycolmap.geometric_verification(path, verifier, pairing, geometry)


def map_images(
    path: str,
    images: str,
    target: str,
    scene: str,
    heartbeat: str,
    min_model_size: int,
    seed: int,
    method: MapperName,
    mapper: dict[str, Any],
) -> list[dict[str, Any]]:
    """Sparse models of at least `min_model_size` images in target/0, 1, ..., the largest first, in binary and text.

    Also target/points.ply and the file `scene`, both of the largest. The incremental mapper lets `heartbeat` grow by a
    byte per registered image. mapper: the fields of a `Mapper`. Returns the figures of each model, with the facts that
    its plausibility is judged by: none if the images do not form one.
    """

    def registered(count: int) -> None:
        with open(heartbeat, "ab") as file:
            file.write(b"." * count)

    shutil.rmtree(target, ignore_errors=True)
    with new_folder(target) as part:
        unsorted = part / "unsorted"
        unsorted.mkdir()
        if method == "global":
            found = map_globally(path, images, unsorted, min_model_size, seed, Mapper(**mapper))
        else:
            found = map_incrementally(path, images, unsorted, min_model_size, seed, Mapper(**mapper), registered)
        shutil.rmtree(unsorted)
        models = [model for model in found if model.num_reg_images() >= min_model_size]
        if not models:
            return []
        models.sort(key=lambda model: (-model.num_reg_images(), -model.num_points3D()))
        for number, model in enumerate(models):
            model.extract_colors_for_all_images(images)
            (part / str(number)).mkdir()
            model.write_binary(part / str(number))
            model.write_text(part / str(number))
        models[0].export_PLY(part / POINTS)
        require_room_left(part)  # COLMAP does not report that its files are truncated
        save_scene(read_scene(models[0])[0], scene)
        return [{**figures(model), "facts": asdict(model_facts(model, path))} for model in models]


def map_incrementally(
    path: str,
    images: str,
    folder: Path,
    min_model_size: int,
    seed: int,
    mapper: Mapper,
    registered: Callable[[int], None],
) -> list[Any]:
    """COLMAP's defaults where the mapper has no others; the same database gives the same models."""
    import pycolmap

    options = pycolmap.IncrementalPipelineOptions()
    options.num_threads = options.mapper.num_threads = 1  # more threads sum in another order
    options.random_seed = options.mapper.random_seed = options.triangulation.random_seed = seed
    options.min_model_size = min_model_size
    options.extract_colors = False
    options.ba_refine_extra_params = options.mapper.abs_pose_refine_extra_params = mapper.refine_distortion
    options.mapper.init_min_num_inliers = mapper.min_initial_matches
    options.mapper.init_max_error = mapper.max_initial_error
    found = pycolmap.incremental_mapping(
        path,
        images,
        folder,
        options,
        initial_image_pair_callback=lambda: registered(2),
        next_image_callback=lambda: registered(1),
    )
    return list(found.values())


def has_global_mapper() -> bool:
    import pycolmap

    return hasattr(pycolmap, "global_mapping") and hasattr(pycolmap, "calibrate_view_graph")


def map_globally(path: str, images: str, folder: Path, min_model_size: int, seed: int, mapper: Mapper) -> list[Any]:
    """GLOMAP. Focal lengths are estimated first, from all pairs at once, in a copy of the database: it is changed by that."""
    import pycolmap

    calibrated = folder / "calibrated.db"
    with open_database(Path(path)) as database, closing(sqlite3.connect(calibrated)) as copy:
        database.backup(copy)
    calibration = pycolmap.ViewGraphCalibrationOptions()
    calibration.random_seed = seed
    pycolmap.calibrate_view_graph(calibrated, calibration)
    options = pycolmap.GlobalPipelineOptions()
    options.num_threads = options.mapper.num_threads = 1  # more threads sum in another order
    options.random_seed = options.mapper.random_seed = seed
    options.min_model_size = min_model_size
    options.mapper.bundle_adjustment.refine_extra_params = mapper.refine_distortion
    return list(pycolmap.global_mapping(calibrated, images, folder, options).values())


def figures(model: Any) -> dict[str, Any]:
    """What the ETH benchmark reports of a model (docs/protocols.md 7.3), and the names of its images."""
    return {
        "registered": model.num_reg_images(),
        "points": model.num_points3D(),
        "observations": model.compute_num_observations(),
        "track_length": model.compute_mean_track_length(),
        "observations_per_image": model.compute_mean_observations_per_reg_image(),
        "reprojection_error": model.compute_mean_reprojection_error(),
        "photos": sorted(model.image(number).name for number in model.reg_image_ids()),
    }


def model_facts(model: Any, database_path: str) -> ModelFacts:
    """What the plausibility of a model is judged by. Photos are ordered by name."""
    images = sorted((model.image(number) for number in model.reg_image_ids()), key=lambda image: image.name)
    point_of = {}  # by image: the id of the point that each keypoint observes, or -1
    for image in images:
        ids = [point.point3D_id if point.has_point3D() else -1 for point in image.points2D]
        point_of[image.name] = np.array(ids, dtype=np.int64)
    photos = []
    for image in images:
        camera = image.camera
        focal, distortion = camera.mean_focal_length(), [camera.params[index] for index in camera.extra_params_idxs()]
        corner = (camera.width**2 + camera.height**2) / 4 / focal**2
        photos.append(
            PhotoFacts(
                image.name,
                int((point_of[image.name] >= 0).sum()),
                focal / max(camera.width, camera.height),
                float(distortion[0] * corner) if distortion else 0.0,
            )
        )
    verified = in_tracks = 0
    with open_database(Path(database_path)) as database:
        for first, second, matches in read_matches(database, image_ids(database), "two_view_geometries"):
            if first in point_of and second in point_of:
                points = point_of[first][matches[:, 0]], point_of[second][matches[:, 1]]
                verified += len(matches)
                in_tracks += int(((points[0] >= 0) & (points[0] == points[1])).sum())
    connected = _largest_connected(list(point_of.values()))
    return ModelFacts(tuple(photos), verified, in_tracks, connected, model.compute_mean_reprojection_error())


def _largest_connected(point_of: Sequence[np.ndarray]) -> int:
    """Images in the largest group that is connected by pairs with enough common points."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    seen = [np.unique(points[points >= 0]) for points in point_of]
    images = np.repeat(np.arange(len(seen)), [len(points) for points in seen])
    _, points = np.unique(np.concatenate(seen), return_inverse=True)
    shape = len(seen), max(len(points), 1)
    observed = csr_array((np.ones(len(points), dtype=np.int32), (images, points)), shape=shape)
    _, group = connected_components((observed @ observed.T) >= MIN_SHARED_POINTS)
    return int(np.bincount(group).max())


def undistort(model: str, images: str, target: str, size: int, database: str | None = None) -> None:
    """A workspace for dense stereo: undistorted images, their model and scene.npz; with a database also tracks.npz."""
    import pycolmap

    shutil.rmtree(target, ignore_errors=True)
    with new_folder(target) as part:
        options = pycolmap.UndistortCameraOptions()
        options.max_image_size = size
        pycolmap.undistort_images(
            part, model, images, undistort_options=options, jpeg_quality=UNDISTORTED_QUALITY, num_threads=1
        )
        require_room_left(part)  # COLMAP reads a truncated model as one that takes all memory
        undistorted = pycolmap.Reconstruction(part / "sparse")
        scene, ids = read_scene(undistorted)
        save_scene(scene, part / "scene.npz")
        if database is not None:
            tracks = read_tracks(undistorted, ids, database, pycolmap.Reconstruction(model))
            np.savez(part / "tracks.npz", allow_pickle=False, **tracks)
        write_json(part / UNDISTORTED, {"size": size})


def read_scene(model: Any) -> tuple[SparseScene, list[int]]:
    """A pycolmap model without lens distortion as arrays, and the image id of each view. Views are ordered by name."""
    ids = sorted(model.reg_image_ids(), key=lambda number: model.image(number).name)
    points = sorted(model.point3D_ids())
    index_of = {number: index for index, number in enumerate(points)}
    views, rows = [], []
    for index, number in enumerate(ids):
        image = model.image(number)
        camera, pose = image.camera, image.cam_from_world().matrix()
        intrinsics = np.array(camera.calibration_matrix(), dtype=np.float64)
        intrinsics[:2, 2] -= HALF_PIXEL
        views.append(View(image.name, camera.width, camera.height, intrinsics, pose[:, :3].copy(), pose[:, 3].copy()))
        seen = sorted({index_of[point.point3D_id] for point in image.points2D if point.has_point3D()})
        rows += [(index, point) for point in seen]
    world = np.array([model.point3D(number).xyz for number in points], dtype=np.float64).reshape(-1, 3)
    return SparseScene(tuple(views), world, np.array(rows, dtype=np.int64).reshape(-1, 2)), ids


def read_tracks(model: Any, ids: Sequence[int], database_path: str, distorted: Any) -> dict[str, np.ndarray]:
    """The SIFT keypoints of the sparse points in the undistorted images, one row each: view, xy, sigma, angle, point."""
    import pycolmap

    index_of = {number: index for index, number in enumerate(sorted(model.point3D_ids()))}
    rows = []
    with pycolmap.Database.open(database_path) as database:
        for index, number in enumerate(ids):
            image = model.image(number)
            shapes = np.asarray(database.read_keypoints(number), dtype=np.float64)
            zoom = image.camera.mean_focal_length() / distorted.image(number).camera.mean_focal_length()
            for keypoint, point in enumerate(image.points2D):
                if point.has_point3D():
                    sigma, angle = scale_and_angle(shapes[keypoint])
                    rows.append((index, *(point.xy - HALF_PIXEL), sigma * zoom, angle, index_of[point.point3D_id]))
    table = np.array(rows, dtype=np.float64).reshape(-1, 6)
    return {
        "view": table[:, 0].astype(np.int64),
        "xy": table[:, 1:3],
        "sigma": table[:, 3],
        "angle": table[:, 4],
        "point": table[:, 5].astype(np.int64),
    }


def scale_and_angle(shape: np.ndarray) -> tuple[float, float]:
    """COLMAP's keypoint (x, y, scale, angle) or (x, y, a11, a12, a21, a22) -> sigma in pixels, angle in radians."""
    if len(shape) == 4:
        return float(shape[2]), float(shape[3])
    _, _, a11, a12, a21, a22 = shape
    return math.sqrt(abs(a11 * a22 - a12 * a21)), math.atan2(a21, a11)


# ---- dense stereo


def has_cuda() -> bool:
    import pycolmap

    return bool(pycolmap.has_cuda)


def patch_match(workspace: str, size: int, geometric: bool) -> None:
    """COLMAP's PatchMatch, on a GPU. geometric: also maps that are consistent between the images."""
    import pycolmap

    options = pycolmap.PatchMatchOptions()
    options.max_image_size, options.geom_consistency, options.filter = size, geometric, True
    pycolmap.patch_match_stereo(workspace, options=options)


def fuse_maps(
    workspace: str,
    scratch: str,
    out: str,
    shapes: dict[str, list[int]],
    stage: str,
    integer_centres: bool,
    min_pixels: int,
    max_normal_error: float,
    threads: int,
) -> int:
    """Fuse depth maps through a second workspace, `scratch`, whose cameras match the maps; returns the number of points."""
    import pycolmap

    folder, model = Path(scratch), pycolmap.Reconstruction(str(Path(workspace) / "sparse"))
    if integer_centres:
        _centre_on_integers(model, shapes)
    (folder / "sparse").mkdir()
    (folder / "stereo").mkdir()
    model.write(str(folder / "sparse"))
    require_room_left(folder)  # COLMAP does not report that its files are truncated
    (folder / "images").symlink_to(Path(workspace) / "images")
    for kind in ("depth_maps", "normal_maps"):
        (folder / "stereo" / kind).symlink_to(Path(workspace) / "stereo" / kind)
    names = sorted(shapes)
    (folder / "stereo" / "fusion.cfg").write_text("".join(f"{name}\n" for name in names))
    (folder / "stereo" / "patch-match.cfg").write_text("".join(f"{name}\n__auto__, 20\n" for name in names))
    options = pycolmap.StereoFusionOptions()
    options.min_num_pixels, options.max_normal_error = min_pixels, max_normal_error
    options.num_threads = threads
    fused = pycolmap.stereo_fusion(out, folder, input_type=stage, options=options, output_type="PLY")
    return int(fused.num_points3D())


def _centre_on_integers(model: Any, shapes: dict[str, list[int]]) -> None:
    """Move the principal points of a pycolmap model so that COLMAP's fusion takes integers as pixel centres.

    COLMAP's cameras have pixel centres at halves, but its fusion scales the camera to the size of the map and then
    lets pixel (column, row) look along the ray through (column, row).
    """
    for camera_id in {image.camera_id for image in model.images.values()}:
        names = [image.name for image in model.images.values() if image.camera_id == camera_id]
        shape = next((shapes[name] for name in names if name in shapes), None)
        if shape is not None:
            camera = model.cameras[camera_id]
            camera.principal_point_x -= 0.5 * camera.width / shape[1]
            camera.principal_point_y -= 0.5 * camera.height / shape[0]


# ---- databases of other programs


def write_features(
    path: str,
    arrays: str,
    names: Sequence[str],
    sizes: Sequence[tuple[int, int]],
    pairs: Sequence[tuple[str, str]],
    focal: float | None,
    one_camera: bool,
    as_sift: bool,
) -> None:
    """A new database from an .npz file of `keypoints0`, `descriptors0`, `matches0`, ... in the order of names and pairs."""
    import pycolmap

    kind = pycolmap.FeatureExtractorType.SIFT if as_sift else pycolmap.FeatureExtractorType.UNDEFINED
    with (
        np.load(arrays, allow_pickle=False) as given,
        new_file(path) as part,
        pycolmap.Database.open(part) as database,
        pycolmap.DatabaseTransaction(database),
    ):
        cameras: dict[Any, tuple[int, int]] = {}
        ids = {}
        for number, (name, size) in enumerate(zip(names, sizes, strict=True)):
            key = tuple(size) if one_camera else name
            if key not in cameras:
                cameras[key] = _write_camera(database, *size, focal)
            ids[name] = _write_image(database, name, *cameras[key])
            database.write_keypoints(ids[name], given[f"keypoints{number}"])
            descriptors = pycolmap.FeatureDescriptors(type=kind, data=given[f"descriptors{number}"])
            database.write_descriptors(ids[name], descriptors)
        for number, (first, second) in enumerate(pairs):
            if len(given[f"matches{number}"]):
                database.write_matches(ids[first], ids[second], given[f"matches{number}"])


def _write_camera(database: Any, width: int, height: int, focal: float | None) -> tuple[int, int]:
    """Ids of the camera and of its rig."""
    import pycolmap

    length = focal or GUESSED_FOCAL * max(width, height)
    camera = pycolmap.Camera.create_from_model_name(pycolmap.INVALID_CAMERA_ID, "SIMPLE_RADIAL", length, width, height)
    camera.has_prior_focal_length = focal is not None
    camera.camera_id = database.write_camera(camera)
    rig = pycolmap.Rig()
    rig.add_ref_sensor(camera.sensor_id)
    return camera.camera_id, database.write_rig(rig)


def _write_image(database: Any, name: str, camera: int, rig: int) -> int:
    import pycolmap

    image = pycolmap.Image(name=name, camera_id=camera)
    image.image_id = database.write_image(image)
    frame = pycolmap.Frame()
    frame.rig_id = rig
    frame.add_data_id(image.data_id)
    database.write_frame(frame)
    return int(image.image_id)


def verify_database(path: str, seed: int, threads: int) -> list[tuple[str, str, int]]:
    """As `verify_matches`; returns the names of each pair and its number of inliers."""
    import pycolmap

    verify_matches(path, seed, threads)
    with pycolmap.Database.open(path) as database:
        names = {image.image_id: image.name for image in database.read_all_images()}
        pairs, counts = database.read_two_view_geometry_num_inliers()
    ids = [pycolmap.pair_id_to_image_pair(pair) for pair in pairs]
    return [(names[one], names[two], int(count)) for (one, two), count in zip(ids, counts, strict=True)]


def export_keypoints(path: str, arrays: str) -> list[str]:
    """Names of the images in order of their ids; their keypoints as arrays "0", "1", ... of an .npz file."""
    import pycolmap

    with pycolmap.Database.open(path) as database:
        images = sorted(database.read_all_images(), key=lambda image: image.image_id)
        tables = {str(number): database.read_keypoints(image.image_id) for number, image in enumerate(images)}
    np.savez(arrays, allow_pickle=False, **tables)
    return [image.name for image in images]

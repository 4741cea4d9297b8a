"""Photos of one scene -> posed, undistorted images: COLMAP's structure from motion on the CPU, step by step.

Every step runs in a process of its own, writes its product beside its place and renames it, and is skipped where its product is
there. The same photos and options give the same bits: images get their ids before features are extracted, camera by camera and
by name within each; every random choice has a seed; and mapping, the one step whose sums depend on its threads, runs on one.
One thing is not in our hands: the index of COLMAP's approximate matcher, which seldom comes out otherwise (docs/results.md).
"""

import math
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from sdgmnet.errors import InputError
from sdgmnet.sfm.photo_import import COPIES, read_copies
from sdgmnet.sfm.process import run_alone
from sdgmnet.sfm.scene import SparseScene, View, save_scene
from sdgmnet.sfm.stage_timer import peak_memory
from sdgmnet.storage import new_file, new_folder, read_json, read_record, require_room_left, write_json

COPYING = "sdgmnet.sfm.photo_import:prepare_photos"
FEWEST_SHARED = 30  # keypoints of one photo that two others see, for these two to be compared as well
FEWEST_MATCHES = 15  # verified between two photos, for them to count as neighbours


@dataclass(frozen=True)
class SparseOptions:
    size: int = 1600
    """Longest side of the photos that are worked on, in pixels; larger ones are made smaller."""
    features: int = 8192
    """SIFT keypoints of a photo, at most, for the reconstruction."""
    cameras: Literal["auto", "one", "each"] = "auto"
    """Who shares a lens: photos of equal size, folder and noted focal length (auto), all of equal size (one), nobody (each)."""
    all_pairs: int = 40
    """Up to so many photos every pair is compared; beyond, neighbours in order and then those that see the same points."""
    neighbours: int = 8
    """In large scenes: photos before and after in the order of names that are compared."""
    smallest_model: int = 5
    """Models with fewer photos are dropped."""
    seed: int = 0
    threads: int = 2
    """For extraction and matching, whose results do not depend on it."""


RECORDS: dict[str, Any] = {"prepare_photos": COPIES, "match": {"pairs": str}, "undistort": {"models": [int]}}


class Step(NamedTuple):
    """What a step in a process of its own came to."""

    result: Any
    peak_bytes: int  # of its memory


Progress = Callable[[str], None]


def reconstruct(
    folder: Path, names: Sequence[str], work: Path, options: SparseOptions, progress: Progress
) -> dict[str, Any]:
    """All steps for the named photos of a folder; products lie below `work`, models ready for dense stereo in models/0, 1, ...

    Returns what happened: `broken` (name and reason of each photo left out), `photos`, `sources` (what each copy was called),
    `pairs` (which were compared), `models` (registered photos of each) and `peak_bytes`. `progress` is told each step as it
    begins.
    """
    steps: list[tuple[str, Path, str, dict[str, Any]]] = [
        ("reading photos", work / "photos", COPYING, {"folder": str(folder), "names": list(names)}),
        ("features", work / "features.db", f"{__name__}:extract", {}),
        ("matching", work / "matches.db", f"{__name__}:match", {}),
        ("mapping", work / "sparse", f"{__name__}:map_scene", {}),
        ("undistorting", work / "models", f"{__name__}:undistort", {}),
    ]
    said: dict[str, Any] = {}
    for title, product, function, arguments in steps:
        record = work / f"{product.stem}.json"
        if not record.exists():
            progress(title)
            step = alone(function, work / "log.txt", work=str(work), options=asdict(options), **arguments)
            write_json(record, {**step.result, "peak_bytes": step.peak_bytes})
        name = function.split(":")[1]
        said[name] = read_record(record, {"peak_bytes": int, **RECORDS.get(name, {})})
    for spent in ("features.db",):  # matches.db holds all of it
        (work / spent).unlink(missing_ok=True)
    copies = read_copies(work / "photos.json")["photos"]
    return {
        "broken": said["prepare_photos"]["broken"],
        "photos": len(copies),
        "sources": {copy["name"]: copy["source"] for copy in copies},
        "pairs": said["match"]["pairs"],
        "models": said["undistort"]["models"],
        "peak_bytes": max(step["peak_bytes"] for step in said.values()),
    }


def alone(step: str, log: Path, *, watch: Callable[[], None] | None = None, **arguments: Any) -> Step:
    """`module:function` in a process of its own, and the most memory it held."""
    result, peak_bytes = run_alone(f"{__name__}:measured", log, watch=watch, place=step, arguments=arguments)
    return Step(result, peak_bytes)


def measured(place: str, arguments: dict[str, Any]) -> tuple[Any, int]:
    module, function = place.split(":")
    result = getattr(import_module(module), function)(**arguments)
    return result, peak_memory()  # not getrusage's, which on Linux counts what the parent held before


# The steps. Each is called in its own process, with arguments and results that JSON can hold.


def extract(work: str, options: dict[str, Any]) -> dict[str, Any]:
    """work/features.db: cameras, images and SIFT features."""
    import pycolmap

    photos = read_json(Path(work) / "photos.json")["photos"]
    folder, target = Path(work) / "photos", Path(work) / "features.db"
    if len(photos) < options["smallest_model"]:
        broken = read_json(Path(work) / "photos.json")["broken"]
        left_out = "".join(f" {name} {reason}." for name, reason in broken)
        raise InputError(
            f"{len(photos)} readable photo(s): a scene needs at least {options['smallest_model']} that overlap.{left_out}"
        )
    with new_file(target) as part:
        with pycolmap.Database.open(part):
            pass
        for group in camera_groups(photos, options["cameras"]):
            import_group(part, folder, group)
        extraction = pycolmap.FeatureExtractionOptions()
        extraction.num_threads, extraction.use_gpu = options["threads"], False
        extraction.sift.max_num_features = options["features"]
        names = [photo["name"] for photo in photos]
        pycolmap.extract_features(
            part, folder, names, pycolmap.CameraMode.AUTO, extraction_options=extraction, device=pycolmap.Device.cpu
        )
        with pycolmap.Database.open(part) as database:
            found = {"keypoints": database.num_keypoints(), "cameras": database.num_cameras()}
    return found


def camera_groups(photos: Sequence[dict[str, Any]], sharing: str) -> list[list[dict[str, Any]]]:
    """Photos that share a camera, in order of their first names."""
    groups: dict[Any, list[dict[str, Any]]] = {}
    for photo in photos:
        size = (photo["width"], photo["height"])
        key = {
            "auto": (size, str(Path(photo["name"]).parent), photo["focal"]),
            "one": size,
            "each": photo["name"],
        }[sharing]
        groups.setdefault(key, []).append(photo)
    return list(groups.values())


def import_group(path: Path, folder: Path, group: Sequence[dict[str, Any]]) -> None:
    import pycolmap

    pycolmap.import_images(path, folder, pycolmap.CameraMode.SINGLE, [photo["name"] for photo in group])
    focal = group[0]["focal"]
    with pycolmap.Database.open(path) as database:
        camera = database.read_camera(_image(database, group[0]["name"]).camera_id)
        if focal is not None:
            camera.focal_length = focal * max(camera.width, camera.height)
            camera.has_prior_focal_length = True
            database.update_camera(camera)


def _image(database: Any, name: str) -> Any:
    return database.read_image_with_name(name)


def match(work: str, options: dict[str, Any]) -> dict[str, Any]:
    """work/matches.db: features compared and verified for all pairs, or for neighbours and then those that share points."""
    names = [photo["name"] for photo in read_json(Path(work) / "photos.json")["photos"]]
    source, target = Path(work) / "features.db", Path(work) / "matches.db"
    with new_file(target) as part:
        shutil.copyfile(source, part)
        if len(names) <= options["all_pairs"]:
            pairs = [(first, second) for first in range(len(names)) for second in range(first + 1, len(names))]
            _compare(part, names, pairs, options)
            return {"pairs": f"all {len(pairs)}"}
        done = neighbours_in_order(len(names), options["neighbours"])
        _compare(part, names, sorted(done), options)
        rounds = [len(done)]
        for _ in range(2):
            new = pairs_by_shared_points(_verified(part, names), done, 2 * options["neighbours"])
            if not new:
                break
            _compare(part, names, new, options)
            done |= set(new)
            rounds.append(len(new))
    by_points = " + ".join(str(count) for count in rounds[1:]) or "0"
    return {"pairs": f"{rounds[0]} neighbours in order, {by_points} by shared points"}


def neighbours_in_order(count: int, reach: int) -> set[tuple[int, int]]:
    """Each photo with the next ones, and with those 2, 4, 8, ... times as far, by which a walk around something closes."""
    steps = {*range(1, reach + 1), *(reach * 2**power for power in range(1, 20))}
    return {(first, first + step) for step in steps for first in range(count - step)}


def pairs_by_shared_points(
    verified: dict[tuple[int, int], np.ndarray], done: Iterable[tuple[int, int]], most: int
) -> list[tuple[int, int]]:
    """Pairs of photos not compared yet that see many of the same keypoints of some third photo: `most` for each photo.

    verified: (M, 2) indices of keypoints that two photos share.
    """
    seen: dict[int, dict[int, np.ndarray]] = {}
    for (first, second), matches in verified.items():
        if len(matches) >= FEWEST_MATCHES:
            seen.setdefault(first, {})[second] = np.unique(matches[:, 0])
            seen.setdefault(second, {})[first] = np.unique(matches[:, 1])
    shared: dict[tuple[int, int], int] = {}
    known = set(done)
    for around in seen.values():
        others = sorted(around)
        for number, first in enumerate(others):
            for second in others[number + 1 :]:
                if (first, second) not in known:
                    common = len(np.intersect1d(around[first], around[second], assume_unique=True))
                    shared[first, second] = max(shared.get((first, second), 0), common)
    chosen: list[tuple[int, int]] = []
    count: dict[int, int] = {}
    for pair, common in sorted(shared.items(), key=lambda item: (-item[1], item[0])):
        if common >= FEWEST_SHARED and all(count.get(photo, 0) < most for photo in pair):
            chosen.append(pair)
            for photo in pair:
                count[photo] = count.get(photo, 0) + 1
    return sorted(chosen)


def _compare(path: Path, names: Sequence[str], pairs: Sequence[tuple[int, int]], options: dict[str, Any]) -> None:
    import pycolmap

    listed = path.with_name(f"{path.name}.pairs.txt")
    listed.write_text("".join(f"{names[first]} {names[second]}\n" for first, second in pairs), encoding="utf-8")
    matching, verification = pycolmap.FeatureMatchingOptions(), pycolmap.TwoViewGeometryOptions()
    matching.num_threads, matching.use_gpu = options["threads"], False
    verification.ransac.random_seed = options["seed"]
    pairing = pycolmap.ImportedPairingOptions()
    pairing.match_list_path = str(listed)
    try:
        pycolmap.match_image_pairs(path, matching, pairing, verification, pycolmap.Device.cpu)
    finally:
        listed.unlink(missing_ok=True)


def _verified(path: Path, names: Sequence[str]) -> dict[tuple[int, int], np.ndarray]:
    import pycolmap

    found = {}
    with pycolmap.Database.open(path) as database:
        place = {_image(database, name).image_id: number for number, name in enumerate(names)}
        ids = sorted(place)
        for one in ids:
            for other in ids:
                if one < other and database.exists_two_view_geometry(one, other):
                    matches = np.asarray(database.read_two_view_geometry(one, other).inlier_matches)
                    first, second = place[one], place[other]
                    if first > second:
                        first, second, matches = second, first, matches[:, ::-1]
                    found[first, second] = matches
    return found


def map_scene(work: str, options: dict[str, Any]) -> dict[str, Any]:
    """work/sparse/0, 1, ...: every model that is large enough, in COLMAP's format, the largest first."""
    import pycolmap

    pipeline = mapping_options(options["smallest_model"], options["seed"])
    photos = read_json(Path(work) / "photos.json")["photos"]
    target = Path(work) / "sparse"
    shutil.rmtree(target, ignore_errors=True)
    with new_folder(target) as part:
        unsorted = part / "unsorted"
        unsorted.mkdir()
        models = pycolmap.incremental_mapping(Path(work) / "matches.db", Path(work) / "photos", unsorted, pipeline)
        large = [model for model in models.values() if model.num_reg_images() >= options["smallest_model"]]
        if not large:
            raise InputError(
                f"the {len(photos)} photos cannot be joined into a model of {options['smallest_model']} or more: "
                "they need to show the same things from places not too far apart."
            )
        large.sort(key=lambda model: (-model.num_reg_images(), -model.num_points3D()))
        for number, model in enumerate(large):
            (part / str(number)).mkdir()
            model.write(part / str(number))
        require_room_left(part)  # COLMAP does not say that its model is cut off, and takes all memory when it reads it
        shutil.rmtree(unsorted)
    return {"models": [model.num_reg_images() for model in large]}


def mapping_options(smallest: int, seed: int) -> Any:
    """COLMAP's defaults for the incremental mapper, so that the same database gives the same models."""
    import pycolmap

    pipeline = pycolmap.IncrementalPipelineOptions()
    pipeline.num_threads = pipeline.mapper.num_threads = 1  # with more, sums are taken in another order
    pipeline.random_seed = pipeline.mapper.random_seed = pipeline.triangulation.random_seed = seed
    pipeline.min_model_size = smallest
    pipeline.extract_colors = False
    return pipeline


def undistort(work: str, options: dict[str, Any]) -> dict[str, Any]:
    """work/models/0, 1, ...: a workspace for dense stereo each, with scene.npz and the SIFT tracks in tracks.npz."""
    import pycolmap

    target = Path(work) / "models"
    shutil.rmtree(target, ignore_errors=True)
    registered = []
    with new_folder(target) as part:
        for model in sorted((Path(work) / "sparse").iterdir(), key=lambda path: int(path.name)):
            workspace = part / model.name
            smaller = pycolmap.UndistortCameraOptions()
            smaller.max_image_size = options["size"]
            pycolmap.undistort_images(
                workspace, model, Path(work) / "photos", undistort_options=smaller, jpeg_quality=97, num_threads=1
            )
            require_room_left(part)
            undistorted = pycolmap.Reconstruction(workspace / "sparse")
            scene, images = read_scene(undistorted)
            save_scene(scene, workspace / "scene.npz")
            tracks = read_tracks(undistorted, images, Path(work) / "matches.db", pycolmap.Reconstruction(model))
            np.savez(workspace / "tracks.npz", allow_pickle=False, **tracks)
            registered.append(len(scene.views))
    return {"models": registered}


def read_scene(model: Any) -> tuple[SparseScene, list[int]]:
    """COLMAP's undistorted model as plain arrays, views in order of names, and the views' ids in the model."""
    images = sorted(model.reg_image_ids(), key=lambda number: model.image(number).name)
    points = sorted(model.point3D_ids())
    place = {number: index for index, number in enumerate(points)}
    views, rows = [], []
    for index, number in enumerate(images):
        image = model.image(number)
        camera, pose = image.camera, image.cam_from_world().matrix()
        intrinsics = np.array(camera.calibration_matrix(), dtype=np.float64)
        intrinsics[:2, 2] -= 0.5  # COLMAP's first pixel has its centre at one half
        views.append(View(image.name, camera.width, camera.height, intrinsics, pose[:, :3].copy(), pose[:, 3].copy()))
        seen = sorted({place[point.point3D_id] for point in image.points2D if point.has_point3D()})
        rows += [(index, point) for point in seen]
    world = np.array([model.point3D(number).xyz for number in points], dtype=np.float64).reshape(-1, 3)
    return SparseScene(tuple(views), world, np.array(rows, dtype=np.int64).reshape(-1, 2)), images


def read_tracks(model: Any, images: Sequence[int], database_path: Path, distorted: Any) -> dict[str, np.ndarray]:
    """The SIFT keypoints behind the sparse points, in the undistorted images: view, xy, sigma, angle, point, one row each."""
    import pycolmap

    place = {number: index for index, number in enumerate(sorted(model.point3D_ids()))}
    rows = []
    with pycolmap.Database.open(database_path) as database:
        for index, number in enumerate(images):
            image = model.image(number)
            shapes = np.asarray(database.read_keypoints(number), dtype=np.float64)
            zoom = image.camera.mean_focal_length() / distorted.image(number).camera.mean_focal_length()
            for keypoint, point in enumerate(image.points2D):
                if point.has_point3D():
                    sigma, angle = scale_and_angle(shapes[keypoint])
                    rows.append((index, *(point.xy - 0.5), sigma * zoom, angle, place[point.point3D_id]))
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

"""Features and matches <-> COLMAP's database, through pycolmap.

COLMAP counts pixels from their corners, so that its first pixel has its centre at (0.5, 0.5). Its angles and its scale are
ours: on an image whose y points down, angle t is the direction (cos t, sin t), and the scale is sigma. Every step runs in a
process of its own, as pycolmap and OpenCV bundle libraries that do not live together.
"""

import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from sdgmnet.errors import InputError
from sdgmnet.features.keypoints import Keypoints
from sdgmnet.sfm.process import run_alone
from sdgmnet.sfm.sparse import scale_and_angle
from sdgmnet.storage import new_file

if TYPE_CHECKING:  # torch comes with it, and a step of COLMAP has no use for that
    from sdgmnet.features.describe import Features

HALF_PIXEL = 0.5
GUESSED_FOCAL = 1.2  # of the longer side, as COLMAP guesses
SIFT_NORM = 512  # of the length of COLMAP's SIFT descriptors in bytes

Kind = Literal["float", "sift"]
Pair = tuple[str, str]


def to_colmap(keypoints: Keypoints) -> np.ndarray:
    """(N, 4) float32: x, y, scale, orientation."""
    return np.column_stack([keypoints.xy + HALF_PIXEL, keypoints.sigma, keypoints.angle]).astype(np.float32)


def from_colmap(table: np.ndarray) -> Keypoints:
    """Keypoints of COLMAP's rows: (N, 4) as above, (N, 6) with an affine shape, of which sigma keeps the area and the angle the
    x axis, or (N, 2), which get sigma 1 and angle 0. COLMAP keeps no response: it is 1."""
    table = np.asarray(table, dtype=np.float64)
    shapes = (
        np.array([scale_and_angle(row) for row in table])
        if table.shape[1] > 2
        else np.tile([1.0, 0.0], (len(table), 1))
    )
    sigma, angle = shapes.reshape(-1, 2).T
    return Keypoints(table[:, :2] - HALF_PIXEL, sigma, angle % (2 * np.pi), np.ones(len(table)))


def write_database(
    path: Path | str,
    features: Mapping[str, "Features"],
    matches: Mapping[Pair, np.ndarray] | None = None,
    *,
    focal: float | None = None,
    one_camera: bool = True,
    kind: Kind = "float",
) -> None:
    """A new database of COLMAP 4: cameras, images, keypoints, descriptors and matches, ready for `verify` and a mapper.

    Args:
        features: by the image's name, which is its path below the folder that the mapper is given. Images must be stored
            upright: COLMAP does not read the camera's note how to turn them.
        matches: by two names, (M, 2) rows: keypoint of the first image, of the second.
        focal: length in pixels, where it is known; COLMAP starts from 1.2 times the longer side otherwise.
        one_camera: images of equal size share a lens.
        kind: "float" keeps descriptors as they are, for readers who know them; COLMAP itself matches only "sift", its bytes for
            descriptors (N, 128) without negative numbers: sift and rootsift.
    """
    path, matches = Path(path), matches or {}
    need_pycolmap()
    if path.exists():
        raise InputError(f"{path} already exists: remove it or choose another name.")
    check_matches(features, matches)
    with tempfile.TemporaryDirectory() as folder:
        arrays = {f"keypoints{number}": to_colmap(one.keypoints) for number, one in enumerate(features.values())}
        for number, (name, one) in enumerate(features.items()):
            arrays[f"descriptors{number}"] = as_stored(name, one.descriptors, kind)
        for number, pairs in enumerate(matches.values()):
            arrays[f"matches{number}"] = np.asarray(pairs, dtype=np.uint32).reshape(-1, 2)
        np.savez(Path(folder) / "arrays.npz", allow_pickle=False, **arrays)
        run_alone(
            f"{__name__}:_write",
            Path(folder) / "log.txt",
            path=str(path),
            arrays=str(Path(folder) / "arrays.npz"),
            names=list(features),
            sizes=[[int(side) for side in one.size] for one in features.values()],
            pairs=[list(pair) for pair in matches],
            focal=focal,
            one_camera=one_camera,
            kind=kind,
        )


def verify(path: Path | str, *, seed: int = 0, threads: int = 2) -> dict[Pair, int]:
    """Let COLMAP verify the matches of a database by two-view geometry, into the database; returns the inliers of each pair."""
    rows = _on_database("_verify", path, seed=seed, threads=threads)
    return {(first, second): count for first, second, count in rows}


def read_keypoints(path: Path | str) -> dict[str, Keypoints]:
    """Keypoints of every image of a database, by name, whoever wrote them."""
    with tempfile.TemporaryDirectory() as folder:
        names = _on_database("_read_keypoints", path, arrays=str(Path(folder) / "arrays.npz"))
        with np.load(Path(folder) / "arrays.npz", allow_pickle=False) as tables:
            return {name: from_colmap(tables[str(number)]) for number, name in enumerate(names)}


def as_stored(name: str, descriptors: np.ndarray, kind: Kind) -> np.ndarray:
    """(N, bytes) uint8. Floats stand in the database as their bytes."""
    if kind == "float":
        return np.ascontiguousarray(descriptors, dtype=np.float32).view(np.uint8)
    if descriptors.shape[1] != 128 or descriptors.min(initial=0) < 0:
        raise InputError(
            f"{name}: only descriptors (N, 128) without negative numbers can be stored as SIFT's; use float."
        )
    return np.clip(np.rint(descriptors * SIFT_NORM), 0, 255).astype(np.uint8)


def check_matches(features: Mapping[str, "Features"], matches: Mapping[Pair, np.ndarray]) -> None:
    for first, second in matches:
        for name in (first, second):
            if name not in features:
                raise InputError(f"there are matches of {name}, but no features.")
        if first == second or ((second, first) in matches and first < second):
            raise InputError(f"the pair {first}, {second} is no pair or stands there twice.")
        pairs = np.asarray(matches[first, second]).reshape(-1, 2)
        count = [len(features[name].keypoints.xy) for name in (first, second)]
        if len(pairs) and (pairs.min() < 0 or (pairs.max(axis=0) >= count).any()):
            raise InputError(f"the matches of {first} and {second} name keypoints that are not there.")


def need_pycolmap() -> None:
    if find_spec("pycolmap") is None:
        raise InputError("COLMAP's database is written by pycolmap, not installed here: pip install 'sdgmnet[sfm]'.")


def _on_database(step: str, path: Path | str, **arguments: Any) -> Any:
    need_pycolmap()
    if not Path(path).is_file():
        raise InputError(f"{path} does not exist.")
    with tempfile.TemporaryDirectory() as folder:
        return run_alone(f"{__name__}:{step}", Path(folder) / "log.txt", path=str(path), **arguments)


# The steps. Each is called in its own process, with arguments and results that JSON can hold.


def _write(
    path: str,
    arrays: str,
    names: list[str],
    sizes: list[tuple[int, int]],
    pairs: list[Pair],
    focal: float | None,
    one_camera: bool,
    kind: Kind,
) -> None:
    import pycolmap

    types = {"float": pycolmap.FeatureExtractorType.UNDEFINED, "sift": pycolmap.FeatureExtractorType.SIFT}
    with (
        np.load(arrays, allow_pickle=False) as given,
        new_file(path) as part,
        pycolmap.Database.open(part) as database,
        pycolmap.DatabaseTransaction(database),
    ):
        lenses: dict[Any, tuple[int, int]] = {}
        ids = {}
        for number, (name, size) in enumerate(zip(names, sizes, strict=True)):
            lens = tuple(size) if one_camera else name
            if lens not in lenses:
                lenses[lens] = _write_camera(database, *size, focal)
            ids[name] = _write_image(database, name, *lenses[lens])
            database.write_keypoints(ids[name], given[f"keypoints{number}"])
            stored = pycolmap.FeatureDescriptors(type=types[kind], data=given[f"descriptors{number}"])
            database.write_descriptors(ids[name], stored)
        for number, (first, second) in enumerate(pairs):
            if len(given[f"matches{number}"]):
                database.write_matches(ids[first], ids[second], given[f"matches{number}"])


def _write_camera(database: Any, width: int, height: int, focal: float | None) -> tuple[int, int]:
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


def _verify(path: str, seed: int, threads: int) -> list[tuple[str, str, int]]:
    import pycolmap

    verifier, geometry = pycolmap.GeometricVerifierOptions(), pycolmap.TwoViewGeometryOptions()
    verifier.num_threads, geometry.ransac.random_seed = threads, seed
    pycolmap.geometric_verification(path, verifier, two_view_geometry_options=geometry)
    with pycolmap.Database.open(path) as database:
        names = {image.image_id: image.name for image in database.read_all_images()}
        pairs, counts = database.read_two_view_geometry_num_inliers()
    ids = [pycolmap.pair_id_to_image_pair(pair) for pair in pairs]
    return [(names[one], names[two], int(count)) for (one, two), count in zip(ids, counts, strict=True)]


def _read_keypoints(path: str, arrays: str) -> list[str]:
    import pycolmap

    with pycolmap.Database.open(path) as database:
        images = sorted(database.read_all_images(), key=lambda image: image.image_id)
        tables = {str(number): database.read_keypoints(image.image_id) for number, image in enumerate(images)}
    np.savez(arrays, allow_pickle=False, **tables)
    return [image.name for image in images]

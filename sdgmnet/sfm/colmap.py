"""Features and matches <-> COLMAP's database, for use with COLMAP's own programs.

COLMAP counts pixels from their corners: its first pixel has its centre at (0.5, 0.5). Its angles and its scale are ours: on
an image whose y points down, angle t is the direction (cos t, sin t), and the scale is sigma.
"""

import tempfile
from collections.abc import Callable, Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sdgmnet.errors import InputError
from sdgmnet.features.describe import Features
from sdgmnet.features.keypoints import Keypoints
from sdgmnet.sfm import colmap_steps
from sdgmnet.sfm.colmap_steps import HALF_PIXEL, scale_and_angle
from sdgmnet.sfm.plausibility import MapperName
from sdgmnet.sfm.process import run_in_process

SIFT_NORM = 512  # length of COLMAP's SIFT descriptors, as uint8

Kind = Literal["float", "sift"]
Pair = tuple[str, str]


def to_colmap(keypoints: Keypoints) -> np.ndarray:
    """(N, 4) float32: x, y, scale, orientation."""
    return np.column_stack([keypoints.xy + HALF_PIXEL, keypoints.sigma, keypoints.angle]).astype(np.float32)


def from_colmap(table: np.ndarray) -> Keypoints:
    """Keypoints from COLMAP's rows: (N, 4) as above; (N, 6) with an affine shape, of which sigma keeps the area and the
    angle the x axis; or (N, 2), which get sigma 1 and angle 0. COLMAP stores no response: it is 1."""
    table = np.asarray(table, dtype=np.float64)
    shapes = [scale_and_angle(row) if len(row) > 2 else (1.0, 0.0) for row in table]
    sigma, angle = np.array(shapes).reshape(-1, 2).T
    return Keypoints(table[:, :2] - HALF_PIXEL, sigma, angle % (2 * np.pi), np.ones(len(table)))


def write_database(
    path: Path | str,
    features: Mapping[str, Features],
    matches: Mapping[Pair, np.ndarray] | None = None,
    *,
    focal: float | None = None,
    one_camera: bool = True,
    kind: Kind = "float",
) -> None:
    """Write a new database of COLMAP 4: cameras, images, keypoints, descriptors and matches, ready for `verify` and a mapper.

    Args:
        features: by the name of the image, its path below the folder that the mapper is given. Images must be stored
            upright: COLMAP does not apply EXIF orientation.
        matches: by two names, (M, 2) rows: keypoint of the first image, of the second.
        focal: focal length in pixels, if it is known; otherwise COLMAP starts from 1.2 times the longer side.
        one_camera: images of equal size share a camera.
        kind: "float" stores descriptors as they are, for programs that know them; COLMAP itself matches only "sift",
            uint8 for descriptors (N, 128) without negative values: sift and rootsift.
    """
    path, matches = Path(path), matches or {}
    require_pycolmap()
    if path.exists():
        raise InputError(f"{path} already exists: remove it or choose another name.")
    _require_valid_matches(features, matches)
    with tempfile.TemporaryDirectory() as folder:
        arrays = {f"keypoints{number}": to_colmap(one.keypoints) for number, one in enumerate(features.values())}
        for number, (name, one) in enumerate(features.items()):
            arrays[f"descriptors{number}"] = _as_bytes(name, one.descriptors, kind)
        for number, pairs in enumerate(matches.values()):
            arrays[f"matches{number}"] = np.asarray(pairs, dtype=np.uint32).reshape(-1, 2)
        np.savez(Path(folder) / "arrays.npz", allow_pickle=False, **arrays)
        run_in_process(
            colmap_steps.write_features,
            Path(folder) / "log.txt",
            path=path,
            arrays=Path(folder) / "arrays.npz",
            names=list(features),
            sizes=[[int(side) for side in one.size] for one in features.values()],
            pairs=[list(pair) for pair in matches],
            focal=focal,
            one_camera=one_camera,
            as_sift=kind == "sift",
        )


def verify(path: Path | str, *, seed: int = 0, threads: int = 2) -> dict[Pair, int]:
    """Let COLMAP verify the matches of a database by two-view geometry; returns the number of inliers of each pair."""
    rows = _on_database(colmap_steps.verify_database, path, seed=seed, threads=threads)
    return {(first, second): count for first, second, count in rows}


def read_keypoints(path: Path | str) -> dict[str, Keypoints]:
    """Keypoints of every image of a database, by name; the database may be of any program."""
    with tempfile.TemporaryDirectory() as folder:
        names = _on_database(colmap_steps.export_keypoints, path, arrays=Path(folder) / "arrays.npz")
        with np.load(Path(folder) / "arrays.npz", allow_pickle=False) as tables:
            return {name: from_colmap(tables[str(number)]) for number, name in enumerate(names)}


def require_pycolmap() -> None:
    if find_spec("pycolmap") is None:
        raise InputError("pycolmap is not installed: pip install 'sdgmnet[sfm]'.")


def require_mapper(mapper: MapperName) -> None:
    """InputError if the installed pycolmap lacks it."""
    require_pycolmap()
    if mapper == "global":
        with tempfile.TemporaryDirectory() as folder:
            found = run_in_process(colmap_steps.has_global_mapper, Path(folder) / "log.txt").result
        if not found:
            raise InputError(
                f"pycolmap {version('pycolmap')} has no global mapper: pip install --upgrade pycolmap, or leave out "
                "--mapper global."
            )


def _on_database(step: Callable[..., Any], path: Path | str, **arguments: Any) -> Any:
    require_pycolmap()
    if not Path(path).is_file():
        raise InputError(f"{path} does not exist.")
    with tempfile.TemporaryDirectory() as folder:
        return run_in_process(step, Path(folder) / "log.txt", path=path, **arguments).result


def _as_bytes(name: str, descriptors: np.ndarray, kind: Kind) -> np.ndarray:
    """(N, bytes) uint8: the bytes of floats, or COLMAP's SIFT."""
    if kind == "float":
        return np.ascontiguousarray(descriptors, dtype=np.float32).view(np.uint8)
    if descriptors.shape[1] != 128 or descriptors.min(initial=0) < 0:
        raise InputError(f"{name}: only descriptors (N, 128) without negative values can be stored as SIFT; use float.")
    return np.clip(np.rint(descriptors * SIFT_NORM), 0, 255).astype(np.uint8)


def _require_valid_matches(features: Mapping[str, Features], matches: Mapping[Pair, np.ndarray]) -> None:
    for first, second in matches:
        for name in (first, second):
            if name not in features:
                raise InputError(f"there are matches of {name}, but no features.")
        if first == second or ((second, first) in matches and first < second):
            raise InputError(f"{first} {second} is not a valid pair, or is given twice.")
        pairs = np.asarray(matches[first, second]).reshape(-1, 2)
        counts = [len(features[name].keypoints.xy) for name in (first, second)]
        if len(pairs) and (pairs.min() < 0 or (pairs.max(axis=0) >= counts).any()):
            raise InputError(f"the matches of {first} and {second} refer to keypoints that do not exist.")

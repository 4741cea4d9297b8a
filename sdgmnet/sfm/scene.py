"""Posed photos and their sparse points as arrays: the input of dense stereo and of correspondences.

Pixel centres are at integers, as everywhere in the package; COLMAP's, at halves, are converted on reading.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sdgmnet.errors import InputError
from sdgmnet.storage import new_file, read_arrays, stays_below


class View(NamedTuple):
    """A photo without lens distortion: a point X of the world is seen at K (R X + t)."""

    name: str  # path of the photo below its image folder
    width: int
    height: int
    intrinsics: np.ndarray  # K (3, 3) float64
    rotation: np.ndarray  # R (3, 3) float64, world to camera
    translation: np.ndarray  # t (3,) float64

    def resized(self, width: int, height: int) -> "View":
        """The same camera with its image resampled to width x height."""
        across, down = width / self.width, height / self.height
        corner = np.array([[across, 0, (across - 1) / 2], [0, down, (down - 1) / 2], [0, 0, 1]])
        return self._replace(width=width, height=height, intrinsics=corner @ self.intrinsics)

    def centre(self) -> np.ndarray:
        return -self.rotation.T @ self.translation


class SparseScene(NamedTuple):
    """The result of structure from motion."""

    views: tuple[View, ...]
    points: np.ndarray  # (P, 3) float64, world
    observations: np.ndarray  # (M, 2) int64: index of the view, index of the point


def project(view: View, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """World points (N, 3) -> pixels (N, 2) and depths (N,); points behind the camera have a depth of at most 0."""
    inside = points @ view.rotation.T + view.translation
    seen = inside @ view.intrinsics.T
    return seen[:, :2] / np.where(seen[:, 2:] > 0, seen[:, 2:], np.inf), inside[:, 2]


def unproject(view: View, pixels: np.ndarray, depths: np.ndarray) -> np.ndarray:
    """Pixels (N, 2) at depths (N,) -> world points (N, 3)."""
    rays = np.concatenate([pixels, np.ones((len(pixels), 1))], axis=1) @ np.linalg.inv(view.intrinsics).T
    return (rays * depths[:, None] - view.translation) @ view.rotation


def save_scene(scene: SparseScene, path: Path | str) -> None:
    columns: dict[str, Any] = {name: np.array([getattr(view, name) for view in scene.views]) for name in View._fields}
    with new_file(path) as part, part.open("wb") as file:
        np.savez(file, points=scene.points, observations=scene.observations, **columns)


def load_scene(path: Path | str) -> SparseScene:
    try:
        arrays = read_arrays(path, [*View._fields, "points", "observations"])
    except InputError as error:
        raise InputError(f"{path} is not a scene written by sdgmnet: reconstruct the photos again ({error})") from error
    count, points = arrays["name"].size, arrays["points"]
    shapes = dict.fromkeys(("name", "width", "height"), (count,)) | {
        "intrinsics": (count, 3, 3),
        "rotation": (count, 3, 3),
        "translation": (count, 3),
        "points": (len(points) if points.ndim else 0, 3),
    }
    seen, numbers = arrays["observations"], [one for name, one in arrays.items() if name != "name"]
    fits = (
        all(arrays[name].shape == shape for name, shape in shapes.items())
        and arrays["name"].dtype.kind == "U"
        and all(stays_below(str(name)) for name in arrays["name"].flat)  # maps are written under these names
        and all(one.dtype.kind in "iuf" and np.isfinite(one).all() for one in numbers)
        and all(arrays[name].dtype.kind in "iu" and (arrays[name] > 0).all() for name in ("width", "height"))
        and (seen.ndim, seen.shape[1:], seen.dtype.kind) == (2, (2,), "i")
        and (not len(seen) or ((seen >= 0) & (seen < (count, len(points)))).all())
    )
    if not fits:
        raise InputError(f"{path} is not a scene written by sdgmnet: reconstruct the photos again.")
    columns = zip(*(arrays[name] for name in View._fields), strict=True)
    views = (View(str(name), int(width), int(height), *cameras) for name, width, height, *cameras in columns)
    return SparseScene(tuple(views), points, seen)

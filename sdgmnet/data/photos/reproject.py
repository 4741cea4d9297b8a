"""Keypoints reprojected from one photo to another: through their depth, the camera poses and the surface's plane."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sdgmnet.features.geometry import homography_jacobian, move_keypoints, nonzero
from sdgmnet.features.keypoints import Keypoints
from sdgmnet.registry import WINDOW
from sdgmnet.sfm.scene import View, project, unproject

# Where the surface under a patch is tested: a 3 x 3 grid, in halves of the patch's side.
SUPPORT = np.stack(np.meshgrid([-2 / 3, 0, 2 / 3], [-2 / 3, 0, 2 / 3]), -1).reshape(-1, 2)
FEWEST_SUPPORT = 5  # of the nine that must have a depth
LARGEST_SPREAD = 0.03  # of the four depths around a location: more is a depth edge


@dataclass(frozen=True)
class Visibility:
    """When a point of one photo counts as visible in another."""

    depth_tolerance: float = 0.01
    """Largest difference between the point's depth and the other photo's depth map, as a share."""
    return_pixels: float = 1.5
    """Largest distance between a keypoint and its reprojection to the other photo and back."""
    steepest: float = 70.0
    """Largest angle between the line of sight and the surface's normal in either photo, in degrees."""
    least_support: float = 0.7
    """Least share of a patch's surface, where its depth is known, that the other photo must show."""


class Surface(NamedTuple):
    """Keypoints of a view and the surface at each of them; depth 0 where it is not known."""

    view: View
    keypoints: Keypoints
    depth: np.ndarray  # (N,)
    normal: np.ndarray  # (N, 3) unit length, camera coordinates


class Reprojected(NamedTuple):
    """Keypoints of one view as they must look in another, for those that are visible there."""

    row: np.ndarray  # (M,) of the keypoint in its own view
    keypoints: Keypoints


class Model(NamedTuple):
    """The views of a reconstruction with their keypoints, numbered through all views, and their depth maps."""

    surfaces: Sequence[Surface]
    depth_map: Callable[[int], np.ndarray]  # by the view's number

    @property
    def first(self) -> np.ndarray:
        """(V + 1,) The keypoints of view v are numbered from first[v] to first[v + 1]."""
        return np.cumsum([0, *(len(one.keypoints.xy) for one in self.surfaces)]).astype(np.int64)

    def reproject(self, source: int, target: int, limits: Visibility, which: np.ndarray | None = None) -> Reprojected:
        return reproject(self.surfaces[source], self.surfaces[target].view, self.depth_map(target), limits, which)


def interpolation(values: np.ndarray, view: View, xy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The four values (N, 4, ...) of a map around pixels (N, 2) of the view's image, and their bilinear weights (N, 4).

    The map may be smaller than the image. Locations within the outermost half pixel of the map use its border.
    """
    height, width = values.shape[:2]
    x = np.clip((xy[:, 0] + 0.5) * (width / view.width) - 0.5, 0, width - 1)
    y = np.clip((xy[:, 1] + 0.5) * (height / view.height) - 0.5, 0, height - 1)
    left, top = np.minimum(x.astype(np.int64), width - 2), np.minimum(y.astype(np.int64), height - 2)
    across, down = x - left, y - top
    weights = np.stack([(1 - across) * (1 - down), across * (1 - down), (1 - across) * down, across * down], axis=1)
    around = [values[top, left], values[top, left + 1], values[top + 1, left], values[top + 1, left + 1]]
    return np.stack(around, axis=1), weights


def depths_at(depth_map: np.ndarray, view: View, xy: np.ndarray) -> np.ndarray:
    """Depth (N,) between the pixels of a map; 0 at depth edges and where one of the four pixels has no depth.

    Interpolated in inverse depth, in which planes are linear.
    """
    around, weights = interpolation(depth_map, view, xy)
    around = around.astype(np.float64)
    known = (around > 0).all(axis=1)
    known &= around.max(axis=1) <= (1 + LARGEST_SPREAD) * around.min(axis=1)
    inverse = (weights / np.where(around > 0, around, 1)).sum(axis=1)
    return np.where(known, 1 / inverse, 0.0)


def surface_at(view: View, keypoints: Keypoints, depth_map: np.ndarray, normal_map: np.ndarray) -> Surface:
    """The surface at keypoints, from the view's depth (h, w) and normal (h, w, 3) maps."""
    depth = depths_at(depth_map, view, keypoints.xy)
    around, weights = interpolation(normal_map, view, keypoints.xy)
    normal = (weights[:, :, None] * around).sum(axis=1).astype(np.float64)
    length = np.linalg.norm(normal, axis=1)
    known = length > 0.5  # not where normals are missing or opposite
    unit = np.where(known, 1, 0)[:, None] * normal / np.maximum(length, 1e-9)[:, None]
    return Surface(view, keypoints, np.where(known, depth, 0.0), unit)


def plane_jacobian(source: View, target: View, xy: np.ndarray, depth: np.ndarray, normal: np.ndarray) -> np.ndarray:
    """Derivatives (N, 2, 2) of the map from the source's to the target's pixels that the plane at each keypoint induces.

    A plane with normal n through the point X in the source's camera maps pixels by H = K' (R + t n^T / n^T X) K^-1.
    """
    rotation = target.rotation @ source.rotation.T
    shift = target.translation - rotation @ source.translation
    homogeneous = np.concatenate([xy, np.ones((len(xy), 1))], axis=1)
    inverse = np.linalg.inv(source.intrinsics)
    points = homogeneous @ inverse.T * depth[:, None]
    distance = nonzero((normal * points).sum(axis=1))
    plane = rotation + shift[None, :, None] * (normal / distance[:, None])[:, None, :]
    homography = target.intrinsics @ plane @ inverse
    mapped = np.einsum("nij,nj->ni", homography, homogeneous)
    w = nonzero(mapped[:, 2])
    return homography_jacobian(homography, mapped[:, :2] / w[:, None], w)


def facing(view: View, points: np.ndarray, normals: np.ndarray) -> np.ndarray:
    """Cosine (N,) between the surface's normal and the direction to the camera; world points and world normals."""
    rays = view.centre() - points
    return (rays * normals).sum(axis=1) / np.maximum(np.linalg.norm(rays, axis=1), 1e-12)


def within(xy: np.ndarray, view: View) -> np.ndarray:
    """Which pixels (N, 2) lie inside the view's image."""
    return np.all((xy >= 0) & (xy <= [view.width - 1, view.height - 1]), axis=1)


def reproject(
    source: Surface, target: View, target_depths: np.ndarray, limits: Visibility, which: np.ndarray | None = None
) -> Reprojected:
    """The source's keypoints (or those of rows `which`) in the target, where the target's own depth map confirms them."""
    row = np.flatnonzero(source.depth > 0) if which is None else which[source.depth[which] > 0]
    points = unproject(source.view, source.keypoints.xy[row], source.depth[row])
    there, depth_there = project(target, points)
    outward = source.normal[row] @ source.view.rotation  # camera to world
    flat = np.cos(np.deg2rad(limits.steepest))
    seen = (depth_there > 0) & within(there, target)
    seen &= (facing(source.view, points, outward) > flat) & (facing(target, points, outward) > flat)
    row, there, depth_there = row[seen], there[seen], depth_there[seen]
    measured = depths_at(target_depths, target, there)
    seen = (measured > 0) & (np.abs(measured - depth_there) <= limits.depth_tolerance * depth_there)
    back, _ = project(source.view, unproject(target, there, np.where(measured > 0, measured, 1.0)))
    seen &= np.linalg.norm(back - source.keypoints.xy[row], axis=1) <= limits.return_pixels
    row, there = row[seen], there[seen]
    keypoints = source.keypoints.select(row)
    jacobian = plane_jacobian(source.view, target, keypoints.xy, source.depth[row], source.normal[row])
    return Reprojected(row, move_keypoints(keypoints, there, jacobian))


def support(model: Model, source: int, target: int, rows: np.ndarray, limits: Visibility) -> np.ndarray:
    """Share (N,) of the surface under the patches of keypoints `rows` that the target shows; 0 where too little is known.

    A keypoint's own point may be visible while half of its patch is occluded.
    """
    here, there = model.surfaces[source].view, model.surfaces[target].view
    keypoints = model.surfaces[source].keypoints.select(rows)
    half = keypoints.sigma * WINDOW / 2
    cos, sin = half * np.cos(keypoints.angle), half * np.sin(keypoints.angle)
    x = keypoints.xy[:, :1] + cos[:, None] * SUPPORT[:, 0] - sin[:, None] * SUPPORT[:, 1]
    y = keypoints.xy[:, 1:] + sin[:, None] * SUPPORT[:, 0] + cos[:, None] * SUPPORT[:, 1]
    around = np.stack([x.ravel(), y.ravel()], axis=1)
    depth = depths_at(model.depth_map(source), here, around)
    xy, depth_there = project(there, unproject(here, around, depth))
    seen = (depth > 0) & (depth_there > 0) & within(xy, there)
    measured = np.zeros(len(xy))
    measured[seen] = depths_at(model.depth_map(target), there, xy[seen])
    seen &= (measured > 0) & (np.abs(measured - depth_there) <= 2 * limits.depth_tolerance * depth_there)
    known = (depth > 0).reshape(-1, len(SUPPORT)).sum(axis=1)
    return np.where(known >= FEWEST_SUPPORT, seen.reshape(-1, len(SUPPORT)).sum(axis=1) / np.maximum(known, 1), 0.0)

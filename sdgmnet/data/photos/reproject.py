"""Keypoints carried from one photo to another by their depth, the poses and the plane of the surface around them."""

from typing import NamedTuple

import numpy as np

from sdgmnet.data.photos.match_rule import Rule
from sdgmnet.features.keypoints import Keypoints
from sdgmnet.features.patches import SIDE_IN_SIGMAS
from sdgmnet.sfm.scene import View, project, unproject


class Anchored(NamedTuple):
    """Keypoints of a view and the surface at each of them; depth 0 where it is not known."""

    view: View
    keypoints: Keypoints
    depth: np.ndarray  # (N,)
    normal: np.ndarray  # (N, 3) unit length, camera coordinates


class Carried(NamedTuple):
    """Keypoints of one view as they must look in another, of those whose point is visible there."""

    row: np.ndarray  # (M,) of the keypoint in its own view
    xy: np.ndarray  # (M, 2)
    sigma: np.ndarray  # (M,)
    angle: np.ndarray  # (M,)


def bilinear(values: np.ndarray, view: View, xy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The four values (N, 4, ...) of a map around pixels (N, 2) of the view's image, and their weights (N, 4).

    The map may be smaller than the image. Places within the outermost half pixel of the map use its border.
    """
    height, width = values.shape[:2]
    x = np.clip((xy[:, 0] + 0.5) * (width / view.width) - 0.5, 0, width - 1)
    y = np.clip((xy[:, 1] + 0.5) * (height / view.height) - 0.5, 0, height - 1)
    left, top = np.minimum(x.astype(np.int64), width - 2), np.minimum(y.astype(np.int64), height - 2)
    across, down = x - left, y - top
    weights = np.stack([(1 - across) * (1 - down), across * (1 - down), (1 - across) * down, across * down], axis=1)
    around = np.stack(
        [values[top, left], values[top, left + 1], values[top + 1, left], values[top + 1, left + 1]], axis=1
    )
    return around, weights


def depths_at(depths: np.ndarray, view: View, xy: np.ndarray, spread: float = 0.03) -> np.ndarray:
    """Depth (N,) between the pixels of a map, 0 where one of the four around is not known or they differ by over `spread`.

    Interpolated in inverse depth, in which planes are linear.
    """
    around, weights = bilinear(depths, view, xy)
    around = around.astype(np.float64)
    known = (around > 0).all(axis=1)
    known &= around.max(axis=1) <= (1 + spread) * around.min(axis=1)
    inverse = (weights / np.where(around > 0, around, 1)).sum(axis=1)
    return np.where(known, 1 / inverse, 0.0)


def anchor(view: View, keypoints: Keypoints, depths: np.ndarray, normals: np.ndarray) -> Anchored:
    """Keypoints with the surface of the view's depth (h, w) and normal (h, w, 3) maps at each of them."""
    depth = depths_at(depths, view, keypoints.xy)
    around, weights = bilinear(normals, view, keypoints.xy)
    normal = (weights[:, :, None] * around).sum(axis=1).astype(np.float64)
    length = np.linalg.norm(normal, axis=1)
    known = length > 0.5  # opposite or missing normals say nothing
    return Anchored(
        view,
        keypoints,
        np.where(known, depth, 0.0),
        np.where(known, 1, 0)[:, None] * normal / np.maximum(length, 1e-9)[:, None],
    )


def plane_warp(source: View, target: View, xy: np.ndarray, depth: np.ndarray, normal: np.ndarray) -> np.ndarray:
    """Derivatives (N, 2, 2) of the map from the source's to the target's pixels that the plane at each keypoint induces.

    A plane with normal n through the point X of the source's camera moves pixels by H = K' (R + t n^T / n^T X) K^-1.
    """
    rotation = target.rotation @ source.rotation.T
    shift = target.translation - rotation @ source.translation
    homogeneous = np.concatenate([xy, np.ones((len(xy), 1))], axis=1)
    inverse = np.linalg.inv(source.intrinsics)
    points = homogeneous @ inverse.T * depth[:, None]
    distance = (normal * points).sum(axis=1)
    distance = np.where(np.abs(distance) > 1e-12, distance, 1e-12)
    plane = rotation + shift[None, :, None] * (normal / distance[:, None])[:, None, :]
    homography = target.intrinsics @ plane @ inverse
    mapped = np.einsum("nij,nj->ni", homography, homogeneous)
    depth_there = np.where(np.abs(mapped[:, 2:]) > 1e-12, mapped[:, 2:], 1e-12)
    there = mapped[:, :2] / depth_there
    return (homography[:, :2, :2] - there[:, :, None] * homography[:, 2:, :2]) / depth_there[:, :, None]


def facing(view: View, points: np.ndarray, normals: np.ndarray) -> np.ndarray:
    """Cosine (N,) between the surface's normal and the direction to the camera; world points and world normals."""
    rays = view.centre() - points
    return (rays * normals).sum(axis=1) / np.maximum(np.linalg.norm(rays, axis=1), 1e-12)


def carry(
    source: Anchored, target: View, target_depths: np.ndarray, rule: Rule, which: np.ndarray | None = None
) -> Carried:
    """The keypoints (or those of index `which`) as they must look in the target, where its own depth map confirms them."""
    index = np.flatnonzero(source.depth > 0) if which is None else which[source.depth[which] > 0]
    xy, depth, normal = source.keypoints.xy[index], source.depth[index], source.normal[index]
    points = unproject(source.view, xy, depth)
    there, depth_there = project(target, points)
    outward = normal @ source.view.rotation  # camera to world
    flat = np.cos(np.deg2rad(rule.steepest))
    seen = (depth_there > 0) & (there >= 0).all(axis=1) & (there <= [target.width - 1, target.height - 1]).all(axis=1)
    seen &= (facing(source.view, points, outward) > flat) & (facing(target, points, outward) > flat)
    index, xy, depth, normal, there, depth_there = (
        rows[seen] for rows in (index, xy, depth, normal, there, depth_there)
    )
    measured = depths_at(target_depths, target, there)
    seen = (measured > 0) & (np.abs(measured - depth_there) <= rule.depth_tolerance * depth_there)
    back, _ = project(source.view, unproject(target, there, np.where(measured > 0, measured, 1.0)))
    seen &= np.linalg.norm(back - xy, axis=1) <= rule.return_pixels
    index, xy, depth, normal, there = (rows[seen] for rows in (index, xy, depth, normal, there))
    warp = plane_warp(source.view, target, xy, depth, normal)
    angle = source.keypoints.angle[index]
    direction = np.einsum("nij,nj->ni", warp, np.stack([np.cos(angle), np.sin(angle)], axis=1))
    scale = np.sqrt(np.abs(np.linalg.det(warp)))
    turned = np.arctan2(direction[:, 1], direction[:, 0]) % (2 * np.pi)
    return Carried(index, there, source.keypoints.sigma[index] * scale, turned)


SUPPORT = np.stack(np.meshgrid([-2 / 3, 0, 2 / 3], [-2 / 3, 0, 2 / 3]), -1).reshape(
    -1, 2
)  # in halves of a patch's side
FEWEST_SUPPORT = 5  # of these nine that must have a depth


def support(
    source: Anchored, source_depths: np.ndarray, target: View, target_depths: np.ndarray, rows: np.ndarray, rule: Rule
) -> np.ndarray:
    """Share (N,) of the surface under the patches of keypoints `rows` that the target shows too; 0 where hardly any is known.

    A keypoint's own point may be in sight while half of its patch is hidden, or another thing stands before it.
    """
    keypoints = source.keypoints.select(rows)
    half = keypoints.sigma * SIDE_IN_SIGMAS / 2
    cos, sin = half * np.cos(keypoints.angle), half * np.sin(keypoints.angle)
    x = keypoints.xy[:, :1] + cos[:, None] * SUPPORT[:, 0] - sin[:, None] * SUPPORT[:, 1]
    y = keypoints.xy[:, 1:] + sin[:, None] * SUPPORT[:, 0] + cos[:, None] * SUPPORT[:, 1]
    around = np.stack([x.ravel(), y.ravel()], axis=1)
    depth = depths_at(source_depths, source.view, around)
    there, depth_there = project(target, unproject(source.view, around, depth))
    seen = (depth > 0) & (depth_there > 0) & (there >= 0).all(axis=1)
    seen &= (there <= [target.width - 1, target.height - 1]).all(axis=1)
    measured = np.zeros(len(there))
    measured[seen] = depths_at(target_depths, target, there[seen])
    seen &= (measured > 0) & (np.abs(measured - depth_there) <= 2 * rule.depth_tolerance * depth_there)
    known = (depth > 0).reshape(-1, len(SUPPORT)).sum(axis=1)
    return np.where(known >= FEWEST_SUPPORT, seen.reshape(-1, len(SUPPORT)).sum(axis=1) / np.maximum(known, 1), 0.0)

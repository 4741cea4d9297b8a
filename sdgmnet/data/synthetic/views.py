"""Synthetic views: an image turned, tilted, scaled and relit, in which keypoints are found anew and matched by geometry.

The labels are perfect, whatever the image shows, and no descriptor chose the positives: they differ by the light, by what the
change of view does to a patch, and by the detector's own jitter. What an image cannot give is parallax and occlusion.
"""

from dataclasses import dataclass
from typing import NamedTuple

import cv2
import numpy as np

from sdgmnet.features.keypoints import Keypoints, detect
from sdgmnet.features.patches import cut_patches, inside

Borders = tuple[float, float, float]  # sigmas, octaves, radians
ROWS = 256  # of a block of comparisons


@dataclass(frozen=True)
class Viewing:
    """How far views may differ from the image, and which keypoints are then called the same.

    A keypoint found in a view is the point carried there when place, scale and angle agree within `same`; points of one
    image that agree within `undecided` are neither the same nor different (the rule of Brown, Hua and Winder, with positions
    in units of the patches' size).
    """

    same: Borders = (1.5, 0.5, np.pi / 6)
    undecided: Borders = (4.0, 1.0, np.pi / 3)
    views: int = 8
    """Of each image, the unchanged one among them."""
    keypoints: int = 1500
    """Of each view, at most."""
    turn: float = np.pi / 4
    """Radians either way."""
    smallest: float = 1 / 1.5
    """Scale of a view, at least."""
    largest: float = 1.5
    """Scale of a view, at most."""
    tilt: float = 3.0
    """Foreshortening in one direction, at most."""
    gamma: float = 1.0
    """Octaves either way."""
    blur: float = 1.5
    """Sigma of the defocus in pixels, at most."""
    noise: float = 0.045
    """Of the full range, at most."""
    jpeg: bool = False
    """Half of the views are stored at JPEG qualities from 20 to 95."""
    supersampling: int = 1
    """Views are computed so many times larger and averaged: without it, smaller views alias."""


class ViewPatches(NamedTuple):
    """Patches of all views of an image, and where they were cut."""

    patches: np.ndarray  # (M, 64, 64) uint8
    point: np.ndarray  # (M,) number of the keypoint of the unchanged image that each shows
    view: np.ndarray  # (M,) 0 is the unchanged image
    keypoints: Keypoints  # (M,)
    conflicts: np.ndarray  # (C, 2) points that are too close to be negatives of each other, in some view


def patches_of_views(gray: np.ndarray, rng: np.random.Generator, viewing: Viewing) -> ViewPatches:
    """Keypoints of a gray image (H, W) uint8 that are found again in some view, with their patches in all views."""
    height, width = gray.shape
    reference = visible(detect(gray, viewing.keypoints), gray)
    point, view_of, keypoints = (
        [np.arange(len(reference.xy))],
        [np.zeros(len(reference.xy), dtype=np.int64)],
        [reference],
    )
    patches = [cut_patches(gray, reference)]
    for number in range(1, viewing.views):
        homography = random_homography(rng, width, height, viewing)
        view = relight(seen_through(gray, homography, viewing.supersampling), rng, viewing)
        found = visible(detect(view, viewing.keypoints), view)
        here, keypoint = same_points(carry(reference, homography), found, viewing.same)
        found = found.select(keypoint)
        patches.append(cut_patches(view, found))
        point.append(here)
        view_of.append(np.full(len(here), number))
        keypoints.append(found)
    points = np.concatenate(point)
    twice = np.flatnonzero(np.bincount(points, minlength=len(reference.xy))[points] >= 2)
    all_keypoints = Keypoints(*(np.concatenate(column)[twice] for column in zip(*keypoints, strict=True)))
    point_there, view_there = points[twice], np.concatenate(view_of)[twice]
    close = [np.empty((0, 2), dtype=np.int64)]
    for number in range(viewing.views):  # foreshortening brings points together that are apart in the image
        here = np.flatnonzero(view_there == number)
        close.append(point_there[here][undecided_pairs(all_keypoints.select(here), viewing.undecided)])
    conflicts = np.unique(np.sort(np.concatenate(close), axis=1), axis=0)
    return ViewPatches(np.concatenate(patches)[twice], point_there, view_there, all_keypoints, conflicts)


def visible(keypoints: Keypoints, image: np.ndarray) -> Keypoints:
    return keypoints.select(inside(keypoints, image.shape[1], image.shape[0]))


def random_homography(rng: np.random.Generator, width: int, height: int, viewing: Viewing) -> np.ndarray:
    """A view of the image: turned, scaled, foreshortened along some direction, and in perspective."""
    while True:
        homography = _draw_homography(rng, width, height, viewing)
        if is_seen_from_the_front(homography, width, height):
            return homography


def is_seen_from_the_front(homography: np.ndarray, width: int, height: int) -> bool:
    """No corner is behind the viewer, none is mirrored: a strip jittered by more than its height would be folded."""
    corners = np.array([[0, 0, 1], [width, 0, 1], [width, height, 1], [0, height, 1]], dtype=np.float64)
    depth = corners @ homography[2]
    return bool((depth * np.linalg.det(homography) > 0).all() and (depth > 0).all())


def _draw_homography(rng: np.random.Generator, width: int, height: int, viewing: Viewing) -> np.ndarray:
    centre = np.array([width / 2, height / 2])
    tilt_axis, turn = rng.uniform(0, np.pi), rng.uniform(-viewing.turn, viewing.turn)
    low, high = np.log(viewing.smallest), np.log(viewing.largest)
    scale, tilt = np.exp(rng.uniform(low, high)), viewing.tilt ** rng.uniform(0, 1)
    shape = scale * rotation(turn) @ rotation(tilt_axis) @ np.diag([tilt**0.5, tilt**-0.5]) @ rotation(-tilt_axis)
    corners = np.array([[0, 0], [width, 0], [width, height], [0, height]], dtype=np.float64)
    moved = (corners - centre) @ shape.T + centre + rng.uniform(-0.1, 0.1, (4, 2)) * [width, height]
    return cv2.getPerspectiveTransform(corners.astype(np.float32), moved.astype(np.float32))


def rotation(angle: float) -> np.ndarray:
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def seen_through(gray: np.ndarray, homography: np.ndarray, supersampling: int) -> np.ndarray:
    """The image through a homography, in a frame of its own size; beyond its border it is mirrored."""
    height, width = gray.shape
    shift = (supersampling - 1) / 2  # pixel centres are at integers before and after
    finer = np.array([[supersampling, 0, shift], [0, supersampling, shift], [0, 0, 1]]) @ homography
    size = (width * supersampling, height * supersampling)
    view = cv2.warpPerspective(gray, finer, size, borderMode=cv2.BORDER_REFLECT_101)
    return view if supersampling == 1 else cv2.resize(view, (width, height), interpolation=cv2.INTER_AREA)


def relight(gray: np.ndarray, rng: np.random.Generator, viewing: Viewing) -> np.ndarray:
    """Another exposure of the same view: gamma, uneven light, contrast, brightness, defocus, noise, compression."""
    height, width = gray.shape
    picture = (gray / 255.0) ** (2 ** rng.uniform(-viewing.gamma, viewing.gamma))
    shade = cv2.resize(rng.uniform(0.4, 1.0, (6, 6)), (width, height), interpolation=cv2.INTER_CUBIC)
    picture = picture * shade * rng.uniform(0.8, 1.6) + rng.uniform(-0.1, 0.2)
    picture = np.asarray(cv2.GaussianBlur(picture, (0, 0), rng.uniform(0.3, viewing.blur)), dtype=np.float64)
    picture += rng.normal(0, rng.uniform(0, viewing.noise), picture.shape)
    seen = np.clip(picture * 255 + 0.5, 0, 255).astype(np.uint8)
    if viewing.jpeg and rng.random() < 0.5:
        coded = cv2.imencode(".jpg", seen, [cv2.IMWRITE_JPEG_QUALITY, int(rng.integers(20, 96))])[1]
        seen = np.asarray(cv2.imdecode(coded, cv2.IMREAD_GRAYSCALE))
    return seen


def carry(keypoints: Keypoints, homography: np.ndarray) -> Keypoints:
    """Keypoints as they must look through the homography: places mapped, scales and angles by its local derivative."""
    x, y = keypoints.xy.T
    mapped = np.column_stack([x, y, np.ones_like(x)]) @ homography.T
    depth = mapped[:, 2]
    xy = mapped[:, :2] / depth[:, None]
    jacobian = (homography[None, :2, :2] - xy[:, :, None] * homography[None, 2:, :2]) / depth[:, None, None]
    direction = np.stack([np.cos(keypoints.angle), np.sin(keypoints.angle)], axis=1)
    turned = np.einsum("nij,nj->ni", jacobian, direction)
    sigma = keypoints.sigma * np.sqrt(np.abs(np.linalg.det(jacobian)))
    return Keypoints(xy, sigma, np.arctan2(turned[:, 1], turned[:, 0]), keypoints.response)


def agreement(a: Keypoints, b: Keypoints, borders: Borders) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Index pairs (a, b) that agree within all three borders, and how far apart they are as a share of the borders.

    Compared in blocks of rows, so that memory grows with the keypoints and not with their square.
    """
    found = [(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), np.empty(0))]
    for start in range(0, len(a.xy), ROWS):
        rows = slice(start, start + ROWS)
        sigma = np.maximum(a.sigma[rows], 1e-9)[:, None]
        place = np.hypot(a.xy[rows, 0, None] - b.xy[None, :, 0], a.xy[rows, 1, None] - b.xy[None, :, 1]) / sigma
        octaves = np.abs(np.log2(a.sigma[rows, None] / b.sigma[None]))
        turn = np.abs((a.angle[rows, None] - b.angle[None] + np.pi) % (2 * np.pi) - np.pi)
        share = np.maximum(np.maximum(place / borders[0], octaves / borders[1]), turn / borders[2])
        row, column = np.nonzero(share <= 1)
        found.append((row + start, column, share[row, column]))
    first, second, apart = (np.concatenate(column) for column in zip(*found, strict=True))
    return first, second, apart


def same_points(carried: Keypoints, found: Keypoints, borders: Borders) -> tuple[np.ndarray, np.ndarray]:
    """Index pairs (carried, found) that are each other's best agreement."""
    first, second, apart = agreement(carried, found, borders)
    best = _least(first, second, apart)
    mutual = np.intersect1d(best, _least(second, first, apart))
    return first[mutual], second[mutual]


def _least(key: np.ndarray, other: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Of each key the row with the least value, the smallest `other` of equals."""
    order = np.lexsort((other, value, key))
    _, start = np.unique(key[order], return_index=True)
    return order[start]


def undecided_pairs(keypoints: Keypoints, borders: Borders) -> np.ndarray:
    """Pairs (C, 2) of rows, the smaller first, too close to be negatives of each other by the sigma of either."""
    first, second, _ = agreement(keypoints, keypoints, borders)
    pairs = np.sort(np.column_stack([first, second])[first != second], axis=1)
    return np.unique(pairs, axis=0)

"""Synthetic views: an image rotated, tilted, scaled and relit. Keypoints are detected in each view and matched by geometry.

The labels are exact for any image, and no descriptor chose the positives: they differ by the light, by what the change of view
does to a patch, and by the detector's noise. Synthetic views have no parallax and no occlusion.
"""

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import cv2
import numpy as np

from sdgmnet.data.match_rule import VIEWS, MatchRule, ambiguous_pairs, best_rows, near_pairs
from sdgmnet.features.geometry import map_keypoints
from sdgmnet.features.keypoints import Keypoints, concatenate, detect
from sdgmnet.features.patches import cut_patches, inside
from sdgmnet.registry import WINDOW


@dataclass(frozen=True)
class Viewing:
    """How far views may differ from the image, and which keypoints then match."""

    rule: MatchRule = VIEWS
    views: int = 8
    """Per image, including the image itself."""
    keypoints: int = 1500
    """Per view, at most."""
    turn: float = np.pi / 4
    """Largest rotation in radians."""
    smallest: float = 1 / 1.5
    """Smallest scale of a view."""
    largest: float = 1.5
    """Largest scale of a view."""
    tilt: float = 3.0
    """Largest foreshortening in one direction."""
    gamma: float = 1.0
    """Largest change of gamma in octaves."""
    blur: float = 1.5
    """Largest sigma of the defocus in pixels."""
    noise: float = 0.045
    """Largest standard deviation of the noise, as a share of the full range."""
    jpeg: bool = False
    """Half of the views are compressed at JPEG qualities from 20 to 95."""
    supersampling: int = 1
    """Views are computed so many times larger and averaged: without it, smaller views alias."""

    def described(self) -> dict[str, Any]:
        """As kept in set.json: the near limits of the rule are called "same", the far ones "undecided"."""
        fields = asdict(self)
        rule = fields.pop("rule")
        limits = {"same": "near", "undecided": "far"}
        units = ("sigmas", "octaves", "radians")
        return {name: [rule[f"{side}_{unit}"] for unit in units] for name, side in limits.items()} | fields


class ViewPatches(NamedTuple):
    """Patches of all views of an image, and where they were cut."""

    patches: np.ndarray  # (M, 64, 64) uint8
    point: np.ndarray  # (M,) index of the keypoint of the unchanged image that each shows
    view: np.ndarray  # (M,) 0 is the unchanged image
    keypoints: Keypoints  # (M,)
    ambiguous: np.ndarray  # (C, 2) points that are too close in some view to be negatives of each other


def patches_of_views(
    gray: np.ndarray, rng: np.random.Generator, viewing: Viewing, window: float = WINDOW
) -> ViewPatches:
    """Keypoints of a gray image (H, W) uint8 that are found again in some view, with their patches in all views."""
    height, width = gray.shape
    reference = detect_inside(gray, viewing.keypoints)
    count = len(reference.xy)
    patches, points, keypoints = [cut_patches(gray, reference, window=window)], [np.arange(count)], [reference]
    for _ in range(1, viewing.views):
        homography = random_homography(rng, width, height, viewing)
        view = relight(warp(gray, homography, viewing.supersampling), rng, viewing)
        found = detect_inside(view, viewing.keypoints)
        point, row = mutual_matches(map_keypoints(homography, reference), found, viewing.rule)
        keypoints.append(found.select(row))
        patches.append(cut_patches(view, keypoints[-1], window=window))
        points.append(point)
    point = np.concatenate(points)
    view_of = np.repeat(np.arange(viewing.views), [len(one) for one in points])
    twice = np.flatnonzero(np.bincount(point, minlength=count)[point] >= 2)
    seen = concatenate(keypoints).select(twice)
    point, view_of = point[twice], view_of[twice]
    close = [np.empty((0, 2), dtype=np.int64)]
    for number in range(viewing.views):  # foreshortening brings points together that are apart in the image
        here = np.flatnonzero(view_of == number)
        close.append(point[here][ambiguous_pairs(seen.select(here), viewing.rule)])
    ambiguous = np.unique(np.sort(np.concatenate(close), axis=1), axis=0)
    return ViewPatches(np.concatenate(patches)[twice], point, view_of, seen, ambiguous)


def detect_inside(image: np.ndarray, limit: int) -> Keypoints:
    """The strongest keypoints, without those whose patches leave the image."""
    keypoints = detect(image, limit)
    return keypoints.select(inside(keypoints, image.shape[1], image.shape[0]))


def mutual_matches(reprojected: Keypoints, found: Keypoints, rule: MatchRule) -> tuple[np.ndarray, np.ndarray]:
    """Rows of reprojected and of found keypoints that are each other's best match."""
    pairs = near_pairs(reprojected, found, rule).matching()
    misfit = pairs.judged.largest_misfit()
    forward = best_rows(pairs.reprojected, pairs.found, misfit)
    mutual = np.intersect1d(forward, best_rows(pairs.found, pairs.reprojected, misfit))
    return pairs.reprojected[mutual], pairs.found[mutual]


def random_homography(rng: np.random.Generator, width: int, height: int, viewing: Viewing) -> np.ndarray:
    """A view of the image: rotated, scaled, foreshortened along some direction, and in perspective."""
    centre = np.array([width / 2, height / 2])
    corners = np.array([[0, 0], [width, 0], [width, height], [0, height]], dtype=np.float64)
    while True:
        tilt_axis, turn = rng.uniform(0, np.pi), rng.uniform(-viewing.turn, viewing.turn)
        low, high = np.log(viewing.smallest), np.log(viewing.largest)
        scale, tilt = np.exp(rng.uniform(low, high)), viewing.tilt ** rng.uniform(0, 1)
        shape = scale * rotation(turn) @ rotation(tilt_axis) @ np.diag([tilt**0.5, tilt**-0.5]) @ rotation(-tilt_axis)
        moved = (corners - centre) @ shape.T + centre + rng.uniform(-0.1, 0.1, (4, 2)) * [width, height]
        homography = cv2.getPerspectiveTransform(corners.astype(np.float32), moved.astype(np.float32))
        if is_seen_from_the_front(homography, width, height):
            return homography


def is_seen_from_the_front(homography: np.ndarray, width: int, height: int) -> bool:
    """No corner is behind the camera or mirrored, which happens to images that are much wider than high."""
    corners = np.array([[0, 0, 1], [width, 0, 1], [width, height, 1], [0, height, 1]], dtype=np.float64)
    depth = corners @ homography[2]
    return bool((depth * np.linalg.det(homography) > 0).all() and (depth > 0).all())


def rotation(angle: float) -> np.ndarray:
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def warp(gray: np.ndarray, homography: np.ndarray, supersampling: int) -> np.ndarray:
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
    image = (gray / 255.0) ** (2 ** rng.uniform(-viewing.gamma, viewing.gamma))
    shade = cv2.resize(rng.uniform(0.4, 1.0, (6, 6)), (width, height), interpolation=cv2.INTER_CUBIC)
    image = image * shade * rng.uniform(0.8, 1.6) + rng.uniform(-0.1, 0.2)
    image = np.asarray(cv2.GaussianBlur(image, (0, 0), rng.uniform(0.3, viewing.blur)), dtype=np.float64)
    image += rng.normal(0, rng.uniform(0, viewing.noise), image.shape)
    exposed = np.clip(image * 255 + 0.5, 0, 255).astype(np.uint8)
    if viewing.jpeg and rng.random() < 0.5:
        coded = cv2.imencode(".jpg", exposed, [cv2.IMWRITE_JPEG_QUALITY, int(rng.integers(20, 96))])[1]
        exposed = np.asarray(cv2.imdecode(coded, cv2.IMREAD_GRAYSCALE))
    return exposed

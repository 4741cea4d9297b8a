"""A sparse model at a glance: its points in colour and the cameras that took the photos, from two sides."""

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
from matplotlib.figure import Figure

from sdgmnet.files import new_file
from sdgmnet.reconstruction.cloud import Cloud, render_cloud
from sdgmnet.reconstruction.views import View, project

WIDTH, HEIGHT = 1000, 760  # of each side
FINER = 2  # drawn so many times larger, so that points and lines have soft edges
DPI = 150
FILLED = 0.94  # of a side, by what is shown
KEPT = 3.0  # times the usual distance from the middle: what lies farther away is background, or wrong
POINT = 2.2  # pixels
CAMERA = (214, 39, 40)
GROUND = (228, 230, 234)  # on which white walls and dark corners are seen
SIDES = (("from behind the cameras", 0.0, 22.0), ("from their left", 70.0, 22.0))  # degrees around, and above


def draw_overview(cloud: Cloud, views: Sequence[View], path: Path | str, title: str) -> None:
    """A PNG of two pictures side by side."""
    margin = 70
    figure = Figure(figsize=(2 * WIDTH / DPI, (HEIGHT + margin) / DPI), dpi=DPI)
    for number, (name, around, above) in enumerate(SIDES):
        axis = figure.add_axes((number / 2, 0, 0.5, HEIGHT / (HEIGHT + margin)))
        axis.imshow(draw_side(cloud, views, around, above), interpolation="nearest", aspect="auto")
        axis.axis("off")
        figure.text(
            number / 2 + 0.25, 1 - 0.78 * margin / (HEIGHT + margin), name, ha="center", va="center", fontsize=7
        )
    figure.text(
        0.5, 1 - 0.33 * margin / (HEIGHT + margin), title, ha="center", va="center", fontsize=9, parse_math=False
    )
    with new_file(path) as part:
        figure.savefig(part, format="png", dpi=DPI, facecolor="white")


def draw_side(cloud: Cloud, views: Sequence[View], around: float, above: float) -> np.ndarray:
    """The picture (HEIGHT, WIDTH, 3) uint8 from `around` degrees to the left of the cameras, `above` degrees over them."""
    centres = np.array([view.centre() for view in views])
    shown = np.concatenate([usual(cloud.points), centres])
    eye = place_eye(looking(views, around, above), shown)
    depth = np.median(project(eye, shown)[1])
    picture = render_cloud(cloud, eye, POINT * FINER * depth / eye.intrinsics[0, 0], GROUND)
    length = frustum_length(centres, shown)
    for view in views:
        corners, _ = project(eye, frustum(view, length))
        lines = [np.rint(corners[[0, one, two]]).astype(np.int32) for one, two in ((1, 2), (2, 3), (3, 4), (4, 1))]
        cv2.polylines(picture, lines, True, CAMERA, thickness=FINER, lineType=cv2.LINE_AA)
    return cv2.resize(picture, (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA)


def usual(points: np.ndarray) -> np.ndarray:
    """Those not too far from the middle of all."""
    away = np.linalg.norm(points - np.median(points, axis=0), axis=1)
    return points[away <= KEPT * np.median(away)]


def looking(views: Sequence[View], around: float, above: float) -> np.ndarray:
    """Rotation (3, 3), world to eye: as the cameras look on average, moved to their left and up, still looking inwards."""
    up = unit(-np.sum([view.rotation[1] for view in views], axis=0), -views[0].rotation[1])
    ahead = np.sum([view.rotation[2] for view in views], axis=0) / len(views)
    ahead = ahead - up * (up @ ahead)
    if np.linalg.norm(ahead) < 0.2:  # they stand around something: no side is in front
        ahead = views[0].rotation[2] - up * (up @ views[0].rotation[2])
    ahead = unit(ahead, np.cross(up, views[0].rotation[0]))
    right = np.cross(ahead, up)
    turn, rise = np.deg2rad(around), np.deg2rad(above)
    level = np.cos(turn) * ahead + np.sin(turn) * right
    forward = np.cos(rise) * level - np.sin(rise) * up
    across = unit(np.cross(forward, up), right)
    return np.stack([across, np.cross(forward, across), forward])


def unit(vector: np.ndarray, otherwise: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(vector)
    return vector / length if length > 1e-9 else otherwise / max(float(np.linalg.norm(otherwise)), 1e-9)


def place_eye(rotation: np.ndarray, shown: np.ndarray) -> View:
    """A view of the points (N, 3) in this direction, from where they just fill the picture."""
    width, height = WIDTH * FINER, HEIGHT * FINER
    focal = 1.3 * width
    inside = shown @ rotation.T
    middle = (inside.min(axis=0) + inside.max(axis=0)) / 2
    away = inside - middle
    half = FILLED * np.array([width, height]) / 2
    needed = np.abs(away[:, :2]) * focal / half - away[:, 2:]
    distance = max(float(needed.max()), 1e-9 - float(away[:, 2].min()))
    translation = np.array([0, 0, distance]) - middle
    intrinsics = np.array([[focal, 0, width / 2 - 0.5], [0, focal, height / 2 - 0.5], [0, 0, 1]])
    return View("eye", width, height, intrinsics, rotation, translation)


def frustum_length(centres: np.ndarray, shown: np.ndarray) -> float:
    """About half the way from one camera to the next, within what can be seen and does not hide the scene."""
    extent = float(np.linalg.norm(np.ptp(shown, axis=0)))
    ways = np.linalg.norm(centres[:, None] - centres[None], axis=2)
    np.fill_diagonal(ways, np.inf)
    near = float(np.median(ways.min(axis=1))) if len(centres) > 1 else extent
    return float(np.clip(0.5 * near, 0.015 * extent, 0.07 * extent))


def frustum(view: View, length: float) -> np.ndarray:
    """World points (5, 3): the centre of the camera and the corners of its picture at that depth."""
    pixels = np.array([[0, 0], [view.width, 0], [view.width, view.height], [0, view.height]]) - 0.5
    rays = np.column_stack([pixels, np.ones(4)]) @ np.linalg.inv(view.intrinsics).T
    return np.concatenate([view.centre()[None], (length * rays - view.translation) @ view.rotation])

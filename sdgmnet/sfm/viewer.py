"""Point clouds for people: read a PLY, render it, cloud.png with two views of a model, and cloud.html to turn all models."""

import base64
import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
from matplotlib.figure import Figure

from sdgmnet.errors import InputError
from sdgmnet.sfm.colmap_text import CAMERAS, IMAGES, POINTS, read_cameras, read_images, read_points, view_of
from sdgmnet.sfm.scene import View, project
from sdgmnet.sfm.workspace import Workspace
from sdgmnet.storage import new_file, read_bytes, write_text

PLY_TYPES = {"float": "<f4", "double": "<f8", "uchar": "u1", "int": "<i4", "uint": "<u4"}
COLOURS, NORMALS = ("red", "green", "blue"), ("nx", "ny", "nz")
MAX_SPLAT = 8  # pixels to each side: a point close to the camera should not cover the image

# cloud.png
WIDTH, HEIGHT = 1000, 760  # pixels of each of the two views
MARGIN = 70  # pixels for the titles
SUPERSAMPLING = 2  # drawn so many times larger, for smooth edges
DPI = 150
FILLED = 0.94  # of the width or the height
MAX_DISTANCE = 3.0  # times the median distance from the centre: points farther away are background or wrong
POINT_SIZE = 2.2  # pixels
CAMERA, BACKGROUND = (214, 39, 40), (228, 230, 234)  # white walls and dark corners are both visible on this gray
SIDES = (("from behind the cameras", 0.0, 22.0), ("from their left", 70.0, 22.0))  # azimuth and elevation in degrees

# cloud.html
TEMPLATE = Path(__file__).with_name("viewer.html")
MAX_POINTS = 200_000  # of all models; 2.4 MB
MAX_RADII = 4.0  # of the scene; points farther away are left out
EDGES = ((0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (2, 3), (3, 4), (4, 1))  # of a frustum


class Cloud(NamedTuple):
    points: np.ndarray  # (N, 3) float64, world
    colours: np.ndarray  # (N, 3) uint8, red green blue
    normals: np.ndarray | None = None  # (N, 3) float64, world; with them, points that face away are not drawn


class ShownModel(NamedTuple):
    cloud: Cloud
    views: Sequence[View]
    title: str
    remarks: Sequence[str] = ()


def read_ply(path: Path | str) -> Cloud:
    """The vertices of a binary little-endian PLY, as COLMAP writes it; grey where it has no colours."""
    path = Path(path)
    header, mark, body = read_bytes(path).partition(b"end_header\n")
    lines = [line.split() for line in header.decode("ascii", errors="replace").splitlines()]
    if not mark or ["format", "binary_little_endian", "1.0"] not in lines:
        raise InputError(f"{path} is not a binary little-endian PLY file.")
    elements = [place for place, line in enumerate(lines) if line[:1] == ["element"]]
    if not elements or lines[elements[0]][1:2] != ["vertex"]:
        raise InputError(f"{path} does not begin with vertices.")
    end = elements[1] if len(elements) > 1 else len(lines)
    properties = [line for line in lines[elements[0] + 1 : end] if line[:1] == ["property"]]
    if any(len(line) != 3 or line[1] not in PLY_TYPES for line in properties):
        raise InputError(f"{path} has vertex properties that are lists; only numbers are read.")
    try:
        kind = np.dtype([(name, PLY_TYPES[number]) for _, number, name in properties])
        count = int(lines[elements[0]][2])
    except (ValueError, IndexError) as error:
        raise InputError(f"{path} has a malformed header ({error}): write it again.") from error
    if not 0 <= count * kind.itemsize <= len(body) or not {"x", "y", "z"} <= set(kind.names or ()):
        raise InputError(f"{path} is truncated or has no x, y, z: write it again.")
    for group in COLOURS, NORMALS:
        if 0 < len(set(group) & set(kind.names or ())) < 3:
            raise InputError(f"{path} has some of {', '.join(group)} but not all: write it again.")
    vertices = np.frombuffer(body, kind, count)
    points = np.stack([vertices[axis] for axis in "xyz"], 1).astype(np.float64)
    colours, normals = np.full((count, 3), 128, np.uint8), None
    if "red" in (kind.names or ()):
        colours = np.stack([vertices[name] for name in COLOURS], 1).astype(np.uint8)
    if "nx" in (kind.names or ()):
        normals = np.stack([vertices[name] for name in NORMALS], 1).astype(np.float64)
    return Cloud(points, colours, normals)


def render_cloud(
    cloud: Cloud, view: View, point_size: float | None = None, background: tuple[int, int, int] = (255, 255, 255)
) -> np.ndarray:
    """The image (H, W, 3) uint8 of the points in a view.

    Each point is a square of `point_size` world units, at least a pixel. By default the visible points together cover the
    area of the image.
    """
    pixels, depths = project(view, cloud.points)
    seen = (depths > 0) & (pixels > -1).all(1) & (pixels < [view.width, view.height]).all(1)
    if cloud.normals is not None:  # from outside, one looks through the backs of walls into a courtyard
        seen &= ((view.centre() - cloud.points) * cloud.normals).sum(1) > 0
    pixels, depths, colours = pixels[seen], depths[seen], cloud.colours[seen]
    image = np.full((view.height * view.width, 3), background, np.uint8)
    if not len(depths):
        return image.reshape(view.height, view.width, 3)
    focal = view.intrinsics[0, 0]
    if point_size is None:
        point_size = float(np.median(depths)) / focal * np.sqrt(view.width * view.height / len(depths))
    reach = np.clip(np.rint((point_size * focal / depths - 1) / 2), 0, MAX_SPLAT).astype(np.int64)
    nearest = np.full(view.height * view.width, np.inf)
    column, row = np.rint(pixels).astype(np.int64).T
    most = int(reach.max())
    for down in range(-most, most + 1):
        for across in range(-most, most + 1):
            x, y = column + across, row + down
            drawn = (reach >= max(abs(down), abs(across))) & (x >= 0) & (y >= 0) & (x < view.width) & (y < view.height)
            which = np.flatnonzero(drawn)
            which = which[np.argsort(-depths[which], kind="stable")]  # the nearest is written last
            place = y[which] * view.width + x[which]
            ahead = depths[which] < nearest[place]
            which, place = which[ahead], place[ahead]
            nearest[place] = depths[which]
            image[place] = colours[which]
    return image.reshape(view.height, view.width, 3)


def save_cloud_image(cloud: Cloud, view: View, path: Path | str, point_size: float | None = None) -> None:
    image = render_cloud(cloud, view, point_size)[..., ::-1]
    _, encoded = cv2.imencode(".png", image, [cv2.IMWRITE_PNG_COMPRESSION, 9])
    with new_file(path) as part:
        part.write_bytes(encoded.tobytes())


def draw_overview(cloud: Cloud, views: Sequence[View], path: Path | str, title: str) -> None:
    """A PNG of two views side by side."""
    height = HEIGHT + MARGIN
    figure = Figure(figsize=(2 * WIDTH / DPI, height / DPI), dpi=DPI)
    for number, (name, azimuth, elevation) in enumerate(SIDES):
        axis = figure.add_axes((number / 2, 0, 0.5, HEIGHT / height))
        axis.imshow(draw_side(cloud, views, azimuth, elevation), interpolation="nearest", aspect="auto")
        axis.axis("off")
        figure.text(number / 2 + 0.25, 1 - 0.78 * MARGIN / height, name, ha="center", va="center", fontsize=7)
    figure.text(0.5, 1 - 0.33 * MARGIN / height, title, ha="center", va="center", fontsize=9, parse_math=False)
    with new_file(path) as part:
        figure.savefig(part, format="png", dpi=DPI, facecolor="white")


def draw_side(cloud: Cloud, views: Sequence[View], azimuth: float, elevation: float) -> np.ndarray:
    """The image (HEIGHT, WIDTH, 3) uint8 from `azimuth` degrees to the left of the cameras, `elevation` degrees above."""
    centres = np.array([view.centre() for view in views])
    shown = np.concatenate([without_outliers(cloud.points), centres])
    eye = fit_view(look_rotation(views, azimuth, elevation), shown)
    depth = np.median(project(eye, shown)[1])
    image = render_cloud(cloud, eye, POINT_SIZE * SUPERSAMPLING * depth / eye.intrinsics[0, 0], BACKGROUND)
    length = frustum_length(centres, shown)
    for view in views:
        corners, _ = project(eye, frustum(view, length))
        lines = [np.rint(corners[[0, one, two]]).astype(np.int32) for one, two in ((1, 2), (2, 3), (3, 4), (4, 1))]
        cv2.polylines(image, lines, True, CAMERA, thickness=SUPERSAMPLING, lineType=cv2.LINE_AA)
    return cv2.resize(image, (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA)


def without_outliers(points: np.ndarray) -> np.ndarray:
    """Points not too far from the median."""
    away = np.linalg.norm(points - np.median(points, axis=0), axis=1)
    return points[away <= MAX_DISTANCE * np.median(away)]


def look_rotation(views: Sequence[View], azimuth: float, elevation: float) -> np.ndarray:
    """Rotation (3, 3), world to camera: the mean direction of the cameras, seen from their left and from above."""
    up = normalise(-np.sum([view.rotation[1] for view in views], axis=0), -views[0].rotation[1])
    ahead = np.sum([view.rotation[2] for view in views], axis=0) / len(views)
    ahead = ahead - up * (up @ ahead)
    if np.linalg.norm(ahead) < 0.2:  # the cameras surround the scene: there is no front
        ahead = views[0].rotation[2] - up * (up @ views[0].rotation[2])
    ahead = normalise(ahead, np.cross(up, views[0].rotation[0]))
    right = np.cross(ahead, up)
    turn, rise = np.deg2rad(azimuth), np.deg2rad(elevation)
    level = np.cos(turn) * ahead + np.sin(turn) * right
    forward = np.cos(rise) * level - np.sin(rise) * up
    across = normalise(np.cross(forward, up), right)
    return np.stack([across, np.cross(forward, across), forward])


def normalise(vector: np.ndarray, otherwise: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(vector)
    return vector / length if length > 1e-9 else otherwise / max(float(np.linalg.norm(otherwise)), 1e-9)


def fit_view(rotation: np.ndarray, shown: np.ndarray) -> View:
    """A view in this direction in which the points (N, 3) just fill the image."""
    width, height = WIDTH * SUPERSAMPLING, HEIGHT * SUPERSAMPLING
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
    """About half the distance between neighbouring cameras, but visible, and small enough not to hide the scene."""
    extent = float(np.linalg.norm(np.ptp(shown, axis=0)))
    ways = np.linalg.norm(centres[:, None] - centres[None], axis=2)
    np.fill_diagonal(ways, np.inf)
    near = float(np.median(ways.min(axis=1))) if len(centres) > 1 else extent
    return float(np.clip(0.5 * near, 0.015 * extent, 0.07 * extent))


def frustum(view: View, length: float) -> np.ndarray:
    """World points (5, 3): the centre of the camera and the corners of its image at depth `length`."""
    pixels = np.array([[0, 0], [view.width, 0], [view.width, view.height], [0, view.height]]) - 0.5
    rays = np.column_stack([pixels, np.ones(4)]) @ np.linalg.inv(view.intrinsics).T
    return np.concatenate([view.centre()[None], (length * rays - view.translation) @ view.rotation])


def write_page(models: Sequence[ShownModel], path: Path | str) -> None:
    """cloud.html: one model at a time, chosen by a list if there are several."""
    total = sum(len(model.cloud.points) for model in models)
    data = [page_data(one.cloud, one.views, MAX_POINTS * len(one.cloud.points) // max(total, 1)) for one in models]
    sections = [
        f"<section{' hidden' if number else ''}>{html.escape(model.title)}"
        + "".join(f"<p>{html.escape(remark)}</p>" for remark in model.remarks)
        + "</section>"
        for number, model in enumerate(models)
    ]
    text = TEMPLATE.read_text(encoding="utf-8").replace("@DATA@", json.dumps(data))
    text = text.replace("@SECTIONS@", "\n".join(sections))
    write_text(path, text.replace("@TITLE@", html.escape(models[0].title)))


def page_data(cloud: Cloud, views: Sequence[View], max_points: int) -> dict[str, Any]:
    """Points rotated as the cameras look, x right, y down, z ahead, and scaled to a radius of 1."""
    turn = look_rotation(views, 0, 0)
    centres = np.array([view.centre() for view in views])
    shown = np.concatenate([without_outliers(cloud.points), centres]) @ turn.T
    low, high = shown.min(axis=0), shown.max(axis=0)
    middle, radius = (low + high) / 2, max(float(np.linalg.norm(high - low)) / 2, 1e-9)
    places = (cloud.points @ turn.T - middle) / radius
    near = np.flatnonzero((np.abs(places) < MAX_RADII).all(axis=1))
    if len(near) > max_points:
        near = np.sort(np.random.default_rng(0).choice(near, max_points, replace=False))
    unit = MAX_RADII / np.iinfo(np.int16).max
    length = frustum_length(centres, np.concatenate([without_outliers(cloud.points), centres]))
    corners = [(frustum(view, length) @ turn.T - middle) / radius for view in views]
    lines = np.array([[one[start], one[end]] for one in corners for start, end in EDGES])
    return {
        "places": to_base64(np.rint(places[near] / unit).astype("<i2")),
        "colours": to_base64(cloud.colours[near]),
        "unit": unit,
        "cameras": [round(float(number), 4) for number in lines.ravel()],
    }


def draw_models(workspace: Workspace, summary: dict[str, Any], name: str) -> None:
    """cloud.png of the largest model of a workspace and cloud.html of all; the page gives reasons if one is implausible."""
    models, count = [], len(summary["models"])
    for number, model in enumerate(summary["models"]):
        what = name if count == 1 else f"{name}, model {number + 1} of {count}"
        title = (
            f"{'IMPLAUSIBLE MODEL, ' if model['implausible'] else ''}{what}: {model['registered']} of {summary['photos']} "
            f"photos, {model['points']} points, track length {model['track_length']:.2f}, reprojection error "
            f"{model['reprojection_error']:.2f} px"
        )
        models.append(ShownModel(*read_sparse(workspace.sparse / str(number)), title, model["implausible"]))
    largest = models[0]
    draw_overview(largest.cloud, largest.views, workspace.folder / "cloud.png", largest.title)
    write_page(models, workspace.folder / "cloud.html")


def read_sparse(folder: Path) -> tuple[Cloud, list[View]]:
    """A text model of COLMAP; views are ordered by name."""
    cameras, points = read_cameras(folder / CAMERAS), read_points(folder / POINTS)
    images = read_images(folder / IMAGES, cameras, keypoints=False).values()
    views = [view_of(image, cameras[image.camera]) for image in images]
    return Cloud(points.xyz, points.colour), sorted(views, key=lambda view: view.name)


def to_base64(values: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode("ascii")

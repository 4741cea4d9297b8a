"""Images of point clouds: read a PLY, look at it from somewhere, nearest points in front."""

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
from sdgmnet.sfm.mapping import POINTS
from sdgmnet.sfm.reconstruct import SCENE, Place
from sdgmnet.sfm.scene import View, load_scene, project
from sdgmnet.storage import new_file, read_bytes, write_text

# ---- reconstruction.cloud


PLY_TYPES = {
    "float": "<f4", "float32": "<f4", "double": "<f8", "float64": "<f8", "uchar": "u1", "uint8": "u1", "char": "i1",
    "int8": "i1", "short": "<i2", "int16": "<i2", "ushort": "<u2", "uint16": "<u2", "int": "<i4", "int32": "<i4",
    "uint": "<u4", "uint32": "<u4",
}  # fmt: skip
COLOURS, NORMALS = ("red", "green", "blue"), ("nx", "ny", "nz")
LARGEST_SPLAT = 8  # pixels to each side: a point close to the eye should not cover the image


class Cloud(NamedTuple):
    points: np.ndarray  # (N, 3) float64, world
    colours: np.ndarray  # (N, 3) uint8, red green blue
    normals: np.ndarray | None = None  # (N, 3) float64, world; with them, what turns its back is not drawn


def read_ply(path: Path | str) -> Cloud:
    """The vertices of a binary little-endian PLY, as COLMAP writes it; grey where it has no colours."""
    path = Path(path)
    try:
        content = read_bytes(path)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}).") from error
    header, mark, body = content.partition(b"end_header\n")
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
        raise InputError(f"{path} has a header that cannot be followed ({error}): write it again.") from error
    if not 0 <= count * kind.itemsize <= len(body) or not {"x", "y", "z"} <= set(kind.names or ()):
        raise InputError(f"{path} is cut off or has no x, y, z: write it again.")
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
    """The image (H, W, 3) uint8 that `view` would take of the points.

    Each point is a square of `point_size` world units, at least a pixel. Without a size, a point covers what is usual
    between it and its neighbours: the area of the image shared among the points seen.
    """
    pixels, depths = project(view, cloud.points)
    seen = (depths > 0) & (pixels > -1).all(1) & (pixels < [view.width, view.height]).all(1)
    if (
        cloud.normals is not None
    ):  # from outside a courtyard one looks through the backs of its walls, as into a doll's house
        seen &= ((view.centre() - cloud.points) * cloud.normals).sum(1) > 0
    pixels, depths, colours = pixels[seen], depths[seen], cloud.colours[seen]
    picture = np.full((view.height * view.width, 3), background, np.uint8)
    if not len(depths):
        return picture.reshape(view.height, view.width, 3)
    focal = view.intrinsics[0, 0]
    if point_size is None:
        point_size = float(np.median(depths)) / focal * np.sqrt(view.width * view.height / len(depths))
    reach = np.clip(np.rint((point_size * focal / depths - 1) / 2), 0, LARGEST_SPLAT).astype(np.int64)
    nearest = np.full(view.height * view.width, np.inf)
    column, row = np.rint(pixels).astype(np.int64).T
    most = int(reach.max())
    for down in range(-most, most + 1):
        for across in range(-most, most + 1):
            x, y = column + across, row + down
            drawn = (reach >= max(abs(down), abs(across))) & (x >= 0) & (y >= 0) & (x < view.width) & (y < view.height)
            which = np.flatnonzero(drawn)
            which = which[np.argsort(-depths[which], kind="stable")]  # the nearest is written last and stays
            place = y[which] * view.width + x[which]
            ahead = depths[which] < nearest[place]
            which, place = which[ahead], place[ahead]
            nearest[place] = depths[which]
            picture[place] = colours[which]
    return picture.reshape(view.height, view.width, 3)


def moved_view(
    view: View, back: float = 0.0, right: float = 0.0, up: float = 0.0, turn: float = 0.0, tilt: float = 0.0
) -> View:
    """The view from elsewhere: steps in world units along its own axes, then turned right and tilted down (degrees)."""
    steps = view.centre() + view.rotation.T @ np.array([right, -up, -back])
    yaw, pitch = np.deg2rad(turn), np.deg2rad(tilt)
    about_y = np.array([[np.cos(yaw), 0, -np.sin(yaw)], [0, 1, 0], [np.sin(yaw), 0, np.cos(yaw)]])
    about_x = np.array([[1, 0, 0], [0, np.cos(pitch), -np.sin(pitch)], [0, np.sin(pitch), np.cos(pitch)]])
    rotation = about_x @ about_y @ view.rotation
    return view._replace(rotation=rotation, translation=-rotation @ steps)


def save_cloud_picture(cloud: Cloud, view: View, path: Path | str, point_size: float | None = None) -> None:
    import cv2

    _, encoded = cv2.imencode(
        ".png", render_cloud(cloud, view, point_size)[..., ::-1], [cv2.IMWRITE_PNG_COMPRESSION, 9]
    )
    with new_file(path) as part:
        part.write_bytes(encoded.tobytes())


# ---- reconstruction.overview


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
    """A PNG of two images side by side."""
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
    """The image (HEIGHT, WIDTH, 3) uint8 from `around` degrees to the left of the cameras, `above` degrees over them."""
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
    """A view of the points (N, 3) in this direction, from where they just fill the image."""
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
    """World points (5, 3): the centre of the camera and the corners of its image at that depth."""
    pixels = np.array([[0, 0], [view.width, 0], [view.width, view.height], [0, view.height]]) - 0.5
    rays = np.column_stack([pixels, np.ones(4)]) @ np.linalg.inv(view.intrinsics).T
    return np.concatenate([view.centre()[None], (length * rays - view.translation) @ view.rotation])


# ---- reconstruction.page


TEMPLATE = Path(__file__).with_name("viewer.html")
MOST = 200_000  # points: 2.4 MB
REACH = 4.0  # radii of the scene; what lies farther away is left out
EDGES = ((0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (2, 3), (3, 4), (4, 1))  # of a frustum


def write_page(cloud: Cloud, views: Sequence[View], path: Path | str, title: str) -> None:
    """The points are turned as the cameras look, x right, y down, z ahead, and scaled so that the usual ones lie within 1."""
    turn = looking(views, 0, 0)
    centres = np.array([view.centre() for view in views])
    shown = np.concatenate([usual(cloud.points), centres]) @ turn.T
    low, high = shown.min(axis=0), shown.max(axis=0)
    middle, radius = (low + high) / 2, max(float(np.linalg.norm(high - low)) / 2, 1e-9)
    places = (cloud.points @ turn.T - middle) / radius
    near = np.flatnonzero((np.abs(places) < REACH).all(axis=1))
    if len(near) > MOST:
        near = np.sort(np.random.default_rng(0).choice(near, MOST, replace=False))
    unit = REACH / np.iinfo(np.int16).max
    length = frustum_length(centres, np.concatenate([usual(cloud.points), centres]))
    corners = [(frustum(view, length) @ turn.T - middle) / radius for view in views]
    lines = np.array([[one[start], one[end]] for one in corners for start, end in EDGES])
    data = {
        "places": packed(np.rint(places[near] / unit).astype("<i2")),
        "colours": packed(cloud.colours[near]),
        "unit": unit,
        "cameras": [round(float(number), 4) for number in lines.ravel()],
        "distance": 2.2,
    }
    text = TEMPLATE.read_text(encoding="utf-8").replace("@TITLE@", html.escape(title))
    write_text(path, text.replace("@DATA@", json.dumps(data)))


def show_model(place: Place, summary: dict[str, Any], name: str) -> None:
    """cloud.png and cloud.html of a workspace: its largest model."""
    title = (
        f"{name}: {summary['registered']} of {summary['photos']} photos, {summary['points']} points, "
        f"tracks of {summary['track_length']:.2f}, {summary['reprojection_error']:.2f} px"
    )
    cloud, views = read_ply(place.sparse / POINTS), load_scene(place.notes / SCENE).views
    draw_overview(cloud, views, place.folder / "cloud.png", title)
    write_page(cloud, views, place.folder / "cloud.html", title)


def packed(values: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode("ascii")

"""Pictures of point clouds: read a PLY, look at it from somewhere, nearest points in front."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from sdgmnet.errors import InputError
from sdgmnet.files import new_file, read_bytes
from sdgmnet.reconstruction.views import View, project

PLY_TYPES = {
    "float": "<f4", "float32": "<f4", "double": "<f8", "float64": "<f8", "uchar": "u1", "uint8": "u1", "char": "i1",
    "int8": "i1", "short": "<i2", "int16": "<i2", "ushort": "<u2", "uint16": "<u2", "int": "<i4", "int32": "<i4",
    "uint": "<u4", "uint32": "<u4",
}  # fmt: skip
COLOURS, NORMALS = ("red", "green", "blue"), ("nx", "ny", "nz")
LARGEST_SPLAT = 8  # pixels to each side: a point close to the eye should not cover the picture


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
    """The picture (H, W, 3) uint8 that `view` would take of the points.

    Each point is a square of `point_size` world units, at least a pixel. Without a size, a point covers what is usual
    between it and its neighbours: the area of the picture shared among the points seen.
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

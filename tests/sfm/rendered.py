"""A rendered scene with known poses: a floor seen obliquely, a wall and a sphere, all of one solid texture."""

from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

from sdgmnet.sfm.scene import SparseScene, View, project, save_scene, unproject
from sdgmnet.sfm.stereo import DenseOptions

SPHERE, RADIUS = np.array([0.3, 0.2, 4.2]), 0.8
FLOOR, WALL = 1.0, 6.0  # y of the floor (y points down), z of the wall
WIDTH, HEIGHT = 240, 180  # of the scene that the tests of this folder share
OPTIONS = DenseOptions(size=WIDTH, coarsest=WIDTH // 2)


class Rendered(NamedTuple):
    scene: SparseScene
    images: list[np.ndarray]  # (H, W) uint8
    depths: list[np.ndarray]  # (H, W) float64
    normals: list[np.ndarray]  # (H, W, 3) float64, camera coordinates, towards the camera


def look(name: str, centre: np.ndarray, target: np.ndarray, width: int, height: int) -> View:
    forward = (target - centre) / np.linalg.norm(target - centre)
    right = np.cross([0, 1.0, 0], forward)
    right /= np.linalg.norm(right)
    rotation = np.stack([right, np.cross(forward, right), forward])
    focal = 0.95 * width
    intrinsics = np.array([[focal, 0, width / 2 - 0.5], [0, focal, height / 2 - 0.5], [0, 0, 1]])
    return View(name, width, height, intrinsics, rotation, -rotation @ centre)


def cast(view: View, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Depths, world points and world normals of the first surface behind each pixel (N, 2)."""
    origin = view.centre()
    rays = unproject(view, pixels, np.ones(len(pixels))) - origin  # one unit of depth each
    floor, wall = np.full(len(rays), np.inf), (WALL - origin[2]) / rays[:, 2]
    down = rays[:, 1] > 1e-9
    floor[down] = (FLOOR - origin[1]) / rays[down, 1]
    a, b = (rays**2).sum(1), rays @ (origin - SPHERE)
    inside = b**2 - a * (((origin - SPHERE) ** 2).sum() - RADIUS**2)
    ball = np.where(inside > 0, (-b - np.sqrt(np.maximum(inside, 0))) / a, np.inf)
    which = np.argmin([floor, wall, ball], axis=0)
    depths = np.choose(which, [floor, wall, ball])
    points = origin + rays * depths[:, None]
    flat = np.array([[0, -1.0, 0], [0, 0, -1.0], [0, 0, 0]])[which]
    return depths, points, np.where(which[:, None] == 2, (points - SPHERE) / RADIUS, flat)


class SolidTexture:
    """Smooth noise in space: each octave a random grid, interpolated linearly."""

    def __init__(self, seed: int, finest: float) -> None:
        rng = np.random.default_rng(seed)
        self.octaves = [(finest * 2**power, rng.normal(size=(32, 32, 32))) for power in range(4)]

    def __call__(self, points: np.ndarray) -> np.ndarray:
        total = np.zeros(len(points))
        for length, grid in self.octaves:
            base = np.floor(points / length).astype(int)
            part = points / length - base
            for corner in np.ndindex(2, 2, 2):
                weight = np.prod(np.where(corner, part, 1 - part), axis=1)
                total += weight * grid[tuple(((base + corner) % 32).T)]
        return np.clip(128 + 42 * total, 0, 255)


def pixel_centres(width: int, height: int) -> np.ndarray:
    return np.stack(np.meshgrid(np.arange(width), np.arange(height)), -1).reshape(-1, 2).astype(np.float64)


def render(view: View, texture: SolidTexture) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Image (mean of 2 x 2 rays a pixel), depths and normals of the pixel centres."""
    pixels, size = pixel_centres(view.width, view.height), (view.height, view.width)
    rays = [pixels + np.array([x, y]) for x in (-0.25, 0.25) for y in (-0.25, 0.25)]
    light = np.mean([texture(cast(view, some)[1]) for some in rays], axis=0).round().astype(np.uint8)
    depths, _, normals = cast(view, pixels)
    return light.reshape(size), depths.reshape(size), (normals @ view.rotation.T).reshape(*size, 3)


def rendered_scene(width: int = 240, height: int = 180, count: int = 5, points: int = 1500) -> Rendered:
    """Cameras on an arc of 7 degrees a step, and random surface points as sparse points."""
    rng = np.random.default_rng(0)
    target, views = np.array([0, 0.3, 4.5]), []
    for place in range(count):
        angle = np.deg2rad(7 * (place - (count - 1) / 2))
        centre = target + 4.5 * np.array([np.sin(angle), -0.18 - 0.03 * (place % 2), -np.cos(angle)])
        views.append(look(f"{place}.png", centre, target, width, height))
    texture = SolidTexture(1, 4.5 / (0.95 * width) * 2.5)
    images, depths, normals = zip(*(render(view, texture) for view in views), strict=True)
    spread = np.concatenate(
        [cast(view, rng.uniform(0, [width - 1, height - 1], (points // count, 2)))[1] for view in views]
    )
    rows = []
    for index, view in enumerate(views):
        rows += [(index, point) for point in np.flatnonzero(visible(view, spread))]
    return Rendered(SparseScene(tuple(views), spread, np.array(rows)), list(images), list(depths), list(normals))


def visible(view: View, points: np.ndarray) -> np.ndarray:
    """Which world points (N, 3) the view sees: inside the image and not behind another surface."""
    pixels, depths = project(view, points)
    inside = (depths > 0) & (pixels >= 0).all(1) & (pixels <= [view.width - 1, view.height - 1]).all(1)
    first = np.zeros(len(points))
    first[inside] = cast(view, pixels[inside])[0]
    return inside & (np.abs(first - depths) < 1e-3 * depths)


def write_workspace(rendered: Rendered, folder: Path) -> None:
    (folder / "images").mkdir(parents=True)
    for view, image in zip(rendered.scene.views, rendered.images, strict=True):
        cv2.imwrite(str(folder / "images" / view.name), image)
    save_scene(rendered.scene, folder / "scene.npz")
    write_sparse_text(rendered.scene, folder / "sparse")


def write_sparse_text(scene: SparseScene, folder: Path) -> None:
    """The scene as COLMAP's text model, with its pixel centres at halves."""
    folder.mkdir()
    tracks: list[list[str]] = [[] for _ in scene.points]
    cameras, images = [], []
    for index, view in enumerate(scene.views):
        (fx, _, cx), (_, fy, cy), _ = view.intrinsics
        cameras.append(f"{index + 1} PINHOLE {view.width} {view.height} {fx} {fy} {cx + 0.5} {cy + 0.5}\n")
        turn = cv2.Rodrigues(view.rotation)[0].ravel()
        angle = np.linalg.norm(turn)
        quaternion = [np.cos(angle / 2), *(turn / max(angle, 1e-12) * np.sin(angle / 2))]
        pose = " ".join(str(float(number)) for number in [*quaternion, *view.translation])
        seen = scene.observations[scene.observations[:, 0] == index, 1]
        places = project(view, scene.points[seen])[0] + 0.5
        for place, point in enumerate(seen):
            tracks[point].append(f"{index + 1} {place}")
        rows = " ".join(f"{x} {y} {point + 1}" for (x, y), point in zip(places, seen, strict=True))
        images.append(f"{index + 1} {pose} {index + 1} {view.name}\n{rows}\n")
    (folder / "cameras.txt").write_text("".join(cameras))
    (folder / "images.txt").write_text("".join(images))
    points = [
        f"{index + 1} {x} {y} {z} 128 128 128 0.1 {' '.join(tracks[index])}\n"
        for index, (x, y, z) in enumerate(scene.points)
        if tracks[index]
    ]
    (folder / "points3D.txt").write_text("".join(points))

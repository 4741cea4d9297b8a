"""Two images side by side, with lines between their matches."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import cv2
import matplotlib
import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from sdgmnet.storage import new_file

HEIGHT = 900  # pixels of each image as drawn
MAX_WIDTH = 2400  # pixels of both
GAP = 16
MAX_LINES = 150  # evenly spread: more would hide the images; every inlier has its dots
DPI = 150
TITLE = 46  # pixels above the images
OUTLIER = "#d62728"


class Layout(NamedTuple):
    """Where `draw_matches` draws two images: in pixels of the file, below the title."""

    scales: tuple[float, float]
    corners: np.ndarray  # (2, 2): x, y of the top left corner of each image
    width: int
    height: int

    def place(self, xy: np.ndarray, side: int) -> np.ndarray:
        """Locations (M, 2) in an image, 0 or 1, as they are drawn."""
        return (xy + 0.5) * self.scales[side] - 0.5 + self.corners[side]

    def locate(self, x: float, y: float) -> tuple[int, np.ndarray]:
        """The image, 0 or 1, nearest to a drawn location, and the location (2,) in it: the inverse of `place`."""
        side = int(x >= self.corners[1, 0] - GAP / 2)
        return side, (np.array([x, y]) - self.corners[side] + 0.5) / self.scales[side] - 0.5


def layout(sizes: list[tuple[int, int]]) -> Layout:
    """Of two images by their height and width."""
    first, second = fitting_scales(sizes)
    (left_height, left_width), (right_height, right_width) = (
        scaled(size, scale) for size, scale in zip(sizes, (first, second), strict=True)
    )
    height, offset = max(left_height, right_height), left_width + GAP
    corners = np.array([[0, (height - left_height) // 2], [offset, (height - right_height) // 2]])
    return Layout((first, second), corners, offset + right_width, height)


def draw_matches(
    images: tuple[np.ndarray, np.ndarray],
    xy: tuple[np.ndarray, np.ndarray],
    inlier: np.ndarray,
    path: Path | str,
    title: str,
    *,
    show_outliers: bool = True,
) -> None:
    """Write a PNG of two images, (H, W) or (H, W, 3) uint8 in RGB, with lines between matching locations `xy` (M, 2).

    The colour follows the location in the first image, so that a line can be followed and a wrong one stands out. Outliers are
    faint and below the inliers, or hidden.
    """
    drawn_as = layout([(len(image), image.shape[1]) for image in images])
    width, height = drawn_as.width, drawn_as.height
    shown = [resize(image, scale) for image, scale in zip(images, drawn_as.scales, strict=True)]
    canvas = np.full((height, width, 3), 255, dtype=np.uint8)
    for one, (left, top) in zip(shown, drawn_as.corners, strict=True):
        canvas[top : top + len(one), left : left + one.shape[1]] = one
    ends = np.stack([drawn_as.place(one, side) for side, one in enumerate(xy)], 1)  # (M, 2, 2)
    figure = Figure(figsize=(width / DPI, (height + TITLE) / DPI), dpi=DPI)
    axis = figure.add_axes((0, 0, 1, height / (height + TITLE)))
    axis.imshow(canvas, interpolation="nearest", aspect="auto")
    axis.axis("off")
    if show_outliers:
        wrong = ends[~inlier][spread(ends[~inlier], MAX_LINES // 2)]
        axis.add_collection(LineCollection(list(wrong), colors=OUTLIER, linewidths=0.5, alpha=0.3))
    right = ends[inlier]
    colors = position_colors(right[:, 0], shown[0].shape[:2], float(drawn_as.corners[0, 1]))
    for side in range(2):
        axis.scatter(right[:, side, 0], right[:, side, 1], s=2.5, c=colors, linewidths=0)
    drawn = spread(right, MAX_LINES)
    axis.add_collection(LineCollection(list(right[drawn]), colors=list(colors[drawn]), linewidths=0.7, alpha=0.85))
    axis.set_xlim(-0.5, width - 0.5)
    axis.set_ylim(height - 0.5, -0.5)
    if len(drawn) < len(right):
        title += f", {len(drawn)} drawn"
    size = min(10.0, 1.55 * width / DPI * 72 / max(len(title), 1))
    figure.text(0.5, 1 - TITLE / 2 / (height + TITLE), title, ha="center", va="center", fontsize=size, parse_math=False)
    with new_file(path) as part:
        figure.savefig(part, format=Path(path).suffix[1:].lower(), dpi=DPI, facecolor="white")


def stack_images(paths: Sequence[Path], path: Path | str, width: int = 1200) -> None:
    """Write images below each other as one JPEG of this width."""
    rows = []
    for one in paths:
        image = np.asarray(cv2.imread(str(one), cv2.IMREAD_COLOR))
        rows.append(resize(image, width / image.shape[1])[:, :width])
    coded = cv2.imencode(".jpg", np.concatenate(rows), [cv2.IMWRITE_JPEG_QUALITY, 75])[1]
    with new_file(path) as part:
        part.write_bytes(coded.tobytes())


def fitting_scales(sizes: list[tuple[int, int]]) -> list[float]:
    """Scales that give both images the same height, and together at most MAX_WIDTH."""
    scales = [HEIGHT / height for height, _ in sizes]
    width = sum(scale * size[1] for scale, size in zip(scales, sizes, strict=True))
    return [scale * min(1.0, MAX_WIDTH / width) for scale in scales]


def scaled(size: tuple[int, int], scale: float) -> tuple[int, int]:
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def resize(image: np.ndarray, scale: float) -> np.ndarray:
    """(H, W, 3) uint8, resized."""
    height, width = scaled((len(image), image.shape[1]), scale)
    image = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC)
    return image if image.ndim == 3 else cv2.cvtColor(image, cv2.COLOR_GRAY2RGB)


def spread(ends: np.ndarray, count: int) -> np.ndarray:
    """Indices of at most `count` lines, by farthest-point sampling in the first image."""
    if len(ends) <= count:
        return np.arange(len(ends))
    points = ends[:, 0]
    chosen = np.empty(count, dtype=np.int64)
    chosen[0] = 0
    far = np.square(points - points[0]).sum(1)
    for number in range(1, count):
        chosen[number] = far.argmax()
        far = np.minimum(far, np.square(points - points[chosen[number]]).sum(1))
    return np.sort(chosen)


def position_colors(points: np.ndarray, size: tuple[int, int], top: float) -> np.ndarray:
    """RGBA (M, 4): the hue changes from left to right, lighter towards the bottom."""
    along = np.clip(points[:, 0] / max(size[1] - 1, 1), 0, 1)
    down = np.clip((points[:, 1] - top) / max(size[0] - 1, 1), 0, 1)
    colors = matplotlib.colormaps["turbo"](0.08 + 0.84 * along)
    colors[:, :3] = 1 - (1 - colors[:, :3]) * (1 - 0.35 * down[:, None])
    return np.asarray(colors)

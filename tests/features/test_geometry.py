"""Patch geometry: patches follow the image, and every library's conventions lead to the same patch."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import cv2
import kornia.feature as KF
import numpy as np
import pytest
import torch

from sdgmnet.descriptors import describe
from sdgmnet.features.images import read_gray
from sdgmnet.features.keypoints import Keypoints, detect, from_opencv, to_opencv
from sdgmnet.features.kornia import from_lafs, to_lafs
from sdgmnet.features.patches import cut_patches, inside
from sdgmnet.sfm.colmap import from_colmap, to_colmap
from tests.features.samples import noise_image
from tests.sfm.planes import with_orientation

WIDTH, HEIGHT = 400, 360


@pytest.fixture(scope="module")
def image() -> np.ndarray:
    return noise_image(WIDTH, HEIGHT)


@pytest.fixture(scope="module")
def found(image: np.ndarray) -> Keypoints:
    return detect(image)


def correlation(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """NCC of each patch with its counterpart."""
    flat = [images.reshape(len(images), -1).astype(np.float64) for images in (left, right)]
    flat = [rows - rows.mean(axis=1, keepdims=True) for rows in flat]
    return (flat[0] * flat[1]).sum(axis=1) / np.linalg.norm(flat[0], axis=1) / np.linalg.norm(flat[1], axis=1)


class Move(NamedTuple):
    """p -> zoom R(turn) p + shift, of pixel centres at integers; the angle clockwise as ours is."""

    turn: float = 0.0
    zoom: float = 1.0
    shift: tuple[float, float] = (0.0, 0.0)

    def matrix(self) -> np.ndarray:
        """About the image's middle."""
        cos, sin = self.zoom * math.cos(self.turn), self.zoom * math.sin(self.turn)
        linear, middle = np.array([[cos, -sin], [sin, cos]]), np.array([(WIDTH - 1) / 2, (HEIGHT - 1) / 2])
        return np.column_stack([linear, self.zoom * middle - linear @ middle + self.shift])

    def of_image(self, image: np.ndarray) -> np.ndarray:
        size = round(self.zoom * WIDTH), round(self.zoom * HEIGHT)
        if self.zoom < 1:  # smooth before reading, as a lens farther away does
            image = cv2.GaussianBlur(image, (0, 0), 0.5 * math.sqrt(1 / self.zoom**2 - 1))
        return cv2.warpAffine(image, self.matrix(), size, flags=cv2.INTER_CUBIC)

    def of_keypoints(self, points: Keypoints) -> Keypoints:
        matrix = self.matrix()
        xy = points.xy @ matrix[:, :2].T + matrix[:, 2]
        return points._replace(xy=xy, sigma=points.sigma * self.zoom, angle=points.angle + self.turn)

    def stays(self, points: Keypoints) -> np.ndarray:
        """Whose patch lies within both images, with nothing from beyond the border of the first."""
        upright = points._replace(sigma=points.sigma * 1.5)
        moved = self.of_keypoints(upright)
        return inside(upright, WIDTH, HEIGHT) & inside(moved, round(self.zoom * WIDTH), round(self.zoom * HEIGHT))


MOVES = {
    "turned by 40 degrees": Move(turn=math.radians(40)),
    "turned by -40 degrees": Move(turn=math.radians(-40)),
    "1.7 times as large": Move(zoom=1.7),
    "1.7 times as small": Move(zoom=1 / 1.7),
    "shifted": Move(shift=(13.3, -7.6)),
    "all at once": Move(math.radians(40), 1.7, (4.4, 9.7)),
}


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES.keys())
def test_patches_follow_the_image(image: np.ndarray, found: Keypoints, move: Move) -> None:
    least = 1.5 / min(1, move.zoom)  # smaller ones lose detail with the pixels
    points = found.select(move.stays(found) & (found.sigma > least))
    assert len(points.xy) > 50
    before, after = cut_patches(image, points), cut_patches(move.of_image(image), move.of_keypoints(points))
    same = correlation(before, after)
    assert np.median(same) >= 0.97 and np.quantile(same, 0.05) > 0.9
    if move.turn:  # the other sign of the angle fits nothing
        wrong = move.of_keypoints(points)._replace(angle=points.angle - move.turn)
        assert np.median(correlation(before, cut_patches(move.of_image(image), wrong))) < 0.5


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES.keys())
def test_keypoints_are_found_again_where_they_went(image: np.ndarray, found: Keypoints, move: Move) -> None:
    """Place to a tenth of a pixel in the median, each way; a detector that misplaces by a constant fails when turned."""
    expected = move.of_keypoints(found.select(move.stays(found) & (found.sigma * move.zoom > 1.6)))
    again = detect(move.of_image(image))
    away = np.linalg.norm(expected.xy[:, None] - again.xy[None], axis=2)
    grown = np.abs(np.log(expected.sigma[:, None] / again.sigma[None]))
    turned = np.abs((expected.angle[:, None] - again.angle[None] + np.pi) % (2 * np.pi) - np.pi)
    one, two = np.nonzero((away < 1.5 * max(1, move.zoom)) & (grown < 0.2) & (turned < 0.3))
    assert len(np.unique(one)) > 0.4 * len(expected.xy)
    error = np.median(again.xy[two] - expected.xy[one], axis=0)
    assert np.abs(error).max() < 0.1


def test_enlarging_as_opencv_does_keeps_the_half_pixel(image: np.ndarray, found: Keypoints) -> None:
    """cv2.resize, an independent word on pixel centres: x -> (x + 1/2) 2 - 1/2."""
    large = cv2.resize(image, None, fx=2, fy=2, interpolation=cv2.INTER_CUBIC)
    points = found.select(inside(found, WIDTH, HEIGHT) & (found.sigma > 1.5))
    points = points._replace(angle=np.zeros(len(points.xy)))
    moved = points._replace(xy=(points.xy + 0.5) * 2 - 0.5, sigma=points.sigma * 2)
    shift = measured_shift(cut_patches(image, points), cut_patches(large, moved), cell(points))
    assert np.abs(shift).max() < 0.05


def cell(points: Keypoints) -> np.ndarray:
    """Width of a patch's cells in pixels of the image."""
    return points.sigma * 12 / 64


def measured_shift(left: np.ndarray, right: np.ndarray, width: np.ndarray) -> np.ndarray:
    """By how many pixels of the image, x and y, the patches on the right lie beside those on the left.

    One shift for all, by least squares on the gradient (Lucas and Kanade); width (N,) are the cells' in pixels.
    """
    first, second = (smoothed(patches) for patches in (left, right))
    down, across = np.gradient((first + second) / 2, axis=(1, 2))
    slopes = np.stack([part[:, 4:-4, 4:-4] / width[:, None, None] for part in (across, down)], -1).reshape(-1, 2)
    return np.linalg.lstsq(slopes, (second - first)[:, 4:-4, 4:-4].ravel(), rcond=None)[0]


def smoothed(patches: np.ndarray) -> np.ndarray:
    return np.array([cv2.GaussianBlur(one.astype(np.float64), (0, 0), 1.5) for one in patches])


def test_the_measure_sees_a_tenth_of_a_pixel(image: np.ndarray, found: Keypoints) -> None:
    points = found.select(np.flatnonzero(inside(found, WIDTH, HEIGHT))[:100])
    upright = points._replace(angle=np.zeros(len(points.xy)))
    beside = upright._replace(xy=upright.xy + np.array([0.5, -0.1]))
    shift = measured_shift(cut_patches(image, upright), cut_patches(image, beside), cell(points))
    np.testing.assert_allclose(shift, [0.5, -0.1], atol=0.02)


def test_a_patch_of_one_pixel_a_cell_is_the_image_itself(image: np.ndarray) -> None:
    middle = np.array([[100 + 31.5, 50 + 31.5]])
    one = Keypoints(middle, np.array([64 / 12]), np.zeros(1), np.ones(1))
    assert np.array_equal(cut_patches(image, one)[0], image[50:114, 100:164])
    quarter = one._replace(angle=np.array([np.pi / 2]))  # the patch's x axis points down the image
    turned = np.rot90(image[50:114, 100:164])
    assert np.abs(cut_patches(image, quarter)[0].astype(int) - turned).max() <= 1


@pytest.mark.parametrize("pixels", [0.5, 1.0, 1.9, 2.0, 3.5, 4.0])
def test_the_half_pixel_is_right_on_every_level_of_the_pyramid(image: np.ndarray, pixels: float) -> None:
    """Against a patch read from the smoothed image itself, cell by cell. The image's sides are odd: halving them is not."""
    image = np.ascontiguousarray(image[:-1, :-3])
    rng = np.random.default_rng(1)
    reach = round(32 * pixels) + 4
    xy = rng.uniform(reach, [WIDTH - 4 - reach, HEIGHT - 2 - reach], (60, 2))
    points = Keypoints(xy, np.full(60, pixels * 64 / 12), np.zeros(60), np.ones(60))
    smooth = cv2.GaussianBlur(image.astype(np.float32), (0, 0), max(0.01, 0.5 * pixels))
    along = (np.arange(64) - 31.5) * pixels
    direct = []
    for x, y in xy:
        across, down = np.meshgrid((x + along).astype(np.float32), (y + along).astype(np.float32))
        direct.append(cv2.remap(smooth, across, down, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE))
    shift = measured_shift(np.array(direct), cut_patches(image, points), cell(points))
    assert np.abs(shift).max() < 0.05


def through_opencv(points: Keypoints) -> Keypoints:
    return from_opencv(to_opencv(points))


def through_kornia(points: Keypoints) -> Keypoints:
    return from_lafs(to_lafs(points))


def through_colmap(points: Keypoints) -> Keypoints:
    return from_colmap(to_colmap(points))


@pytest.mark.parametrize("through", [through_opencv, through_kornia, through_colmap])
def test_the_patch_is_the_same_there_and_back(
    image: np.ndarray, found: Keypoints, through: Callable[[Keypoints], Keypoints]
) -> None:
    difference = cut_patches(image, through(found)).astype(int) - cut_patches(image, found)
    assert np.abs(difference).max() <= 1


def test_three_libraries_read_the_same_patch(image: np.ndarray, found: Keypoints) -> None:
    """Each by its own conventions: OpenCV's rotation matrix, kornia's extraction, COLMAP's affine shape."""
    points = found.select(np.flatnonzero(inside(found, WIDTH, HEIGHT) & (cell(found) < 1))[:100])
    ours = cut_patches(image, points)
    tensor = torch.from_numpy(image.astype(np.float32))[None, None]
    kornias = KF.extract_patches_from_pyramid(tensor, to_lafs(points), 64)[0, :, 0].numpy()
    opencvs = np.array([read_as_opencv(image, one) for one in to_opencv(points)])
    colmaps = np.array([read_as_colmap(image, row) for row in to_colmap(points)])
    for theirs in (kornias, opencvs, colmaps):
        assert np.abs(theirs - ours).mean(axis=(1, 2)).max() < 1  # gray levels; cells are read to 1/32 pixel
        assert np.abs(measured_shift(theirs, ours, cell(points))).max() < 0.02


def read_as_opencv(image: np.ndarray, one: cv2.KeyPoint) -> np.ndarray:
    """The square of six sizes, turned back by OpenCV's own matrix: its angle counts the other way, counter-clockwise."""
    zoom = 64 / (6 * one.size)
    matrix = cv2.getRotationMatrix2D(one.pt, one.angle, zoom)
    matrix[:, 2] += 31.5 - np.array(one.pt)
    return cv2.warpAffine(image, matrix, (64, 64), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)


def read_as_colmap(image: np.ndarray, row: np.ndarray) -> np.ndarray:
    """Its shape [a11 a12; a21 a22] takes the unit circle to that of radius sigma; the image's corner is at (0, 0)."""
    x, y, scale, orientation = row
    cos, sin = scale * math.cos(orientation), scale * math.sin(orientation)
    along = (np.arange(64) - 31.5) * 12 / 64
    across, down = np.meshgrid(along, along)
    places = [x + cos * across - sin * down - 0.5, y + sin * across + cos * down - 0.5]
    left, top = (place.astype(np.float32) for place in places)
    return cv2.remap(image, left, top, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)


STORED = {  # how pixels lie in the file, so that EXIF orientation turns them upright
    1: lambda upright: upright,
    2: lambda upright: upright[:, ::-1],
    3: lambda upright: upright[::-1, ::-1],
    4: lambda upright: upright[::-1],
    5: lambda upright: upright.T,
    6: lambda upright: np.rot90(upright),
    7: lambda upright: upright[::-1, ::-1].T,
    8: lambda upright: np.rot90(upright, -1),
}


@pytest.mark.parametrize("orientation", STORED)
def test_exif_orientation_is_applied_once(image: np.ndarray, tmp_path: Path, orientation: int) -> None:
    stored = np.ascontiguousarray(STORED[orientation](image))
    jpeg = cv2.imencode(".jpg", stored, [cv2.IMWRITE_JPEG_QUALITY, 100])[1].tobytes()
    path = tmp_path / "note.jpg"
    path.write_bytes(with_orientation(jpeg, orientation))
    assert np.abs(read_gray(path).astype(int) - image).max() <= 3
    described = describe(path, descriptor="rootsift", limit=20)
    assert described.size == (WIDTH, HEIGHT)
    wanted = describe(image, descriptor="rootsift", limit=200)
    nearest = np.linalg.norm(described.keypoints.xy[:, None] - wanted.keypoints.xy[None], axis=2).min(axis=1)
    assert np.median(nearest) < 0.1
    as_stored = read_gray(path, exif_orientation=False)
    assert np.abs(as_stored.astype(int) - stored).max() <= 3

"""Patches: where their cells lie, that other libraries read the same ones, and that they follow a warped image."""

import math
from typing import NamedTuple

import cv2
import numpy as np
import pytest
import torch
from kornia.feature import extract_patches_from_pyramid

from sdgmnet.errors import InputError
from sdgmnet.features.keypoints import Keypoints, detect, from_opencv, to_opencv
from sdgmnet.features.kornia import from_lafs, to_lafs
from sdgmnet.features.patches import cut_frames, cut_patches, inside, local_frames
from sdgmnet.sfm.colmap import from_colmap, to_colmap
from tests.features.samples import keypoints_at, noise_image, random_keypoints

WIDTH, HEIGHT = 400, 360
RAMP = np.tile(np.arange(256, dtype=np.uint8), (256, 1))  # the gray level is the coordinate
STRIPES = np.tile(np.array([0, 255], dtype=np.uint8), (400, 200))


@pytest.fixture(scope="module")
def image() -> np.ndarray:
    return noise_image(WIDTH, HEIGHT)


@pytest.fixture(scope="module")
def found(image: np.ndarray) -> Keypoints:
    return detect(image)


def expected_places(frame: np.ndarray, side: int, homography: np.ndarray | None = None) -> np.ndarray:
    """Where cell (row, column) of a patch lies in the image, cell by cell: (2, side, side), x and y."""
    places = np.empty((2, side, side))
    for row in range(side):
        for column in range(side):
            right, below = (2 * column + 1) / side - 1, (2 * row + 1) / side - 1
            x, y = (one[0] * right + one[1] * below + one[2] for one in frame)
            u, v, depth = (one @ (x, y, 1) for one in (np.eye(3) if homography is None else homography))
            places[:, row, column] = u / depth, v / depth
    return places


def test_cells_lie_where_they_should_and_patches_keep_their_order() -> None:
    """On images whose gray level is the coordinate, a patch shows where each of its cells was read."""
    sigma, angle = (one.ravel() for one in np.meshgrid([1.7, 2.5, 4.3, 9.0, 13.0], [0.0, 0.6, np.pi / 2, -2.3, 4.0]))
    xy = np.random.default_rng(1).uniform(120, 135, (25, 2))
    cut = [cut_patches(one, keypoints_at(xy, sigma, angle)) for one in (RAMP, np.ascontiguousarray(RAMP.T))]
    assert cut[0].shape == (25, 64, 64) and cut[0].dtype == np.uint8
    for row, (x, y) in enumerate(xy):
        cos, sin = (6 * sigma[row] * one(angle[row]) for one in (math.cos, math.sin))
        expected = expected_places(np.array([[cos, -sin, x], [sin, cos, y]]), 64)
        for patches, places in zip(cut, expected, strict=True):
            error = patches[row] - places.clip(0, 255)
            assert np.abs(error).max() <= 0.52  # rounded to whole gray levels
            assert abs(error.mean()) < 0.06  # a shift by half a pixel would be seen at once
    assert np.array_equal(cut_patches(RAMP, keypoints_at(xy[17], sigma[17], angle[17]))[0], cut[0][17])


@pytest.mark.parametrize("size", [9.0, 30.0, 55.0])
@pytest.mark.parametrize("sign", [1, -1])
def test_cells_of_a_frame_go_through_the_homography_one_by_one(size: float, sign: int) -> None:
    """A homography is the same with all signs turned."""
    homography = sign * np.array([[0.8, 0.15, 20], [-0.1, 0.9, 31], [4e-4, -3e-4, 1.0]])
    frame = np.array([[[0.9 * size, -0.4 * size, 131.2], [0.5 * size, 0.7 * size, 118.7]]])
    cut = [cut_frames(one, frame, 65, homography)[0] for one in (RAMP, np.ascontiguousarray(RAMP.T))]
    errors = cut - expected_places(frame[0], 65, homography)
    assert np.abs(errors).max() <= 0.6  # rounded to whole gray levels
    assert np.abs(errors.mean(axis=(1, 2))).max() < 0.06


def test_frames_of_keypoints_give_their_patches(image: np.ndarray, found: Keypoints) -> None:
    frames = local_frames(found).astype(np.float64)[:60]
    assert np.array_equal(cut_frames(image, frames, 64), cut_patches(image, found)[:60])
    assert cut_frames(image, frames[:0], 65).shape == (0, 65, 65)
    none = found.select(np.arange(0))
    assert cut_patches(image, none).shape == (0, 64, 64) and inside(none, 100, 100).shape == (0,)


@pytest.mark.parametrize(("x", "y"), [(3.0, 100.0), (197.0, 100.0), (100.0, 2.0)])
def test_outside_the_image_its_border_is_repeated(x: float, y: float) -> None:
    ramp = np.tile(np.arange(50, 250, dtype=np.uint8), (200, 1))
    expected = 50 + expected_places(np.array([[12.0, 0, x], [0, 12.0, y]]), 64)[0].clip(0, 199)
    assert np.abs(cut_patches(ramp, keypoints_at((x, y), 2.0))[0] - expected).max() <= 0.52


def test_large_patches_are_smoothed_before_they_are_reduced() -> None:
    """Stripes finer than a cell of the patch become gray instead of a false pattern."""
    frame = np.array([[[40.0, 0, 50], [0, 40, 50]]])
    through_homography = cut_frames(STRIPES, frame, 32, np.diag([4.0, 4, 1]))
    for patch in (cut_patches(STRIPES, keypoints_at((200, 200), 25.0)), through_homography):
        assert np.abs(patch.astype(float) - 127.5).max() < 30


def test_an_image_too_large_to_be_read_is_refused() -> None:
    with pytest.raises(InputError, match="40000"):
        cut_patches(np.zeros((2, 40_000), dtype=np.uint8), keypoints_at((5, 1), 2.0))


def test_a_patch_with_cells_of_one_pixel_is_the_image_itself(image: np.ndarray) -> None:
    shown = image[50:114, 100:164]
    one, quarter = (keypoints_at((131.5, 81.5), 64 / 12, angle) for angle in (0.0, np.pi / 2))
    assert np.array_equal(cut_patches(image, one)[0], shown)
    assert np.abs(cut_patches(image, quarter)[0].astype(int) - np.rot90(shown)).max() <= 1  # its x axis points down


def test_inside_means_all_four_corners() -> None:
    width, height = 150, 110
    many, expected = random_keypoints(500, 0, [width, height], (1, 8), seed=2), []
    for (x, y), sigma, angle in zip(many.xy, many.sigma, many.angle, strict=True):
        cos, sin = 6 * sigma * math.cos(angle), 6 * sigma * math.sin(angle)
        corners = [
            (x + cos * right - sin * down, y + sin * right + cos * down) for right in (-1, 1) for down in (-1, 1)
        ]
        expected.append(all(0 <= u <= width - 1 and 0 <= v <= height - 1 for u, v in corners))
    assert 50 < sum(expected) < 450
    assert inside(many, width, height).tolist() == expected


def measured_shift(left: np.ndarray, right: np.ndarray, points: Keypoints) -> np.ndarray:
    """By how many pixels of the image, x and y, the patches on the right are shifted against those on the left.

    One shift for all, by least squares on the gradient (Lucas and Kanade).
    """
    first, second = (
        np.array([cv2.GaussianBlur(one.astype(np.float64), (0, 0), 1.5) for one in patches])
        for patches in (left, right)
    )
    down, across = np.gradient((first + second) / 2, axis=(1, 2))
    cell = points.sigma[:, None, None] * 12 / 64  # width in pixels
    slopes = np.stack([part[:, 4:-4, 4:-4] / cell for part in (across, down)], -1).reshape(-1, 2)
    return np.linalg.lstsq(slopes, (second - first)[:, 4:-4, 4:-4].ravel(), rcond=None)[0]


def test_the_measure_sees_a_tenth_of_a_pixel(image: np.ndarray, found: Keypoints) -> None:
    points = found.select(np.flatnonzero(inside(found, WIDTH, HEIGHT))[:100])._replace(angle=np.zeros(100))
    shifted = points._replace(xy=points.xy + np.array([0.5, -0.1]))
    shift = measured_shift(cut_patches(image, points), cut_patches(image, shifted), points)
    np.testing.assert_allclose(shift, [0.5, -0.1], atol=0.02)


@pytest.mark.parametrize("pixels", [0.5, 1.0, 1.9, 2.0, 3.5, 4.0])
def test_the_half_pixel_is_right_on_every_level_of_the_pyramid(image: np.ndarray, pixels: float) -> None:
    """Against a patch read from the smoothed image itself, cell by cell. The image's sides are odd: halving them is not."""
    image = np.ascontiguousarray(image[:-1, :-3])
    reach = round(32 * pixels) + 4
    xy = np.random.default_rng(1).uniform(reach, [WIDTH - 4 - reach, HEIGHT - 2 - reach], (60, 2))
    points = keypoints_at(xy, pixels * 64 / 12)
    smooth = cv2.GaussianBlur(image.astype(np.float32), (0, 0), max(0.01, 0.5 * pixels))
    along = (np.arange(64) - 31.5) * pixels
    direct = [remap(smooth, *np.meshgrid(x + along, y + along)) for x, y in xy]
    assert np.abs(measured_shift(np.array(direct), cut_patches(image, points), points)).max() < 0.05


def remap(image: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    across, down = x.astype(np.float32), y.astype(np.float32)
    return cv2.remap(image, across, down, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)


def test_patches_are_the_same_through_other_libraries_keypoints(image: np.ndarray, found: Keypoints) -> None:
    ours = cut_patches(image, found).astype(int)
    for back in (from_opencv(to_opencv(found)), from_lafs(to_lafs(found)), from_colmap(to_colmap(found))):
        assert np.abs(cut_patches(image, back) - ours).max() <= 1


def test_patches_are_those_of_kornia(image: np.ndarray, found: Keypoints) -> None:
    """kornia reads the same places in its own way; its pyramid smooths a little more."""
    keypoints = found.select(inside(found, WIDTH, HEIGHT))
    tensor = torch.from_numpy(image.astype(np.float32))[None, None]
    expected = extract_patches_from_pyramid(tensor, to_lafs(keypoints), 64)[0, :, 0].numpy()
    error = np.abs(cut_patches(image, keypoints) - expected).mean(axis=(1, 2))
    reduced = keypoints.sigma * 12 / 64 >= 2
    assert (~reduced).sum() > 100 and reduced.sum() > 0
    assert error[~reduced].max() < 0.3  # rounding to whole gray levels is 0.25 of it
    assert error[reduced].max() < 4


def test_opencv_and_colmap_read_the_same_patch(image: np.ndarray, found: Keypoints) -> None:
    """Each by its own conventions: OpenCV's rotation matrix, COLMAP's affine shape."""
    points = found.select(np.flatnonzero(inside(found, WIDTH, HEIGHT) & (found.sigma < 64 / 12))[:100])
    ours = cut_patches(image, points)
    opencvs = np.array([read_as_opencv(image, one) for one in to_opencv(points)])
    colmaps = np.array([read_as_colmap(image, row) for row in to_colmap(points)])
    for theirs in (opencvs, colmaps):
        error = np.abs(theirs.astype(int) - ours).mean(axis=(1, 2))
        assert error.max() < 1  # gray levels; cells are read to 1/32 pixel
        assert np.abs(measured_shift(theirs, ours, points)).max() < 0.02


def read_as_opencv(image: np.ndarray, one: cv2.KeyPoint) -> np.ndarray:
    """The square of six sizes, turned back by OpenCV's own matrix: its angle counts the other way, counter-clockwise."""
    matrix = cv2.getRotationMatrix2D(one.pt, one.angle, 64 / (6 * one.size))
    matrix[:, 2] += 31.5 - np.array(one.pt)
    return cv2.warpAffine(image, matrix, (64, 64), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)


def read_as_colmap(image: np.ndarray, row: np.ndarray) -> np.ndarray:
    """Its shape [a11 a12; a21 a22] takes the unit circle to that of radius sigma; the image's corner is at (0, 0)."""
    x, y, scale, orientation = row
    cos, sin = scale * math.cos(orientation), scale * math.sin(orientation)
    along = (np.arange(64) - 31.5) * 12 / 64
    across, down = np.meshgrid(along, along)
    return remap(image, x + cos * across - sin * down - 0.5, y + sin * across + cos * down - 0.5)


# A rotated, scaled and shifted image: its patches and keypoints follow it


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

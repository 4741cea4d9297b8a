"""A rotated, scaled and shifted image: its patches and keypoints follow it."""

import math
from typing import NamedTuple

import cv2
import numpy as np
import pytest

from sdgmnet.features.keypoints import Keypoints, detect
from sdgmnet.features.patches import cut_patches, inside
from tests.features.samples import noise_image

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

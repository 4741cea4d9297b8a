from pathlib import Path

import cv2
import numpy as np
import pytest

from sdgmnet.benchmarks.sampled import Shown
from sdgmnet.plots import DPI, PAGE, PairOfPictures, aspect, draw_fig5, draw_mma, fitting


def read(path: Path) -> np.ndarray:
    picture = cv2.imread(str(path))
    assert picture is not None
    return picture[:, :, ::-1].astype(int)


def test_fig5_draws_crosses_and_lines_where_they_belong(tmp_path: Path) -> None:
    images = np.full((300, 400), 60, dtype=np.uint8), np.full((450, 300), 60, dtype=np.uint8)
    keypoints = np.array([[100.0, 60], [300, 240]])
    shown = Shown(keypoints, np.array([[150.0, 90], [20, 20]]), np.array([True, False]))
    none = shown._replace(correct=np.zeros(2, bool))
    draw_fig5(
        ["SIFT", "a $ long label"], [PairOfPictures("v_wall 1-6", images, [shown, none])] * 2, tmp_path / "fig5.png"
    )
    picture = read(tmp_path / "fig5.png")
    assert picture.shape[1] == pytest.approx(PAGE * DPI, abs=2)
    red, green, blue = (picture[:, :, channel] for channel in range(3))
    is_green, is_red = (green > red + 60) & (green > blue + 60), (red > green + 60) & (red > blue + 60)
    half = picture.shape[1] // 2
    assert is_green[:, :half].sum() > 100 and not is_green[:, half:].any()
    # The green line leads from a fifth of the height in the one image to a fifth in the other.
    bare = picture[:, :half].sum(2) == 180
    top, left = (int(np.argmax(bare.mean(axis=axis) > 0.3)) for axis in (1, 0))
    rows = is_green[: picture.shape[0] // 2, :half]
    ys, xs = np.nonzero(rows)
    height = (PAGE - 0.16 - 2 * 0.06) / 2 / aspect(images) * DPI
    assert ys.mean() - top == pytest.approx(height * 60.5 / 300, abs=3)
    assert xs.min() - left == pytest.approx(height * 100.5 / 300, abs=3)
    assert xs.max() - left == pytest.approx(height * (400 / 300 + 0.03 + 150.5 / 450), abs=3)
    # A red cross on every keypoint of the reference, correct or not.
    ys, xs = np.nonzero(is_red[: picture.shape[0] // 2, half:])
    assert np.ptp(ys) == pytest.approx(height * 180 / 300, abs=14)
    assert np.ptp(xs) == pytest.approx(height * 200 / 300, abs=14)


def test_labels_are_cut_to_their_place() -> None:
    assert fitting("SIFT", 2.0) == "SIFT"
    assert fitting("a" * 100, 1.0).endswith("…") and len(fitting("a" * 100, 1.0)) < 20
    assert len(fitting("a" * 100, 0.1, 50)) == 2


@pytest.mark.parametrize("descriptors", [1, 4, 9])
@pytest.mark.parametrize("kinds", [["unlabelled"], ["illumination", "viewpoint", "all"]])
def test_mma_has_a_colour_a_descriptor(tmp_path: Path, descriptors: int, kinds: list[str]) -> None:
    curves = [{kind: np.linspace(0.1, 0.9, 10) - 0.05 * k for kind in kinds} for k in range(descriptors)]
    draw_mma([f"number {k}" for k in range(descriptors)], curves, tmp_path / "mma.png")
    picture = read(tmp_path / "mma.png").reshape(-1, 3)
    first, second = (abs(picture - color).sum(1).min() for color in ((136, 34, 85), (68, 170, 153)))
    assert first < 6 and (second < 6) == (descriptors > 1)

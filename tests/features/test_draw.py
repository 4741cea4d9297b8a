from pathlib import Path

import cv2
import numpy as np
import pytest

from sdgmnet.features.draw import GAP, HEIGHT, MAX_WIDTH, draw_matches, fitting_scales, spread


@pytest.mark.parametrize(("first", "second"), [((60, 80), (80, 60)), ((2000, 3000, 3), (500, 400)), ((1, 1), (4, 3))])
def test_both_images_are_complete(tmp_path: Path, first: tuple[int, ...], second: tuple[int, ...]) -> None:
    images = np.full(first, 90, dtype=np.uint8), np.full(second, 160, dtype=np.uint8)
    draw_matches(images, (np.zeros((0, 2)), np.zeros((0, 2))), np.zeros(0, dtype=bool), tmp_path / "m.png", " ")
    drawn = cv2.imread(str(tmp_path / "m.png"))
    scales = fitting_scales([first[:2], second[:2]])
    for value, size, scale in ((90, first, scales[0]), (160, second, scales[1])):
        for side, places in zip(size, np.nonzero((drawn == value).all(2)), strict=False):
            assert np.ptp(places) + 1 == pytest.approx(side * scale, abs=2)
    assert drawn.shape[1] <= MAX_WIDTH + GAP + 2 and drawn.shape[0] <= HEIGHT + 60


def test_a_line_goes_from_place_to_place(tmp_path: Path) -> None:
    gray = np.full((900, 900), 128, dtype=np.uint8)
    places = np.array([[100.0, 200.0], [5, 5]]), np.array([[800.0, 200.0], [5, 890]])
    draw_matches((gray, gray), places, np.array([True, False]), tmp_path / "m.png", "one", show_outliers=False)
    drawn = cv2.imread(str(tmp_path / "m.png")).astype(int)
    rows, columns = np.nonzero(np.ptp(drawn, axis=2) > 40)
    top = drawn.shape[0] - 900
    assert rows.min() >= top + 195 and rows.max() <= top + 205
    assert (columns.min(), columns.max()) == pytest.approx((100, 900 + GAP + 800), abs=6)


def test_lines_are_spread() -> None:
    crowd, far = np.random.default_rng(0).uniform(0, 1, (500, 2)), np.array([[900.0, 900], [0, 900], [900, 0]])
    ends = np.stack([np.concatenate([crowd, far])] * 2, 1)
    chosen = set(spread(ends, 10).tolist())
    assert len(chosen) == 10 and {500, 501, 502} <= chosen
    assert len(spread(ends, 1000)) == 503

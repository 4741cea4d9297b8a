"""The one filter for patches, against loops and against PIL."""

import numpy as np
import pytest
import torch
from PIL import Image

from sdgmnet.engine import halve, resample_matrix

CROPS = [(0, 0, 64, 64), (1, 2, 61, 60), (0, 3, 62, 61), (4, 0, 59, 63), (3, 3, 60, 60), (5, 6, 32, 32), (2, 9, 40, 20)]


def noise(count: int, side: int = 64, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(256, size=(count, side, side), dtype=np.uint8)


def halved_by_loop(line: np.ndarray) -> np.ndarray:
    """[1, 3, 3, 1] / 8 over a line; at the ends over the three pixels that exist, [3, 3, 1] / 7."""
    out = np.empty(len(line) // 2)
    for target in range(len(out)):
        total, weights = 0.0, 0
        for tap, weight in enumerate((1, 3, 3, 1)):
            source = 2 * target - 1 + tap
            if 0 <= source < len(line):
                total, weights = total + weight * float(line[source]), weights + weight
        out[target] = total / weights
    return out


@pytest.mark.parametrize("side", [4, 16, 64])
def test_halving_is_the_separable_filter(side: int) -> None:
    pixels = noise(2, side)
    rows = np.stack([[halved_by_loop(line) for line in patch] for patch in pixels])
    expected = np.stack([[halved_by_loop(line) for line in patch.T] for patch in rows]).transpose(0, 2, 1)
    result = halve(torch.from_numpy(pixels).double())
    assert result.shape == (2, side // 2, side // 2)
    assert np.allclose(result.numpy(), expected, atol=1e-9)
    assert torch.allclose(halve(torch.from_numpy(pixels).float()).double(), result, atol=1e-3)


def test_an_inner_pixel_counted_by_hand() -> None:
    pixels = torch.zeros(1, 8, 8)
    pixels[0, 3, 4] = 64.0  # second of the inner taps of row 1, first of those of column 2
    result = halve(pixels)[0]
    assert result[1, 2] == pytest.approx(9.0) and result[2, 2] == pytest.approx(3.0)
    assert result[1, 1] == pytest.approx(3.0) and result[2, 1] == pytest.approx(1.0)
    assert float(result.sum()) == pytest.approx(16.0)


def test_a_constant_patch_stays_constant() -> None:
    assert torch.allclose(halve(torch.full((3, 64, 64), 137.0)), torch.full((3, 32, 32), 137.0), atol=1e-4)


def test_rows_of_the_matrix_are_averages_of_the_range_alone() -> None:
    start, length = torch.tensor([0.0, 7.0, 20.0]), torch.tensor([64.0, 50.0, 33.0])
    matrix = resample_matrix(start, length, 64, 32)
    assert matrix.shape == (3, 32, 64)
    assert torch.allclose(matrix.sum(dim=2), torch.ones(3, 32), atol=1e-5)
    assert float(matrix.min()) >= 0
    for row, (first, count) in enumerate([(0, 64), (7, 50), (20, 33)]):
        outside = [column for column in range(64) if not first <= column < first + count]
        assert float(matrix[row][:, outside].abs().sum()) == 0


@pytest.mark.parametrize("crop", CROPS)
def test_resampling_a_crop_is_what_pil_does(crop: tuple[int, int, int, int]) -> None:
    """PIL rounds to whole grey levels after each of its two passes."""
    top, left, height, width = crop
    down = resample_matrix(torch.tensor([float(top)]), torch.tensor([float(height)]), 64, 32)
    across = resample_matrix(torch.tensor([float(left)]), torch.tensor([float(width)]), 64, 32)
    for patch in noise(3, seed=1):
        box = (left, top, left + width, top + height)
        expected = np.asarray(Image.fromarray(patch).crop(box).resize((32, 32), Image.Resampling.BILINEAR), dtype=float)
        result = (down @ torch.from_numpy(patch).float() @ across.transpose(1, 2))[0].numpy()
        assert np.abs(result - expected).max() <= 1.0
        assert abs((result - expected).mean()) < 0.3  # PIL rounds halves up


def test_halving_is_what_pil_does() -> None:
    for patch in noise(3, seed=2):
        expected = np.asarray(Image.fromarray(patch).resize((32, 32), Image.Resampling.BILINEAR), dtype=float)
        assert np.abs(halve(torch.from_numpy(patch)[None].float())[0].numpy() - expected).max() <= 1.0

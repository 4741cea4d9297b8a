"""Matching against a brute-force search in float64."""

import numpy as np
import pytest

import sdgmnet
from sdgmnet.errors import InputError
from sdgmnet.features.describe import Features
from sdgmnet.features.keypoints import Keypoints
from sdgmnet.features.match import match


def unit(count: int, size: int, seed: int) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(count, size))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def squared_distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.square(a.astype(np.float64)[:, None] - b.astype(np.float64)[None]).sum(2)


@pytest.mark.parametrize("mutual", [False, True])
@pytest.mark.parametrize("ratio", [None, 0.9, 1.0])
def test_against_a_loop(mutual: bool, ratio: float | None) -> None:
    a, b = unit(90, 8, 3), unit(70, 8, 4)
    distances = np.sqrt(squared_distances(a, b))
    wanted = []
    for i, row in enumerate(distances):
        j = row.argmin()
        share = row[j] / np.delete(row, j).min()
        if (not mutual or distances[:, j].argmin() == i) and (ratio is None or share < ratio):
            wanted.append((i, j, row[j], share))
    found = match(a, b, mutual=mutual, ratio=ratio)
    assert 5 < len(wanted) <= 90
    np.testing.assert_array_equal(found.pairs, [row[:2] for row in wanted])
    np.testing.assert_allclose(found.distance, [row[2] for row in wanted], rtol=1e-5)
    np.testing.assert_allclose(found.ratio, [row[3] for row in wanted], rtol=1e-5)
    assert found.pairs.dtype == np.int64
    assert found.distance.dtype == found.ratio.dtype == np.float32


def test_small_distances_keep_their_digits() -> None:
    a = unit(20, 128, 5)
    moved = a.copy()
    moved[:, 0] += 1e-4
    found = match(a, np.concatenate([moved, a[:1] + 1e-3]))
    np.testing.assert_array_equal(found.pairs, np.column_stack([np.arange(20)] * 2))
    np.testing.assert_allclose(found.distance, 1e-4, rtol=1e-3)


def test_one_descriptor_has_no_second() -> None:
    found = match(unit(5, 16, 1), unit(1, 16, 2), mutual=False)
    np.testing.assert_array_equal(found.ratio, 1)
    np.testing.assert_array_equal(found.pairs[:, 1], 0)
    assert len(match(unit(5, 16, 1), unit(1, 16, 2)).pairs) == 1
    assert len(match(unit(5, 16, 1), unit(1, 16, 2), ratio=1.0).pairs) == 0


def test_twins_have_no_ratio() -> None:
    a = unit(4, 16, 1)
    found = match(a, np.repeat(a, 2, axis=0), mutual=False)
    np.testing.assert_array_equal(found.pairs[:, 1], [0, 2, 4, 6])
    np.testing.assert_array_equal(found.distance, 0)
    np.testing.assert_array_equal(found.ratio, 1)


@pytest.mark.parametrize("sizes", [(0, 0), (0, 5), (5, 0)])
@pytest.mark.parametrize("mutual", [False, True])
def test_nothing_matches_nothing(sizes: tuple[int, int], mutual: bool) -> None:
    a, b = (np.zeros((count, 128), dtype=np.float32) for count in sizes)
    found = match(a, b, mutual=mutual, ratio=0.8)
    assert found.pairs.shape == (0, 2)
    assert found.distance.shape == found.ratio.shape == (0,)


def test_any_numbers_are_accepted() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 256, (300, 128), dtype=np.uint8) for _ in range(2))
    found = match(a, b, mutual=False)
    np.testing.assert_array_equal(found.pairs[:, 1], squared_distances(a, b).argmin(1))
    as_numbers = match(a.astype(np.float64), b.astype(np.float16), mutual=False)
    np.testing.assert_array_equal(found.pairs, as_numbers.pairs)
    read_only = a[::-1]
    read_only.flags.writeable = False
    np.testing.assert_array_equal(match(read_only, b, mutual=False).pairs[::-1, 1], found.pairs[:, 1])


def test_features_are_taken_and_the_name_is_public() -> None:
    points = Keypoints(np.zeros((6, 2)), np.ones(6), np.zeros(6), np.ones(6))
    first = Features(points, unit(6, 32, 1), (10, 10))
    assert len(sdgmnet.match(first, first).pairs) == 6


@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38])
def test_invalid_numbers_are_refused(bad: float) -> None:
    a = unit(5, 16, 1)
    b = a.copy()
    b[3, 2] = bad
    with pytest.raises(InputError, match="NaN"):
        match(a, b)


def test_shapes_and_kinds_are_checked() -> None:
    with pytest.raises(InputError, match=r"\(5, 16\) and \(5, 8\)"):
        match(unit(5, 16, 1), unit(5, 8, 1))
    with pytest.raises(InputError, match="bool"):
        match(np.ones((2, 2), dtype=bool), unit(2, 2, 1))
    for ratio in (0.0, -1.0, 1.5, float("nan")):
        with pytest.raises(InputError, match="ratio"):
            match(unit(5, 16, 1), unit(5, 16, 1), ratio=ratio)

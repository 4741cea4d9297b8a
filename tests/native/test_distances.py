"""Comparisons of distances: the compiled way against double precision, where single precision would err."""

import numpy as np
import pytest

from sdgmnet.native import distances, double

pytestmark = pytest.mark.skipif(distances.library() is None, reason="no C++ compiler is here")


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def crowd(count: int, width: int, apart: float, seed: int = 0) -> np.ndarray:
    """Unit rows in groups of four whose members differ by `apart`: too little for single precision where it is small."""
    random = np.random.default_rng(seed)
    centres = np.repeat(random.normal(size=(-(-count // 4), width)), 4, axis=0)[:count]
    return unit(centres + apart * random.normal(size=(count, width)))


def exact(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.sqrt(((a[:, None].astype(np.longdouble) - b[None]) ** 2).sum(axis=2)).astype(np.float64)


@pytest.mark.parametrize("width", [1, 7, 64, 128, 129])
@pytest.mark.parametrize("apart", [0.3, 1e-4, 1e-6, 0.0])
@pytest.mark.parametrize("counts", [(1, 1), (5, 33), (40, 301)])
def test_the_nearest(width: int, apart: float, counts: tuple[int, int]) -> None:
    a, b = crowd(counts[0], width, apart), crowd(counts[1], width, apart, seed=1)
    every = exact(a, b)
    at, how_far = distances.first_nearest(a, b)
    # Sums in another order than the loop's may tell apart what is equal to it, and the other way round, by a last digit.
    np.testing.assert_allclose(how_far, every.min(axis=1), rtol=1e-14, atol=1e-16)
    np.testing.assert_allclose(every[np.arange(len(a)), at], every.min(axis=1), rtol=1e-14, atol=1e-16)


def test_the_first_of_equals_is_the_nearest() -> None:
    b = crowd(60, 128, 0.2)
    at, how_far = distances.first_nearest(b, np.concatenate([b, b, b]))
    assert np.array_equal(at, np.arange(60))
    assert not how_far.any()


@pytest.mark.parametrize("width", [3, 128])
@pytest.mark.parametrize("apart", [0.3, 1e-4, 1e-6, 0.0])
def test_counts_of_nearer_ones(width: int, apart: float) -> None:
    random = np.random.default_rng(0)
    a, b = crowd(70, width, apart), crowd(1200, width, apart, seed=1)
    others = b[random.integers(len(b), size=(len(a), 4))]  # thresholds that some of b are at exactly
    near = distances.distances(a, others)
    ends = [0, 5, 300, 300, 1200]
    counts = distances.count_closer(a, b, near, ends)
    each = np.stack([distances.distances(a, np.repeat(row[None, None], len(a), axis=0))[:, 0] for row in b], axis=1)
    np.testing.assert_allclose(each, exact(a, b), rtol=1e-14, atol=1e-16)
    below = each[:, None, :] < near[:, :, None]
    parts = zip([0, *ends], ends, strict=False)
    assert np.array_equal(counts, np.stack([below[..., one:two].sum(axis=2) for one, two in parts], axis=2))


def test_single_precision_alone_would_err() -> None:
    a, b = crowd(200, 128, 1e-5), crowd(400, 128, 1e-5)
    single = (b.astype(np.float32) ** 2).sum(1)[None] - 2 * a @ b.T
    assert (single.argmin(axis=1) != distances.first_nearest(a, b)[0]).any()


def test_the_plain_way_finds_the_same() -> None:
    a, b = crowd(150, 128, 0.5), crowd(700, 128, 0.5, seed=3)
    for found, plain in zip(distances.first_nearest(a, b), double.first_nearest(a, b), strict=True):
        np.testing.assert_allclose(found, plain, rtol=1e-14)
    near = distances.distances(a, np.stack([b[:150], b[150:300]], axis=1))
    np.testing.assert_allclose(near, double.distances(a, np.stack([b[:150], b[150:300]], axis=1)), rtol=1e-14)
    ends = [10, 700]
    assert np.array_equal(distances.count_closer(a, b, near, ends), double.count_closer(a, b, near, ends))
    first, second = np.random.default_rng(0).integers(700, size=(2, 5000))
    assert np.array_equal(distances.pair_distances(b, first, second), double.pair_distances(b, first, second))


@pytest.mark.parametrize("scale", [1e-20, 1e-8, 1e8, 1e17, 1e18])
def test_lengths_near_the_ends_of_single_precision(scale: float) -> None:
    a, b = crowd(30, 128, 0.4), crowd(90, 128, 0.4, seed=2)
    a, b = (a * np.float32(scale)).astype(np.float32), (b * np.float32(scale)).astype(np.float32)
    assert np.array_equal(distances.first_nearest(a, b)[0], exact(a, b).argmin(axis=1))


def test_rows_that_are_not_there() -> None:
    with pytest.raises(IndexError, match="beyond the 4"):
        distances.pair_distances(crowd(4, 8, 0.1), np.array([0, 4]), np.array([1, 1]))
    with pytest.raises(IndexError, match="beyond the 4"):
        distances.pair_distances(crowd(4, 8, 0.1), np.array([0]), np.array([-1]))


def test_nothing_at_all() -> None:
    nothing = np.zeros((0, 8), dtype=np.float32)
    assert distances.pair_distances(crowd(4, 8, 0.1), np.zeros(0, dtype=int), np.zeros(0, dtype=int)).shape == (0,)
    assert distances.count_closer(crowd(2, 8, 0.1), nothing, np.ones((2, 3)), [0, 0]).sum() == 0
    assert distances.first_nearest(nothing, crowd(4, 8, 0.1))[0].shape == (0,)

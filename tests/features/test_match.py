"""Matching against a brute-force search in float64."""

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import sdgmnet
from sdgmnet.errors import InputError
from sdgmnet.features import match as module
from sdgmnet.features.describe import Features
from sdgmnet.features.keypoints import Keypoints
from sdgmnet.features.match import Engine, Neighbours, as_floats, match, neighbours
from sdgmnet.native import nearest as native

ENGINES: list[Engine] = ["plain", "native"]
SIZES = [(1, 1), (1, 2), (2, 1), (3, 40), (37, 16), (64, 64), (65, 129), (200, 33)]


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    if request.param == "native" and not native.is_available():
        pytest.skip("needs a C++ compiler")
    chosen: Engine = request.param
    return chosen


@pytest.fixture(params=[(1024, 10240), (16, 24), (7, 5)], ids=str)
def _blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS", request.param[0])
    monkeypatch.setattr(module, "COLUMNS", request.param[1])


def unit(count: int, size: int, seed: int) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(count, size))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def small_numbers(count: int, size: int, seed: int) -> np.ndarray:
    """So few different descriptors that many are equal, and others equally far."""
    return np.random.default_rng(seed).integers(0, 3, (count, size)).astype(np.uint8)


def squared_distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.square(a.astype(np.float64)[:, None] - b.astype(np.float64)[None]).sum(2)


def brute_force(a: np.ndarray, b: np.ndarray) -> Neighbours:
    squares = squared_distances(a, b)
    order = squares.argsort(axis=1, kind="stable")
    second = order[:, 1] if len(b) > 1 else np.full(len(a), -1)
    return Neighbours(order[:, 0], second, squares.argmin(axis=0))


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_equal_distances_go_to_the_lowest_index(sizes: tuple[int, int], engine: Engine) -> None:
    a, b = (as_floats(small_numbers(count, 3, seed)) for seed, count in enumerate(sizes))
    for ours, wanted in zip(neighbours(a, b, engine), brute_force(a, b), strict=True):
        np.testing.assert_array_equal(ours, wanted)


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_nearest_to_rounding(sizes: tuple[int, int], engine: Engine) -> None:
    a, b = (unit(count, 128, seed) for seed, count in enumerate(sizes))
    found, wanted, squares = neighbours(a, b, engine), brute_force(a, b), squared_distances(a, b)
    rows, columns = np.arange(len(a)), np.arange(len(b))
    assert (squares[rows, found.nearest] <= squares[rows, wanted.nearest] + 1e-6).all()
    assert (squares[found.back, columns] <= squares[wanted.back, columns] + 1e-6).all()
    if len(b) > 1:
        assert (found.second != found.nearest).all()
        np.testing.assert_allclose(squares[rows, found.second], squares[rows, wanted.second], atol=1e-6)
    else:
        assert (found.second == -1).all()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_engines_give_the_same_at_any_number_of_threads(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if not native.is_available():
        pytest.skip("needs a C++ compiler")
    monkeypatch.setattr(module, "ROWS", 50)
    monkeypatch.setattr(module, "COLUMNS", 70)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        for a, b in ((unit(333, 64, 1), unit(222, 64, 2)), (small_numbers(333, 4, 1), small_numbers(222, 4, 2))):
            a, b = as_floats(a), as_floats(b)
            for ours, plain in zip(neighbours(a, b, "native"), neighbours(a, b, "plain"), strict=True):
                np.testing.assert_array_equal(ours, plain)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("mutual", [False, True])
@pytest.mark.parametrize("ratio", [None, 0.9, 1.0])
def test_match_is_what_its_words_say(mutual: bool, ratio: float | None) -> None:
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
def test_nothing_matches_nothing(sizes: tuple[int, int], mutual: bool, engine: Engine) -> None:
    a, b = (np.zeros((count, 128), dtype=np.float32) for count in sizes)
    found = match(a, b, mutual=mutual, ratio=0.8)
    assert found.pairs.shape == (0, 2)
    assert found.distance.shape == found.ratio.shape == (0,)
    assert [len(part) for part in neighbours(a, b, engine)] == [sizes[0], sizes[0], sizes[1]]


def test_bytes_are_taken_as_numbers() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 256, (300, 128), dtype=np.uint8) for _ in range(2))
    found, wanted = match(a, b, mutual=False), brute_force(a, b)
    np.testing.assert_array_equal(found.pairs[:, 1], wanted.nearest)
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
def test_numbers_that_are_none_are_refused(bad: float) -> None:
    a = unit(5, 16, 1)
    b = a.copy()
    b[3, 2] = bad
    with pytest.raises(InputError, match="NaN, infinite or far too large"):
        match(a, b)


def test_shapes_and_kinds_are_checked() -> None:
    with pytest.raises(InputError, match=r"one D for both images, not \(5, 16\) and \(5, 8\)"):
        match(unit(5, 16, 1), unit(5, 8, 1))
    with pytest.raises(InputError, match="floats or whole numbers, not bool"):
        match(np.ones((2, 2), dtype=bool), unit(2, 2, 1))
    for ratio in (0.0, -1.0, 1.5, float("nan")):
        with pytest.raises(InputError, match="ratio lies in"):
            match(unit(5, 16, 1), unit(5, 16, 1), ratio=ratio)


def test_a_million_pairs_of_thousands_stay_within_blocks(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The product is never whole in memory: the largest that is asked for is a block."""
    monkeypatch.setattr(module, "ROWS", 100)
    monkeypatch.setattr(module, "COLUMNS", 200)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        neighbours(unit(1000, 8, 1), unit(1100, 8, 2), engine)
    largest = max(event.cpu_memory_usage for event in watched.events())
    assert 4 * 100 * 200 <= largest < 2 * 4 * 100 * 200

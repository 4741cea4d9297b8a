"""The exact matcher against brute force in float64, compiled and without a compiler."""

import numpy as np
import pytest
from torch.profiler import ProfilerActivity, profile

from sdgmnet.native import nearest as module
from sdgmnet.native.nearest import Neighbours, count_closer, nearest, pair_distances, two_nearest_and_back
from tests.native.conftest import torch_threads

HAS_LIBRARY = module.library() is not None
SIZES = [(1, 1), (1, 2), (2, 1), (3, 40), (37, 16), (64, 64), (65, 129), (200, 33)]


@pytest.fixture(params=["native", "bfloat16", "plain"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(module, "multiplies_bfloat16", lambda: request.param == "bfloat16")
    if request.param == "plain":
        monkeypatch.setattr(module, "library", lambda: None)
    elif not HAS_LIBRARY:
        pytest.skip("needs the kernels")
    return str(request.param)


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def crowd(count: int, width: int, apart: float, seed: int = 0) -> np.ndarray:
    """Unit rows in groups of four whose members differ by `apart`: too little for float32 where it is small."""
    random = np.random.default_rng(seed)
    centres = np.repeat(random.normal(size=(-(-count // 4), width)), 4, axis=0)[:count]
    return unit(centres + apart * random.normal(size=(count, width)))


def small_numbers(count: int, width: int, seed: int) -> np.ndarray:
    """So few different rows that many are equal, and others equally far."""
    return np.random.default_rng(seed).integers(0, 3, (count, width)).astype(np.float32)


def exact(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.sqrt(((a[:, None].astype(np.longdouble) - b[None]) ** 2).sum(axis=2)).astype(np.float64)


def brute_force(a: np.ndarray, b: np.ndarray) -> Neighbours:
    order = exact(a, b).argsort(axis=1, kind="stable")
    second = order[:, 1] if len(b) > 1 else np.full(len(a), -1)
    return Neighbours(order[:, 0], second, exact(a, b).argmin(axis=0))


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("blocks", [(1024, 10240), (16, 24), (7, 5)])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_two_nearest_and_back(sizes: tuple[int, int], blocks: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS", blocks[0])
    monkeypatch.setattr(module, "COLUMNS", blocks[1])
    a, b = (small_numbers(count, 3, seed) for seed, count in enumerate(sizes))  # ties go to the lowest index
    for ours, wanted in zip(two_nearest_and_back(a, b), brute_force(a, b), strict=True):
        np.testing.assert_array_equal(ours, wanted)
    a, b = (crowd(count, 128, 0.5, seed) for seed, count in enumerate(sizes))
    found, wanted, distances = two_nearest_and_back(a, b), brute_force(a, b), exact(a, b)
    rows, columns = np.arange(len(a)), np.arange(len(b))
    assert (distances[rows, found.nearest] <= distances[rows, wanted.nearest] + 1e-6).all()
    assert (distances[found.back, columns] <= distances[wanted.back, columns] + 1e-6).all()
    if len(b) > 1:
        assert (found.second != found.nearest).all()
        np.testing.assert_allclose(distances[rows, found.second], distances[rows, wanted.second], atol=1e-6)
    else:
        assert (found.second == -1).all()


@pytest.mark.skipif(not HAS_LIBRARY, reason="needs the kernels")
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_both_engines_agree_with_any_number_of_threads(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS", 50)
    monkeypatch.setattr(module, "COLUMNS", 70)
    monkeypatch.setattr(module, "multiplies_bfloat16", lambda: False)
    pairs = [(crowd(333, 64, 0.5, 1), crowd(222, 64, 0.5, 2)), (small_numbers(333, 4, 1), small_numbers(222, 4, 2))]
    a, b = crowd(150, 128, 0.5), crowd(700, 128, 0.5, seed=3)
    first, second = np.random.default_rng(0).integers(700, size=(2, 5000))
    near = exact(a, crowd(2, 128, 0.5, seed=9))

    def results() -> tuple[list[np.ndarray], list[np.ndarray]]:
        single = pair_distances(b, b, first, second, float32_differences=True).astype(np.float32)
        doubles = [*nearest(a, b), count_closer(a, b, near, [10, 700]), pair_distances(b, b, first, second)]
        return [part for pair in pairs for part in two_nearest_and_back(*pair)], [single, *doubles]

    with torch_threads(threads):
        equal, close = results()
    monkeypatch.setattr(module, "library", lambda: None)
    for ours, plain in zip(equal, results()[0], strict=True):
        np.testing.assert_array_equal(ours, plain)
    for ours, plain in zip(close, results()[1], strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-14)


@pytest.mark.skipif(not HAS_LIBRARY, reason="needs the kernels")
@pytest.mark.parametrize("scale", [1.0, 300.0, 1e-9])
def test_rounded_products_rule_out_nothing_that_counts(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of candidates closer to each other than bfloat16 can tell; what it leaves open, distances decide."""
    monkeypatch.setattr(module, "multiplies_bfloat16", lambda: True)
    a, b = scale * crowd(700, 128, 0.003, 1), scale * crowd(900, 128, 0.003, 1)
    assert not np.array_equal(a[0], b[1])
    for ours, wanted in zip(two_nearest_and_back(a, b), brute_force(a, b), strict=True):
        assert (ours == wanted).mean() > 0.999  # float32 decides


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("sizes", [(0, 0), (0, 5), (5, 0)])
def test_no_rows(sizes: tuple[int, int]) -> None:
    a, b = (np.zeros((count, 128), dtype=np.float32) for count in sizes)
    assert [len(part) for part in two_nearest_and_back(a, b)] == [sizes[0], sizes[0], sizes[1]]
    none = np.zeros(0, dtype=int)
    assert pair_distances(a, b, none, none).shape == (0,)
    assert count_closer(a, b, np.ones((len(a), 3)), [0, len(b)]).sum() == 0
    if not len(a):
        assert nearest(a, b)[0].shape == (0,)


@pytest.mark.usefixtures("engine")
def test_memory_is_bounded_by_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS", 100)
    monkeypatch.setattr(module, "COLUMNS", 200)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        two_nearest_and_back(crowd(1000, 8, 0.5, 1), crowd(1100, 8, 0.5, 2))
    largest = max(event.cpu_memory_usage for event in watched.events())
    assert 2 * 100 * 200 <= largest < 2 * 4 * 100 * 200  # bfloat16 or float32


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("width", [1, 7, 64, 128, 129])
@pytest.mark.parametrize("apart", [0.3, 1e-4, 1e-6, 0.0])
def test_nearest(width: int, apart: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS", 16)
    for counts in ((1, 1), (5, 33), (40, 301)):
        a, b = crowd(counts[0], width, apart), crowd(counts[1], width, apart, seed=1)
        distances = exact(a, b)
        at, distance = nearest(a, b)
        # Another order of summation may tell apart what is equal, by the last digit.
        np.testing.assert_allclose(distance, distances.min(axis=1), rtol=1e-14, atol=1e-16)
        np.testing.assert_allclose(distances[np.arange(len(a)), at], distances.min(axis=1), rtol=1e-14, atol=1e-16)


@pytest.mark.usefixtures("engine")
def test_nearest_is_the_first_of_equals() -> None:
    b = crowd(60, 128, 0.2)
    at, distance = nearest(b, np.concatenate([b, b, b]))
    assert np.array_equal(at, np.arange(60)) and not distance.any()
    at, _ = nearest(np.ones((5, 3), dtype=np.float32), np.ones((9, 3), dtype=np.float32))
    assert not at.any()


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("scale", [0, 1e-20, 1e-8, 1e8, 1e17, 1e18])
def test_nearest_near_the_ends_of_float32(scale: float) -> None:
    a, b = (np.float32(scale) * crowd(count, 128, 0.4, seed) for seed, count in enumerate((30, 90)))
    assert np.array_equal(nearest(a, b)[0], exact(a, b).argmin(axis=1))


def test_float32_alone_would_err() -> None:
    a, b = crowd(200, 128, 1e-5), crowd(400, 128, 1e-5)
    single = (b.astype(np.float32) ** 2).sum(1)[None] - 2 * a @ b.T
    assert (single.argmin(axis=1) != nearest(a, b)[0]).any()


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("width", [3, 128])
@pytest.mark.parametrize("apart", [0.3, 1e-4, 1e-6, 0.0])
def test_count_closer(width: int, apart: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUERIES", 16)
    a, b = crowd(70, width, apart), crowd(1200, width, apart, seed=1)
    rows = np.repeat(np.arange(len(a)), len(b))
    each = pair_distances(a, b, rows, np.tile(np.arange(len(b)), len(a))).reshape(len(a), -1)
    np.testing.assert_allclose(each, exact(a, b), rtol=1e-14, atol=1e-16)
    chosen = np.random.default_rng(0).integers(len(b), size=(len(a), 4))
    near = np.take_along_axis(each, chosen, axis=1)  # some of b are at exactly this distance
    ends = [0, 5, 300, 300, 1200]
    below = each[:, None, :] < near[:, :, None]
    if module.library() is None:  # products cannot tell apart what differs by less than 1e-12
        below &= each[:, None, :] ** 2 < (near**2 - 1e-12 * (1 + near**2))[:, :, None]
    parts = zip([0, *ends], ends, strict=False)
    wanted = np.stack([below[..., one:two].sum(axis=2) for one, two in parts], axis=2)
    assert np.array_equal(count_closer(a, b, near, ends), wanted)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("pair", [(4, 1), (0, -1)])
def test_pairs_name_rows_that_exist(pair: tuple[int, int]) -> None:
    rows = crowd(4, 8, 0.1)
    with pytest.raises(IndexError, match="beyond the 4"):
        pair_distances(rows, rows, *(np.array([one]) for one in pair))

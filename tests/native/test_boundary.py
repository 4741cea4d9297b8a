"""Random calls across the boundary to C++: sizes, strides, alignment, NaN, empty arrays, more threads than work.

Values are those of the plain engine. `make sanitize` runs this file with more rounds and with the library built with
AddressSanitizer and UndefinedBehaviorSanitizer, which abort where a kernel reads or writes outside its arrays.
"""

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from sdgmnet.encoders import FastSDGMNet, L2Net, SDGMNet
from sdgmnet.engine import build_trunk, prepare
from sdgmnet.errors import InputError
from sdgmnet.native import nearest as module
from sdgmnet.native import trunk
from sdgmnet.native.build import library
from sdgmnet.native.nearest import count_closer, nearest, pair_distances, two_nearest_and_back
from tests.native.conftest import SANITIZED, torch_threads

pytestmark = pytest.mark.skipif(library() is None, reason="needs the kernels")
ROUNDS = 100 if SANITIZED else 12


def laid_out(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The same numbers in another memory layout: exact, at an odd address, strided, transposed, or reversed."""
    match rng.integers(5):
        case 0:
            return array.copy()
        case 1:
            memory = np.empty(array.nbytes + 64 + 16 * array.itemsize, dtype=np.uint8)
            start = -memory.ctypes.data % 64 + array.itemsize * int(rng.integers(1, 16))
            made = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        case 2:
            made = np.empty((*array.shape[:-1], 2 * array.shape[-1]), dtype=array.dtype)[..., ::2]
        case 3:
            made = np.empty(array.shape[::-1], dtype=array.dtype).T
        case _:
            made = np.empty(array.shape, dtype=array.dtype)[::-1]
    made[...] = array
    return made


def descriptors(rng: np.random.Generator, count: int, width: int) -> np.ndarray:
    """Rows with many ties, of any length, or with what is not a number."""
    kind, size = rng.integers(4), (count, width)
    rows = rng.integers(-1, 2, size) if kind == 0 else rng.normal(size=size) * 10.0 ** rng.integers(-3, 4)
    rows = rows.astype(np.float32)
    if kind == 3 and rows.size:
        rows[rng.integers(count), rng.integers(width)] = rng.choice([np.nan, np.inf, -np.inf])
    return rows


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_matching(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng([seed, 1])
    width = int(rng.choice([1, 2, 3, 7, 15, 16, 17, 64, 128, 131]))
    a, b = (descriptors(rng, int(count), width) for count in rng.choice([0, 1, 2, 5, 15, 16, 17, 33, 70], 2))
    finite = bool(np.isfinite(a).all() and np.isfinite(b).all())
    monkeypatch.setattr(module, "ROWS", int(rng.choice([1, 5, 16, 1024])))
    monkeypatch.setattr(module, "COLUMNS", int(rng.choice([1, 5, 16, 33, 10240])))
    monkeypatch.setattr(module, "QUERIES", int(rng.choice([1, 3, 64])))
    pairs = [rng.integers(max(1, len(one)), size=20 if len(a) and len(b) else 0) for one in (a, b)]
    near = np.abs(rng.normal(size=(len(a), int(rng.integers(0, 4)))))
    ends = sorted(rng.integers(0, len(b) + 1, size=int(rng.integers(0, 4))).tolist())

    def results(move: Callable[[np.ndarray], np.ndarray]) -> list[np.ndarray]:
        found = [*two_nearest_and_back(move(a), move(b))]
        found += [pair_distances(move(a), move(b), *map(move, pairs), float32_differences=bool(seed % 2))]
        found += [count_closer(move(a), move(b), move(near), ends)]
        return found + ([*nearest(move(a), move(b))] if len(b) and finite else [])

    with torch_threads(int(rng.choice([1, 2, 5]))):
        mine = results(lambda one: laid_out(one, rng))
    monkeypatch.setattr(module, "library", lambda: None)
    for number, (one, plain) in enumerate(zip(mine, results(np.copy), strict=True)):
        assert one.shape == plain.shape
        if number in (0, 1, 2) and len(one):
            assert one.min() >= -1 and one.max() < max(1, len(a), len(b))
        if finite:
            np.testing.assert_allclose(one, plain, rtol=1e-6, err_msg=str(number))


@pytest.mark.parametrize("seed", range(max(4, ROUNDS // 8)))
@pytest.mark.parametrize("kind", [SDGMNet, FastSDGMNet, L2Net])
def test_trunks(seed: int, kind: type[SDGMNet | L2Net]) -> None:
    """Any number of patches, in any layout and at any address, forwards and backwards."""
    rng = np.random.default_rng([seed, 2])
    torch.manual_seed(seed)
    encoder = kind(dropout=0.0).train()
    count = int(rng.choice([2, 3, 5, 6, 7, 13]))
    pixels = rng.random((count, 32, 32)).astype(np.float32)
    poisoned = seed % 4 == 3
    if poisoned:
        pixels[0, 3, 4] = rng.choice([np.nan, np.inf, 3e38])
    moved = _tensor(laid_out(pixels, rng))[:, None]
    keep = torch.ones(count, *encoder.feature_shape, dtype=torch.bool)
    found = []
    for engine, patches in (("native", moved), ("eager", torch.from_numpy(pixels)[:, None])):
        torch.manual_seed(seed)
        model = kind(dropout=0.0).train()
        with torch_threads(int(rng.choice([1, 2, 9]))):
            features, _ = build_trunk(model, engine)(patches, keep)  # type: ignore[arg-type]
            features.sum().backward()
        found.append(features.detach())
    if not poisoned:
        assert (found[0] - found[1]).norm() <= 1e-4 * found[1].norm()
    assert torch.equal(torch.isfinite(found[0]).all(1), torch.isfinite(found[1]).all(1))


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_halving(seed: int) -> None:
    rng = np.random.default_rng([seed, 3])
    pixels = rng.integers(0, 256, (int(rng.choice([0, 1, 2, 7])), 64, 64), dtype=np.uint8)
    with torch_threads(int(rng.choice([1, 2, 9]))):
        found = trunk.halve(_tensor(laid_out(pixels, rng)))
    torch.testing.assert_close(found, prepare(torch.from_numpy(pixels), 32), atol=1e-6, rtol=0)


def test_no_patches_at_all() -> None:
    with torch.no_grad():
        assert trunk.maps(SDGMNet().eval(), torch.empty(0, 1, 32, 32)).shape == (0, 128, 8, 8)


def _tensor(array: np.ndarray) -> Tensor:
    """Not copied, except where torch has no such layout."""
    return torch.from_numpy(array if all(stride >= 0 for stride in array.strides) else array.copy())


def test_sizes_that_do_not_match_are_refused() -> None:
    """Each of these would read beyond an array."""
    a, b, at = np.ones((4, 8), np.float32), np.ones((5, 7), np.float32), np.zeros(2, dtype=np.int64)
    for refused in (
        lambda: two_nearest_and_back(a, b),
        lambda: nearest(a, b),
        lambda: pair_distances(a, b, at, at),
        lambda: pair_distances(a, a, at, at[:1]),
        lambda: count_closer(a, b, np.ones((4, 1)), [5]),
        lambda: count_closer(a, a, np.ones((3, 1)), [4]),
        lambda: count_closer(a, a, np.ones((4, 1)), [5]),
        lambda: count_closer(a, a, np.ones((4, 1)), [-1, 4]),
        lambda: count_closer(a, a, np.ones((4, 1)), [3, 2]),
        lambda: trunk.halve(torch.zeros(2, 64, 63, dtype=torch.uint8)),
        lambda: trunk.halve(torch.zeros(2, 64, 64)),
    ):
        with pytest.raises(InputError):
            refused()


@pytest.mark.skipif(not SANITIZED, reason="make sanitize")
def test_the_sanitizers_see_a_read_beyond_an_array() -> None:
    """Otherwise a run of `make sanitize` without a finding would prove nothing."""
    code = """
import numpy as np
from tests.native import conftest
from sdgmnet.native.build import library

rows, at, found = np.ones((4, 8), np.float32), np.zeros(1, np.int64), np.empty(1)
library().sdgmnet_pair_distances(
    rows.ctypes.data, rows.ctypes.data, at.ctypes.data, at.ctypes.data, 1, 80, 0, found.ctypes.data, 1
)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode != 0 and "heap-buffer-overflow" in ended.stderr and "nearest.cpp" in ended.stderr

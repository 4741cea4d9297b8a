"""Matching against a brute-force search in float64."""

import re
from typing import Any

import numpy as np
import pytest

import sdgmnet
from sdgmnet.errors import InputError
from sdgmnet.features.match import RATIO, match
from tests.features.samples import some_features, unit_rows


@pytest.mark.parametrize("mutual", [False, True])
@pytest.mark.parametrize("ratio", [None, RATIO, 1.0])
def test_against_a_loop(mutual: bool, ratio: float | None) -> None:
    a, b = unit_rows(90, 8, 3), unit_rows(70, 8, 4)
    distances = np.sqrt(np.square(a.astype(np.float64)[:, None] - b.astype(np.float64)[None]).sum(2))
    wanted = []
    for i, row in enumerate(distances):
        j = row.argmin()
        share = row[j] / np.delete(row, j).min()
        if (not mutual or distances[:, j].argmin() == i) and (ratio is None or share < ratio):
            wanted.append((i, j, row[j], share))
    found = match(a, b, mutual=mutual, ratio=ratio)
    assert 5 < len(wanted) <= 90
    if ratio == RATIO:
        np.testing.assert_array_equal(match(a, b, mutual=mutual).pairs, found.pairs)
    np.testing.assert_array_equal(found.pairs, [row[:2] for row in wanted])
    np.testing.assert_allclose(found.distance, [row[2] for row in wanted], rtol=1e-5)
    np.testing.assert_allclose(found.ratio, [row[3] for row in wanted], rtol=1e-5)
    assert found.pairs.dtype == np.int64
    assert found.distance.dtype == found.ratio.dtype == np.float32


def test_small_distances_keep_their_digits() -> None:
    a = unit_rows(20, 128, 5)
    moved = a.copy()
    moved[:, 0] += 1e-4
    found = match(a, np.concatenate([moved, a[:1] + 1e-3]), ratio=None)
    np.testing.assert_array_equal(found.pairs, np.column_stack([np.arange(20)] * 2))
    np.testing.assert_allclose(found.distance, 1e-4, rtol=1e-3)


def test_one_descriptor_and_twins_have_no_ratio() -> None:
    a, one = unit_rows(5, 16, 1), unit_rows(1, 16, 2)
    found = match(a, one, mutual=False, ratio=None)
    assert found.pairs[:, 1].tolist() == [0] * 5 and found.ratio.tolist() == [1] * 5
    assert len(match(a, one, ratio=None).pairs) == 1 and len(match(a, one, ratio=1.0).pairs) == 0
    twins = match(a, np.repeat(a, 2, axis=0), mutual=False, ratio=None)
    assert twins.pairs[:, 1].tolist() == [0, 2, 4, 6, 8]
    assert twins.distance.tolist() == [0] * 5 and twins.ratio.tolist() == [1] * 5


@pytest.mark.parametrize("sizes", [(0, 0), (0, 5), (5, 0)])
@pytest.mark.parametrize("mutual", [False, True])
def test_nothing_matches_nothing(sizes: tuple[int, int], mutual: bool) -> None:
    a, b = (np.zeros((count, 128), dtype=np.float32) for count in sizes)
    found = match(a, b, mutual=mutual, ratio=0.8)
    assert [column.shape for column in found] == [(0, 2), (0,), (0,)]


def test_numbers_of_any_kind_and_features_are_taken() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 256, (300, 128), dtype=np.uint8) for _ in range(2))
    found = match(a, b, mutual=False, ratio=None).pairs
    distances = np.square(a.astype(np.float64)[:, None] - b.astype(np.float64)[None]).sum(2)
    np.testing.assert_array_equal(found[:, 1], distances.argmin(1))
    np.testing.assert_array_equal(
        match(a.astype(np.float64), b.astype(np.float16), mutual=False, ratio=None).pairs, found
    )
    read_only = a[::-1]
    read_only.flags.writeable = False
    np.testing.assert_array_equal(match(read_only, b, mutual=False, ratio=None).pairs[::-1, 1], found[:, 1])
    assert len(sdgmnet.match(some_features(6), some_features(6)).pairs) == 6


@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38])
def test_invalid_numbers_are_refused(bad: float) -> None:
    b = unit_rows(5, 16, 1)
    b[3, 2] = bad
    with pytest.raises(InputError, match="NaN"):
        match(unit_rows(5, 16, 1), b)


@pytest.mark.parametrize(
    ("second", "options", "said"),
    [
        (unit_rows(5, 8, 1), {}, r"\(5, 16\) and \(5, 8\)"),
        (np.ones((2, 16), dtype=bool), {}, "bool"),
        *((unit_rows(5, 16, 1), {"ratio": ratio}, "ratio") for ratio in (0.0, -1.0, 1.5, float("nan"))),
    ],
)
def test_bad_input_is_refused(second: np.ndarray, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        match(unit_rows(5, 16, 1), second, **options)


def test_matches_and_features_print_as_a_summary() -> None:
    first, second = some_features(20), some_features(20)
    found = match(first, second)
    assert repr(found) == "Matches(20 pairs, distance 0.00 to 0.00, median 0.00, median ratio 0.00)"
    assert repr(match(first.descriptors[:0], second.descriptors)) == "Matches(no pairs)"
    assert re.fullmatch(r"Features\(20 keypoints, 128 dimensions, image of \d+ x \d+ pixels\)", repr(first))

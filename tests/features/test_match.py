"""Matching against a brute-force search in float64."""

import re
from typing import Any

import kornia.feature as KF
import numpy as np
import pytest
import torch

import sdgmnet
from sdgmnet.errors import InputError
from sdgmnet.features.describe import Features
from sdgmnet.features.kornia import to_lafs
from sdgmnet.features.match import MATCHER_HELP, MATCHERS, RATIO, match
from tests.features.samples import keypoints_at, some_features, unit_rows

SHIFT = np.array([30.0, 20.0])


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


@pytest.fixture(scope="module")
def moved() -> tuple[Features, Features]:
    """Keypoints turned by 0.3 rad and shifted, with noisy descriptors; a third of them are replaced by others.

    Of ten keypoints of the second image, one has a twin at its location with nearly the same descriptor.
    """
    rng = np.random.default_rng(0)
    count, turn = 400, np.array([[np.cos(0.3), -np.sin(0.3)], [np.sin(0.3), np.cos(0.3)]])
    xy, sigma, angle = rng.uniform(100, 500, (count, 2)), rng.uniform(2, 4, count), rng.uniform(0, 6, count)
    rows = unit_rows(count, 32, 1)
    first = Features(keypoints_at(xy, sigma, angle), rows, (700, 700))
    there, seen = xy @ turn.T + SHIFT, rows + rng.normal(0, 0.04, rows.shape).astype(np.float32)
    there[::3], seen[::3] = rng.uniform(0, 600, (len(there[::3]), 2)), unit_rows(len(seen[::3]), 32, 2)
    xy_two, rows_two = np.concatenate([there, there[::10]]), np.concatenate([seen, seen[::10] + 1e-3])
    sigma_two, angle_two = (np.concatenate([one, one[::10]]) for one in (sigma, angle + 0.3))
    return first, Features(keypoints_at(xy_two, sigma_two, angle_two), rows_two, (700, 700))


@pytest.mark.parametrize("mutual", [False, True])
def test_fginn_against_a_loop_and_kornia(moved: tuple[Features, Features], mutual: bool) -> None:
    first, second = moved
    distances = np.linalg.norm(first.descriptors[:, None].astype(float) - second.descriptors[None], axis=2)
    wanted = []
    for i, row in enumerate(distances):
        nearest, *others = np.argsort(row)[:10]
        away = np.linalg.norm(second.keypoints.xy[others] - second.keypoints.xy[nearest], axis=1) >= 10
        ratio = row[nearest] / row[np.array(others)[away][0]] if away.any() else 0
        if (not mutual or distances[:, nearest].argmin() == i) and ratio < RATIO:
            wanted.append((i, nearest, ratio))
    found = match(first, second, mutual=mutual, matcher="fginn")
    np.testing.assert_array_equal(found.pairs, [row[:2] for row in wanted])
    np.testing.assert_allclose(found.ratio, [row[2] for row in wanted], rtol=1e-3)
    # A twin at the same location fails the plain ratio test, and passes this one.
    assert len(found.pairs) >= len(match(first, second, mutual=mutual).pairs) + 20
    tensors = [torch.from_numpy(one.descriptors) for one in moved] + [to_lafs(one.keypoints) for one in moved]
    np.testing.assert_array_equal(found.pairs, KF.match_fginn(*tensors, th=RATIO, mutual=mutual)[1])


def test_adalam_is_kornias_and_keeps_what_is_consistent(moved: tuple[Features, Features]) -> None:
    first, second = moved
    found = match(first, second, matcher="adalam", mutual=False, ratio=None)
    tensors = [torch.from_numpy(one.descriptors) for one in moved] + [to_lafs(one.keypoints) for one in moved]
    np.testing.assert_array_equal(found.pairs, KF.match_adalam(*tensors, hw1=first.size, hw2=second.size)[1])
    is_true = found.pairs[:, 1] % 3 != 0
    twins = found.pairs[:, 1] >= 400
    assert len(found.pairs) > 150 and is_true[~twins].mean() > 0.98
    plain = match(first, second, mutual=False, ratio=None)
    same = {tuple(pair): row for pair, *row in zip(plain.pairs.tolist(), plain.distance, plain.ratio, strict=True)}
    assert all(same[tuple(pair)] == row for pair, *row in zip(found.pairs.tolist(), *found[1:], strict=True))
    strict = match(first, second, matcher="adalam", ratio=0.5)
    assert {*map(tuple, strict.pairs.tolist())} < {*map(tuple, found.pairs.tolist())} and strict.ratio.max() < 0.5


@pytest.mark.parametrize("matcher", MATCHERS)
@pytest.mark.parametrize("mutual", [False, True])
@pytest.mark.parametrize("sizes", [(0, 0), (0, 5), (5, 0), (1, 1), (1, 5), (5, 1), (2, 2)])
def test_matchers_take_few_keypoints(matcher: str, mutual: bool, sizes: tuple[int, int]) -> None:
    first, second = some_features(sizes[0]), some_features(sizes[1], 1)
    for ratio in (None, RATIO):
        found = match(first, second, mutual=mutual, ratio=ratio, matcher=matcher)
        plain = match(first, second, mutual=mutual, ratio=None)
        assert {*map(tuple, found.pairs.tolist())} <= {*map(tuple, plain.pairs.tolist())}
        assert found.pairs.shape == (len(found.distance), 2) and (found.ratio <= 1).all()
        assert not (1 in sizes and ratio is not None and second.keypoints.xy.shape[0] == 1 and len(found.pairs))


def test_equal_keypoints_are_no_problem() -> None:
    """All at one location with one descriptor: nothing to tell apart."""
    same = some_features(1)
    many = Features(same.keypoints.select(np.zeros(30, dtype=int)), np.repeat(same.descriptors, 30, axis=0), (640, 480))
    for matcher in MATCHERS:
        assert len(match(many, many, matcher=matcher, mutual=False).pairs) in (0, 30)


def test_matchers_that_need_keypoints_say_so_and_unknown_ones_are_refused() -> None:
    rows = unit_rows(5, 16, 1)
    for matcher in ("fginn", "adalam"):
        with pytest.raises(InputError, match=matcher):
            match(rows, rows, matcher=matcher)
    with pytest.raises(InputError, match="adalam"):
        match(rows, rows, matcher="adalm")
    assert all(f"{name}: {one.what}" in MATCHER_HELP for name, one in MATCHERS.items())


def test_matches_and_features_print_as_a_summary() -> None:
    first, second = some_features(20), some_features(20)
    found = match(first, second)
    assert repr(found) == "Matches(20 pairs, distance 0.00 to 0.00, median 0.00, median ratio 0.00)"
    assert repr(match(first.descriptors[:0], second.descriptors)) == "Matches(no pairs)"
    assert re.fullmatch(r"Features\(20 keypoints, 128 dimensions, image of \d+ x \d+ pixels\)", repr(first))

"""The match rule, in words and by brute force."""

import math

import numpy as np
import pytest

from sdgmnet.data.match_rule import (
    DIFFERENT,
    MATCHING,
    PHOTOS,
    UNDECIDED,
    VIEWS,
    MatchRule,
    ambiguous_pairs,
    judge,
    near_pairs,
)
from sdgmnet.data.synthetic.sets import PHOTO_VIEWING
from sdgmnet.features.keypoints import Keypoints
from tests.data.samples import random_keypoints


def verdict_of(a: Keypoints, i: int, b: Keypoints, j: int, rule: MatchRule) -> int:
    """The rule in words: distance, octaves between the scales, angle the short way round."""
    distance, sigma = math.dist(a.xy[i], b.xy[j]), a.sigma[i]
    octaves = abs(math.log2(a.sigma[i]) - math.log2(b.sigma[j]))
    turn = abs(math.remainder(a.angle[i] - b.angle[j], 2 * math.pi))
    near = distance <= rule.near_pixels and distance <= rule.near_sigmas * sigma
    if near and octaves <= rule.near_octaves and turn <= rule.near_radians:
        return MATCHING
    far = distance > rule.far_pixels and distance > rule.far_sigmas * sigma
    return DIFFERENT if far or octaves > rule.far_octaves or turn > rule.far_radians else UNDECIDED


@pytest.mark.parametrize(
    ("rule", "pixels", "octaves", "radians", "sigma", "verdict"),
    [
        (PHOTOS, 4.9, 0.2, 0.3, 10, MATCHING),
        (PHOTOS, 5.1, 0.2, 0.3, 10, UNDECIDED),
        (PHOTOS, 4.9, 0.26, 0.3, 10, UNDECIDED),
        (PHOTOS, 0.0, 0.51, 0.0, 10, DIFFERENT),
        (PHOTOS, 0.0, 0.0, 0.79, 10, DIFFERENT),
        (PHOTOS, 10.1, 0.0, 0.0, 2, DIFFERENT),
        (PHOTOS, 10.1, 0.0, 0.0, 5, UNDECIDED),  # a fifth of its patch
        (PHOTOS, 3.1, 0.0, 0.0, 2, UNDECIDED),  # an eighth of its patch
        (PHOTOS, 2.9, 0.0, 0.0, 2, MATCHING),
        (VIEWS, 5.96, 0.0, 0.0, 4, MATCHING),  # 1.5 sigmas, half an octave, 30 degrees
        (VIEWS, 6.04, 0.0, 0.0, 4, UNDECIDED),
        (VIEWS, 0.0, -0.51, 0.0, 4, UNDECIDED),
        (VIEWS, 0.0, 0.49, 2 * np.pi - 0.5, 4, MATCHING),
        (VIEWS, 0.0, 0.0, -0.53, 4, UNDECIDED),
        (VIEWS, 16.1, 0.0, 0.0, 4, DIFFERENT),
    ],
)
def test_limits(rule: MatchRule, pixels: float, octaves: float, radians: float, sigma: float, verdict: int) -> None:
    one = Keypoints(np.array([[50.0, 50.0]]), np.array([float(sigma)]), np.array([0.1]), np.ones(1))
    other = Keypoints(
        np.array([[50 + pixels, 50]]), sigma * 2.0 ** np.array([octaves]), 0.1 + np.array([radians]), np.ones(1)
    )
    judged = judge(one, other, rule)
    assert judged.verdict[0] == verdict
    assert judged.pixels[0] == pytest.approx(pixels)
    assert (judged.largest_misfit()[0] <= 1) == (verdict == MATCHING)
    assert judged.mean_misfit()[0] <= judged.largest_misfit()[0]


@pytest.mark.parametrize("rule", [PHOTOS, VIEWS, PHOTO_VIEWING.rule])
def test_near_pairs_and_ambiguous_pairs_by_brute_force(rule: MatchRule) -> None:
    assert rule.near_sigmas < rule.far_sigmas and rule.near_octaves < rule.far_octaves
    assert rule.near_radians < rule.far_radians
    one, other = random_keypoints(60, 1, 120), random_keypoints(200, 2, 120)
    expected = {
        (i, j): verdict
        for i in range(60)
        for j in range(200)
        if (verdict := verdict_of(one, i, other, j, rule)) != DIFFERENT
    }
    found = near_pairs(one, other, rule)
    rows = list(zip(found.reprojected.tolist(), found.found.tolist(), strict=True))
    assert len(rows) > 20 and rows == sorted(expected)
    assert found.judged.verdict.tolist() == [expected[pair] for pair in rows]
    assert (found.matching().judged.verdict == MATCHING).all()
    close = {
        (i, j)
        for i in range(60)
        for j in range(i + 1, 60)
        if {verdict_of(one, i, one, j, rule), verdict_of(one, j, one, i, rule)} != {DIFFERENT}  # by the sigma of either
    }
    assert [tuple(pair) for pair in ambiguous_pairs(one, rule).tolist()] == sorted(close)


def test_nothing_is_near_nothing() -> None:
    some, none = random_keypoints(5, seed=8), random_keypoints(0, seed=8)
    for one, other in ((some, none), (none, some), (none, none)):
        assert len(near_pairs(one, other, PHOTOS).found) == 0
    assert ambiguous_pairs(none, PHOTOS).shape == (0, 2)

"""Fig. 1: triplets against a loop, and places on the sphere that keep their angles."""

import math
from pathlib import Path

import numpy as np
import pytest

from reproduce.triplet_figure import Triplet, draw_fig1, draw_pairs, find_triplets, on_sphere, tangent
from sdgmnet.data.patchset import PatchSet
from sdgmnet.errors import InputError


@pytest.mark.parametrize(("pos", "neg", "other"), [(0.4, 1.1, 1.2), (1.0, 0.7, 0.9), (0.3, 1.2, 0.95), (0.5, 1.0, 1.5)])
def test_the_three_angles_are_kept(pos: float, neg: float, other: float) -> None:
    a, p, n = on_sphere(Triplet("", 0, (0, 0, 0), pos, neg, other, 1, 1))
    found = [math.acos(float(x @ y)) for x, y in ((a, p), (a, n), (p, n))]
    assert found == pytest.approx([pos, neg, other])
    assert tangent(a, p) @ a == pytest.approx(0, abs=1e-12)
    assert np.linalg.norm(tangent(a, p)) == pytest.approx(1)


def test_triplets_equal_a_loop(blobs: PatchSet) -> None:
    random = np.random.default_rng(0)
    base = random.normal(size=(30, 1, 16))
    descriptors = base + 0.5 * random.normal(size=(30, 2, 16))
    descriptors /= np.linalg.norm(descriptors, axis=2, keepdims=True)
    pairs = random.permutation(60).reshape(30, 2)
    pos, neg, nearest = [], [], []
    for i in range(30):
        pos.append(math.acos(descriptors[i, 0] @ descriptors[i, 1]))
        best: tuple[float, int, int, int] = (9.0, 0, 0, 0)
        for j in [j for j in range(30) if j != i]:
            four = [(math.acos(descriptors[i, s] @ descriptors[j, t]), s, j, t) for s in (0, 1) for t in (0, 1)]
            if min(four)[0] > 0.6:
                best = min(best, min(four))
        neg.append(best[0])
        nearest.append(best[1:])
    relative = np.array(pos) - neg
    w_pos, w_neg = [], []
    for i in range(30):
        z = (relative[i] - relative.mean()) / relative.std(ddof=1)
        share = 0.5 * (1 + math.erf(z / math.sqrt(2)))
        coupled = share if share > 0.6 else 0.0
        for theta, weights in ((pos, w_pos), (neg, w_neg)):
            blur = math.pi / 6 + np.std(theta, ddof=1)
            weights.append(coupled * math.exp(-((theta[i] - np.mean(theta)) ** 2) / (2 * blur**2)))
    hard, easy = find_triplets(descriptors, pairs, 0.6, 0.6)
    for one, share in ((hard, 0.95), (easy, 0.2)):
        assert abs(relative[one.row] - np.quantile(relative, share)) == min(
            abs(relative - np.quantile(relative, share))
        )
        side, j, other = nearest[one.row]
        assert one.patches == (pairs[one.row, side], pairs[one.row, 1 - side], pairs[j, other])
        told = (one.theta_pos, one.theta_neg, one.w_pos, one.w_neg)
        assert told == pytest.approx((pos[one.row], neg[one.row], w_pos[one.row], w_neg[one.row]))
    assert hard.w_pos > 0 == easy.w_pos


def test_pairs_are_of_points_that_may_be_negatives(blobs: PatchSet, tmp_path: Path) -> None:
    ids = np.unique(blobs.point_id)
    near = PatchSet("near", blobs.patches, blobs.point_id, conflicts=np.stack([ids[:-1], ids[1:]], axis=1))
    pairs = draw_pairs(near, 100, 0)
    chosen = near.point_id[pairs]
    assert (chosen[:, 0] == chosen[:, 1]).all() and (pairs[:, 0] != pairs[:, 1]).all()
    assert len(np.unique(chosen[:, 0])) == len(chosen) > 10
    assert np.diff(np.sort(np.searchsorted(ids, chosen[:, 0]))).min() >= 2
    assert len(draw_pairs(blobs, 12, 0)) == 12
    alone = PatchSet("alone", blobs.patches[::3], blobs.point_id[::3])
    with pytest.raises(InputError, match="no triplet"):
        draw_pairs(alone, 10, 0)
    shown = [Triplet("hard", 3, (0, 1, 5), 0.9, 1.0, 1.2, 0.8, 0.9), Triplet("easy", 4, (6, 7, 9), 0.3, 1.2, 1.2, 0, 0)]
    paths = draw_fig1(blobs, shown, "note", tmp_path / "fig1")
    assert all(path.stat().st_size > 5000 for path in paths)

"""What the oracle's test leaves out: the published code's late threshold, eval mode, and large batches."""

import math

import pytest
import torch
import torch.nn.functional as F

from sdgmnet import SDGMLoss
from sdgmnet.loss.mining import hardest_in_batch


def batch(count: int, seed: int = 0, noise: float = 0.6) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(count, 32, generator=generator, dtype=torch.float64)
    p = a + noise * torch.randn(count, 32, generator=generator, dtype=torch.float64)
    return F.normalize(a, dim=1), F.normalize(p, dim=1)


def test_late_threshold_admits_near_negatives_early() -> None:
    a, p = batch(6)
    a[1], p[1] = a[0], p[0]  # two names for one thing: nearer than 0.6 rad, but p[0] and a[1] do not coincide
    p[1] = F.normalize(p[0] + 0.1 * p[2], dim=0)
    a[1] = F.normalize(a[0] + 0.1 * a[3], dim=0)
    loss = SDGMLoss(threshold_start=0.125, decay=0.0)
    loss(a, p, progress=0.12)
    early = loss.report
    loss(a, p, progress=0.125)
    late = loss.report
    assert early is not None and late is not None
    assert early.theta_neg_mean < late.theta_neg_mean
    assert hardest_in_batch(a, p, loss.threshold(0.0)).theta_neg.min() < 0.6
    assert hardest_in_batch(a, p, loss.threshold(0.125)).theta_neg.min() > 0.6
    assert loss.threshold(0.0) == pytest.approx(math.acos(1 - 1e-5))


def test_eval_mode_uses_the_statistics_and_leaves_them() -> None:
    loss = SDGMLoss(decay=0.9)
    for seed in range(3):
        loss(*batch(16, seed))
    before = {key: value.clone() for key, value in loss.state_dict().items()}
    loss.eval()
    first = loss(*batch(16, 7))
    assert torch.equal(first, loss(*batch(16, 7)))
    assert all(torch.equal(before[key], value) for key, value in loss.state_dict().items())
    loss.train()
    loss(*batch(16, 7))
    assert not all(torch.equal(before[key], value) for key, value in loss.state_dict().items())


def test_eval_mode_before_any_training_is_finite() -> None:
    assert torch.isfinite(SDGMLoss().eval()(*batch(8)))


def test_nearest_of_four_by_brute_force() -> None:
    a, p = batch(12, 3, noise=1.0)
    triplets = hardest_in_batch(a, p, 0.6)
    for i in range(12):
        candidates = []
        for j in range(12):
            if j != i:
                four = [math.acos(float(x @ y)) for x, y in ((a[i], p[j]), (p[i], a[j]), (a[i], a[j]), (p[i], p[j]))]
                if min(four) > 0.6:
                    candidates.append(min(four))
        assert triplets.admissible[i] == bool(candidates)
        if candidates:
            assert float(triplets.theta_neg[i]) == pytest.approx(min(candidates), abs=1e-12)


def test_any_batch_size_from_two() -> None:
    loss = SDGMLoss()
    for count in (2, 3, 17, 300):
        assert torch.isfinite(loss(*batch(count), progress=1.0))

"""SDGMLoss against the paper: the oracle in `reference.py`, closed forms, invariances, state and edge cases."""

import copy
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from sdgmnet import SDGMLoss
from sdgmnet.loss.mining import hardest_in_batch
from sdgmnet.loss.weights import coupled_weight, self_weight
from tests.loss.reference import SDGMReference

STEPS = 50
DIM = 16
SELF_WEIGHTS = ("auto-focus", "angle", "cosine", "l2")
COUPLED_WEIGHTS = ("cdf", "step")
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
SMALLEST_GAP = 1e-4  # no decision closer to its edge than this, so that float32 must decide as float64 does

Pairs = tuple[np.ndarray, np.ndarray]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Batches this small gain nothing from threads, and wait for them on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# ---------------------------------------------------------------------------------------------------------------- data


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def turned(x: np.ndarray, angles: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Each unit row of x turned by its angle in a random direction."""
    across = rng.normal(size=x.shape)
    across = unit(across - (across * x).sum(1, keepdims=True) * x)
    return np.cos(angles)[:, None] * x + np.sin(angles)[:, None] * across


def with_lengths(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Rows of various lengths, exactly representable in float32."""
    return (x * rng.uniform(0.5, 3.0, size=(len(x), 1))).astype(np.float32).astype(np.float64)


def make_pairs(kind: str, n: int, rng: np.random.Generator, dim: int = DIM) -> Pairs:
    """Matching pairs, not normalised. Positive angles are skewed: many small ones, a tail of large ones.

    open:    directions at random, but for two pairs that nearly copy the first (negatives below 0.6 rad);
    crowded: a cone of half angle 0.5 around the first pair, which is thus left without an admissible negative;
    dead:    everything within 0.6 rad, no admissible negative at all.
    """
    positive_angles = 0.1 + rng.gamma(2.0, 0.2, size=n)
    if kind == "open":
        anchors = unit(rng.normal(size=(n, dim)))
        anchors[1:3] = turned(anchors[[0, 0]], np.full(2, 0.3), rng)
    else:
        hub = unit(rng.normal(size=(1, dim))).repeat(n, axis=0)
        anchors = turned(hub, np.full(n, 0.5 if kind == "crowded" else 0.15), rng)
        anchors[0] = hub[0]
        positive_angles *= 0.5 if kind == "crowded" else 0.0
        positive_angles += 0.1 if kind == "dead" else 0.0
    return with_lengths(anchors, rng), with_lengths(turned(anchors, np.minimum(positive_angles, 1.4), rng), rng)


def kind_of(step: int) -> str:
    return "dead" if step in (7, 31) else ("crowded" if step % 4 == 1 else "open")


@functools.cache
def batches() -> tuple[Pairs, ...]:
    """Fifty batches of 24 to 26 pairs without decisions on an edge. Decisions do not depend on the weights chosen."""
    oracle, chosen = SDGMReference(decay=0.9, warmup=0.2), []
    for step in range(STEPS):
        for attempt in range(100):
            pairs = make_pairs(kind_of(step), 24 + step % 3, np.random.default_rng([step, attempt]))
            trial = copy.deepcopy(oracle)
            trial.step(*pairs, step / STEPS)
            if trial.gap >= SMALLEST_GAP:
                break
        else:
            raise AssertionError(f"no batch found for step {step}")
        oracle = trial
        chosen.append(pairs)
    return tuple(chosen)


@functools.cache
def labelled() -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    """Six labelled batches with classes of one, two and three samples in mixed order, no decision on an edge."""
    oracle, chosen = SDGMReference(decay=0.9, warmup=0.2), []
    for step in range(6):
        for attempt in range(100):
            rng = np.random.default_rng([1000 + step, attempt])
            sizes = np.array([2, *rng.permutation([1] * 6 + [2] * 6 + [3] * 5)])
            centres = unit(rng.normal(size=(len(sizes), DIM)))
            centres[1:4] = turned(centres[[0, 0, 0]], np.full(3, 0.3), rng)
            angles = 0.1 + rng.gamma(2.0, 0.1, size=sizes.sum())
            if step == 3:  # crowded: a cone around the first class, which is thus left without a negative
                centres[1:] = turned(centres[[0] * (len(sizes) - 1)], np.full(len(sizes) - 1, 0.5), rng)
                angles *= 0.3
            order = rng.permutation(sizes.sum())
            which = np.repeat(np.arange(len(sizes)), sizes)[order]
            x = turned(centres[which], angles, rng)
            x, labels = with_lengths(x, rng), rng.permutation(500)[: len(sizes)][which]
            trial = copy.deepcopy(oracle)
            trial.step_labels(x, labels, step / 6)
            if trial.gap >= SMALLEST_GAP:
                break
        else:
            raise AssertionError(f"no batch found for step {step}")
        oracle = trial
        chosen.append((x, labels))
    return tuple(chosen)


# ------------------------------------------------------------------------------------------------------------- helpers


def run(
    loss: SDGMLoss, x: np.ndarray, y: np.ndarray, progress: float = 1.0, dtype: torch.dtype = torch.float64
) -> tuple[torch.Tensor, torch.Tensor]:
    """Value and gradient with respect to the descriptors before normalisation, x above y."""
    leaf_x = torch.tensor(x, dtype=dtype, requires_grad=True)
    leaf_y = torch.tensor(y, dtype=dtype, requires_grad=True)
    value = loss(normalize(leaf_x, dim=1), normalize(leaf_y, dim=1), progress=progress)
    value.backward()
    return value.detach(), torch.cat([leaf_x.grad, leaf_y.grad])


def run_labels(
    loss: SDGMLoss, x: np.ndarray, labels: np.ndarray, progress: float = 1.0, dtype: torch.dtype = torch.float64
) -> tuple[torch.Tensor, torch.Tensor]:
    leaf = torch.tensor(x, dtype=dtype, requires_grad=True)
    value = loss.from_labels(normalize(leaf, dim=1), torch.tensor(labels), progress=progress)
    value.backward()
    return value.detach(), leaf.grad


def unit_tensors(seed: int, n: int = 24, dim: int = DIM, kind: str = "open") -> tuple[torch.Tensor, torch.Tensor]:
    x, y = make_pairs(kind, n, np.random.default_rng(seed), dim)
    return torch.tensor(unit(x), requires_grad=True), torch.tensor(unit(y), requires_grad=True)


def relative(result: torch.Tensor, expected: np.ndarray | torch.Tensor) -> float:
    """Norm of the difference over the norm of what was expected; where that is zero the result must be zero."""
    expected = torch.as_tensor(expected, dtype=torch.float64)
    difference, norm = float((result.double() - expected).norm()), float(expected.norm())
    if norm == 0:
        return 0.0 if difference == 0 else math.inf
    return difference / norm


def assert_report(loss: SDGMLoss, oracle: SDGMReference, tolerance: float) -> None:
    for name, expected in oracle.report.items():
        field = getattr(loss.report, name)
        assert field.ndim == 0 and not field.requires_grad, name
        assert float(field) == pytest.approx(expected, rel=tolerance, abs=tolerance), name


def state_of(loss: SDGMLoss) -> dict[str, Any]:
    return {name: copy.deepcopy(value) for name, value in loss.state_dict().items()}


def assert_same_state(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        if isinstance(value, torch.Tensor):
            assert value.dtype == other[name].dtype, name
            torch.testing.assert_close(value, other[name], rtol=0, atol=0, equal_nan=True, msg=name)
        else:
            assert value == other[name], name


@functools.cache
def oracle_run(**options: Any) -> tuple[tuple[SDGMReference, float, np.ndarray], ...]:
    """For each of the fifty steps: the oracle after it, its value and its gradient, x above y."""
    oracle, steps = SDGMReference(**options), []
    for step, pairs in enumerate(batches()):
        value, *gradients = oracle.step(*pairs, step / STEPS)
        steps.append((copy.copy(oracle), value, np.concatenate(gradients)))
    return tuple(steps)


def follow_oracle(dtype: torch.dtype, **options: Any) -> tuple[float, float]:
    """Fifty steps beside the oracle; the worst relative difference of gradient and value."""
    options = {"decay": 0.9, "warmup": 0.2} | options
    loss = SDGMLoss(**options)
    worst_gradient = worst_value = 0.0
    for step, (oracle, expected, expected_gradient) in enumerate(oracle_run(**options)):
        value, gradient = run(loss, *batches()[step], step / STEPS, dtype)
        assert value.ndim == 0
        assert_report(loss, oracle, TOLERANCE[dtype])
        worst_gradient = max(worst_gradient, relative(gradient, expected_gradient))
        if oracle.scale == 0:
            assert float(value) == 0
        else:
            worst_value = max(worst_value, abs(float(value) - expected) / oracle.scale)
    return worst_gradient, worst_value


# --------------------------------------------------------------------------------------------------- 1. the oracle


def test_batches_exercise_every_branch() -> None:
    """The data below would prove little if thresholds, missing negatives and the margin did not occur."""
    oracle = SDGMReference(decay=0.9, warmup=0.2)
    for step, pairs in enumerate(batches()):
        before = copy.deepcopy(oracle.statistics)
        oracle.step(*pairs, step / STEPS)
        assert oracle.gap >= SMALLEST_GAP
        assert oracle.removed > 0
        missing = oracle.report["no_negative_share"]
        if kind_of(step) == "dead":
            assert missing == 1 and oracle.statistics == before
            continue
        assert (0 < missing < 1) if kind_of(step) == "crowded" else (missing < 1)
        if step >= 0.2 * STEPS:
            assert 0 < oracle.report["active_share"] < 1


def test_oracle_gradient_is_the_derivative_of_its_value() -> None:
    """While warming the weights do not depend on the angles, so that finite differences can judge the oracle."""
    x, y = batches()[1]  # crowded
    x, y = x[:8], y[:8]
    options = {"decay": 0.9, "power_adjustment": True}
    _, gradient, _ = SDGMReference(**options).step(x, y, 0.0)
    assert np.linalg.norm(gradient) > 0
    for i, k in itertools.product(range(8), range(3)):
        moved = np.zeros_like(x)
        moved[i, k] = 1e-6
        high, low = (SDGMReference(**options).step(x + sign * moved, y, 0.0)[0] for sign in (1, -1))
        assert (high - low) / 2e-6 == pytest.approx(gradient[i, k], abs=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("power_adjustment", [True, False], ids=["+PA", "-PA"])
@pytest.mark.parametrize("coupled", COUPLED_WEIGHTS)
@pytest.mark.parametrize("own", SELF_WEIGHTS)
def test_fifty_steps_match_the_oracle(own: str, coupled: str, power_adjustment: bool, dtype: torch.dtype) -> None:
    gradient, value = follow_oracle(dtype, self_weight=own, coupled_weight=coupled, power_adjustment=power_adjustment)
    assert gradient <= TOLERANCE[dtype]
    assert value <= TOLERANCE[dtype]


@pytest.mark.parametrize(
    "options",
    [
        {"margin": 0.3, "alpha": 1.2},
        {"margin": 0.75, "initial_power": 40.0},
        {"decay": 0.0},
        {"min_negative_angle": 0.0},
        {"min_negative_angle": 0.8, "warmup": 0.0},
    ],
    ids=str,
)
def test_fifty_steps_match_the_oracle_with_other_options(options: dict[str, float]) -> None:
    gradient, value = follow_oracle(torch.float64, **options)
    assert gradient <= 1e-10
    assert value <= 1e-10


def test_two_pairs_match_the_oracle() -> None:
    loss, oracle = SDGMLoss(decay=0.9), SDGMReference(decay=0.9)
    for step in range(4):
        x, y = (side[3:5] for side in batches()[2 + 4 * step])
        value, gradient = run(loss, x, y, step / 4)
        expected, expected_x, expected_y = oracle.step(x, y, step / 4)
        assert oracle.report["no_negative_share"] == 0
        assert float(value) == pytest.approx(expected, abs=1e-10 * oracle.scale)
        assert relative(gradient, np.concatenate([expected_x, expected_y])) <= 1e-10


# ----------------------------------------------------------------------------- 2. losses that the ablations amount to


def mined_cosines(a: torch.Tensor, p: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines of positives and of the nearest admissible negatives, as one formula on matrices."""
    nearest = torch.stack([a @ p.T, p @ a.T, a @ a.T, p @ p.T]).amax(0)
    removed = (nearest >= math.cos(0.6)) | torch.eye(len(a), dtype=torch.bool)
    return (a * p).sum(1), nearest.masked_fill(removed, -2.0).amax(1)


@pytest.mark.parametrize("own", ["l2", "cosine"])
def test_without_power_adjustment_is_a_plain_triplet_loss(own: str) -> None:
    """&l2-PA has the gradient of the mean of w_c (l+ - l-), &s-PA that of w_c (s- - s+), with w_c constant."""
    loss = SDGMLoss(self_weight=own, power_adjustment=False, decay=0.9)
    first, second = batches()[0], batches()[2]
    run(loss, *first, progress=0.0)
    _, gradient = run(loss, *second, progress=0.5)

    moments = []
    for x, y in (first, second):
        pos, neg = mined_cosines(torch.tensor(unit(x)), torch.tensor(unit(y)))
        relative_angle = pos.acos() - neg.acos()
        moments.append((relative_angle.mean(), relative_angle.std()))
    mean, std = (0.9 * old + 0.1 * new for old, new in zip(*moments, strict=True))
    probability = torch.special.ndtr((relative_angle - mean) / std)
    weight = torch.where(probability > 0.6, probability, 0.0)
    assert 0 < int((weight > 0).sum()) < len(weight)

    leaf_x, leaf_y = (torch.tensor(side, requires_grad=True) for side in second)
    pos, neg = mined_cosines(normalize(leaf_x, dim=1), normalize(leaf_y, dim=1))
    plain = (
        (weight * ((2 - 2 * pos).sqrt() - (2 - 2 * neg).sqrt())).mean()
        if own == "l2"
        else (weight * (neg - pos)).mean()
    )
    plain.backward()
    assert relative(gradient, torch.cat([leaf_x.grad, leaf_y.grad])) <= 1e-12


# ----------------------------------------------------------------------------------------------------- 3. invariances


def permuted(x: np.ndarray, y: np.ndarray) -> Pairs:
    order = np.random.default_rng(5).permutation(len(x))
    return x[order], y[order]


def exchanged(x: np.ndarray, y: np.ndarray) -> Pairs:
    return y, x


def rotated(x: np.ndarray, y: np.ndarray) -> Pairs:
    rotation = np.linalg.qr(np.random.default_rng(6).normal(size=(x.shape[1], x.shape[1])))[0]
    return x @ rotation, y @ rotation


@pytest.mark.parametrize("change", [permuted, exchanged, rotated])
def test_invariance(change: Callable[[np.ndarray, np.ndarray], Pairs]) -> None:
    plain, changed = SDGMLoss(decay=0.9, warmup=0.2), SDGMLoss(decay=0.9, warmup=0.2)
    for step in range(0, STEPS, 5):
        pairs = batches()[step]
        value, gradient = run(plain, *pairs, progress=step / STEPS)
        value_changed, gradient_changed = run(changed, *change(*pairs), progress=step / STEPS)
        assert float(value_changed) == pytest.approx(float(value), rel=1e-11, abs=1e-13)
        half = len(gradient) // 2
        expected = np.concatenate(change(gradient[:half].numpy(), gradient[half:].numpy()))
        assert relative(gradient_changed, expected) <= 1e-11


# ------------------------------------------------------------------------------------------------------ 4. from_labels


@pytest.mark.parametrize("order", ["blocks", "mixed"])
def test_labels_of_two_equal_pairs(order: str) -> None:
    by_pairs, by_labels = SDGMLoss(decay=0.9, warmup=0.2), SDGMLoss(decay=0.9, warmup=0.2)
    for step in range(0, STEPS, 3):
        x, y = batches()[step]
        n = len(x)
        rng = np.random.default_rng(step)
        chosen = np.arange(2 * n) if order == "blocks" else rng.permutation(2 * n)
        names = np.arange(n) if order == "blocks" else rng.permutation(1000)[:n]
        value, gradient = run(by_pairs, x, y, step / STEPS)
        value_labels, gradient_labels = run_labels(
            by_labels, np.concatenate([x, y])[chosen], np.tile(names, 2)[chosen], step / STEPS
        )
        assert float(value_labels) == pytest.approx(float(value), rel=1e-11, abs=1e-13)
        assert relative(gradient_labels, gradient[chosen]) <= 1e-11
        for one, other in zip(by_pairs.report, by_labels.report, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-13, equal_nan=True)
    state, state_labels = state_of(by_pairs), state_of(by_labels)
    assert state.keys() == state_labels.keys()
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(state_labels[name], value, rtol=1e-11, atol=1e-13, msg=name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("power_adjustment", [True, False], ids=["+PA", "-PA"])
def test_labels_of_mixed_sizes_match_the_oracle(power_adjustment: bool, dtype: torch.dtype) -> None:
    options = {"decay": 0.9, "warmup": 0.2, "power_adjustment": power_adjustment}
    loss, oracle = SDGMLoss(**options), SDGMReference(**options)
    missing = []
    for step, (x, labels) in enumerate(labelled()):
        value, gradient = run_labels(loss, x, labels, step / 6, dtype)
        expected, expected_gradient = oracle.step_labels(x, labels, step / 6)
        assert oracle.removed > 0 and oracle.gap >= SMALLEST_GAP
        missing.append(oracle.report["no_negative_share"])
        assert_report(loss, oracle, TOLERANCE[dtype])
        assert abs(float(value) - expected) <= TOLERANCE[dtype] * oracle.scale
        assert relative(gradient, expected_gradient) <= TOLERANCE[dtype]
    assert 0 < max(missing) < 1


def test_labels_single_class_has_no_negative() -> None:
    loss = SDGMLoss()
    value, gradient = run_labels(loss, batches()[0][0][:4], np.zeros(4, dtype=np.int64))
    assert float(value) == 0
    assert torch.count_nonzero(gradient) == 0
    assert float(loss.report.no_negative_share) == 1


def test_labels_single_admissible_row_is_finite() -> None:
    """One pair and one far single sample: no spread can be estimated from one row, and nothing may become NaN."""
    loss = SDGMLoss()
    x = np.concatenate([batches()[0][0][3:5], batches()[0][1][3:4]])
    for progress in (0.0, 1.0):
        value, gradient = run_labels(loss, x, np.array([0, 1, 0]), progress)
        assert torch.isfinite(value) and torch.isfinite(gradient).all()
    value, gradient = run(loss, *batches()[0])
    assert torch.isfinite(value) and torch.isfinite(gradient).all() and gradient.norm() > 0


# ------------------------------------------------------------------------------------------------------------ 5. state


def test_state_dict_round_trip_continues_with_the_same_bits() -> None:
    original = SDGMLoss(decay=0.9, warmup=0.2)
    for step in range(20):
        run(original, *batches()[step], progress=step / STEPS)
    snapshot = state_of(original)
    resumed, fresh = SDGMLoss(decay=0.9, warmup=0.2), SDGMLoss(decay=0.9, warmup=0.2)
    resumed.load_state_dict(snapshot)
    differs = False
    for step in range(20, 30):
        value, gradient = run(original, *batches()[step], progress=step / STEPS)
        value_resumed, gradient_resumed = run(resumed, *batches()[step], progress=step / STEPS)
        assert torch.equal(value_resumed, value)
        assert torch.equal(gradient_resumed, gradient)
        differs |= not torch.equal(run(fresh, *batches()[step], progress=step / STEPS)[0], value)
    assert differs  # otherwise the state would not matter
    assert_same_state(state_of(resumed), state_of(original))


CASTS: dict[str, Callable[[SDGMLoss], Any]] = {
    "float": lambda loss: loss.float(),
    "half": lambda loss: loss.half(),
    "bfloat16": lambda loss: loss.bfloat16(),
    "to": lambda loss: loss.to(torch.float32),
    "nested": lambda loss: torch.nn.ModuleList([loss]).half(),
}


@pytest.mark.parametrize("cast", CASTS)
def test_statistics_stay_float64(cast: str) -> None:
    loss = SDGMLoss(decay=0.9)
    for step in range(3):
        run(loss, *batches()[step], dtype=torch.float32)
    before = state_of(loss)
    CASTS[cast](loss)
    floating = [buffer for buffer in loss.buffers() if buffer.is_floating_point()]
    assert sum(buffer.numel() for buffer in floating) >= 8  # six of the angles, two powers
    assert all(buffer.dtype == torch.float64 for buffer in floating)
    assert_same_state(state_of(loss), before)  # nor rounded on the way
    run(loss, *batches()[3], dtype=torch.float32)
    assert all(buffer.dtype == torch.float64 for buffer in loss.buffers() if buffer.is_floating_point())


@pytest.mark.parametrize(
    ("n", "initial_power", "start"), [(1024, None, 10000.0), (256, None, 2500.0), (256, 10000.0, 10000.0)]
)
def test_power_starts_at_ten_thousand_for_1024_pairs(n: int, initial_power: float | None, start: float) -> None:
    rng = np.random.default_rng(11)
    a = unit(rng.normal(size=(n, 128)))
    p = unit(a + 0.05 * rng.normal(size=a.shape))
    nearest = np.max([a @ p.T, p @ a.T, a @ a.T, p @ p.T], axis=0)
    np.fill_diagonal(nearest, -1)
    sum_pos, sum_neg = np.arccos((a * p).sum(1)).sum(), np.arccos(nearest.max(1)).sum()
    assert nearest.max() < math.cos(0.6)
    value = SDGMLoss(initial_power=initial_power)(torch.tensor(a), torch.tensor(p), progress=0.0)
    assert float(value) == pytest.approx((0.9 * sum_pos - sum_neg) / (0.999 * start + 0.001 * n), rel=1e-10)


def test_late_threshold_admits_near_negatives_early() -> None:
    a, p = (side.detach() for side in unit_tensors(0, n=6, dim=32))
    p[1] = normalize(p[0] + 0.1 * p[2], dim=0)  # one point under two ids: nearer than 0.6 rad, but not coinciding
    a[1] = normalize(a[0] + 0.1 * a[3], dim=0)
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
        loss(*unit_tensors(seed, n=16))
    before = {key: value.clone() for key, value in loss.state_dict().items()}
    loss.eval()
    first = loss(*unit_tensors(7, n=16))
    assert torch.equal(first, loss(*unit_tensors(7, n=16)))
    assert all(torch.equal(before[key], value) for key, value in loss.state_dict().items())
    loss.train()
    loss(*unit_tensors(7, n=16))
    assert not all(torch.equal(before[key], value) for key, value in loss.state_dict().items())


def test_eval_mode_before_any_training_is_finite() -> None:
    assert torch.isfinite(SDGMLoss().eval()(*unit_tensors(0, n=8)))


# ------------------------------------------------------------------------------------------------------- 6. edge cases


def test_identical_descriptors_have_no_negatives() -> None:
    loss = SDGMLoss()
    before = state_of(loss)
    value, gradient = run(loss, np.ones((8, DIM)), np.ones((8, DIM)))
    assert float(value) == 0
    assert gradient.shape == (16, DIM) and torch.count_nonzero(gradient) == 0
    assert float(loss.report.no_negative_share) == 1
    assert float(loss.report.active_share) == 0
    assert_same_state(state_of(loss), before)
    # so that the next batch, of another size, is the first one
    assert torch.equal(run(loss, *batches()[2])[0], run(SDGMLoss(), *batches()[2])[0])


@pytest.mark.parametrize("own", SELF_WEIGHTS)
@pytest.mark.parametrize("progress", [0.0, 1.0])
def test_anchor_equal_to_positive_is_finite(own: str, progress: float) -> None:
    x, y = batches()[0]
    for dtype in (torch.float32, torch.float64):
        loss = SDGMLoss(self_weight=own, decay=0.9)
        value, gradient = run(loss, x, np.concatenate([x[:12], y[12:]]), progress, dtype)
        assert torch.isfinite(value) and torch.isfinite(gradient).all() and gradient.norm() > 0
        value, gradient = run(loss, x, x, progress, dtype)
        assert torch.isfinite(value) and torch.isfinite(gradient).all()


@pytest.mark.parametrize("coupled", COUPLED_WEIGHTS)
def test_no_spread_at_all_is_finite(coupled: str) -> None:
    """Orthogonal axes as anchors and as positives: every angle is the same, every standard deviation zero."""
    loss = SDGMLoss(coupled_weight=coupled)
    for progress in (0.0, 1.0):
        value, gradient = run(loss, np.eye(8), np.eye(8), progress)
        assert torch.isfinite(value) and torch.isfinite(gradient).all()
        assert float(loss.report.no_negative_share) == 0
        assert float(loss.report.theta_neg_mean) == pytest.approx(math.pi / 2)


def test_opposite_positive_is_finite() -> None:
    x, y = batches()[0]
    value, gradient = run(SDGMLoss(), x, np.concatenate([-x[:2], y[2:]]))
    assert torch.isfinite(value) and torch.isfinite(gradient).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def test_half_precision_is_finite(dtype: torch.dtype) -> None:
    a, p = (side.detach().to(dtype).requires_grad_() for side in unit_tensors(3, n=64, dim=64))
    loss, oracle = SDGMLoss(), SDGMReference()
    value = loss(a, p, progress=0.0)
    expected, _, _ = oracle.step(a.detach().double().numpy(), p.detach().double().numpy(), 0.0)
    assert float(value.detach()) == pytest.approx(expected, abs=0.02 * oracle.scale)
    (value + loss(a, p, progress=1.0)).backward()
    for side in (a, p):
        assert side.grad.dtype == dtype and torch.isfinite(side.grad).all() and side.grad.norm() > 0


def one_bad(number: float) -> torch.Tensor:
    a = unit_tensors(0)[0].detach().clone()
    a[3, 2] = number
    return a


BAD_INPUTS: dict[str, tuple[Callable[[], tuple[torch.Tensor, torch.Tensor]], str]] = {
    "one pair": (lambda: unit_tensors(0, n=4)[0][:1].repeat(2, 1, 1).unbind(0), r"(?i)\b(1|2|two|one)\b"),
    "no pair": (lambda: (torch.zeros(0, DIM), torch.zeros(0, DIM)), r"(?i)\b(0|2|two|no|empty)\b"),
    "rows differ": (lambda: (unit_tensors(0)[0], unit_tensors(0)[1][:-1]), r"(?i)shape|24|23"),
    "columns differ": (lambda: (unit_tensors(0)[0], unit_tensors(0, dim=8)[1]), r"(?i)shape|16|8"),
    "one axis": (lambda: (unit_tensors(0)[0][0], unit_tensors(0)[1][0]), r"(?i)shape|dim|\(N, ?D\)"),
    "three axes": (lambda: (unit_tensors(0)[0][None], unit_tensors(0)[1][None]), r"(?i)shape|dim|\(N, ?D\)"),
    "nan anchor": (lambda: (one_bad(math.nan), unit_tensors(0)[1]), r"(?i)nan|finite"),
    "nan positive": (lambda: (unit_tensors(0)[0], one_bad(math.nan)), r"(?i)nan|finite"),
    "inf": (lambda: (one_bad(math.inf), unit_tensors(0)[1]), r"(?i)inf|finite"),
    "long anchors": (lambda: (3 * unit_tensors(0)[0], unit_tensors(0)[1]), r"(?i)unit|norm|length"),
    "short positives": (lambda: (unit_tensors(0)[0], 0.5 * unit_tensors(0)[1]), r"(?i)unit|norm|length"),
    "one long row": (lambda: (one_bad(2.0), unit_tensors(0)[1]), r"(?i)unit|norm|length"),
}


@pytest.mark.parametrize("case", BAD_INPUTS)
def test_bad_input_is_refused_and_leaves_the_state(case: str) -> None:
    make, words = BAD_INPUTS[case]
    loss = SDGMLoss()
    run(loss, *batches()[0])
    before = state_of(loss)
    with pytest.raises(ValueError, match=words):
        loss(*make())
    assert_same_state(state_of(loss), before)


@pytest.mark.parametrize(
    "options",
    [
        {"margin": 1.5},
        {"margin": -0.5},
        {"margin": math.nan},
        {"alpha": 0.0},
        {"alpha": -0.9},
        {"decay": 1.0},
        {"decay": -0.1},
        {"self_weight": "unknown"},
        {"coupled_weight": "unknown"},
    ],
    ids=str,
)
def test_bad_arguments_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        SDGMLoss(**options)


# ------------------------------------------------------------------------- 7. the powers that the authors' logs record

# Liberty, epoch 190 (counted from 0) in the authors' training log; powers logged there: 279.2 and 293.7.
REL_MEAN, REL_STD = -0.34339, 0.21852
POS_MEAN, POS_STD = 0.82655, 0.20213
NEG_MEAN, NEG_STD = 1.16994, 0.08138


@pytest.mark.parametrize(
    ("kind", "skewness", "power_pos", "power_neg"),
    [("cdf", 0.0, 310, 324), ("cdf", 0.8, 281, 298), ("step", 0.8, 350, 368)],
)
def test_powers_late_in_training(kind: str, skewness: float, power_pos: float, power_neg: float) -> None:
    rng = np.random.default_rng(190)
    size = (200, 1024)
    if skewness:
        shape = 4 / skewness**2
        pos = POS_MEAN + POS_STD * (rng.gamma(shape, size=size) - shape) / math.sqrt(shape)
    else:
        pos = rng.normal(POS_MEAN, POS_STD, size)
    theta_pos, theta_neg = torch.tensor(pos), torch.tensor(rng.normal(NEG_MEAN, NEG_STD, size))
    running = {
        "pos": torch.tensor([POS_MEAN, POS_STD], dtype=torch.float64),
        "neg": torch.tensor([NEG_MEAN, NEG_STD], dtype=torch.float64),
        "rel": torch.tensor([REL_MEAN, REL_STD], dtype=torch.float64),
    }
    coupled = coupled_weight(theta_pos - theta_neg, *running["rel"], 0.6, kind=kind)
    found_pos = (self_weight(theta_pos, *running["pos"]) * coupled).sum(1).mean()
    found_neg = (self_weight(theta_neg, *running["neg"]) * coupled).sum(1).mean()
    assert float(found_pos) == pytest.approx(power_pos, rel=0.05)
    assert float(found_neg) == pytest.approx(power_neg, rel=0.05)

"""SDGMLoss against the paper: the oracle in `reference.py`, closed forms, invariances, state and edge cases."""

import copy
import functools
import itertools
import math
from collections.abc import Callable
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
BOTH_DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=["float32", "float64"])
SMALLEST_GAP = 1e-4  # no decision closer to its edge than this, so that float32 must decide as float64 does

Pairs = tuple[np.ndarray, np.ndarray]


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
    dead:    everything within 0.6 rad, no admissible negative at all: a collapsed batch.
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


Labelled = tuple[np.ndarray, np.ndarray]


def make_labelled(crowded: bool, rng: np.random.Generator) -> Labelled:
    """Samples (M, D), not normalised, and labels (M,): classes of one, two and three samples in mixed order.

    crowded: a cone around the first class, which is thus left without a negative.
    """
    sizes = np.array([2, *rng.permutation([1] * 6 + [2] * 6 + [3] * 5)])
    centres = unit(rng.normal(size=(len(sizes), DIM)))
    centres[1:4] = turned(centres[[0, 0, 0]], np.full(3, 0.3), rng)
    angles = 0.1 + rng.gamma(2.0, 0.1, size=sizes.sum())
    if crowded:
        centres[1:] = turned(centres[[0] * (len(sizes) - 1)], np.full(len(sizes) - 1, 0.5), rng)
        angles *= 0.3
    order = rng.permutation(sizes.sum())
    which = np.repeat(np.arange(len(sizes)), sizes)[order]
    x = turned(centres[which], angles, rng)
    return with_lengths(x, rng), rng.permutation(500)[: len(sizes)][which]


def clear_batches(steps: int, make: Callable[[int, int], Pairs], run_oracle: Callable[..., Any]) -> tuple[Pairs, ...]:
    """make(step, attempt) for each step, at the first attempt without a decision on an edge.

    Decisions do not depend on the weights chosen.
    """
    oracle, chosen = SDGMReference(decay=0.9, warmup=0.2), []
    for step in range(steps):
        for attempt in range(100):
            made, trial = make(step, attempt), copy.deepcopy(oracle)
            run_oracle(trial, *made, step / steps)
            if trial.gap >= SMALLEST_GAP:
                break
        else:
            raise AssertionError(f"no batch found for step {step}")
        oracle = trial
        chosen.append(made)
    return tuple(chosen)


@functools.cache
def batches() -> tuple[Pairs, ...]:
    """Fifty batches of 24 to 26 pairs."""

    def make(step: int, attempt: int) -> Pairs:
        return make_pairs(kind_of(step), 24 + step % 3, np.random.default_rng([step, attempt]))

    return clear_batches(STEPS, make, SDGMReference.step)


@functools.cache
def labelled() -> tuple[Labelled, ...]:
    """Six labelled batches, the fourth crowded."""

    def make(step: int, attempt: int) -> Labelled:
        return make_labelled(step == 3, np.random.default_rng([1000 + step, attempt]))

    return clear_batches(6, make, SDGMReference.step_labels)


def value_and_gradient(
    loss: Callable[..., torch.Tensor], *sides: np.ndarray, dtype: torch.dtype = torch.float64
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of loss(normalised sides), with respect to the sides before normalisation, one above the other."""
    leaves = [torch.tensor(side, dtype=dtype, requires_grad=True) for side in sides]
    value = loss(*(normalize(leaf, dim=1) for leaf in leaves))
    value.backward()
    return value.detach(), torch.cat([leaf.grad for leaf in leaves])


def run(
    loss: SDGMLoss, x: np.ndarray, y: np.ndarray, progress: float = 1.0, dtype: torch.dtype = torch.float64
) -> tuple[torch.Tensor, torch.Tensor]:
    return value_and_gradient(lambda a, p: loss(a, p, progress=progress), x, y, dtype=dtype)


def run_labels(
    loss: SDGMLoss, x: np.ndarray, labels: np.ndarray, progress: float = 1.0, dtype: torch.dtype = torch.float64
) -> tuple[torch.Tensor, torch.Tensor]:
    given = torch.tensor(labels)
    return value_and_gradient(lambda a: loss.from_labels(a, given, progress=progress), x, dtype=dtype)


def unit_tensors(seed: int, n: int = 24, dim: int = DIM) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = make_pairs("open", n, np.random.default_rng(seed), dim)
    return torch.tensor(unit(x)), torch.tensor(unit(y))


def relative(result: torch.Tensor, expected: np.ndarray | torch.Tensor) -> float:
    """Norm of the difference over the norm of what was expected; where that is zero the result must be zero."""
    expected = torch.as_tensor(expected, dtype=torch.float64)
    difference, norm = float((result.double() - expected).norm()), float(expected.norm())
    return difference / norm if norm else math.inf * difference if difference else 0.0


def assert_report(loss: SDGMLoss, oracle: SDGMReference, tolerance: float) -> None:
    for name, expected in oracle.report.items():
        field = getattr(loss.report, name)
        assert field.ndim == 0 and not field.requires_grad, name
        assert float(field) == pytest.approx(expected, rel=tolerance, abs=tolerance), name


def state_of(loss: SDGMLoss) -> dict[str, torch.Tensor]:
    return copy.deepcopy(loss.state_dict())


def assert_same_state(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    torch.testing.assert_close(dict(one), dict(other), rtol=0, atol=0, equal_nan=True)


@functools.cache
def oracle_run(**options: Any) -> tuple[tuple[SDGMReference, float, np.ndarray], ...]:
    """For each of the fifty steps: the oracle after it, its value and its gradient, x above y."""
    oracle, steps = SDGMReference(**options), []
    for step, pairs in enumerate(batches()):
        value, *gradients = oracle.step(*pairs, step / STEPS)
        steps.append((copy.copy(oracle), value, np.concatenate(gradients)))
    return tuple(steps)


def follow_oracle(dtype: torch.dtype, **options: Any) -> float:
    """Fifty steps beside the oracle; the worst relative difference of the gradient."""
    options = {"decay": 0.9, "warmup": 0.2} | options
    loss, worst = SDGMLoss(**options), 0.0
    for step, (oracle, expected, expected_gradient) in enumerate(oracle_run(**options)):
        value, gradient = run(loss, *batches()[step], step / STEPS, dtype)
        assert value.ndim == 0
        assert_report(loss, oracle, TOLERANCE[dtype])
        assert abs(float(value) - expected) <= TOLERANCE[dtype] * oracle.scale
        worst = max(worst, relative(gradient, expected_gradient))
    assert worst <= TOLERANCE[dtype]
    return worst


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
            assert missing == 1 and oracle.statistics == before and oracle.report["active_share"] == 1
            continue
        assert (0 < missing <= 0.5) if kind_of(step) == "crowded" else (missing <= 0.5)
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


@BOTH_DTYPES
@pytest.mark.parametrize("power_adjustment", [True, False], ids=["+PA", "-PA"])
@pytest.mark.parametrize("coupled", COUPLED_WEIGHTS)
@pytest.mark.parametrize("own", SELF_WEIGHTS)
def test_fifty_steps_match_the_oracle(
    own: str,
    coupled: str,
    power_adjustment: bool,
    dtype: torch.dtype,
    note_deviation: Callable[[str, float], None],
) -> None:
    worst = follow_oracle(dtype, self_weight=own, coupled_weight=coupled, power_adjustment=power_adjustment)
    note_deviation(f"sdgm, {dtype}", worst)


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
    follow_oracle(torch.float64, **options)


def test_two_pairs_match_the_oracle() -> None:
    loss, oracle = SDGMLoss(decay=0.9), SDGMReference(decay=0.9)
    for step in range(4):
        x, y = (side[3:5] for side in batches()[2 + 4 * step])
        value, gradient = run(loss, x, y, step / 4)
        expected, expected_x, expected_y = oracle.step(x, y, step / 4)
        assert oracle.report["no_negative_share"] == 0
        assert float(value) == pytest.approx(expected, abs=1e-10 * oracle.scale)
        assert relative(gradient, np.concatenate([expected_x, expected_y])) <= 1e-10


@BOTH_DTYPES
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


def test_labels_without_a_negative_or_a_spread() -> None:
    """One class has no negative. Of one row (a pair and one far sample) no spread can be estimated: nothing becomes NaN."""
    loss, (x, y) = SDGMLoss(), batches()[0]
    with pytest.warns(UserWarning, match="SDGMLoss"):
        value, gradient = run_labels(loss, x[:4], np.zeros(4, dtype=np.int64))
    assert float(value) == 0 and not gradient.any() and float(loss.report.no_negative_share) == 1
    for progress in (0.0, 1.0):
        value, gradient = run_labels(loss, np.concatenate([x[3:5], y[3:4]]), np.array([0, 1, 0]), progress)
        assert torch.isfinite(value) and torch.isfinite(gradient).all()
    value, gradient = run(loss, x, y)
    assert torch.isfinite(value) and torch.isfinite(gradient).all() and gradient.norm() > 0


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("nested", [False, True])
def test_statistics_stay_float64(dtype: torch.dtype, nested: bool) -> None:
    loss = SDGMLoss(decay=0.9)
    for step in range(3):
        run(loss, *batches()[step], dtype=torch.float32)
    before = state_of(loss)
    (torch.nn.ModuleList([loss]) if nested else loss).to(dtype)
    assert_same_state(state_of(loss), before)  # neither cast nor rounded
    run(loss, *batches()[3], dtype=torch.float32)
    floating = [buffer for buffer in loss.buffers() if buffer.is_floating_point()]
    assert sum(buffer.numel() for buffer in floating) == 8  # six of the angles, two powers
    assert all(buffer.dtype == torch.float64 for buffer in floating)


def test_late_threshold_admits_near_negatives_early() -> None:
    a, p = unit_tensors(0, n=6, dim=32)
    p[1] = normalize(p[0] + 0.1 * p[2], dim=0)  # one point under two ids: nearer than 0.6 rad, but not coinciding
    a[1] = normalize(a[0] + 0.1 * a[3], dim=0)
    loss = SDGMLoss(threshold_start=0.125, decay=0.0)
    for progress, near in ((0.12, True), (0.125, False)):
        loss(a, p, progress=progress)
        nearest = hardest_in_batch(a, p, loss.threshold(progress)).theta_neg
        assert (nearest.min() < 0.6) == near
        assert float(loss.report.theta_neg_mean) == pytest.approx(float(nearest.mean()))
    assert loss.threshold(0.0) == pytest.approx(math.acos(1 - 1e-5))


def test_eval_mode_uses_the_statistics_and_leaves_them() -> None:
    assert torch.isfinite(SDGMLoss().eval()(*unit_tensors(0, n=8)))  # also before any training
    loss = SDGMLoss(decay=0.9)
    for seed in range(3):
        loss(*unit_tensors(seed, n=16))
    before = state_of(loss)
    first = loss.eval()(*unit_tensors(7, n=16))
    assert torch.equal(first, loss(*unit_tensors(7, n=16)))
    assert_same_state(state_of(loss), before)
    loss.train()(*unit_tensors(7, n=16))
    assert not torch.equal(loss.statistics.moments, before["statistics.moments"])


def test_identical_descriptors_have_no_negatives() -> None:
    loss = SDGMLoss()
    before = state_of(loss)
    with pytest.warns(UserWarning, match="SDGMLoss.*only one label"):
        value, gradient = run(loss, np.ones((8, DIM)), np.ones((8, DIM)))
    assert float(value) == 0
    assert gradient.shape == (16, DIM) and torch.count_nonzero(gradient) == 0
    assert float(loss.report.no_negative_share) == 1
    assert float(loss.report.active_share) == 0
    assert_same_state(state_of(loss), before)
    # so that the next batch, of another size, is the first one
    assert torch.equal(run(loss, *batches()[2])[0], run(SDGMLoss(), *batches()[2])[0])


@BOTH_DTYPES
@pytest.mark.parametrize("coupled", COUPLED_WEIGHTS)
@pytest.mark.parametrize("own", SELF_WEIGHTS)
def test_degenerate_batches_are_finite(own: str, coupled: str, dtype: torch.dtype) -> None:
    """Positives equal or opposite to their anchors; orthogonal axes, whose angles have no spread at all."""
    x, y = batches()[0]
    some_equal, some_opposite = np.concatenate([x[:12], y[12:]]), np.concatenate([-x[:2], y[2:]])
    for progress in (0.0, 1.0):
        for case in ((x, some_equal), (x, x), (x, some_opposite), (np.eye(8), np.eye(8))):
            loss = SDGMLoss(self_weight=own, coupled_weight=coupled, decay=0.9)
            value, gradient = run(loss, *case, progress, dtype)
            assert torch.isfinite(value) and torch.isfinite(gradient).all()
            assert case[1] is not some_equal or gradient.norm() > 0
        assert float(loss.report.no_negative_share) == 0
        assert float(loss.report.theta_neg_mean) == pytest.approx(math.pi / 2)


def spoiled(number: float) -> torch.Tensor:
    a = unit_tensors(0)[0].clone()
    a[3, 2] = number
    return a


A, P = unit_tensors(0)
BAD_INPUTS: dict[str, tuple[torch.Tensor, torch.Tensor, str]] = {
    "one pair": (A[:1], P[:1], "N = 1"),
    "no pair": (A[:0], P[:0], "N = 0"),
    "rows differ": (A, P[:-1], "23"),
    "columns differ": (A, P[:, :8], "8"),
    "one axis": (A[0], P[0], "16"),
    "three axes": (A[None], P[None], "1, 24, 16"),
    "nan anchor": (spoiled(math.nan), P, "anchor.*row 3"),
    "nan positive": (A, spoiled(math.nan), "positive.*row 3"),
    "inf": (spoiled(math.inf), P, "anchor.*row 3"),
    "long anchors": (3 * A, P, "anchor.*length 3"),
    "short positives": (A, 0.5 * P, "positive.*length 0.5"),
    "one long row": (spoiled(2.0), P, "row 3"),
}


@pytest.mark.parametrize("case", BAD_INPUTS)
def test_bad_input_is_refused_and_leaves_the_state(case: str) -> None:
    anchor, positive, named = BAD_INPUTS[case]
    loss = SDGMLoss()
    run(loss, *batches()[0])
    before = state_of(loss)
    with pytest.raises(ValueError, match=named):
        loss(anchor, positive)
    assert_same_state(state_of(loss), before)


@pytest.mark.parametrize(
    ("option", "value"),
    [("threshold_start", 1.5), ("threshold_start", -0.1),
     ("margin", 1.5), ("margin", -0.5), ("margin", math.nan), ("alpha", 0.0), ("alpha", -0.9), ("decay", 1.0),
     ("decay", -0.1), ("self_weight", "unknown"), ("coupled_weight", "unknown")],
)  # fmt: skip
def test_bad_options_are_refused(option: str, value: float | str) -> None:
    with pytest.raises(ValueError, match=option):
        SDGMLoss(**{option: value})


# Liberty, epoch 190 (counted from 0) in the authors' training log, mean and std; powers logged there: 279.2 and 293.7.
POS, NEG, REL = torch.tensor([[0.82655, 0.20213], [1.16994, 0.08138], [-0.34339, 0.21852]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("kind", "skewness", "power_pos", "power_neg"),
    [("cdf", 0.0, 310, 324), ("cdf", 0.8, 281, 298), ("step", 0.8, 350, 368)],
)
def test_powers_late_in_training(kind: str, skewness: float, power_pos: float, power_neg: float) -> None:
    rng, size = np.random.default_rng(190), (200, 1024)
    shape = 4 / skewness**2 if skewness else math.inf
    pos = (rng.gamma(shape, size=size) - shape) / math.sqrt(shape) if skewness else rng.normal(size=size)
    theta_pos = POS[0] + POS[1] * torch.tensor(pos)
    theta_neg = NEG[0] + NEG[1] * torch.tensor(rng.normal(size=size))
    coupled = coupled_weight(theta_pos - theta_neg, *REL, 0.6, kind=kind)
    found_pos = float((self_weight(theta_pos, *POS) * coupled).sum(1).mean())
    found_neg = float((self_weight(theta_neg, *NEG) * coupled).sum(1).mean())
    print(f"\n{kind}, skewness {skewness}: powers {found_pos:.0f} and {found_neg:.0f}; logged 279.2 and 293.7")
    assert found_pos == pytest.approx(power_pos, rel=0.05)
    assert found_neg == pytest.approx(power_neg, rel=0.05)

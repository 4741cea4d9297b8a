"""The microscope against formulas written from the protocols, one triplet at a time, in float64."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from reproduce.modulation import (
    content,
    draw_modulations,
    examine,
    paper_angles,
    rank_correlation,
    summary,
    table,
)
from sdgmnet.loss.registry import loss_by_name
from sdgmnet.loss.statistics import Float64State
from sdgmnet.training.angles import Angles
from sdgmnet.training.microscope import NEARER, ROW, gradient_of, measure, prepare, triplet_batch, walk, warm_up

ROWS = 6
PLACES = [(0.1, 0.7), (0.35, 1.45), (0.62, 0.64), (0.8, 0.9), (0.83, 1.17), (1.2, 0.75), (1.5, 1.5), (1.0, 1.3)]


@pytest.fixture(scope="module")
def angles() -> Angles:
    random = np.random.default_rng(3)
    moments = np.array([[0.8, 0.25], [1.15, 0.1], [-0.35, 0.27]])
    return Angles(random.normal(0.8, 0.25, 500).clip(0.05, 1.5), random.normal(1.15, 0.1, 500).clip(0.65, 1.5), moments)


def chord(theta: float, epsilon: float = 0.0) -> tuple[float, float]:
    """√(2 - 2 cos θ + ε) and its derivative."""
    length = math.sqrt(2 - 2 * math.cos(theta) + epsilon)
    return length, math.sin(theta) / length


def phi(z: float) -> float:
    return 0.5 * (1 + math.erf(z / math.sqrt(2)))


def sdgm_weights(angles: Angles, pos: float, neg: float) -> tuple[float, float]:
    (mean_pos, std_pos), (mean_neg, std_neg), (mean_rel, std_rel) = angles.moments
    share = phi((pos - neg - mean_rel) / std_rel)
    w_c = share if share > 0.6 else 0.0
    w_pos = math.exp(-((pos - mean_pos) ** 2) / (2 * (math.pi / 6 + std_pos) ** 2))
    w_neg = math.exp(-((neg - mean_neg) ** 2) / (2 * (math.pi / 6 + std_neg) ** 2))
    return w_c * w_pos, w_c * w_neg


def over_powers(
    weights: Callable[[float, float], tuple[float, float]], angles: Angles, pos: float, neg: float
) -> tuple[float, float]:
    every = [weights(float(p), float(n)) for p, n in zip(angles.theta_pos, angles.theta_neg, strict=True)]
    powers = [ROWS * sum(one[side] for one in every) / len(every) for side in (0, 1)]
    here = weights(pos, neg)
    return 0.9 * here[0] / powers[0], -here[1] / powers[1]


def sdgm(angles: Angles, pos: float, neg: float) -> tuple[float, float]:
    return over_powers(lambda p, n: sdgm_weights(angles, p, n), angles, pos, neg)


def keller(angles: Angles, pos: float, neg: float) -> tuple[float, float]:
    def weights(p: float, n: float) -> tuple[float, float]:
        return (1 / (1 + math.exp(-10 * (p - n))),) * 2

    return over_powers(weights, angles, pos, neg)


def exp_tl(angles: Angles, pos: float, neg: float) -> tuple[float, float]:
    return over_powers(lambda p, n: (math.exp(p), math.exp(-n)), angles, pos, neg)


def sface(angles: Angles, pos: float, neg: float) -> tuple[float, float]:
    def weights(p: float, n: float) -> tuple[float, float]:
        return math.sin(p) / (1 + math.exp(-80 * (p - 0.8))), math.sin(n) / (1 + math.exp(80 * (n - 1.23)))

    return over_powers(weights, angles, pos, neg)


def hinge(margin: float, epsilon: float) -> Callable[[Angles, float, float], tuple[float, float]]:
    def formula(angles: Angles, pos: float, neg: float) -> tuple[float, float]:
        (d_pos, slope_pos), (d_neg, slope_neg) = chord(pos, epsilon), chord(neg, epsilon)
        active = margin + d_pos - d_neg >= 0
        return active * slope_pos / ROWS, -active * slope_neg / ROWS

    return formula


def sosnet(angles: Angles, pos: float, neg: float) -> tuple[float, float]:
    (d_pos, slope_pos), (d_neg, slope_neg) = chord(pos, 1e-6), chord(neg, 1e-6)
    pull = 2 * max(0.0, 1 + d_pos - d_neg) / ROWS
    return pull * slope_pos, -pull * slope_neg


def hynet(angles: Angles, pos: float, neg: float) -> tuple[float, float]:
    (d_pos, slope_pos), (d_neg, slope_neg) = chord(pos, 1e-6), chord(neg, 1e-6)
    active = 1.2 + d_pos + d_pos**2 - d_neg - d_neg**2 > 0
    return active * slope_pos * (1 + 2 * d_pos), -active * slope_neg * (1 + 2 * d_neg)


def cdf(angles: Angles, pos: float, neg: float) -> tuple[float, float]:
    histogram = [0.0] * 512
    width = 4 / 511
    for p, n in zip(angles.theta_pos, angles.theta_neg, strict=True):
        place = (chord(float(p), 2e-6)[0] - chord(float(n), 2e-6)[0] + 2) / width
        histogram[int(place)] += (1 - place + int(place)) / len(angles.theta_pos)
        histogram[int(place) + 1] += (place - int(place)) / len(angles.theta_pos)
    (d_pos, slope_pos), (d_neg, slope_neg) = chord(pos, 2e-6), chord(neg, 2e-6)
    weight = sum(histogram[: int((d_pos - d_neg + 2) / width) + 1])
    return weight * slope_pos / ROWS, -weight * slope_neg / ROWS


def l2net(angles: Angles, pos: float, neg: float) -> tuple[float, float]:
    """∂E1/∂d: half the missing share of the softmax by rows and by columns; rows and columns of `distances` of this batch."""
    distances = [[math.sqrt(2)] * ROWS for _ in range(ROWS)]
    cos_pos, cos_neg, cos_near = math.cos(pos), math.cos(neg), math.cos(neg - NEARER)
    far = [(1, 0, cos_near), (1, 1, cos_pos), (2, 1, cos_neg), (2, 2, cos_pos)]
    far += [(2, 0, cos_neg * cos_pos * cos_near), (1, 2, cos_pos * cos_neg * cos_pos)]
    for i, j, cosine in far:
        distances[i][j] = math.sqrt(2 - 2 * cosine)

    def shares(i: int, j: int) -> float:
        own = math.exp(2 - distances[i][j])
        row = own / sum(math.exp(2 - distances[i][k]) for k in range(ROWS))
        return row + own / sum(math.exp(2 - distances[k][j]) for k in range(ROWS))

    return chord(pos)[1] * (2 - shares(2, 2)) / 2, -chord(neg)[1] * shares(2, 1) / 2


FORMULAS: dict[str, Callable[[Angles, float, float], tuple[float, float]]] = {
    "sdgm": sdgm,
    "hardnet": hinge(1.0, 1e-5),
    "hardnet-original": hinge(1.0, 1e-6),
    "tfeat": hinge(2.0, 0.0),
    "l2net": l2net,
    "cdf": cdf,
    "sosnet": sosnet,
    "hynet": hynet,
    "keller": keller,
    "exp-tl": exp_tl,
    "sface": sface,
}


@pytest.mark.parametrize("name", FORMULAS)
def test_equal_to_the_formula(name: str, angles: Angles) -> None:
    loss = prepare(loss_by_name(name, {}), angles, ROWS)
    found = np.array([measure(loss, pos, neg, ROWS) for pos, neg in PLACES])
    expected = np.array([FORMULAS[name](angles, pos, neg) for pos, neg in PLACES])
    assert abs(expected).max() > 0.01
    assert abs(found - expected).max() <= 1e-6 * abs(expected).max()


@pytest.mark.parametrize("name", ["MultiSimilarityLoss", "NTXentLoss", "ContrastiveLoss"])
def test_any_other_loss_equals_differences_of_one_angle(name: str) -> None:
    """The Gram matrix with one angle changed, and descriptors made of it anew: no tangent, no gradient."""
    pytest.importorskip("pytorch_metric_learning")
    loss = loss_by_name(f"pml:{name}", {})
    for pos, neg in [(0.8, 0.9), (1.2, 1.1)]:
        points = triplet_batch(pos, neg, ROWS)
        gram = points @ points.T

        def value(i: int, j: int, theta: float, gram: Tensor = gram) -> float:
            changed = gram.clone()
            changed[i, j] = changed[j, i] = math.cos(theta)
            made = torch.linalg.cholesky(changed)
            return float(loss(made[0::2], made[1::2]))

        step = 1e-5
        expected = [
            (value(4, j, theta + step) - value(4, j, theta - step)) / (2 * step) for j, theta in ((5, pos), (3, neg))
        ]
        assert measure(loss, pos, neg, ROWS) == pytest.approx(expected, rel=1e-6, abs=1e-8)
        assert max(map(abs, expected)) > 1e-3


def test_the_batch_is_as_described() -> None:
    points = triplet_batch(0.7, 0.95, ROWS)
    theta = torch.acos((points @ points.T).clamp(-1, 1))
    anchor, positive, other = 2 * ROW, 2 * ROW + 1, 2 * ROW - 1
    assert theta[anchor, positive].item() == pytest.approx(0.7)
    assert theta[anchor, other].item() == pytest.approx(0.95)
    others = [k for k in range(2 * ROWS) if k not in (anchor, positive)]
    assert min(theta[k, j].item() for k in (anchor, positive) for j in others) == pytest.approx(0.95)
    assert (theta[6:, :6] - math.pi / 2).abs().max() < 1e-12
    steps = torch.tensor([0.3, 1.2, 0.9], dtype=torch.float64)
    made = walk(steps)
    assert torch.acos((made[1:] * made[:-1]).sum(1)) == pytest.approx(steps)
    assert float(made[3] @ made[0]) == pytest.approx(math.cos(0.3) * math.cos(1.2) * math.cos(0.9))


def test_negatives_below_the_threshold_are_ignored(angles: Angles) -> None:
    loss = prepare(loss_by_name("sdgm", {}), angles, ROWS)
    assert measure(loss, 1.2, 0.5, ROWS)[1] == 0
    found = examine(loss, "sdgm", angles, 6, ROWS)
    assert np.isnan(found.plane.positive[:2]).all() and np.isfinite(found.plane.positive[3:]).all()


def test_a_loss_with_buffers_is_trained_on_the_angles(angles: Angles) -> None:
    class Remembering(Float64State):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(2, dtype=torch.float64))

        def forward(self, anchor: Tensor, positive: Tensor, *, progress: float = 1.0) -> Tensor:
            theta = torch.acos((anchor * positive).sum(1))
            if self.training:
                self.seen += torch.tensor([float(theta.sum()), len(theta)], dtype=torch.float64)
            return theta.sum() * self.seen[0]

    loss = Remembering()
    warm_up(loss, angles, ROWS)
    assert float(loss.seen[0] / loss.seen[1]) == pytest.approx(angles.theta_pos.mean(), abs=0.05)
    before = loss.seen.clone()
    prepared: nn.Module = prepare(loss, angles, ROWS)
    assert not prepared.training and float(loss.seen[1]) > float(before[1])
    assert gradient_of(prepared, triplet_batch(0.5, 0.9, ROWS)).abs().max() > 0


@pytest.mark.slow
def test_figure_results_and_table(tmp_path: Path, angles: Angles) -> None:
    names = ["sdgm", "hardnet-original"]
    found = [examine(prepare(loss_by_name(name, {}), angles, ROWS), name, angles, 5, ROWS) for name in names]
    results = content(found, ROWS, "test")
    for name, line in zip(names, results["losses"], strict=True):
        for row, neg in enumerate(line["theta"]):
            for column, pos in enumerate(line["theta"]):
                if line["plane_positive"][row][column] is None:
                    assert name == "sdgm" and neg <= 0.6
                    continue
                expected = ROWS * np.array(FORMULAS[name](angles, pos, neg))
                written = [line[key][row][column] for key in ("plane_positive", "plane_negative")]
                assert written == pytest.approx(expected, abs=1e-6)
    assert summary(found[0])["power_ratio"] == pytest.approx(0.9, abs=0.05)
    every = [sdgm_weights(angles, float(pos), float(neg))[0] for pos, neg in found[0].along_theta.T]
    assert summary(found[0])["without_gradient"] == pytest.approx(np.mean(np.array(every) == 0))
    assert [row[0] for row in table(found)[1]] == names
    one_sided = replace(found[0], along=found[0].along._replace(negative=1e-14 * found[0].along.negative))
    assert summary(one_sided)["power_ratio"] is None and table([one_sided])[1][0][2] == "-"
    paths = draw_modulations(found, angles, "some angles", tmp_path / "modulation")
    assert [path.suffix for path in paths] == [".png", ".pdf"] and all(path.stat().st_size > 5000 for path in paths)


def test_angles_of_the_paper_and_ranks() -> None:
    made = paper_angles()
    assert made.theta_pos.mean() == pytest.approx(0.827, abs=0.01)
    assert made.theta_neg.std() == pytest.approx(0.081, abs=0.005)
    assert rank_correlation(np.array([1.0, 2, 3]), np.array([1.0, 8, 27])) == pytest.approx(1)
    assert rank_correlation(np.array([1.0, 2, 3, 4]), np.array([0.0, 0, 1, 1])) == pytest.approx(0.894427, abs=1e-5)
    assert rank_correlation(np.array([1.0, 2]), np.array([1.0, 1])) is None

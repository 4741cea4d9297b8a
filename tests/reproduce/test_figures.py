"""Fig. 1 and 3, the learning rate, the margin and the norms, each against a loop."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reproduce.architecture import Layer, draw_fig3, read_layers
from reproduce.extras import (
    MARGINS,
    contrast_of,
    draw_factors,
    draw_margin_shares,
    draw_norms,
    margin_shares,
    read_factors,
    relate,
    warm_up_factor,
)
from reproduce.triplets import Triplet, draw_fig1, find_triplets, on_sphere, tangent
from sdgmnet.data.patchset import PatchSet
from sdgmnet.encoders import L2Net, SDGMNet, TFeat
from sdgmnet.engine import feature_lengths, prepare
from sdgmnet.errors import InputError
from sdgmnet.training.angles import Angles


def are_drawn(paths: list[Path]) -> bool:
    return [path.suffix for path in paths] == [".png", ".pdf"] and all(path.stat().st_size > 3000 for path in paths)


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
        found = (one.theta_pos, one.theta_neg, one.w_pos, one.w_neg)
        assert found == pytest.approx((pos[one.row], neg[one.row], w_pos[one.row], w_neg[one.row]))
    assert hard.w_pos > 0 == easy.w_pos


def test_fig1_is_drawn(blobs: PatchSet, tmp_path: Path) -> None:
    shown = [Triplet("hard", 3, (0, 1, 5), 0.9, 1.0, 1.2, 0.8, 0.9), Triplet("easy", 4, (6, 7, 9), 0.3, 1.2, 1.2, 0, 0)]
    assert are_drawn(draw_fig1(blobs, shown, "note", tmp_path / "fig1"))


@pytest.mark.parametrize(("encoder", "total"), [(SDGMNet(), 1_336_355), (L2Net(), 1_334_560), (TFeat(), 599_808)])
def test_all_that_is_learned_is_there(encoder: nn.Module, total: int) -> None:
    encoder.train()
    layers = read_layers(encoder)
    assert sum(one.parameters for one in layers) == total
    assert encoder.training
    assert (layers[-1].text == "unit length") == (not isinstance(encoder, TFeat))


def test_the_paper_encoder_layer_by_layer() -> None:
    texts = [(one.text, one.shape) for one in read_layers(SDGMNet(dropout=0.2))]
    assert texts == [
        ("patch", (1, 32, 32)),
        ("FRN · TLU", (1, 32, 32)),
        ("conv 3×3, 1→32 · FRN · TLU", (32, 32, 32)),
        ("conv 3×3, 32→32 · FRN · TLU", (32, 32, 32)),
        ("conv 3×3 /2, 32→64 · FRN · TLU", (64, 16, 16)),
        ("conv 3×3, 64→64 · FRN · TLU", (64, 16, 16)),
        ("conv 3×3 /2, 64→128 · FRN · TLU", (128, 8, 8)),
        ("conv 3×3, 128→128 · FRN · TLU", (128, 8, 8)),
        ("dropout 0.2", (128, 8, 8)),
        ("conv 8×8, 128→128, no bias · BN", (128,)),
        ("unit length", (128,)),
    ]


def test_another_encoder_draws_itself(tmp_path: Path) -> None:
    class Small(nn.Module):
        patch_size = 16

        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(1, 4, 5, stride=3), nn.GELU(), nn.AvgPool2d(2), nn.Linear(16, 6))

        def forward(self, x: Tensor) -> Tensor:
            x = self.body[:3](x - x.mean())
            return F.normalize(self.body[3](x.flatten(1)), dim=1)

    layers = read_layers(Small())
    assert [one.text for one in layers] == [
        "patch",
        "prepared",
        "conv 5×5 /3, 1→4 · GELU",
        "AvgPool 2",
        "linear 16→6",
        "unit length",
    ]
    assert layers[3] == Layer("AvgPool 2", "other", (4, 2, 2), 0)
    assert are_drawn(draw_fig3("Small", layers, tmp_path / "fig3"))


def test_standardised_patches_are_noticed() -> None:
    assert read_layers(L2Net())[1].text == "mean 0, deviation 1"


def test_factors_equal_the_protocol(tmp_path: Path) -> None:
    """Algorithm 1 with a power of N in the warm-up and 0.27 N after it, one iteration after another."""
    running, lines = 10_000.0, []
    for step in range(1, 12_001):
        power = 1024.0 if step <= 8000 else 280.0
        running = 0.999 * running + 0.001 * power
        if step % 500 == 0 or step == 1:
            both = {f"{name}{sign}": value for sign in ("pos", "neg") for name, value in
                    (("power_", power), ("running_power_", running))}  # fmt: skip
            lines.append({"step": step, "learning_rate": 1.0, **both})
    rates = read_factors(lines, "log")
    stated = {1: 0.10, 500: 0.16, 1000: 0.24, 2000: 0.46, 3000: 0.70, 5000: 0.94, 8000: 1.00}  # docs/protocols.md 2.1
    for step, factor in stated.items():
        assert rates.factor_pos[rates.step == step][0] == pytest.approx(factor, abs=0.006)
    warm = rates.step <= 8000
    assert rates.factor_neg[warm] == pytest.approx(warm_up_factor(rates.step[warm], 1024, 10_000, 0.999))
    assert rates.factor_pos[rates.step == 9000][0] == pytest.approx(0.51, abs=0.01)
    formula = warm_up_factor(np.arange(1, 8001), 1024, 10_000, 0.999)
    assert are_drawn(draw_factors(rates, 8000, formula, tmp_path / "rates"))
    with pytest.raises(InputError, match="log has no powers"):
        read_factors([{"step": 1, "learning_rate": 1.0}], "log")


def test_triplets_beyond_the_margin_are_counted(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    moments = np.array([[0.8, 0.2], [1.1, 0.1], [-0.3, 0.25]])
    angles = Angles(random.normal(0.8, 0.2, 300), random.normal(1.1, 0.1, 300), moments)
    shares = margin_shares(angles)
    for margin, share in zip(MARGINS, shares, strict=True):
        count = 0
        for pos, neg in zip(angles.theta_pos, angles.theta_neg, strict=True):
            count += 0.5 * (1 + math.erf((pos - neg + 0.3) / 0.25 / math.sqrt(2))) > margin
        assert share == count / 300
    assert are_drawn(draw_margin_shares(shares, 0.6, tmp_path / "shares"))


def test_lengths_and_their_correlation(tmp_path: Path) -> None:
    torch.manual_seed(0)
    encoder = SDGMNet()
    patches = np.random.default_rng(0).integers(0, 255, (70, 64, 64)).astype(np.uint8)
    found = feature_lengths(encoder, patches)
    assert encoder.training
    encoder.eval()
    for k in (0, 64, 69):
        raw = encoder.encode(prepare(torch.from_numpy(patches[k : k + 1]), 32)).raw
        assert found[k] == pytest.approx(math.sqrt(sum(x**2 for x in raw[0].tolist())), rel=1e-5)
    contrast = contrast_of(patches)
    pixels = [float(x) for x in patches[3].ravel()]
    mean = sum(pixels) / 4096
    assert contrast[3] == pytest.approx(math.sqrt(sum((x - mean) ** 2 for x in pixels) / 4096))
    relation = relate(np.array([1.0, 2, 3, 4, 5]), np.array([1.0, 3, 2, 5, 4]))
    assert relation.correlation == pytest.approx(0.8) == relation.rank_correlation
    assert (relation.low, relation.high) == pytest.approx((-0.2796, 0.9862), abs=1e-3)
    assert are_drawn(draw_norms(contrast, found, relation, tmp_path / "norms"))
    with pytest.raises(InputError, match="four patches"):
        relate(np.ones(5), np.arange(5.0))

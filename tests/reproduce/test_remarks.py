"""What the paper says in passing: pace of training, released triplets, lengths of features; tables beside published ones."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from reproduce import hpatches_table, table5
from reproduce.learning_rate import draw_pace, read_pace, warm_up_factor
from reproduce.margin_share import MARGINS, draw_release, released
from reproduce.norms import contrast_of, draw_norms, relate
from sdgmnet.benchmarks.hpatches import Row
from sdgmnet.benchmarks.hpatches_tasks import POOLS
from sdgmnet.encoders import SDGMNet
from sdgmnet.engine import feature_lengths, prepare
from sdgmnet.errors import InputError
from sdgmnet.training.angles import Angles


def test_pace_equals_the_protocol(tmp_path: Path) -> None:
    """Algorithm 1 with a power of N in the warm-up and 0.27 N after it, one iteration after another."""
    running, lines = 10_000.0, []
    for step in range(1, 12_001):
        power = 1024.0 if step <= 8000 else 280.0
        running = 0.999 * running + 0.001 * power
        if step % 500 == 0 or step == 1:
            both = {f"{name}{sign}": value for sign in ("pos", "neg") for name, value in
                    (("power_", power), ("running_power_", running))}  # fmt: skip
            lines.append({"step": step, "learning_rate": 1.0, **both})
    pace = read_pace(lines, "log")
    stated = {1: 0.10, 500: 0.16, 1000: 0.24, 2000: 0.46, 3000: 0.70, 5000: 0.94, 8000: 1.00}  # PROTOCOLS.md 2.1
    for step, factor in stated.items():
        assert pace.factor_pos[pace.step == step][0] == pytest.approx(factor, abs=0.006)
    warm = pace.step <= 8000
    assert pace.factor_neg[warm] == pytest.approx(warm_up_factor(pace.step[warm], 1024, 10_000, 0.999))
    assert pace.factor_pos[pace.step == 9000][0] == pytest.approx(0.51, abs=0.01)
    paths = draw_pace(pace, 8000, warm_up_factor(np.arange(1, 8001), 1024, 10_000, 0.999), tmp_path / "pace")
    assert all(path.stat().st_size > 5000 for path in paths)
    with pytest.raises(InputError, match="records no powers"):
        read_pace([{"step": 1, "learning_rate": 1.0}], "log")


def test_released_triplets_are_counted(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    moments = np.array([[0.8, 0.2], [1.1, 0.1], [-0.3, 0.25]])
    angles = Angles(random.normal(0.8, 0.2, 300), random.normal(1.1, 0.1, 300), moments)
    shares = released(angles)
    for margin, share in zip(MARGINS, shares, strict=True):
        count = 0
        for pos, neg in zip(angles.theta_pos, angles.theta_neg, strict=True):
            count += 0.5 * (1 + math.erf((pos - neg + 0.3) / 0.25 / math.sqrt(2))) > margin
        assert share == count / 300
    assert all(path.stat().st_size > 5000 for path in draw_release(shares, 0.6, tmp_path / "released"))


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
    assert all(path.stat().st_size > 5000 for path in draw_norms(contrast, found, relation, tmp_path / "norms"))
    with pytest.raises(InputError, match="four patches"):
        relate(np.ones(5), np.arange(5.0))


def test_tables_have_published_values_in_columns_of_their_own() -> None:
    def rows(value: float) -> list[Row]:
        return [Row(task, noise, subset, "ap", value)
                for task, subset in (("verification", "inter"), ("matching", "all"), ("retrieval", str(POOLS[-1])))
                for noise in ("easy", "hard", "tough")]  # fmt: skip

    lines = [("RootSIFT", rows(0.3)), ("HardNet+FRN", rows(0.5)), ("sdgmnet", rows(0.52))]
    body = hpatches_table.table(lines)
    assert body[0][2] == "30.00" and body[0][-5:] == ["58.53", "27.22", "33.56", "27.22", "42.49"]
    assert body[2][-5:] == [""] * 5
    assert all(len(line) == len(hpatches_table.HEADER) for line in body)
    assert [line[1:] for line in hpatches_table.differences(lines)] == [["+2.00", "+0.34"], ["-", "+0.60"]]
    row = {
        "set": "Herz-Jesu",
        "photos": 8,
        "registered": 8,
        "points": 9,
        "track_length": 4.5,
        "reprojection_error": 0.5,
    }
    header, lines5 = table5.table([{**row, "label": "mine"}, {**row, "label": "other", "set": "garden"}])
    assert header == [
        "set",
        "measure",
        "mine",
        "other",
        *(f"paper, {name}" for name in ("HardNet", "SOSNet", "HyNet", "SDGMNet")),
    ]
    assert ["Herz-Jesu (8 photos)", "sparse points", "9", "no model", "8.7K", "8.7K", "8.9K", "9.0K"] in lines5
    assert ["garden (8 photos)", "track length", "no model", "4.50", "", "", "", ""] in lines5

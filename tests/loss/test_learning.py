"""SDGMLoss starts to learn from any fresh encoder: ten small ones, ten seeds each (`tests/loss/small_encoders.py`)."""

import pytest

from tests.loss.small_encoders import ENCODERS, learn

pytestmark = pytest.mark.filterwarnings("ignore:SDGMLoss")
SLOWER = {"transformer"}  # its first descriptors nearly coincide


@pytest.mark.parametrize("name", ENCODERS)
def test_a_fresh_encoder_starts_to_learn(name: str) -> None:
    found = learn(name, seed=0, steps=150 if name in SLOWER else 60)
    assert found.after > min(0.9, found.before + 0.2)


@pytest.mark.slow
@pytest.mark.parametrize("warm", [True, False], ids=["with progress", "without progress"])
@pytest.mark.parametrize("name", ENCODERS)
def test_ten_seeds_learn(name: str, warm: bool) -> None:
    for seed in range(10):
        found = learn(name, seed, steps=500 if name in SLOWER else 150, warm=warm)
        print(f"{name}, seed {seed}: {found.before:.2f} -> {found.after:.2f}, spread {found.spread:.2f} rad")
        assert found.after > 0.9 and found.spread > 0.6

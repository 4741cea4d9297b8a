"""SDGMLoss starts to learn from any fresh encoder: ten small ones, ten seeds each (`tests/loss/small_encoders.py`)."""

import pytest

from tests.loss.small_encoders import ENCODERS, Learned, learn

pytestmark = pytest.mark.filterwarnings("ignore:SDGMLoss")


def assert_learned(found: Learned) -> None:
    assert found.after > found.before + 0.1 or found.after > 0.95
    assert found.spread > 0.6


@pytest.mark.parametrize("name", ENCODERS)
def test_a_fresh_encoder_learns(name: str) -> None:
    assert_learned(learn(name, seed=0, steps=60))


def test_most_fresh_encoders_start_without_a_negative() -> None:
    """Otherwise these tests would prove little."""
    assert sum(learn(name, seed=0, steps=1).without_negative == 1 for name in ENCODERS) >= 5


@pytest.mark.slow
@pytest.mark.parametrize("name", ENCODERS)
def test_ten_seeds_learn(name: str) -> None:
    for seed in range(10):
        for warm in (True, False):
            assert_learned(learn(name, seed, steps=150, warm=warm))

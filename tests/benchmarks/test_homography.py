import math

import numpy as np
import pytest

from sdgmnet.benchmarks.homography import accuracy, area, corner_error, table
from tests.benchmarks import brute

IDENTITY = np.eye(3)


def test_corner_error_against_loops() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        estimate, homography = (IDENTITY + rng.normal(0, 1, (3, 3)) * [[0.2, 0.2, 20], [0.2, 0.2, 20], [1e-4, 1e-4, 0.1]]
                                for _ in range(2))  # fmt: skip
        size = int(rng.integers(1, 900)), int(rng.integers(1, 900))
        expected = brute.corner_error(estimate, homography, size)
        assert corner_error(estimate, homography, size) == pytest.approx(expected, rel=1e-9)
        assert corner_error(-3 * estimate, homography, size) == pytest.approx(expected, rel=1e-9)


def test_corner_error_by_hand() -> None:
    assert corner_error(IDENTITY, IDENTITY, (40, 30)) == 0
    moved = np.array([[1.0, 0, 3], [0, 1, 4], [0, 0, 1]])
    assert corner_error(moved, IDENTITY, (40, 30)) == pytest.approx(5)
    wider = np.diag([2.0, 1, 1])  # two corners stay, two move by 39
    assert corner_error(wider, IDENTITY, (40, 30)) == pytest.approx(39 / 2)


@pytest.mark.parametrize(
    "estimate",
    [None, np.full((3, 3), np.nan), np.array([[1.0, 0, 0], [0, 1, 0], [1, 0, -39]]), np.zeros((3, 3))],
    ids=["none", "nan", "a corner at infinity", "zeros"],
)
def test_what_gives_no_homography_is_infinitely_wrong(estimate: np.ndarray | None) -> None:
    assert corner_error(estimate, IDENTITY, (40, 30)) == math.inf


def test_shares_and_areas_against_loops() -> None:
    rng = np.random.default_rng(1)
    for count in (1, 2, 3, 17):
        errors = [
            *rng.exponential(3, count),
            *rng.choice([0.0, 1, 3, 5, 10, math.inf], count),
        ]  # with ties and at the edges
        for threshold in (1, 3, 5, 10):
            assert accuracy(errors, threshold) == pytest.approx(
                sum(error <= threshold for error in errors) / len(errors), abs=1e-9
            )
            assert area(errors, threshold) == pytest.approx(brute.area(errors, threshold), abs=1e-9)
    assert area([0.0], 3) == 1 and area([math.inf], 3) == area([3.0], 3) == 0 and accuracy([3.0], 3) == 1


def test_table_counts_failures() -> None:
    header, body = table(["a"], [{"viewpoint": [0.5, 2.0, math.inf, 4.0], "all": [math.inf]}])
    assert dict(zip(header, body[0], strict=True)) == {
        "descriptor": "a", "sequences": "viewpoint", "pairs": "4", "within 1 px": "0.250", "within 3 px": "0.500",
        "within 5 px": "0.750", "AUC 3 px": "0.292", "AUC 5 px": "0.425", "AUC 10 px": "0.588", "failed": "1",
    }  # fmt: skip
    assert body[1][1:4] == ["all", "1", "0.000"] and body[1][-1] == "1"

"""The metrics of Eqs. (3)-(4) against float64 mathematics, and Eqs. (5)-(7) as facts about the measured gradients."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from sdgmnet.sphere import angle, angle_gradient_norm, cosine, cosine_gradient_norm, l2_distance, l2_gradient_norm

ANGLES = (0.0, 1e-8, 1e-4, 0.01, 0.049, 0.051, 0.5, 1.0, math.pi / 2, 2.0, 3.0, math.pi - 0.02, math.pi - 1e-5, math.pi)
DTYPES = (torch.float32, torch.float64)
METRICS = (angle, cosine, l2_distance)
LENGTH = 7.0

Metric = Callable[[Tensor, Tensor], Tensor]


def directions(size: int = 128, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Two orthogonal unit vectors in float64."""
    generator = torch.Generator().manual_seed(seed)
    basis, _ = torch.linalg.qr(torch.randn(size, 2, dtype=torch.float64, generator=generator))
    return basis[:, 0], basis[:, 1]


def rotated(start: Tensor, side: Tensor, theta: float) -> Tensor:
    return math.cos(theta) * start + math.sin(theta) * side


def gradient_of(metric: Metric, x: Tensor, b: Tensor) -> Tensor:
    """With respect to the vector before it is normalised, as Eqs. (5)-(7) are stated."""
    x = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(metric(normalize(x, dim=-1), b).sum(), x)
    return gradient


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("theta", ANGLES)
def test_values_of_any_directions(theta: float, dtype: torch.dtype) -> None:
    start, side = directions()
    a, b = start.to(dtype), rotated(start, side, theta).to(dtype)
    rounding = 4 * torch.finfo(dtype).eps  # of the 128 coordinates, of the angle itself
    assert angle(a, b).dtype == dtype
    assert float(angle(a, b)) == pytest.approx(theta, abs=rounding)
    assert float(cosine(a, b)) == pytest.approx(math.cos(theta), abs=rounding)
    assert float(l2_distance(a, b)) == pytest.approx(2 * math.sin(theta / 2), abs=rounding)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("theta", [1e-8, 1e-6, 1e-4, 1e-2, 1.0])
def test_small_angles_keep_all_digits(theta: float, dtype: torch.dtype) -> None:
    """Along the axes the coordinates themselves are exact, so the relative error is that of the formulas."""
    a = torch.tensor([1.0, 0.0], dtype=dtype)
    b = torch.tensor([math.cos(theta), math.sin(theta)], dtype=dtype)
    relative = 4 * torch.finfo(dtype).eps
    assert float(angle(a, b)) == pytest.approx(theta, rel=relative, abs=0)
    assert float(l2_distance(a, b)) == pytest.approx(2 * math.sin(theta / 2), rel=relative, abs=0)


def test_leading_dimensions_are_kept() -> None:
    a = normalize(torch.randn(3, 4, 5), dim=-1)
    b = normalize(torch.randn(3, 4, 5), dim=-1)
    for metric in METRICS:
        values = metric(a, b)
        assert values.shape == (3, 4)
        assert torch.allclose(values[1, 2], metric(a[1, 2], b[1, 2]))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.float64, 1e-9)])
@pytest.mark.parametrize("theta", [0.03, 0.2, 1.0, math.pi / 2, 2.5, 3.1])
def test_measured_gradient_norms_are_equations_5_to_7(theta: float, dtype: torch.dtype, tolerance: float) -> None:
    start, side = directions()
    x, b = (LENGTH * start).to(dtype), rotated(start, side, theta).to(dtype)
    length, s, distance = (torch.tensor(v, dtype=dtype) for v in (LENGTH, math.cos(theta), 2 * math.sin(theta / 2)))
    measured = {metric: float(gradient_of(metric, x, b).norm()) for metric in METRICS}
    assert measured[angle] == pytest.approx(1 / LENGTH, rel=tolerance)
    assert measured[angle] == pytest.approx(float(angle_gradient_norm(length)), rel=tolerance)
    assert measured[cosine] == pytest.approx(math.sin(theta) / LENGTH, rel=tolerance)
    assert measured[cosine] == pytest.approx(float(cosine_gradient_norm(s, length)), rel=tolerance)
    literal = math.sqrt(4 * float(distance) ** 2 - float(distance) ** 4) / (2 * float(distance)) / LENGTH
    assert measured[l2_distance] == pytest.approx(literal, rel=tolerance)
    assert measured[l2_distance] == pytest.approx(float(l2_gradient_norm(distance, length)), rel=tolerance)


def test_gradient_norm_formulas_at_the_ends() -> None:
    """The cosine loses its gradient at both ends, the distance only at the far one; also with a rounding error."""
    length = torch.tensor(LENGTH)
    for s in (1.0, -1.0, 1.0000001):
        assert float(cosine_gradient_norm(torch.tensor(s), length)) == 0
    for distance, expected in ((0.0, 1 / LENGTH), (2.0, 0), (2.0000002, 0)):
        assert float(l2_gradient_norm(torch.tensor(distance), length)) == pytest.approx(expected)


@pytest.mark.parametrize("theta", [0.02, 0.7, 2.0, 3.12])
def test_gradients_point_away_from_the_other_vector(theta: float) -> None:
    """The derivative of the angle is the unit tangent away from b, over the length; the others are multiples."""
    start, side = directions()
    x, b = LENGTH * start, rotated(start, side, theta)
    away = -side / LENGTH
    assert torch.allclose(gradient_of(angle, x, b), away, atol=1e-12)
    assert torch.allclose(gradient_of(cosine, x, b), -math.sin(theta) * away, atol=1e-12)
    assert torch.allclose(gradient_of(l2_distance, x, b), math.cos(theta / 2) * away, atol=1e-12)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_are_orthogonal_and_the_same_for_both_arguments(metric: Metric, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    x = 3 * torch.randn(50, 128, dtype=dtype, generator=generator)
    b = normalize(torch.randn(50, 128, dtype=dtype, generator=generator), dim=-1)
    gradient = gradient_of(metric, x, b)
    along = (gradient * normalize(x, dim=-1)).sum(-1).abs() / gradient.norm(dim=-1)
    assert float(along.max()) < 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(gradient, gradient_of(lambda a, b: metric(b, a), x, b))


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sign", [1, -1])
def test_gradient_is_exactly_zero_for_equal_and_opposite_rows(metric: Metric, dtype: torch.dtype, sign: int) -> None:
    start, side = directions()
    x = torch.stack([LENGTH * start, LENGTH * rotated(start, side, 0.4)]).to(dtype)
    ends = torch.stack([sign * normalize(x, dim=-1)[0], start.to(dtype)])
    gradient = gradient_of(metric, x, ends)
    assert torch.equal(gradient[0], torch.zeros_like(gradient[0]))
    assert float(gradient[1].norm()) > 0.01  # the row beside it is not disturbed
    expected = {angle: 0.0 if sign > 0 else math.pi, cosine: sign, l2_distance: 0.0 if sign > 0 else 2.0}[metric]
    value = metric(normalize(x, dim=-1), ends)[0]
    assert float(value) == pytest.approx(expected, abs=4 * torch.finfo(dtype).eps)


def test_gradients_of_both_arguments_keep_their_digits() -> None:
    """In float32, in the dimensions of descriptors, at an angle of 1e-5."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        start, side = torch.randn(2, 128, generator=generator, dtype=torch.float64)
        start = normalize(start, dim=0)
        side = normalize(side - (side @ start) * start, dim=0)
        x, b = (LENGTH * start).float(), rotated(start, side, 1e-5).float()
        for metric in (angle, lambda one, other: angle(other, one)):
            assert float(gradient_of(metric, x, b).norm()) * LENGTH == pytest.approx(1, rel=1.5e-3)


@pytest.mark.parametrize("theta", [1e-5, 1e-4, 1e-3, math.pi - 1e-4])
def test_float32_gradient_keeps_its_length_near_the_ends(theta: float) -> None:
    """An arc cosine in float32 cannot tell 1e-5 from 0: its gradient would be nothing or infinite."""
    start, side = directions()
    x, b = (LENGTH * start).float(), rotated(start, side, theta).float()
    for metric in (angle, l2_distance) if theta < 1 else (angle,):
        assert float(gradient_of(metric, x, b).norm()) * LENGTH == pytest.approx(1, rel=1e-3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("theta", [1e-12, 1e-8])
def test_gradient_keeps_its_length_down_to_the_smallest_angles(theta: float, dtype: torch.dtype) -> None:
    x = torch.tensor([LENGTH, 0.0], dtype=dtype)
    b = torch.tensor([math.cos(theta), math.sin(theta)], dtype=dtype)
    for metric in (angle, l2_distance):
        assert float(gradient_of(metric, x, b).norm()) * LENGTH == pytest.approx(1, rel=1e-6)

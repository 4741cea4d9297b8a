"""The losses the paper compares with against their loops (`loops.py`): values, gradients, degenerate batches, bad input."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sdgmnet.encoders import Encoded
from sdgmnet.errors import InputError
from sdgmnet.loss import (
    LOSSES,
    CDFLoss,
    HardNetLoss,
    HardNetOriginalLoss,
    HyNetLoss,
    L2NetLoss,
    SDGMLoss,
    SOSNetLoss,
    TFeatLoss,
)  # fmt: skip
from sdgmnet.loss.cdf import vote
from sdgmnet.loss.orthogonal import WithOrthogonality
from tests.loss import loops

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
DIM = 12


class Batch(NamedTuple):
    """Both sides before normalisation, (N, D), and their first maps, (N, C, H, W)."""

    x: Tensor
    y: Tensor
    first_x: Tensor
    first_y: Tensor


def batch(seed: int, count: int = 14, noise: float = 0.7, dim: int = DIM, twice: bool = True) -> Batch:
    """Matching pairs of various lengths; the third anchor is nearly the first, and the second quite, unless not `twice`."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float32).double()  # exact in float32, too

    x = normal(count, dim)
    y = x + noise * normal(count, dim)
    if count > 3:
        x[2], y[2] = x[0] + 0.001 * normal(dim), y[0] + 0.2 * normal(dim)
        x[1] = x[0] if twice else x[1]
    first = 0.3 * normal(count, 2, 3, 3)
    return Batch(x.float().double(), y.float().double(), first, (first + 0.2 * normal(count, 2, 3, 3)).float().double())


def encoded(x: Tensor, first: Tensor) -> Encoded:
    return Encoded(F.normalize(x, dim=1), x, (first, x[:, :, None, None]))


def call(loss: nn.Module, given: Batch, length: float = 1.0) -> Tensor:
    a, p = encoded(given.x, given.first_x), encoded(given.y, given.first_y)
    more = {"anchor_encoded": a, "positive_encoded": p} if getattr(loss, "needs", ()) else {}
    value: Tensor = loss(length * a.descriptors, p.descriptors, progress=1.0, **more)
    return value


def unit(x: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).sum(dim=1, keepdim=True))


def l2net_loop(b: Batch) -> Tensor:
    return loops.l2net(unit(b.x), unit(b.y), (b.x, b.y), [(b.first_x, b.first_y), (b.x, b.y)])


def orthogonal_loop(b: Batch) -> Tensor:
    return loops.hardnet(unit(b.x), unit(b.y)) + 0.5 * loops.orthogonality(unit(b.x), unit(b.y))


Loop = Callable[[Batch], Tensor]


def of_units(loop: Callable[..., Tensor], *options: Any, **more: Any) -> Callable[[], Loop]:
    """A loop of unit rows as one of a batch."""
    return lambda: lambda b: loop(unit(b.x), unit(b.y), *options, **more)


def hynet_loop(b: Batch, **options: float) -> Tensor:
    return loops.hynet(unit(b.x), unit(b.y), (b.x, b.y), **options)


def cdf_loop() -> Loop:
    oracle = loops.CDF(bins=64, decay=0.7)
    return lambda b: oracle(unit(b.x), unit(b.y))


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Loop]]] = {
    "tfeat": (TFeatLoss, of_units(loops.tfeat)),
    "tfeat margin 0.5": (lambda: TFeatLoss(margin=0.5), of_units(loops.tfeat, 0.5)),
    "hardnet": (HardNetOriginalLoss, of_units(loops.hardnet)),
    "hardnet margin 0.3": (lambda: HardNetOriginalLoss(0.3), of_units(loops.hardnet, 0.3)),
    "hardnet+frn": (HardNetLoss, of_units(loops.hardnet_frn)),
    "hardnet+frn over all": (
        lambda: HardNetLoss(0.4, 0.8, "all"),
        of_units(loops.hardnet_frn, 0.4, 0.8, active_only=False),
    ),
    "l2net": (L2NetLoss, lambda: l2net_loop),
    "l2net mean": (lambda: L2NetLoss("mean"), lambda: lambda b: l2net_loop(b) / len(b.x)),
    "l2net scaled": (lambda: L2NetLoss(scale=0.25), lambda: lambda b: l2net_loop(b) / 4),
    "cdf": (lambda: CDFLoss(bins=64, histogram_decay=0.7), cdf_loop),
    "sosnet": (SOSNetLoss, of_units(loops.sosnet)),
    "sosnet 3 neighbours": (lambda: SOSNetLoss(0.6, neighbours=3), of_units(loops.sosnet, 0.6, 3)),
    "hynet": (HyNetLoss, lambda: hynet_loop),
    "hynet mean": (
        lambda: HyNetLoss(0.5, 1.0, 0.3, "mean"),
        lambda: lambda b: hynet_loop(b, margin=0.5, alpha=1.0, gamma=0.3) / len(b.x),
    ),
    "hynet normalised": (
        lambda: HyNetLoss(normalised=True),
        lambda: lambda b: hynet_loop(b, z=steepest(2.0)),
    ),
    "orthogonality": (lambda: WithOrthogonality(HardNetOriginalLoss(), 0.5), lambda: orthogonal_loop),
}


def steepest(alpha: float) -> float:
    """HyNet's Z by trying angles."""
    angles = np.linspace(0, np.pi, 2_000_001)
    return float((alpha * np.sin(angles) + np.cos(angles / 2)).max())


@pytest.mark.parametrize("alpha", [0.0, 0.01, 0.5, 2.0, 30.0])
def test_hynets_divisor_is_the_steepest_slope(alpha: float) -> None:
    assert HyNetLoss(alpha=alpha, normalised=True).divisor == pytest.approx(steepest(alpha), rel=1e-11)
    assert HyNetLoss(normalised=True).divisor == pytest.approx(2.736, abs=5e-4)
    assert HyNetLoss().divisor == 1


def gradients(function: Callable[[Batch], Tensor], given: Batch, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Value, and the gradient with respect to everything in a row, as float64."""
    inputs = Batch(*(part.to(dtype).requires_grad_() for part in given))
    value = function(inputs)
    found = torch.autograd.grad(value, inputs, allow_unused=True)
    flat = [torch.zeros_like(part) if one is None else one.double() for one, part in zip(found, given, strict=True)]
    return value.detach().double(), torch.cat([one.flatten() for one in flat])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient_are_the_loops(
    name: str, dtype: torch.dtype, note_deviation: Callable[[str, float], None]
) -> None:
    """Several batches one after the other, so that what a loss keeps is judged, too."""
    make, make_loop = CASES[name]
    loss, loop, tolerance = make(), make_loop(), TOLERANCE[dtype]
    for seed, count in ((0, 14), (1, 14), (2, 9), (3, 2)):
        given = batch(seed, count, twice="sosnet" not in name)  # which of equally near neighbours it takes is left open
        value, gradient = gradients(partial(call, loss), given, dtype)
        expected, expected_gradient = gradients(loop, given, torch.float64)
        difference, norm = float((gradient - expected_gradient).norm()), float(expected_gradient.norm())
        assert seed > 0 or norm > 0.01
        assert abs(value - expected) <= tolerance * (1 + abs(expected))
        assert difference <= tolerance * norm + 1e-14
        note_deviation(f"{name}, {dtype}", difference / norm if norm > 1e-6 else 0.0)


def test_the_batches_decide_both_ways() -> None:
    """Hinges hold and do not hold, negatives are left out as the same patch, and come from each comparison."""
    given = batch(0)
    a, p = unit(given.x), unit(given.y)
    aa = a @ a.T
    assert ((2 - 2 * aa + 1e-6).sqrt() < loops.SAME_PATCH).sum() > len(a)  # more than the diagonal
    active = [0.3 + loops.plain(a[i], p[i]) - loops.nearest(a, p, i, "ap pa", 1e-6) > 0 for i in range(len(a))]  # type: ignore[operator]
    assert any(active) and not all(active)
    chosen = set()
    for i in range(len(a)):
        found = {ends: loops.nearest(a, p, i, ends, 1e-6) for ends in ("ap", "pa", "aa", "pp")}
        chosen.add(min((d.item(), ends) for ends, d in found.items() if d is not None)[1])
    assert chosen == {"ap", "pa", "aa", "pp"}


DEGENERATE: dict[str, Callable[[Batch], Batch]] = {
    "collapsed": lambda b: Batch(*(part[:1].expand_as(part).clone() for part in b)),
    "positives are anchors": lambda b: b._replace(y=b.x.clone(), first_y=b.first_x.clone()),
    "every point twice": lambda b: Batch(*(part[torch.arange(len(part)) // 2] for part in b)),
    "positives opposite": lambda b: b._replace(y=-b.x),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("kind", DEGENERATE)
@pytest.mark.parametrize("name", LOSSES)
def test_degenerate_batches_are_finite(name: str, kind: str, dtype: torch.dtype) -> None:
    for count in (2, 6):
        given = DEGENERATE[kind](batch(0, count))
        for loss in (LOSSES[name](), WithOrthogonality(LOSSES[name](), 1.0)):
            for _ in range(2):  # the second time with what the first left
                value, gradient = gradients(partial(call, loss), given, dtype)
                assert torch.isfinite(value) and torch.isfinite(gradient).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("name", LOSSES)
def test_half_precision_is_finite(name: str, dtype: torch.dtype) -> None:
    value, gradient = gradients(partial(call, LOSSES[name]()), batch(0), dtype)
    expected, _ = gradients(partial(call, LOSSES[name]()), batch(0), torch.float64)
    assert torch.isfinite(gradient).all()
    # Rounded descriptors make other neighbours the nearest, and part what was the same patch.
    assert value.item() == pytest.approx(expected.item(), rel=0.2, abs=0.05)


@pytest.mark.parametrize("name", ["hardnet-original", "cdf", "sosnet", "hynet"])
def test_all_the_same_patch_is_no_triplet(name: str) -> None:
    one = DEGENERATE["collapsed"](DEGENERATE["positives are anchors"](batch(0, 5)))
    value, gradient = gradients(partial(call, LOSSES[name]()), one, torch.float64)
    assert value == 0 and not gradient.any()


@pytest.mark.parametrize("name", LOSSES)
def test_bad_input_is_refused(name: str) -> None:
    loss, given = LOSSES[name](), batch(0, 4)
    with pytest.raises(InputError, match="at least 2 pairs"):
        call(loss, Batch(*(part[:1] for part in given)))
    poisoned = given.x.clone()
    poisoned[2, 3] = float("nan")
    with pytest.raises(InputError, match="finite|NaN"):
        call(loss, given._replace(x=poisoned))
    if name != "tfeat":
        with pytest.raises(InputError, match="unit length"):
            call(loss, given, length=3)


def test_what_is_needed_is_asked_for() -> None:
    a, p = F.normalize(torch.randn(2, 4, DIM), dim=2)
    for loss in (L2NetLoss(), HyNetLoss()):
        assert loss.needs
        with pytest.raises(InputError, match="anchor_encoded=a"):
            loss(a, p)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CDFLoss(bins=1), "bins"), (lambda: CDFLoss(histogram_decay=1.0), "histogram_decay"),
        (lambda: SOSNetLoss(neighbours=0), "neighbours"), (lambda: HyNetLoss(reduction="max"), "reduction"),  # type: ignore[arg-type]
        (lambda: HyNetLoss(normalised=2), "normalised"), (lambda: HyNetLoss(alpha=-1), "alpha"),  # type: ignore[arg-type]
        (lambda: L2NetLoss(reduction="max"), "reduction"), (lambda: HardNetLoss(mean_over="none"), "mean_over"),  # type: ignore[arg-type]
        (lambda: HardNetLoss(min_negative_angle=9), "min_negative_angle"), (lambda: L2NetLoss(scale=0), "scale"),
    ],
)  # fmt: skip
def test_bad_options_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_tfeat_takes_any_length() -> None:
    draw = torch.Generator().manual_seed(5)
    a, p = (torch.rand(7, 8, generator=draw, dtype=torch.float64) * 2 - 1 for _ in range(2))
    assert TFeatLoss()(a, p).item() == pytest.approx(loops.tfeat(a, p).item(), rel=1e-12)
    n = p.roll(1, 0)
    library = F.triplet_margin_loss(a, p, n, margin=2.0, eps=0.0, swap=True)
    assert TFeatLoss()(a, p).item() == pytest.approx(library.item(), rel=1e-12)


def test_the_histogram_is_state_that_keeps_its_precision() -> None:
    first, second = CDFLoss(bins=32, histogram_decay=0.9), CDFLoss(bins=32, histogram_decay=0.9)
    for seed in range(3):
        call(first, batch(seed))
    second.load_state_dict(first.state_dict())
    assert torch.equal(call(first, batch(7)), call(second, batch(7)))
    assert first.histogram.sum().item() == pytest.approx(1)
    assert first.half().histogram.dtype == torch.float64
    before = first.eval().histogram.clone()
    call(first, batch(8))
    assert torch.equal(first.histogram, before)
    fresh = CDFLoss().eval()
    assert torch.isfinite(call(fresh, batch(0))) and not fresh.histogram.any()


def test_an_addend_leaves_the_loss_its_own() -> None:
    loss = WithOrthogonality(SDGMLoss(), 0.1)
    assert loss.report is None and loss.needs == frozenset()
    call(loss, batch(0))
    assert loss.report is not None and "power_pos" in loss.running()
    assert WithOrthogonality(HyNetLoss(), 1.0).needs == {"raw"}
    assert WithOrthogonality(HardNetLoss(), 1.0).running() == {}


def test_nothing_violated_is_zero_with_zero_gradient() -> None:
    a = torch.eye(4, dtype=torch.float64).requires_grad_()
    value = HardNetLoss(margin=0.5)(a, a.detach().clone())
    assert value.item() == 0 and not torch.autograd.grad(value, a)[0].any()


def test_of_two_points_each_has_one_neighbour() -> None:
    assert torch.equal(call(SOSNetLoss(neighbours=1), batch(0, 2)), call(SOSNetLoss(), batch(0, 2)))


def test_a_triplet_exactly_at_the_margin_is_active() -> None:
    """Two points, four orthogonal descriptors: all distances are equal, and each row meets a margin of 0 exactly."""
    axes = torch.eye(4, dtype=torch.float64)
    a = axes[:2].clone().requires_grad_()
    value = HardNetLoss(margin=0.0)(a, axes[2:])
    expected = torch.tensor([[0, 0, -1, 1], [0, 0, 1, -1]]).double() / (2 * (2 + 1e-5) ** 0.5)
    assert value.item() == 0
    torch.testing.assert_close(torch.autograd.grad(value, a)[0], expected)


@pytest.mark.parametrize("name", LOSSES)
def test_progress_may_be_left_out_and_is_a_share(name: str) -> None:
    given = batch(3)
    a, p = encoded(given.x, given.first_x), encoded(given.y, given.first_y)
    loss, twin = LOSSES[name](), LOSSES[name]()
    more = {"anchor_encoded": a, "positive_encoded": p} if getattr(loss, "needs", None) else {}
    assert torch.equal(
        loss(a.descriptors, p.descriptors, **more), twin(a.descriptors, p.descriptors, progress=1.0, **more)
    )
    for progress in (-0.1, 1.5, float("nan")):
        with pytest.raises(InputError, match="progress"):
            loss(a.descriptors, p.descriptors, progress=progress, **more)


def test_the_cdf_from_end_to_end() -> None:
    """Distances differ by -2 to 2; five bins, by hand."""
    weights = CDFLoss(bins=5).weigh(torch.tensor([-2.0, -1.9, 0.5, 1.5, 2.0]), torch.ones(5, dtype=torch.bool))
    assert weights.mul(5).tolist() == pytest.approx([1.9, 1.9, 2.5, 3.5, 5])


def test_votes_are_shared_by_two_bins() -> None:
    place, admissible = torch.tensor([0.0, 1.5, 2.25, 4.0]), torch.tensor([True, True, False, True])
    assert vote(place, admissible, 5).mul(6).tolist() == pytest.approx([2, 1, 1, 0, 2])
    assert torch.isfinite(call(CDFLoss(bins=2), batch(0)))
    with pytest.raises(InputError, match="bins"):
        CDFLoss(bins=1)


def test_integers_are_no_descriptors() -> None:
    rows = torch.eye(4, dtype=torch.int64)
    for loss in (SDGMLoss(), HardNetOriginalLoss(), SOSNetLoss()):
        with pytest.raises(InputError, match="anchor.*torch.int64"):
            loss(rows, rows)

"""Mining, statistics and weights where they decide: ties, blocks, tolerances, few triplets, collapsed batches."""

import math
import warnings
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sdgmnet import SDGMLoss
from sdgmnet.errors import InputError
from sdgmnet.loss import HardNetLoss, ModulatedLoss, mining
from sdgmnet.loss.mining import COINCIDING, hardest_by_label, hardest_in_batch, nearest_distances, nearest_points
from sdgmnet.loss.statistics import RunningStatistics
from sdgmnet.loss.weights import coupled_weight

AXES = torch.eye(8, dtype=torch.float64)
Find = Callable[[Tensor, Tensor], Tensor]


def from_angles(*angles: float) -> Tensor:
    """Unit rows (N, 2) in a plane, at these angles in radians."""
    theta = torch.tensor(angles, dtype=torch.float64)
    return torch.stack([theta.cos(), theta.sin()], dim=1)


# Ties and blocks


@pytest.mark.parametrize("block", [2**19, 64])
def test_of_equal_negatives_the_lowest_point_is_taken(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one block and across blocks of 8 rows."""
    monkeypatch.setattr(mining, "BLOCK_FLOATS", block)
    a = AXES[torch.arange(20) % 4]
    assert mining.block_rows(a) == (8 if block == 64 else 2**19 // 80)
    highest, index = nearest_points(a, a, math.cos(0.6))
    assert index.tolist() == [1 if row % 4 == 0 else 0 for row in range(20)]
    assert torch.equal(highest, torch.zeros(20, dtype=torch.float64))


def test_a_negative_at_the_threshold_is_ignored() -> None:
    """In a row that has others too, and in rows that have none."""
    rows = torch.stack([AXES[0], AXES[1], -AXES[0]])
    highest, index = nearest_points(rows, rows, 0.0)
    assert highest.tolist() == [-1, -2, -1] and index[[0, 2]].tolist() == [2, 0]
    by_label = hardest_by_label(AXES[[0, 0, 0, 1]], torch.tensor([0, 0, 1, 2]), 0.0)  # label 1 is 0 rad away
    assert by_label.theta_neg.tolist() == pytest.approx([math.pi / 2])


@pytest.mark.parametrize("comparisons", ["across", "all"])
def test_of_equal_distances_the_lowest_point_is_taken(comparisons: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a, p = AXES[torch.arange(20) % 4].requires_grad_(), AXES[torch.arange(20) % 4].requires_grad_()
    for block in (2**19, 64):
        monkeypatch.setattr(mining, "BLOCK_FLOATS", block)
        found = nearest_distances(a, p, comparisons, epsilon=1e-6)  # type: ignore[arg-type]
        for row in (0, 1, 17):
            ends = [one.abs().sum(1).nonzero().flatten().tolist() for one in gradients(found.negative[row], a, p)]
            assert ends == [[row], [1 if row % 4 == 0 else 0]]


def gradients(value: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(value, leaves, retain_graph=True)


PLUS, LEFT, RIGHT = AXES[0], -0.6 * AXES[0] + 0.8 * AXES[3], -0.6 * AXES[1] + 0.8 * AXES[2]
# Two points whose nearest comparisons are equal, and the ends of the one that is taken for the first: a side and a side.
TIES: dict[str, tuple[Tensor, Tensor, tuple[int, int]]] = {
    "a-p of all four": (AXES[[0, 1]], AXES[[0, 1]], (0, 1)),
    "p-a before a-a": (AXES[[0, 1]], torch.stack([AXES[0], F.normalize(AXES[1] - 0.5 * AXES[0], dim=0)]), (1, 0)),
    "a-a before p-p": (AXES[[0, 1]], torch.stack([RIGHT, LEFT]), (0, 0)),
    "p-p alone": (AXES[[0, 1]], torch.stack([AXES[2], F.normalize(AXES[2] + AXES[3], dim=0)]), (1, 1)),
}


@pytest.mark.parametrize("case", TIES)
@pytest.mark.parametrize("by", ["angle", "distance"])
def test_of_equal_comparisons_the_first_is_taken(case: str, by: str) -> None:
    a, p, (left, right) = TIES[case]
    sides = [a.clone().requires_grad_(), p.clone().requires_grad_()]
    if by == "angle":
        negative = hardest_in_batch(*sides, 0.6).theta_neg[0]
    else:
        negative = nearest_distances(*sides, "all", epsilon=1e-6).negative[0]
    moved = [one.abs().sum(1) > 0 for one in gradients(negative, *sides)]
    expected = torch.zeros(2, 2, dtype=torch.bool)
    expected[left, 0] = expected[right, 1] = True
    assert torch.equal(torch.stack(moved), expected)


def test_labels_take_the_nearer_end_and_the_first_of_equals() -> None:
    x = from_angles(0.0, 0.3, 1.3, -1.0).requires_grad_()  # a pair, and two samples each 1.0 from its nearer end
    found = hardest_by_label(x, torch.tensor([4, 4, 9, 7]), 0.6)
    assert found.theta_neg.tolist() == pytest.approx([1.0])
    nearer = gradients(found.theta_neg[0], x)[0].abs().sum(1).nonzero().flatten().tolist()
    assert nearer in ([0, 3], [1, 2])
    equal = from_angles(0.0, 0.0, 1.0, 1.0).requires_grad_()
    found = hardest_by_label(equal, torch.tensor([0, 0, 2, 1]), 0.6)
    assert gradients(found.theta_neg[0], equal)[0].abs().sum(1).nonzero().flatten().tolist() == [0, 3]  # label 1


# Limits


@pytest.mark.parametrize(
    ("dtype", "allowed", "refused"),
    [(torch.float32, 1.0009, 1.0011), (torch.float64, 0.9991, 0.9989), (torch.float16, 1.018, 1.022),
     (torch.bfloat16, 1.015, 1.024)],
)  # fmt: skip
def test_unit_length_has_a_tolerance(dtype: torch.dtype, allowed: float, refused: float) -> None:
    loss, good, labels = SDGMLoss(), AXES[:4].to(dtype), torch.arange(2).repeat(2)
    for bad in (False, True):
        scaled = ((refused if bad else allowed) * AXES[:4]).to(dtype)
        for call in (
            partial(loss, scaled, good),
            partial(loss, good, scaled),
            partial(loss.from_labels, scaled, labels),
        ):
            if bad:
                with pytest.raises(InputError, match=r"row 0 .*4 of 4"):
                    call()
            else:
                call()


@pytest.mark.parametrize(("apart", "taken"), [(0.0079, 0.5), (0.0081, 0.0081), (0.015, 0.015), (0.019, 0.019)])
@pytest.mark.parametrize("comparisons", ["across", "all"])
def test_the_same_patch_is_nearer_than_eight_thousandths(apart: float, taken: float, comparisons: str) -> None:
    angles = (0.0, 2 * math.asin(apart / 2), 2 * math.asin(0.5 / 2))
    found = nearest_distances(from_angles(*angles), from_angles(*angles), comparisons, epsilon=1e-6)  # type: ignore[arg-type]
    assert found.negative[0].item() == pytest.approx(math.hypot(taken, 1e-3), rel=1e-6)
    assert found.admissible.all()


def test_the_margin_without_a_spread() -> None:
    """Angles of one value have a std of 0, or of rounding."""
    rel = torch.tensor([-0.3, -0.3, -0.2, -0.4], dtype=torch.float64)
    nothing = torch.zeros((), dtype=torch.float64)
    assert coupled_weight(rel, rel[0], nothing, 0.6).tolist() == [0, 0, 1, 0]
    assert coupled_weight(rel, rel[0], nothing, 0.6, "step").tolist() == [0, 0, 1, 0]
    assert coupled_weight(rel, rel[0], nothing, 0.4).tolist() == [0.5, 0.5, 1, 0]
    tiny = torch.tensor(1e-9, dtype=torch.float64)
    assert coupled_weight(rel[0] + tiny, rel[0], tiny, 0.6).item() == pytest.approx(0.8413447, rel=1e-6)


# Few triplets


def test_the_first_batch_may_have_one_triplet() -> None:
    """No spread can be estimated: weights are 1, the powers start, the moments start with the next batch."""
    x, labels = from_angles(0.0, 0.4, 1.6), torch.tensor([0, 0, 1])
    loss = SDGMLoss(decay=0.9, initial_power=8.0)
    value = loss.from_labels(x, labels, progress=1.0)
    power = 0.9 * 8 + 0.1 * 1
    assert value.item() == pytest.approx((0.9 * 0.4 - 1.2) / power)
    assert loss.statistics.steps.tolist() == [0, 1] and not loss.statistics.moments.any()
    assert loss.statistics.powers.tolist() == pytest.approx([power] * 2)
    assert loss.report is not None and float(loss.report.active_share) == 1
    assert float(loss.report.theta_pos_mean) == pytest.approx(0.4) and float(loss.report.theta_pos_std) == 0
    two = from_angles(0.0, 0.4, 1.6, 1.8)
    loss.from_labels(two, torch.tensor([0, 0, 1, 1]))
    assert loss.statistics.steps.tolist() == [1, 2]
    # θ⁺ 0.4 and 0.2, θ⁻ 1.2 of both
    expected = [[0.3, math.sqrt(0.02)], [1.2, 0], [-0.9, math.sqrt(0.02)]]
    torch.testing.assert_close(loss.statistics.moments, torch.tensor(expected, dtype=torch.float64))


def test_running_means_by_hand() -> None:
    statistics, yes, no = RunningStatistics(0.75), torch.tensor(True), torch.tensor(False)
    first, second = torch.arange(6.0).double().view(3, 2), torch.full((3, 2), 8.0).double()
    assert not statistics.started
    statistics.update_moments(second, usable=no)
    assert not statistics.started and not statistics.moments.any()
    statistics.update_moments(first, usable=yes)
    assert statistics.started and torch.equal(statistics.moments, first)
    statistics.update_moments(second, usable=yes)
    statistics.update_moments(100 * second, usable=no)
    assert torch.equal(statistics.moments, 0.75 * first + 0.25 * second) and statistics.steps.tolist() == [2, 0]
    statistics.update_powers(torch.tensor([4.0, 8.0]).double(), 100.0, usable=no)
    assert not statistics.powers.any()
    statistics.update_powers(torch.tensor([4.0, 8.0]).double(), 100.0, usable=yes)
    assert statistics.powers.tolist() == [76, 77]
    statistics.update_powers(torch.tensor([4.0, 9.0]).double(), 100.0, usable=yes)
    assert statistics.powers.tolist() == [58, 60] and statistics.steps.tolist() == [2, 2]


# Collapsed batches


def crowd(hubs: int) -> tuple[Tensor, Tensor]:
    """Eight pairs in a plane: so many within 0.6 rad of all others, the rest on two sides, 0.9 rad apart or more."""
    outer = [0.5 + 0.01 * k for k in range((8 - hubs) // 2)]
    places = [0.01 * k for k in range(hubs)] + outer + [-0.4 - one + 0.5 for one in outer]
    places += [-0.45] * (8 - len(places))
    return from_angles(*places), from_angles(*(place + 0.003 for place in places))


def first_and_later(call: Callable[[], Tensor]) -> tuple[list[str], Tensor]:
    """The warnings of two calls, all shown, and the value of the first."""
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        value = call()
        call()
    return [str(one.message) for one in shown], value


@pytest.mark.parametrize(("hubs", "collapsed"), [(3, False), (4, False), (5, True), (8, True)])
def test_more_than_half_of_the_rows_without_a_negative_collapse_a_batch(hubs: int, collapsed: bool) -> None:
    a, p = crowd(hubs)
    strict = hardest_in_batch(a, p, 0.6)
    assert int(strict.admissible.sum()) == 8 - hubs
    loss = SDGMLoss(decay=0.5)
    shown, _ = first_and_later(lambda: loss(a, p, progress=1.0))
    assert loss.report is not None and float(loss.report.no_negative_share) == hubs / 8
    assert len(shown) == collapsed  # once
    if collapsed:
        assert f"SDGMLoss: {hubs} of 8 pairs" in shown[0] and "0.6 rad" in shown[0]
        assert loss.statistics.steps.tolist() == [0, 2] and float(loss.report.active_share) == 1
        nearest = hardest_in_batch(a, p, COINCIDING)
        assert float(loss.report.theta_neg_mean) == pytest.approx(float(nearest.theta_neg.mean()))
    else:
        assert loss.statistics.steps.tolist() == [2, 2]
        assert float(loss.report.theta_neg_mean) == pytest.approx(float(strict.theta_neg[strict.admissible].mean()))


@pytest.mark.parametrize("make", [SDGMLoss, HardNetLoss, partial(ModulatedLoss, coupled_weight=torch.zeros_like)])
def test_a_collapsed_batch_moves_every_descriptor(make: Callable[[], torch.nn.Module]) -> None:
    """By a gradient that separates points: nearest negatives, weight 1, whatever the modulation."""
    a, p = (side.requires_grad_() for side in crowd(8))
    loss = make()
    with pytest.warns(UserWarning, match="8 of 8 pairs"):
        value = loss(a, p, progress=1.0)
    moved = torch.cat(gradients(value, a, p))
    assert torch.isfinite(moved).all() and (moved.norm(dim=1) > 0).sum() >= 8


def test_nearest_points_of_many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight rows at a time: the nearest point may lie in an earlier, the same or a later block."""
    monkeypatch.setattr(mining, "BLOCK_FLOATS", 64)
    generator = torch.Generator().manual_seed(0)
    a, p = (F.normalize(torch.randn(37, 5, generator=generator, dtype=torch.float64), dim=1) for _ in range(2))
    highest, index = mining.nearest_points(a, p, 0.9)
    for row in range(37):
        scores = [max(float(x @ y) for x in (a[row], p[row]) for y in (a[k], p[k])) for k in range(37)]
        allowed = {score: k for k, score in enumerate(scores) if k != row and score < 0.9}
        assert highest[row] == pytest.approx(max(allowed), abs=1e-12) and index[row] == allowed[max(allowed)]


def test_the_median_of_a_margin_of_one_half() -> None:
    """Exactly at iCDF(m): Eq. (11) has 0 there, the published step 1."""
    theta, mean, std = torch.tensor([0.25], dtype=torch.float64), torch.tensor(0.25), torch.tensor(0.1)
    assert coupled_weight(theta, mean, std, 0.5).tolist() == [0]
    assert coupled_weight(theta, mean, std, 0.5, "step").tolist() == [1]


def test_statistics_move_to_another_device() -> None:
    moved = RunningStatistics(0.9).to("meta")
    assert all(buffer.is_meta and buffer.dtype.itemsize == 8 for buffer in moved.buffers())


@pytest.mark.parametrize("shape", [(3,), (4, 1), (0,)])
def test_every_embedding_has_one_label(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="labels"):
        SDGMLoss().from_labels(AXES[:4], torch.zeros(shape))
    with pytest.raises(InputError, match="embeddings"):
        SDGMLoss().from_labels(AXES[:4, 0], torch.zeros(4))


def test_collapsed_labels_are_collapsed_pairs() -> None:
    a, p = crowd(6)
    labels = torch.arange(8).repeat(2)
    for progress in (0.0, 1.0):
        ours, theirs = SDGMLoss(), SDGMLoss()
        with pytest.warns(UserWarning, match="6 of 8"):
            expected = ours(a, p, progress=progress)
        with pytest.warns(UserWarning, match="6 of 8"):
            value = theirs.from_labels(torch.cat([a, p]), labels, progress=progress)
        torch.testing.assert_close(value, expected)


def test_a_threshold_of_coinciding_descriptors_is_left_alone() -> None:
    a, p = crowd(8)
    for options in ({"min_negative_angle": 0.0}, {"min_negative_angle": COINCIDING}, {"threshold_start": 1.0}):
        loss = SDGMLoss(**options)  # type: ignore[arg-type]
        assert first_and_later(lambda loss=loss: loss(a, p, progress=0.5))[0] == []
        assert loss.statistics.steps.tolist() == [2, 2]


def test_only_rank_zero_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    loss = SDGMLoss()
    assert first_and_later(lambda: loss(*crowd(8)))[0] == []
    monkeypatch.setenv("RANK", "0")
    assert len(first_and_later(lambda: loss(*crowd(8)))[0]) == 1

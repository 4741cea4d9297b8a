"""Both ways to pytorch-metric-learning, against the library itself."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sdgmnet.errors import InputError
from sdgmnet.loss import SDGMLoss
from sdgmnet.loss.pml import PMLLoss, SDGMLossOfLabels
from sdgmnet.loss.registry import loss_by_name

library = pytest.importorskip("pytorch_metric_learning", reason="pip install 'sdgmnet[pml]'")
losses = pytest.importorskip("pytorch_metric_learning.losses")

PAIR_BASED = (
    "AngularLoss", "CircleLoss", "ContrastiveLoss", "FastAPLoss", "GeneralizedLiftedStructureLoss", "HistogramLoss",
    "IntraPairVarianceLoss", "LiftedStructureLoss", "MultiSimilarityLoss", "NCALoss", "NPairsLoss", "NTXentLoss",
    "PNPLoss", "RankedListLoss", "SignalToNoiseRatioContrastiveLoss", "SmoothAPLoss", "SupConLoss",
    "ThresholdConsistentMarginLoss", "TripletMarginLoss", "TupletMarginLoss",
)  # fmt: skip
OPTIONS = {"HistogramLoss": {"n_bins": 10}, "RankedListLoss": {"margin": 0.4, "Tn": 10}}


LABELS = torch.arange(10).repeat(2)


def pairs(count: int = 10, noise: float = 0.8) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(count, 16, generator=draw)
    y = x + noise * torch.randn(count, 16, generator=draw)
    return F.normalize(x, dim=1).requires_grad_(), F.normalize(y, dim=1).requires_grad_()


@pytest.mark.parametrize("name", PAIR_BASED)
def test_every_pair_based_loss(name: str) -> None:
    """The library called as its documentation says, labels by hand, and the same through our contract."""
    options = OPTIONS.get(name, {})
    a, p = pairs(noise=2.0)
    expected = getattr(losses, name)(**options)(torch.cat([a, p]), LABELS)
    value = loss_by_name(f"pml:{name}", options)(a, p, progress=0.3)
    assert value.item() == loss_by_name(f"pml:{name}", options)(a, p).item()
    with pytest.raises(InputError, match="progress"):
        loss_by_name(f"pml:{name}", options)(a, p, progress=2.0)
    assert value.shape == () and value.item() == expected.item()
    for mine, theirs in zip(torch.autograd.grad(value, (a, p)), torch.autograd.grad(expected, (a, p)), strict=True):
        assert torch.equal(mine, theirs) and mine.abs().sum() > 0


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("CircelLoss", {}, ""),
        ("MultipleLosses", {}, ""),
        ("CircleLoss", {"speed": 3}, "speed"),
        ("ArcFaceLoss", {}, "number of classes"),
        ("SubCenterArcFaceLoss", {}, "number of classes"),  # which fails by KeyError
        ("ArcFaceLoss", {"num_classes": 3, "embedding_size": 16}, "parameters"),
        ("ProxyAnchorLoss", {"num_classes": 3, "embedding_size": 16}, "parameters"),
        ("VICRegLoss", {}, "ValueError"),
        ("PNPLoss", {"variant": "x"}, "variant"),
        ("RankedListLoss", {"margin": 0.4, "Tn": 10, "imbalance": 2}, "imbalance"),
        ("CircleLoss", {"m": "high"}, "high"),
        ("BaseMetricLossFunction", {}, "NotImplementedError"),
        ("DynamicSoftMarginLoss", {}, "a second time"),  # it keeps the graph of its histogram
    ],
)
def test_losses_that_cannot_train_are_refused(name: str, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=f"{name}.*{reason}"):
        PMLLoss(name, **options)


def test_trying_a_loss_draws_nothing_of_the_runs_numbers() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    PMLLoss("TripletMarginLoss", triplets_per_anchor=2)
    assert torch.equal(torch.rand(3), expected)


def test_sdgm_called_their_way_is_sdgm() -> None:
    """Also on embeddings that are not of unit length, in value and gradient."""
    theirs, ours = SDGMLossOfLabels(decay=0.9), SDGMLoss(decay=0.9)
    for length in (1.0, 3.0):
        x, y = ((length * side.detach()).requires_grad_() for side in pairs())
        value, expected = theirs(torch.cat([x, y]), LABELS), ours(F.normalize(x, dim=1), F.normalize(y, dim=1))
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)
        mine, other = (torch.cat(torch.autograd.grad(one, (x, y))) for one in (value, expected))
        assert (mine - other).norm() <= 1e-5 * other.norm()


def test_warm_up_counts_its_own_steps_and_is_state() -> None:
    a, p = pairs()
    both = torch.cat([a, p])
    counted, plain = SDGMLossOfLabels(total_steps=20, decay=0.5), SDGMLoss(decay=0.5)
    for step in range(4):  # the warm-up of 10 % are two steps
        value, expected = counted(both, LABELS), plain(a, p, progress=step / 20)
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)
    again = SDGMLossOfLabels(total_steps=20, decay=0.5)
    again.load_state_dict(counted.state_dict())
    assert again.steps.item() == 4
    again.eval()(both, LABELS)
    assert again.steps.item() == 4


def test_tuples_and_references_are_refused() -> None:
    a, p = pairs()
    both = torch.cat([a, p])
    with pytest.raises(InputError, match="tuples"):
        SDGMLossOfLabels()(both, LABELS, indices_tuple=(LABELS,) * 3)
    with pytest.raises(InputError, match="reference"):
        SDGMLossOfLabels()(both, LABELS, ref_emb=p, ref_labels=LABELS)
    with pytest.raises(InputError, match="total_steps"):
        SDGMLossOfLabels(total_steps=0)
    SDGMLossOfLabels(total_steps=1)


@pytest.mark.parametrize("count", [0, 1, 6])
def test_a_batch_without_a_pair_is_zero_with_a_gradient(count: int) -> None:
    """As the last batch of an epoch can be: a trainer goes on, and the statistics stay as they are."""
    a, p = pairs()
    loss = SDGMLossOfLabels(decay=0.9)
    loss(torch.cat([a, p]), LABELS)
    before = copy.deepcopy(loss.loss.state_dict())
    some = a[:count].detach().requires_grad_()
    value = loss(some, torch.arange(count))
    value.backward()
    assert value.item() == 0 and torch.equal(some.grad, torch.zeros_like(some))
    torch.testing.assert_close(dict(loss.loss.state_dict()), dict(before), rtol=0, atol=0)
    assert [float(share) for share in loss.loss.report[-2:]] == [0, 0]


def test_their_wrappers_take_only_their_own_losses() -> None:
    """As docs/guides/own_loss.md says; if a later version accepts ours, the page can say so."""
    distributed = pytest.importorskip("pytorch_metric_learning.utils.distributed")
    for wrapper in (
        lambda loss: losses.CrossBatchMemory(loss, 16),
        losses.SelfSupervisedLoss,
        distributed.DistributedLossWrapper,
    ):
        with pytest.raises(Exception, match=r"not supported|must extend"):
            wrapper(SDGMLossOfLabels())

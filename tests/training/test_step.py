import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from sdgmnet.encoders import Encoded, L2Net, SDGMNet, TFeat
from sdgmnet.engine import build_trunk
from sdgmnet.errors import InputError
from sdgmnet.loss import SDGMLoss
from sdgmnet.native.build import library
from sdgmnet.training.config import TrainConfig
from sdgmnet.training.run import build_optimizer
from sdgmnet.training.step import MASK_BLOCK, dropout_masks, encode_sides, train_step

SHAPE = SDGMNet.feature_shape


@pytest.fixture
def encoder() -> SDGMNet:
    torch.manual_seed(0)
    return SDGMNet().train()


def test_masks_are_a_function_of_seed_step_side_and_block() -> None:
    mask = dropout_masks(1, 5, 150, SHAPE, 0.3)
    assert mask is not None
    again = dropout_masks(1, 5, 150, SHAPE, 0.3)
    assert torch.equal(mask, again)
    shorter = dropout_masks(1, 5, MASK_BLOCK, SHAPE, 0.3)
    assert torch.equal(mask[:, :MASK_BLOCK], shorter)
    for other in (dropout_masks(2, 5, 150, SHAPE, 0.3), dropout_masks(1, 6, 150, SHAPE, 0.3)):
        assert (mask != other).float().mean() > 0.3
    assert (mask[0] != mask[1]).float().mean() > 0.3
    assert (mask[0, :MASK_BLOCK] != mask[0, MASK_BLOCK : 2 * MASK_BLOCK]).float().mean() > 0.3


def test_masks_keep_the_asked_share() -> None:
    mask = dropout_masks(0, 0, 128, SHAPE, 0.3)
    assert mask is not None
    assert mask.float().mean().item() == pytest.approx(0.7, abs=0.002)
    assert dropout_masks(0, 0, 128, SHAPE, 0.0) is None


@pytest.mark.parametrize("chunk_size", [3, 7, 64])
@pytest.mark.parametrize("joint", [False, True])
def test_chunks_equal_one_big_batch(encoder: SDGMNet, chunk_size: int, joint: bool) -> None:
    """Losses, gradients and BatchNorm buffers of the chunked step are those of whole forward passes."""
    torch.manual_seed(1)
    sides = torch.rand(2, 10, 1, 32, 32)
    keep = dropout_masks(0, 0, 10, SHAPE, 0.3)
    assert keep is not None
    plain = SDGMNet().train()
    plain.load_state_dict(encoder.state_dict())

    if joint:
        descriptors = plain.encode(sides.flatten(0, 1), keep.flatten(0, 1)).descriptors
        anchor, positive = descriptors.split(10)
    else:
        anchor, positive = (plain.encode(sides[side], keep[side]).descriptors for side in range(2))
    expected = SDGMLoss()(anchor, positive, progress=0.0)
    expected.backward()

    a, p = encode_sides(encoder, sides, keep, chunk_size, joint)
    value = SDGMLoss()(a.descriptors, p.descriptors, progress=0.0)
    value.backward()

    torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-7)
    for (name, mine), theirs in zip(encoder.named_parameters(), plain.parameters(), strict=True):
        assert mine.grad is not None and theirs.grad is not None
        scale = theirs.grad.norm().clamp_min(1e-6)
        assert ((mine.grad - theirs.grad).norm() / scale) < 1e-4, name
    for mine, theirs in zip(encoder.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_a_loss_that_needs_more_gets_it(encoder: SDGMNet) -> None:
    class Needy(torch.nn.Module):
        needs = frozenset({"raw", "maps"})

        def forward(self, anchor, positive, *, progress, anchor_encoded, positive_encoded):  # type: ignore[no-untyped-def]
            torch.testing.assert_close(torch.nn.functional.normalize(anchor_encoded.raw, dim=1), anchor)
            assert positive_encoded.maps[0].shape == (4, 32, 32, 32)
            return positive_encoded.raw.square().mean()

    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
    value = train_step(encoder, Needy(), optimizer, torch.rand(2, 4, 1, 32, 32), None, progress=0.0, chunk_size=64)
    assert torch.isfinite(value)


@pytest.mark.parametrize(
    ("give", "said"),
    [
        (lambda a, p: (a * p).sum(1), r"returned a tensor \(4,\)"),
        (lambda a, p: (a * p).sum().item(), "returned a float"),
        (lambda a, p: (a * p).sum().detach(), "returned a value without a gradient"),
    ],
)
def test_what_is_no_loss_is_said(encoder: SDGMNet, give: Callable[..., Any], said: str) -> None:
    class Wrong(torch.nn.Module):
        def forward(self, anchor, positive, *, progress):  # type: ignore[no-untyped-def]
            return give(anchor, positive)

    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
    with pytest.raises(InputError, match=f"Wrong {said}"):
        train_step(encoder, Wrong(), optimizer, torch.rand(2, 4, 1, 32, 32), None, progress=0.0, chunk_size=64)


def test_recomputing_changes_nothing(encoder: SDGMNet) -> None:
    sides = torch.rand(2, 10, 1, 32, 32)
    keep = dropout_masks(0, 0, 10, SHAPE, 0.3)
    gradients = []
    for recompute in (False, True):
        encoder.zero_grad()
        trunk = build_trunk(encoder, "eager", recompute)
        a, p = encode_sides(encoder, sides, keep, chunk_size=4, trunk=trunk)
        SDGMLoss()(a.descriptors, p.descriptors, progress=0.0).backward()
        gradients.append([parameter.grad.clone() for parameter in encoder.parameters() if parameter.grad is not None])
    assert len(gradients[0]) == len(list(encoder.parameters()))
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


@pytest.mark.skipif(library() is None, reason="needs the kernels")
@pytest.mark.parametrize("recompute", [False, True])
def test_native_trunk_equals_the_plain_step(encoder: SDGMNet, recompute: bool) -> None:
    """To rounding, and to itself exactly.

    Winograd's tiles round three times as much as sums over taps, and the more responses fall on the other side of their
    threshold: each such one counts in the gradient as much as a hundred roundings.
    """
    sides = torch.rand(2, 24, 1, 32, 32)
    keep = dropout_masks(0, 0, 24, SHAPE, 0.3)
    precise = copy.deepcopy(encoder).double()

    def gradients(model: SDGMNet, patches: torch.Tensor, engine: str) -> torch.Tensor:
        model.zero_grad()
        model.norm.reset_running_stats()
        trunk = build_trunk(model, engine, recompute)
        a, p = encode_sides(model, patches, keep, chunk_size=16, trunk=trunk)
        SDGMLoss()(a.descriptors, p.descriptors, progress=0.0).backward()
        parts = [p.grad for p in model.parameters() if p.grad is not None]
        return torch.cat([part.double().flatten() for part in [*parts, *model.buffers()]])

    exact = gradients(precise, sides.double(), "eager")
    plain, native = gradients(encoder, sides, "eager"), gradients(encoder, sides, "native")
    assert torch.equal(native, gradients(encoder, sides, "native"))
    assert (native - exact).norm() <= 100 * (plain - exact).norm()
    assert (native - exact).norm() <= 1e-3 * exact.norm()


@pytest.mark.parametrize("joint", [False, True])
def test_batchnorm_inside_sees_whole_sides(joint: bool) -> None:
    """L2Net: two passes, or one over both sides; never chunks. Dropout is the mask's."""
    torch.manual_seed(3)
    encoder, plain = L2Net(0.3).train(), L2Net(0.3).train()
    plain.load_state_dict(encoder.state_dict())
    sides, keep = torch.rand(2, 6, 1, 32, 32), dropout_masks(0, 0, 6, SHAPE, 0.3)
    assert keep is not None
    a, p = encode_sides(encoder, sides, keep, 2, joint, with_maps=True)
    if joint:
        both = plain.encode(sides.flatten(0, 1), keep.flatten(0, 1))
        expected = [
            Encoded(both.descriptors[r], both.raw[r], tuple(m[r] for m in both.maps)) for r in (slice(6), slice(6, 12))
        ]
    else:
        expected = [plain.encode(sides[side], keep[side]) for side in range(2)]
    for mine, theirs in zip((a, p), expected, strict=True):
        assert torch.equal(mine.descriptors, theirs.descriptors) and torch.equal(mine.raw, theirs.raw)
        assert all(torch.equal(one, two) for one, two in zip(mine.maps, theirs.maps, strict=True))
    assert all(torch.equal(one, two) for one, two in zip(encoder.buffers(), plain.buffers(), strict=True))
    assert encode_sides(encoder, sides, keep, 2, joint)[0].maps == ()


def test_tfeat_in_chunks_is_tfeat_whole() -> None:
    torch.manual_seed(4)
    encoder = TFeat().train()
    sides = torch.rand(2, 7, 1, 32, 32)
    a, p = encode_sides(encoder, sides, None, 3, with_maps=True)
    for mine, patches in zip((a, p), sides, strict=True):
        whole = encoder.encode(patches)
        torch.testing.assert_close(mine.descriptors, whole.descriptors)
        torch.testing.assert_close(mine.maps[0], whole.maps[0])


def by_hand(name: str, gradients: list[torch.Tensor], start: torch.Tensor) -> torch.Tensor:
    """Three steps of an optimiser with learning rate 0.1 and weight decay 0.01, from its definition."""
    x, velocity, square = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
    for step, gradient in enumerate(gradients, 1):
        gradient = gradient + 0.01 * x
        if name == "adam":
            velocity = 0.9 * velocity + 0.1 * gradient
            square = 0.999 * square + 0.001 * gradient**2
            x = x - 0.1 * (velocity / (1 - 0.9**step)) / ((square / (1 - 0.999**step)).sqrt() + 1e-8)
        else:  # the first gradient is not damped
            velocity = gradient if step == 1 else 0.9 * velocity + (1 - 0.9) * gradient
            x = x - 0.1 * velocity
    return x


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_optimisers_move_as_written(name: str) -> None:
    layer = torch.nn.Linear(3, 2, bias=False).double()
    config = TrainConfig(optimizer=name, dampening=0.9, learning_rate=0.1, weight_decay=0.01)  # type: ignore[arg-type]
    optimizer = build_optimizer(config, layer)
    start = layer.weight.detach().clone()
    gradients = [torch.randn(2, 3, dtype=torch.float64) for _ in range(3)]
    for gradient in gradients:
        layer.weight.grad = gradient.clone()
        optimizer.step()
    torch.testing.assert_close(layer.weight.detach(), by_hand(name, gradients, start), rtol=1e-9, atol=1e-12)

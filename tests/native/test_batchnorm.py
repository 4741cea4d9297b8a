"""batchnorm.cpp against L2Net's own layers in float64: values, gradients, running moments, threads, awkward numbers."""

import copy
import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sdgmnet.data.sources import with_pairs
from sdgmnet.distributed import ALONE, synchronise_batchnorm
from sdgmnet.encoders import L2Net, SDGMNet
from sdgmnet.engine import build_trunk, describe_patches
from sdgmnet.native import batchnorm
from sdgmnet.native.build import library
from sdgmnet.training.config import TrainConfig
from sdgmnet.training.run import evaluate, start
from sdgmnet.training.step import dropout_masks, encode_sides
from tests.conftest import blob_patches
from tests.native.conftest import torch_threads

pytestmark = pytest.mark.skipif(library() is None, reason="needs the kernels")


def keep_all(encoder: L2Net, count: int) -> Tensor:
    return torch.ones(count, *encoder.feature_shape, dtype=torch.bool)


@pytest.fixture
def encoder() -> L2Net:
    torch.manual_seed(0)
    return L2Net(dropout=0.3).train()


def both_gradients(encoder: L2Net, patches: Tensor, keep: Tensor | None) -> tuple[list[Tensor], list[Tensor]]:
    """Values and gradients of the native trunk, and of the encoder's own in float64; also into the maps."""
    exact = copy.deepcopy(encoder).double()
    generator = torch.Generator().manual_seed(1)
    upstream, into_maps = (torch.randn(shape, generator=generator) for shape in ((len(patches), 128), (32, 32, 32)))
    found = []
    for model, trunk in ((encoder, build_trunk(encoder, "native")), (exact, exact.trunk)):
        kind = next(model.parameters()).dtype
        features, first = trunk(patches.to(kind), keep)
        assert first is not None
        ((features * upstream.to(kind)).sum() + (first * into_maps.to(kind)).sum()).backward()
        gradients = [parameter.grad.double() for parameter in model.parameters() if parameter.grad is not None]
        found.append([features.detach().double(), *(one.double() for one in model.buffers()), *gradients])
    return found[0], found[1]


@pytest.mark.parametrize("count", [2, 7, 20])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_values_moments_and_gradients_are_those_of_float64(encoder: L2Net, count: int, threads: int) -> None:
    keep = dropout_masks(0, 0, count, encoder.feature_shape, 0.3)
    assert keep is not None
    with torch_threads(threads):
        mine, theirs = both_gradients(encoder, torch.rand(count, 1, 32, 32), keep[0])
    buffers = len(list(encoder.buffers()))
    assert len(mine) == 1 + buffers + 7
    for place, (one, other) in enumerate(zip(mine, theirs, strict=True)):
        # A value within rounding of 0 may be let through or not: rare, and small in the norm of a gradient.
        most = 2e-5 if place <= buffers else 3e-2
        assert (one - other).norm() <= most * other.norm() + 1e-6, place


def test_gradients_to_rounding(encoder: L2Net) -> None:
    """Against float64 layers whose ReLU lets through what the native one did: then nothing hangs on the sign of a rounding."""
    lanes = batchnorm.needed_library().sdgmnet_lanes()
    convolutions = [one for one in encoder.middle if isinstance(one, nn.Conv2d)]
    norms = [one for one in encoder.middle if isinstance(one, nn.BatchNorm2d)][:-1]
    first = encoder.first(encoder.standardise(torch.rand(9, 1, 32, 32))).detach().requires_grad_()
    raw = batchnorm._Middle.apply(first, 2, norms, *(one.weight for one in convolutions))
    saved, depth = raw.grad_fn.saved_tensors, len(convolutions)
    layers = zip(saved[:depth], saved[depth : 3 * depth : 2], saved[depth + 1 : 3 * depth : 2], strict=True)
    passed = [
        batchnorm.from_blocks(maps, len(scale), lanes) * scale[:, None, None] + shift[:, None, None] > 0
        for maps, scale, shift in layers
    ]
    upstream = torch.randn_like(raw)
    raw.backward(upstream)
    exact_first = first.detach().double().requires_grad_()
    weights = [one.weight.detach().double().requires_grad_() for one in convolutions]
    maps = exact_first
    for place, (weight, convolution, mask) in enumerate(zip(weights, convolutions, passed, strict=True)):
        maps = F.conv2d(maps * mask, weight, stride=convolution.stride, padding=1)
        if place + 1 < depth:
            maps = F.batch_norm(maps, None, None, training=True, eps=norms[place].eps)
    maps.backward(upstream.double())
    assert (raw - maps).norm() <= 2e-5 * maps.norm()
    weight_gradients = ((c.weight.grad, w.grad) for c, w in zip(convolutions, weights, strict=True))
    for mine, exact in ((first.grad, exact_first.grad), *weight_gradients):
        assert mine is not None and exact is not None
        assert (mine - exact).norm() <= 2e-5 * exact.norm()


def test_it_learns_from_whole_sides_as_the_plain_step_does(encoder: L2Net) -> None:
    """Both presets of BatchNorm, with maps and without."""
    sides, keep = torch.rand(2, 8, 1, 32, 32), dropout_masks(0, 0, 8, encoder.feature_shape, 0.3)
    for joint, with_maps in itertools.product((False, True), repeat=2):
        twin, trunk = copy.deepcopy(encoder), build_trunk(encoder, "native")
        assert trunk != encoder.trunk
        mine = encode_sides(encoder, sides, keep, 8, joint, with_maps, trunk)
        theirs = encode_sides(twin, sides, keep, 8, joint, with_maps)
        for one, other in zip(mine, theirs, strict=True):
            assert (one.descriptors - other.descriptors).abs().max() < 2e-5
            assert len(one.maps) == (2 if with_maps else 0)
            torch.testing.assert_close(one.maps, other.maps, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(dict(encoder.named_buffers()), dict(twin.named_buffers()), rtol=1e-4, atol=1e-6)


def same_gradients(one: L2Net, other: L2Net) -> bool:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(a.grad is None if b.grad is None else torch.equal(a.grad, b.grad) for a, b in pairs)  # type: ignore[arg-type]


def test_same_bits_every_time_and_under_autocast(encoder: L2Net) -> None:
    patches, twins = torch.rand(11, 1, 32, 32), [encoder, copy.deepcopy(encoder), copy.deepcopy(encoder)]
    for twin in twins:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=twin is twins[2]):
            features, _ = build_trunk(twin, "native")(patches, keep_all(twin, 11))
        features.sum().backward()
    assert same_gradients(encoder, twins[1]) and same_gradients(encoder, twins[2])


def test_descriptors_equal_eager_ones(encoder: L2Net) -> None:
    encoder.trunk(torch.rand(40, 1, 32, 32))  # so that running moments are not the first ones
    patches = np.random.default_rng(0).integers(256, size=(300, 64, 64), dtype=np.uint8)
    native, eager = (describe_patches(encoder, patches, engine=engine) for engine in ("native", "eager"))  # type: ignore[arg-type]
    np.testing.assert_allclose(native, eager, atol=1e-5)
    alone = describe_patches(encoder, patches[7:8], engine="native")
    np.testing.assert_allclose(alone, native[7:8], atol=1e-5)
    assert describe_patches(encoder, patches[:0], engine="native").shape == (0, 128) and encoder.training


def test_only_what_it_was_written_for(encoder: L2Net) -> None:
    assert batchnorm.is_available(encoder) and not batchnorm.is_available(SDGMNet())
    assert not batchnorm.is_available(copy.deepcopy(encoder).double())
    hooked = copy.deepcopy(encoder)
    hooked.middle[1].register_forward_hook(lambda *_: None)
    assert not batchnorm.is_available(hooked)
    for place, module in (
        (3, nn.Tanh()),
        (1, nn.Conv2d(32, 32, 3, padding=1)),  # with a bias
        (1, nn.Conv2d(32, 32, 5, padding=2, bias=False)),
        (2, nn.BatchNorm2d(32, affine=False, momentum=0.2)),
        (2, nn.BatchNorm2d(32, affine=False, track_running_stats=False)),
    ):
        other = copy.deepcopy(encoder)
        other.middle[place] = module
        assert not batchnorm.is_available(other) and build_trunk(other, "native") == other.trunk


def test_frozen_moments_stay(encoder: L2Net) -> None:
    """A BatchNorm in eval mode takes and leaves its running moments, as torch's does."""
    encoder.middle[5].eval()
    patches, keep, twin = torch.rand(4, 1, 32, 32), keep_all(encoder, 4), copy.deepcopy(encoder)
    assert torch.equal(build_trunk(encoder, "native")(patches, keep)[0], twin.trunk(patches, keep)[0])
    assert torch.equal(encoder.middle[5].running_mean, torch.zeros(64))


def test_descriptors_under_autocast(encoder: L2Net) -> None:
    patches = np.random.default_rng(0).integers(256, size=(5, 32, 32), dtype=np.uint8)
    for model in (encoder, SDGMNet().train()):
        plain = describe_patches(model, patches, engine="native")
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = describe_patches(model, patches, engine="native")
        np.testing.assert_allclose(inside, plain, atol=1e-2)  # the last convolution of SDGMNet is torch's


def test_ranks_that_share_batchnorm_evaluate_by_torch(encoder: L2Net) -> None:
    """The configuration says native, as that of a run that was begun alone; BatchNorm of several ranks has no native form."""
    config = TrainConfig(encoder="l2net", loss="hardnet-original", batch_size=4, engine="native")
    run = start(config, [blob_patches(20, 3, 0)])
    for name, child in run.encoder.named_children():
        if name != "norm":
            setattr(run.encoder, name, synchronise_batchnorm(child, ALONE))
    assert build_trunk(run.encoder, "native") == run.encoder.trunk
    test = with_pairs(blob_patches(20, 3, 1))
    assert 0 <= evaluate(run, [test])["mean"] <= 1


def test_what_is_not_finite_is_not_hidden(encoder: L2Net) -> None:
    patches = torch.rand(4, 1, 32, 32)
    patches[1, 0, 5, 5] = float("nan")
    features, _ = build_trunk(encoder, "native")(patches, keep_all(encoder, 4))
    assert features.isnan().all()  # BatchNorm tells all of it, as torch's does


@pytest.mark.usefixtures("target")
def test_every_target(encoder: L2Net) -> None:
    test_values_moments_and_gradients_are_those_of_float64(encoder, count=5, threads=2)
    encoder.zero_grad()
    test_gradients_to_rounding(encoder)

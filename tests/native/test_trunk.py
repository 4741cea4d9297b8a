"""trunk.cpp against the encoder's own layers in float64: values, gradients, threads, determinism, awkward numbers."""

import copy
from functools import partial

import pytest
import torch
from torch import Tensor

from sdgmnet.encoders import FastSDGMNet, SDGMNet
from sdgmnet.engine import describe_patches, prepare
from sdgmnet.errors import InputError
from sdgmnet.native import trunk
from sdgmnet.native.build import library
from tests.native.aarch64 import move_thresholds_away
from tests.native.conftest import torch_threads

pytestmark = pytest.mark.skipif(library() is None, reason="needs the kernels")


@pytest.fixture(params=[SDGMNet, FastSDGMNet])
def encoder(request: pytest.FixtureRequest) -> SDGMNet:
    """With every parameter away from its initial value, so that none of them can be forgotten."""
    torch.manual_seed(0)
    made: SDGMNet = request.param(dropout=0.0)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
        made.input[0].gamma.fill_(1.3)
        made.input[1].tau.fill_(0.4)  # some pixels below, some above
    return made


def plain_maps(encoder: SDGMNet, patches: Tensor) -> Tensor:
    made: Tensor = encoder.middle(encoder.first(encoder.input(patches)))
    return made


def gradients(encoder: SDGMNet) -> dict[str, Tensor]:
    return {name: p.grad.double() for name, p in encoder.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("count", [1, 2, 3, 9])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_values_and_gradients_are_those_of_float64(encoder: SDGMNet, count: int, threads: int) -> None:
    patches, upstream = torch.rand(count, 1, 32, 32), torch.randn(count, *encoder.feature_shape)
    exact = copy.deepcopy(encoder).double()
    expected = plain_maps(exact, patches.double())
    expected.backward(upstream.double())
    with torch_threads(threads):
        made = trunk.maps(encoder, patches)
        made.backward(upstream)
    assert (made - expected).norm() < 1e-5 * expected.norm()
    mine, theirs = gradients(encoder), gradients(exact)
    assert mine.keys() == theirs.keys() and len(mine) == 3 + 5 * (1 + len(encoder.middle))
    for name, gradient in theirs.items():
        # A response within rounding of its threshold may fall to either side: rare, and small in the norm of many numbers. The
        # input's are one number each, a difference of large sums: held by the next test alone.
        if gradient.numel() > 1:
            assert (mine[name] - gradient).norm() <= 3e-2 * gradient.norm() + 1e-5, name


def test_gradients_away_from_thresholds(encoder: SDGMNet) -> None:
    """To rounding, where no response is near its threshold."""
    move_thresholds_away(encoder)
    patches, upstream = torch.rand(13, 1, 32, 32), torch.randn(13, *encoder.feature_shape)
    exact = copy.deepcopy(encoder).double()
    plain_maps(exact, patches.double()).backward(upstream.double())
    trunk.maps(encoder, patches).backward(upstream)
    mine, theirs = gradients(encoder), gradients(exact)
    for name, gradient in theirs.items():
        assert (mine[name] - gradient).norm() <= 5e-5 * gradient.norm() + 1e-5, name


@pytest.mark.usefixtures("target")
def test_every_target(encoder: SDGMNet) -> None:
    test_values_and_gradients_are_those_of_float64(encoder, count=5, threads=2)
    encoder.zero_grad()
    test_gradients_away_from_thresholds(encoder)


@pytest.mark.parametrize("threads", [1, 3])
def test_same_bits_every_time_and_whatever_the_company(encoder: SDGMNet, threads: int) -> None:
    """Also with memory lent, which comes back."""
    patches, upstream = torch.rand(37, 1, 32, 32), torch.randn(37, *encoder.feature_shape)
    with torch_threads(threads):
        with torch.no_grad():
            whole = trunk.maps(encoder, patches)
            assert torch.equal(whole, trunk.maps(encoder, patches))
            assert torch.equal(whole[11:14], trunk.maps(encoder, patches[11:14]))
        trunk.maps(encoder, patches).backward(upstream)
        expected = gradients(encoder)
        spare: list[Tensor] = []
        for _ in range(3):
            encoder.zero_grad()
            trunk.maps(encoder, patches, spare).backward(upstream)
            assert len(spare) == 1
            assert all(torch.equal(one, expected[name]) for name, one in gradients(encoder).items())


def test_ties_at_the_threshold_share_as_torch_has_it() -> None:
    """Flat black patches: every response is its beta; with tau = beta both are equal everywhere."""
    encoder = SDGMNet(dropout=0.0)
    with torch.no_grad():
        encoder.input[1].tau.zero_()
        for module in encoder.modules():
            if isinstance(module, torch.nn.Conv2d) and module.bias is not None:
                module.bias.zero_()
        encoder.middle[4][2].tau.copy_(encoder.middle[4][1].beta)
    upstream = torch.randn(2, *encoder.feature_shape)
    encoder.middle[4][0].weight.data.zero_()
    trunk.maps(encoder, torch.zeros(2, 1, 32, 32)).backward(upstream)
    tau = encoder.middle[4][2].tau
    assert tau.grad is not None
    torch.testing.assert_close(tau.grad, upstream.sum(dim=(0, 2, 3)) / 2, rtol=1e-5, atol=1e-5)


def test_what_is_not_finite_is_not_hidden(encoder: SDGMNet) -> None:
    for value in (float("nan"), float("inf")):
        patches = torch.rand(3, 1, 32, 32)
        patches[1, 0, 5, 5] = value
        with torch.no_grad():
            made = trunk.maps(encoder, patches).flatten(1)
        assert torch.isfinite(made[[0, 2]]).all() and not torch.isfinite(made[1]).all()
    for name in ("input.1.tau", "middle.2.2.tau"):
        broken = copy.deepcopy(encoder)
        broken.get_parameter(name).data[0] = float("nan")
        with torch.no_grad():
            assert torch.isnan(trunk.maps(broken, torch.rand(1, 1, 32, 32))).any()


@pytest.mark.parametrize("gradient", [True, False])
@pytest.mark.parametrize("view", ["strided", "transposed"])
def test_patches_that_are_not_contiguous(encoder: SDGMNet, view: str, gradient: bool) -> None:
    big = torch.rand(4, 1, 32, 64)
    patches = big[..., ::2] if view == "strided" else big[..., :32].transpose(2, 3)
    with torch.set_grad_enabled(gradient):
        for call in (partial(trunk.maps, encoder), partial(trunk.describe, encoder, trunk.pack_trunk(encoder))):
            assert torch.equal(call(patches), call(patches.contiguous()))


def test_only_what_it_was_written_for(encoder: SDGMNet) -> None:
    class Wider(SDGMNet):
        pass

    assert trunk.is_available(encoder) and not trunk.is_available(Wider())
    for change in (
        lambda other: other.double(),
        lambda other: other.middle.double(),
        lambda other: setattr(other.first[1], "epsilon", 1e-3),
        lambda other: other.middle.register_forward_hook(lambda *_: None),
        lambda other: setattr(other.middle[0], "0", torch.nn.Conv2d(32, 32, 5)),
    ):
        other = copy.deepcopy(encoder)
        change(other)
        assert not trunk.is_available(other)


def test_patches_it_cannot_take_are_refused(encoder: SDGMNet) -> None:
    good = torch.rand(2, 1, 32, 32)
    for patches in (good.double(), good.half(), torch.rand(2, 1, 64, 64), good.clone().requires_grad_()):
        with pytest.raises(InputError, match="eager"):
            trunk.maps(encoder, patches)


def test_torchs_defaults_do_not_matter(encoder: SDGMNet) -> None:
    patches, upstream = torch.rand(4, 1, 32, 32), torch.randn(4, *encoder.feature_shape)
    expected = trunk.maps(encoder, patches)
    try:
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("meta"):
            made = trunk.maps(encoder, patches)
            made.backward(upstream)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(made, expected)


def test_a_graph_kept_for_later_cannot_use_memory_lent_again(encoder: SDGMNet) -> None:
    spare: list[Tensor] = []
    patches, upstream = torch.rand(4, 1, 32, 32), torch.randn(4, *encoder.feature_shape)
    first = trunk.maps(encoder, patches, spare)
    first.backward(upstream, retain_graph=True)
    first.backward(upstream, retain_graph=True)
    assert len(spare) == 1
    trunk.maps(encoder, torch.rand(4, 1, 32, 32), spare)
    with pytest.raises(RuntimeError, match="inplace operation"):
        first.backward(upstream)


@pytest.mark.parametrize("size", [32, 64])
def test_descriptors_equal_eager_ones(encoder: SDGMNet, size: int) -> None:
    patches = torch.randint(0, 256, (70, size, size), dtype=torch.uint8)
    with torch.no_grad():
        encoder.train()
        encoder(torch.rand(50, 1, 32, 32))  # BatchNorm away from its initial state
    fast, plain = (describe_patches(encoder, patches, engine=engine) for engine in ("native", "eager"))
    assert abs(fast - plain).max() < 1e-5


@pytest.mark.parametrize("threads", [1, 3])
def test_halving_bytes(threads: int) -> None:
    """Noise, and values at every place that no weight may leave out or count twice; also rows that are not contiguous."""
    patches = torch.randint(0, 256, (7, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    white = torch.full((1, 64, 64), 255, dtype=torch.uint8)
    with torch_threads(threads):
        for some in (patches, patches.transpose(1, 2), patches[::2], white, patches[:0]):
            found = trunk.halve(some)
            assert found.shape == (len(some), 1, 32, 32)
            torch.testing.assert_close(found, prepare(some, 32), atol=1e-6, rtol=0)
    assert (trunk.halve(white) == 1).all()

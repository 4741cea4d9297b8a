"""The encoder of Fig. 3 against the layers of docs/protocols.md 3 and a forward pass written out by hand."""

import copy
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sdgmnet.encoders import (
    ENCODERS,
    Encoder,
    FilterResponseNorm,
    L2Net,
    SDGMNet,
    TFeat,
    ThresholdedLinearUnit,
    initialise_orthogonally,
    load_tfeat,
)
from sdgmnet.errors import InputError

STRIDES = (1, 1, 2, 1, 2, 1)
CHANNELS = (1, 32, 32, 64, 64, 128, 128)


@pytest.fixture(scope="module")
def trained() -> SDGMNet:
    """An encoder whose every parameter and statistic differs from its initial value, so that each of them matters."""
    torch.manual_seed(0)
    encoder = SDGMNet()
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter) * (parameter.abs().mean() + 0.1))
    encoder.norm.running_mean.normal_()
    encoder.norm.running_var.uniform_(0.5, 2)
    return encoder


@pytest.fixture
def encoder(trained: SDGMNet) -> SDGMNet:
    return copy.deepcopy(trained).eval()


@pytest.fixture
def l2net() -> L2Net:
    torch.manual_seed(0)
    encoder = L2Net().eval()
    encoder.mean_image.uniform_(0, 1)
    for norm in layers(encoder, BatchNorm):
        norm.running_mean.normal_(0, 0.1)
        norm.running_var.uniform_(0.5, 2)
    return encoder


@pytest.fixture(scope="module")
def patches() -> Tensor:
    return torch.rand(6, 1, 32, 32, generator=torch.Generator().manual_seed(1))


BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d


def layers(encoder: nn.Module, kind: Any) -> list[Any]:
    return [module for module in encoder.modules() if isinstance(module, kind)]


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def features_by_hand(encoder: SDGMNet, patches: Tensor, keep: Tensor | None = None) -> Tensor:
    """Up to the last convolution, in float64: FRN, TLU, six times convolution, FRN, TLU; dropout; 8 x 8 convolution."""
    convolutions = layers(encoder, nn.Conv2d)
    x = patches.double()
    blocks = zip(layers(encoder, FilterResponseNorm), layers(encoder, ThresholdedLinearUnit), strict=True)
    for number, (norm, unit) in enumerate(blocks):
        if number > 0:
            weight, bias = convolutions[number - 1].parameters()
            x = F.conv2d(x, weight.double(), bias.double(), stride=STRIDES[number - 1], padding=1)
        energy = (x * x).sum(dim=(2, 3)) / (x.shape[2] * x.shape[3])
        x = x / torch.sqrt(energy + 1e-6)[:, :, None, None]
        x = x * norm.gamma.double().view(1, -1, 1, 1) + norm.beta.double().view(1, -1, 1, 1)
        tau = unit.tau.double().view(1, -1, 1, 1).expand_as(x)
        x = torch.where(x > tau, x, tau)
    if keep is not None:
        x = torch.where(keep, x / 0.7, torch.zeros_like(x))
    return x.flatten(1) @ convolutions[-1].weight.double().flatten(1).T


def normalised_by_hand(features: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    raw = (features - mean) / torch.sqrt(variance + 1e-5)
    return raw / torch.sqrt((raw * raw).sum(dim=1, keepdim=True))


def test_layers_are_those_of_the_table() -> None:
    encoder = ENCODERS["sdgmnet"]()
    assert isinstance(encoder, SDGMNet)
    assert (encoder.patch_size, encoder.descriptor_size, encoder.dropout) == (32, 128, 0.3)
    convolutions, (batch_norm,) = layers(encoder, nn.Conv2d), layers(encoder, BatchNorm)
    assert [count(module) for module in convolutions] == [320, 9248, 18496, 36928, 73856, 147584, 1048576]
    assert [count(module) for module in layers(encoder, FilterResponseNorm)] == [2, 64, 64, 128, 128, 256, 256]
    units = layers(encoder, ThresholdedLinearUnit)
    assert [count(module) for module in units] == [1, 32, 32, 64, 64, 128, 128]
    assert count(encoder) == 1_336_355 and all(parameter.requires_grad for parameter in encoder.parameters())
    channels = [(module.in_channels, module.out_channels) for module in convolutions]
    assert channels == [*itertools.pairwise(CHANNELS), (128, 128)]
    assert [module.kernel_size for module in convolutions] == [(3, 3)] * 6 + [(8, 8)]
    assert [module.stride[0] for module in convolutions] == [*STRIDES, 1]
    assert [module.bias is not None for module in convolutions] == [True] * 6 + [False]
    assert all((module.tau == -1).all() for module in units)
    assert not batch_norm.affine and (batch_norm.eps, batch_norm.momentum) == (1e-5, 0.1)


def test_l2net_has_the_published_layers() -> None:
    encoder = L2Net()
    convolutions = layers(encoder, nn.Conv2d)
    assert [count(module) for module in convolutions] == [288, 9216, 18432, 36864, 73728, 147456, 1048576]
    assert count(encoder) == 1_334_560
    norms = layers(encoder, BatchNorm)
    assert len(norms) == 7 and all(not norm.affine and (norm.eps, norm.momentum) == (1e-5, 0.1) for norm in norms)
    assert encoder.dropout == 0.1 and not encoder.chunkable and SDGMNet.chunkable and TFeat.chunkable


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("count", [0, 2, 5])
def test_descriptors_have_unit_length(count: int, training: bool, encoder: SDGMNet, patches: Tensor) -> None:
    descriptors = encoder.train(training)(patches[:count])
    assert descriptors.shape == (count, 128) and descriptors.dtype == torch.float32
    assert torch.allclose(descriptors.norm(dim=1), torch.ones(count), atol=1e-6)


@pytest.mark.parametrize("kind", [SDGMNet, L2Net, TFeat])
@pytest.mark.parametrize(
    "shape", [(2, 1, 64, 64), (2, 3, 32, 32), (2, 32, 32), (1, 32, 32), (2, 1, 32, 31), (32, 32), (2, 1, 1, 32, 32)]
)
def test_other_shapes_are_refused_with_advice(kind: type[Encoder], shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="describe_patches") as caught:
        kind().eval()(torch.zeros(shape))
    assert "(B, 1, 32, 32)" in str(caught.value) and str(shape) in str(caught.value)


@pytest.mark.parametrize("kind", [SDGMNet, L2Net, TFeat])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool])
def test_other_types_are_refused_with_advice(kind: type[Encoder], dtype: torch.dtype) -> None:
    encoder = kind().eval()
    with pytest.raises(InputError, match=f"{dtype}.*255"):
        encoder(torch.zeros(2, 1, 32, 32, dtype=dtype))
    with pytest.raises(InputError, match="ndarray.*describe_patches"):
        encoder(np.zeros((2, 1, 32, 32), dtype=np.float32))


def test_training_with_one_patch_is_refused(encoder: SDGMNet, l2net: L2Net, patches: Tensor) -> None:
    for model, fewest in ((encoder, 1), (l2net, 0)):  # L2Net has BatchNorm of whole maps
        for some in range(fewest, 2):
            assert model.eval()(patches[:some]).shape == (some, 128)
            with pytest.raises(InputError, match="at least 2 patches"):
                model.train()(patches[:some])


def test_bad_dropout_is_refused() -> None:
    for kind, rate in ((SDGMNet, -0.1), (SDGMNet, 1.0), (SDGMNet, math.nan), (TFeat, 0.3)):
        with pytest.raises(InputError, match="dropout"):
            kind(dropout=rate)


def test_filter_response_norm_is_the_formula() -> None:
    generator = torch.Generator().manual_seed(2)
    norm = FilterResponseNorm(3)
    with torch.no_grad():
        norm.gamma.copy_(torch.tensor([0.5, 2.0, -1.0]))
        norm.beta.copy_(torch.tensor([0.1, -0.2, 3.0]))
    x = torch.randn(2, 3, 4, 5, generator=generator)
    x[1, 2] = 1e-3 * x[1, 2]  # energy of the size of epsilon: it must stand under the root, added
    for sample, made in zip(x.double(), norm(x).detach(), strict=True):
        for maps, found, gamma, beta in zip(sample, made, (0.5, 2.0, -1.0), (0.1, -0.2, 3.0), strict=True):
            expected = gamma * maps / math.sqrt((maps * maps).sum() / 20 + 1e-6) + beta
            torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_forward_in_eval_is_the_hand_written_one(encoder: SDGMNet, patches: Tensor) -> None:
    mean, variance = encoder.norm.running_mean, encoder.norm.running_var
    assert mean is not None and variance is not None
    expected = normalised_by_hand(features_by_hand(encoder, patches), mean.double(), variance.double())
    assert torch.allclose(encoder(patches).double(), expected, atol=1e-5)
    encoded = encoder.encode(patches)
    assert torch.equal(encoded.descriptors, encoder(patches))
    nothing = torch.zeros(6, 128, 8, 8, dtype=torch.bool)
    assert torch.equal(encoder.encode(patches, nothing).descriptors, encoder(patches))  # no dropout in eval mode
    assert torch.allclose(F.normalize(encoded.raw, dim=1), encoded.descriptors)


def test_forward_in_training_drops_what_the_mask_says(encoder: SDGMNet, patches: Tensor) -> None:
    keep = torch.rand(6, 128, 8, 8, generator=torch.Generator().manual_seed(5)) >= 0.3
    features = features_by_hand(encoder, patches, keep)
    expected = normalised_by_hand(features, features.mean(dim=0), features.var(dim=0, correction=0))
    encoder.train()
    assert torch.allclose(encoder.encode(patches, keep).descriptors.double(), expected, atol=1e-4)
    other = encoder.encode(patches, ~keep).descriptors
    assert not torch.allclose(other.double(), expected, atol=1e-2)
    assert not torch.allclose(encoder.encode(patches, torch.ones_like(keep)).descriptors.double(), expected, atol=1e-2)


def test_dropout_without_a_mask_keeps_seven_of_ten_features(encoder: SDGMNet, patches: Tensor) -> None:
    """With a last layer that only adds up, the features show how much dropout left and how it was scaled."""
    with torch.no_grad():
        encoder.middle[-1][2].tau.fill_(100.0)  # every feature is 100
        encoder.last.weight.fill_(1 / (100 * 128 * 64))
    whole, _ = encoder.eval().trunk(patches)
    assert torch.allclose(whole, torch.ones_like(whole), atol=1e-4)
    torch.manual_seed(0)
    thinned, _ = encoder.train().trunk(patches)
    share = 0.7 * thinned[:, 0].detach()  # of 8192 features a patch, each of them scaled by 1 / 0.7
    assert float((share - 0.7).abs().max()) < 5 * math.sqrt(0.3 * 0.7 / 8192)
    assert float(share.std()) > 1e-4
    torch.manual_seed(0)
    assert torch.equal(encoder.trunk(patches)[0], thinned)  # drawn from torch's generator


def test_descriptor_in_eval_does_not_depend_on_its_batch(encoder: SDGMNet, patches: Tensor) -> None:
    together = encoder(patches)
    alone = torch.cat([encoder(patches[row : row + 1]) for row in range(len(patches))])
    assert torch.allclose(together, alone, atol=1e-6)
    assert torch.allclose(encoder(patches.flip(0)).flip(0), together, atol=1e-6)


def test_brightness_scale_does_not_matter(encoder: SDGMNet, patches: Tensor) -> None:
    """The filter response norm at the input takes out the contrast, so 0..255 would do as well as 0..1."""
    assert torch.allclose(encoder(255 * patches), encoder(patches), atol=1e-4)


def test_flat_patches_are_finite(encoder: SDGMNet, l2net: L2Net) -> None:
    for model, gray in ((encoder, 0.0), (l2net, 0.4)):
        flat = torch.full((3, 1, 32, 32), gray)
        assert torch.isfinite(model(flat)).all()
        model.train()(flat).sum().backward()
        assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_every_parameter_learns(encoder: SDGMNet, patches: Tensor) -> None:
    """With inputs of both signs, since the first threshold of -1 never acts on patches that are nowhere negative."""
    target = F.normalize(torch.randn(6, 128, generator=torch.Generator().manual_seed(6)), dim=1)
    (encoder.train()(2 * patches - 1) * target).sum().backward()
    for name, parameter in encoder.named_parameters():
        assert parameter.grad is not None and float(parameter.grad.abs().sum()) > 0, name


def test_tfeat_is_the_published_network(patches: Tensor) -> None:
    """599 808 parameters; the forward pass written out by hand; the published file's layout."""
    torch.manual_seed(0)
    tfeat = TFeat().eval()
    assert count(tfeat) == 599_808
    weights = tfeat.state_dict()
    names = ("features.1", "features.4", "descr.0")
    assert set(weights) == {f"{name}.{part}" for name in names for part in ("weight", "bias")}
    variance = patches.var((2, 3), correction=0, keepdim=True)
    centred = (patches - patches.mean((2, 3), keepdim=True)) / (variance + 1e-5).sqrt()
    maps = torch.tanh(F.conv2d(centred, weights["features.1.weight"], weights["features.1.bias"]))
    maps = maps.unfold(2, 2, 2).unfold(3, 2, 2).amax((4, 5))
    maps = torch.tanh(F.conv2d(maps, weights["features.4.weight"], weights["features.4.bias"]))
    expected = torch.tanh(maps.flatten(1) @ weights["descr.0.weight"].T + weights["descr.0.bias"])
    torch.testing.assert_close(tfeat(patches), expected, rtol=1e-4, atol=1e-5)
    encoded = tfeat.encode(patches)
    assert torch.equal(encoded.descriptors, encoded.raw) and encoded.raw.abs().max() < 1
    assert [tuple(one.shape) for one in encoded.maps] == [(6, 32, 26, 26), (6, 128, 1, 1)]


def test_tfeat_weights_load_without_running_code(tmp_path: Path) -> None:
    torch.save(TFeat().state_dict(), tmp_path / "good.params")
    assert load_tfeat(tmp_path / "good.params").training is False
    (tmp_path / "bad.params").write_bytes(b"junk")
    (tmp_path / "empty.params").write_bytes(b"")
    torch.save({"other": torch.zeros(2)}, tmp_path / "other.params")
    torch.save(Path("x"), tmp_path / "code.params")
    for name in ("bad", "empty", "other", "code", "none"):
        with pytest.raises(InputError, match=f"{name}.params"):
            load_tfeat(tmp_path / f"{name}.params")


def l2net_by_hand(encoder: L2Net, patches: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Descriptors, features after the last BatchNorm, maps after the first, in float64; statistics of the batch in training."""
    x = patches.double() - encoder.mean_image.double()
    for row in range(len(x)):
        pixels = x[row].flatten().tolist()
        mean = sum(pixels) / 1024
        std = math.sqrt(sum((pixel - mean) ** 2 for pixel in pixels) / 1023)
        x[row] = (x[row] - mean) / (std + 1e-7)
    first = x
    blocks = zip(layers(encoder, nn.Conv2d), layers(encoder, BatchNorm), strict=True)
    for number, (convolution, norm) in enumerate(blocks):
        if number == 6:
            x = x if keep is None else torch.where(keep, x / (1 - encoder.dropout), torch.zeros_like(x))
            x = (x.flatten(1) @ convolution.weight.double().flatten(1).T)[:, :, None, None]
        else:
            x = F.conv2d(x, convolution.weight.double(), stride=STRIDES[number], padding=1)
        if encoder.training:
            mean_, variance = x.mean(dim=(0, 2, 3)), x.var(dim=(0, 2, 3), correction=0)
        else:
            mean_, variance = norm.running_mean.double(), norm.running_var.double()
        x = (x - mean_[:, None, None]) / torch.sqrt(variance[:, None, None] + 1e-5)
        first = x if number == 0 else first
        x = x if number == 6 else x.clamp_min(0)
    raw = x[:, :, 0, 0]
    return raw / raw.norm(dim=1, keepdim=True), raw, first


@pytest.mark.parametrize("training", [True, False])
def test_l2net_is_the_hand_written_one(l2net: L2Net, patches: Tensor, training: bool) -> None:
    l2net.train(training)
    keep = torch.rand(6, 128, 8, 8, generator=torch.Generator().manual_seed(5)) >= 0.1 if training else None
    expected = l2net_by_hand(l2net, patches, keep)
    encoded = l2net.encode(patches, keep)
    tolerance = 1e-3 if training else 1e-5  # of six patches a variance may be small
    assert torch.allclose(encoded.descriptors.double(), expected[0], atol=tolerance)
    assert torch.allclose(encoded.raw.double(), expected[1], atol=10 * tolerance)
    assert torch.allclose(encoded.maps[0].double(), expected[2], atol=1e-4)
    assert torch.equal(encoded.maps[1][:, :, 0, 0], encoded.raw)


def test_l2net_needs_neither_brightness_nor_contrast(l2net: L2Net, patches: Tensor) -> None:
    l2net.mean_image.zero_()
    assert torch.allclose(l2net(0.3 * patches + 0.5), l2net(patches), atol=1e-4)


def test_orthogonal_start() -> None:
    encoder, tfeat = L2Net(), TFeat()
    for model in (encoder, tfeat):
        initialise_orthogonally(model)
    for module in layers(encoder, nn.Conv2d):
        rows = module.weight.detach().flatten(1)
        gram = rows @ rows.T if rows.shape[0] <= rows.shape[1] else rows.T @ rows
        assert torch.allclose(gram, 0.36 * torch.eye(len(gram)), atol=1e-4)
    assert all((value == 0.01).all() for name, value in tfeat.named_parameters() if name.endswith("bias"))

"""The OpenVINO engine against eager; collected by tests/test_openvino_graph.py in a process of its own."""

import numpy as np
import pytest
import torch

from sdgmnet.encoders import SDGMNet
from sdgmnet.inference import describe_patches


@pytest.fixture(scope="module")
def experienced() -> SDGMNet:
    """An encoder whose BatchNorm has seen something, with all parameters away from their first values."""
    torch.manual_seed(1)
    encoder = SDGMNet().train()
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter) * parameter.abs().mean())
        for _ in range(3):
            encoder(torch.rand(32, 1, 32, 32))
    return encoder.eval()


@pytest.mark.parametrize("side", [32, 64])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
@pytest.mark.parametrize("count", [0, 1, 31, 70])
def test_openvino_equals_eager(experienced: SDGMNet, side: int, dtype: type[np.generic], count: int) -> None:
    patches = np.random.default_rng(count).integers(0, 256, (count, side, side)).astype(np.uint8)
    patches = patches if dtype is np.uint8 else (patches / 255).astype(dtype)
    eager = describe_patches(experienced, patches, engine="eager")
    fast = describe_patches(experienced, patches, engine="openvino")
    assert fast.shape == eager.shape and fast.dtype == np.float32
    np.testing.assert_allclose(fast, eager, atol=1e-5)


def test_openvino_follows_the_weights() -> None:
    encoder = SDGMNet().eval()
    patches = np.random.default_rng(0).integers(0, 256, (5, 32, 32)).astype(np.uint8)
    before = describe_patches(encoder, patches, engine="openvino")
    with torch.no_grad():
        encoder.last.weight.copy_(torch.randn_like(encoder.last.weight))
    after = describe_patches(encoder, patches, engine="openvino")
    assert np.abs(after - before).max() > 0.01
    np.testing.assert_allclose(after, describe_patches(encoder, patches, engine="eager"), atol=1e-5)

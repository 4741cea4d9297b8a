"""Fig. 3 says what the module is."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reproduce.architecture import Layer, draw_fig3, read_layers
from sdgmnet.encoders import L2Net, SDGMNet, TFeat


@pytest.mark.parametrize(("encoder", "total"), [(SDGMNet(), 1_336_355), (L2Net(), 1_334_560), (TFeat(), 599_808)])
def test_all_that_is_learned_is_there(encoder: nn.Module, total: int) -> None:
    encoder.train()
    layers = read_layers(encoder)
    assert sum(one.parameters for one in layers) == total
    assert encoder.training
    assert (layers[-1].text == "unit length") == (not isinstance(encoder, TFeat))


def test_the_paper_encoder_layer_by_layer() -> None:
    texts = [(one.text, one.shape) for one in read_layers(SDGMNet(dropout=0.2))]
    assert texts == [
        ("patch", (1, 32, 32)),
        ("FRN · TLU", (1, 32, 32)),
        ("conv 3×3, 1→32 · FRN · TLU", (32, 32, 32)),
        ("conv 3×3, 32→32 · FRN · TLU", (32, 32, 32)),
        ("conv 3×3 /2, 32→64 · FRN · TLU", (64, 16, 16)),
        ("conv 3×3, 64→64 · FRN · TLU", (64, 16, 16)),
        ("conv 3×3 /2, 64→128 · FRN · TLU", (128, 8, 8)),
        ("conv 3×3, 128→128 · FRN · TLU", (128, 8, 8)),
        ("dropout 0.2", (128, 8, 8)),
        ("conv 8×8, 128→128, no bias · BN", (128,)),
        ("unit length", (128,)),
    ]


def test_leaves_in_order_are_the_encoder() -> None:
    """What reading them in the order of registration rests on."""
    encoder = SDGMNet().eval()
    x = patches = torch.rand(2, 1, 32, 32)
    for leaf in (one for one in encoder.modules() if not list(one.children())):
        x = leaf(x.flatten(1) if isinstance(leaf, nn.BatchNorm1d) else x)
    assert torch.allclose(x, encoder.encode(patches).raw, atol=1e-5)


def test_another_encoder_draws_itself(tmp_path: Path) -> None:
    class Small(nn.Module):
        patch_size = 16

        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(1, 4, 5, stride=3), nn.GELU(), nn.AvgPool2d(2), nn.Linear(16, 6))

        def forward(self, x: Tensor) -> Tensor:
            x = self.body[:3](x - x.mean())
            return F.normalize(self.body[3](x.flatten(1)), dim=1)

    layers = read_layers(Small())
    assert [one.text for one in layers] == [
        "patch",
        "prepared",
        "conv 5×5 /3, 1→4 · GELU",
        "AvgPool 2",
        "linear 16→6",
        "unit length",
    ]
    assert layers[3] == Layer("AvgPool 2", "other", (4, 2, 2), 0)
    paths = draw_fig3("Small", layers, tmp_path / "fig3")
    assert all(path.stat().st_size > 3000 for path in paths)


def test_standardised_patches_are_noticed() -> None:
    assert read_layers(L2Net())[1].text == "mean 0, deviation 1"

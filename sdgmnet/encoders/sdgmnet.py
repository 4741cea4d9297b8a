"""The paper's encoder, and one with an eighth of its operations."""

import torch
from torch import Tensor, nn

from sdgmnet.encoders.base import SevenConvolutions


class FilterResponseNorm(nn.Module):
    r"""Normalises each channel of each sample by its own energy, so a sample does not depend on its batch.

    .. math:: y = \gamma x / \sqrt{\nu^2 + \epsilon} + \beta, \quad \nu^2 = \mathrm{mean}_{H,W}\, x^2
    """

    def __init__(self, channels: int, epsilon: float = 1e-6) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.gamma = nn.Parameter(torch.ones(channels))
        self.beta = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        inverse_scale = torch.rsqrt(x.square().mean(dim=(2, 3), keepdim=True) + self.epsilon)
        return x * (inverse_scale * self.gamma[:, None, None]) + self.beta[:, None, None]


class ThresholdedLinearUnit(nn.Module):
    r""":math:`y = \max(x, \tau)` with one learned threshold per channel, initially -1."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.tau = nn.Parameter(torch.full((channels,), -1.0))

    def forward(self, x: Tensor) -> Tensor:
        return torch.maximum(x, self.tau[:, None, None])


def block(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1)
    return nn.Sequential(convolution, FilterResponseNorm(outputs), ThresholdedLinearUnit(outputs))


class SDGMNet(SevenConvolutions):
    """The paper's encoder (Fig. 3), HyNet's: L2Net's seven convolutions with FRN and TLU in place of BatchNorm and ReLU.

    Args:
        dropout: rate before the last convolution.

    Shape:
        patches (B, 1, 32, 32) in [0, 1] -> descriptors (B, 128) of unit length.

    Example:
        >>> encoder = SDGMNet().eval()
        >>> encoder(torch.rand(5, 1, 32, 32)).shape
        torch.Size([5, 128])
    """

    def __init__(self, dropout: float = 0.3) -> None:
        super().__init__(dropout)
        self.input = nn.Sequential(FilterResponseNorm(1), ThresholdedLinearUnit(1))
        self.first = block(1, 32)
        self.middle = nn.Sequential(
            block(32, 32), block(32, 64, stride=2), block(64, 64), block(64, 128, stride=2), block(128, 128)
        )
        self.last = nn.Conv2d(128, self.descriptor_size, kernel_size=8, bias=False)
        self.norm = nn.BatchNorm1d(self.descriptor_size, affine=False)

    def trunk(self, patches: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        first = self.first(self.input(patches))
        return self.reduce(self.middle(first), keep), first


class FastSDGMNet(SDGMNet):
    """SDGMNet's layers, four instead of six before the last, on maps of half the side: an eighth of the operations.

    Shape:
        patches (B, 1, 32, 32) in [0, 1] -> descriptors (B, 128) of unit length.
    """

    feature_shape = (128, 4, 4)

    def __init__(self, dropout: float = 0.0) -> None:
        super(SDGMNet, self).__init__(dropout)
        self.input = nn.Sequential(FilterResponseNorm(1), ThresholdedLinearUnit(1))
        self.first = block(1, 32, stride=2)
        self.middle = nn.Sequential(block(32, 32), block(32, 64, stride=2), block(64, 128, stride=2))
        self.last = nn.Conv2d(128, self.descriptor_size, kernel_size=4, bias=False)
        self.norm = nn.BatchNorm1d(self.descriptor_size, affine=False)

"""The encoder of L2Net, HardNet, CDFDesc and SOSNet."""

import torch
from torch import Tensor, nn

from sdgmnet.encoders.base import SevenConvolutions
from sdgmnet.errors import InputError


class L2Net(SevenConvolutions):
    """L2Net's encoder, also that of HardNet, CDFDesc and SOSNet.

    Seven convolutions without bias, BatchNorm without affine parameters after each, ReLU after all but the last. Each patch
    is standardised first, (x - mean) / (std + 1e-7), as in the code of HardNet and CDFDesc. L2Net subtracts the mean image of
    its training set before that: `mean_image`, which is 0 for the others.

    Args:
        dropout: rate before the last convolution.

    Shape:
        patches (B, 1, 32, 32) in [0, 1] -> descriptors (B, 128) of unit length.
    """

    chunkable = False  # inner BatchNorm: in training a patch depends on its batch from the first layer
    mean_image: Tensor  # (32, 32)

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__(dropout)
        self.register_buffer("mean_image", torch.zeros(self.patch_size, self.patch_size))
        self.first = nn.Sequential(*plain_convolution(1, 32))
        self.middle = nn.Sequential(
            nn.ReLU(),
            *plain_block(32, 32),
            *plain_block(32, 64, stride=2),
            *plain_block(64, 64),
            *plain_block(64, 128, stride=2),
            *plain_block(128, 128),
        )
        self.last = nn.Conv2d(128, self.descriptor_size, kernel_size=8, bias=False)
        self.norm = nn.BatchNorm1d(self.descriptor_size, affine=False)

    def trunk(self, patches: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        first = self.first(self.standardise(patches))
        return self.reduce(self.middle(first), keep), first

    def standardise(self, patches: Tensor) -> Tensor:
        """Each patch to mean 0 and standard deviation 1."""
        if self.training and len(patches) == 0:
            raise InputError("training needs at least 2 patches in a batch (BatchNorm).")
        patches = patches - self.mean_image
        centred = patches - patches.mean(dim=(2, 3), keepdim=True)
        std = (centred.square().sum(dim=(2, 3), keepdim=True) / (self.patch_size**2 - 1)).sqrt()
        scaled = centred / (std + 1e-7)
        if self.training:
            # Strides of channels_last, in which torch then keeps all maps: 1.5 times as fast on a CPU. The memory of one
            # channel is the same either way.
            size = self.patch_size
            scaled = scaled.contiguous().as_strided(scaled.shape, (size * size, 1, size, 1))
        return scaled


def plain_convolution(inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False)
    return [convolution, nn.BatchNorm2d(outputs, affine=False)]


def plain_block(inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
    return [*plain_convolution(inputs, outputs, stride), nn.ReLU()]

"""BatchNorm over the samples of all ranks, on a CPU as well (torch's own SyncBatchNorm needs GPUs)."""

from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sdgmnet.distributed import World, world_of


class SynchronisedBatchNorm(_BatchNorm):
    """Normalises by mean and variance of the global batch; equal to BatchNorm of one process that has all samples.

    Two sums over the ranks forward and two backward, of a number a channel. In eval mode it is BatchNorm.
    """

    world: World

    @classmethod
    def like(cls, norm: _BatchNorm, world: World) -> Self:
        """In the place of `norm`, whose parameters and buffers it shares."""
        made = cls(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
        made._parameters, made._buffers = norm._parameters, norm._buffers
        made.world, made.training = world, norm.training
        return made

    def _check_input_dim(self, input: Tensor) -> None:
        """Any number of dimensions after the channels."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        across = [0, *range(2, input.ndim)]
        channels = (1, -1, *(1 for _ in range(2, input.ndim)))
        local = input.sum(across)
        samples = local.new_tensor([input.numel() // input.shape[1]])
        *total, count = self.world.sum(torch.cat([local, samples])).split([len(local), 1])
        mean = total[0] / count
        centred = input - mean.view(channels)
        # From centred values: a mean of squares minus a squared mean would lose digits.
        variance = self.world.sum(centred.square().sum(across)) / count
        self._remember(mean.detach(), variance.detach() * count / (count - 1))
        normalised = centred * torch.rsqrt(variance + self.eps).view(channels)
        if self.weight is None:
            return normalised
        return normalised * self.weight.view(channels) + self.bias.view(channels)

    @torch.no_grad()
    def _remember(self, mean: Tensor, unbiased: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked += 1
        share = 1 / self.num_batches_tracked.item() if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, share)
        self.running_var.lerp_(unbiased, share)


def synchronise_batchnorm(module: nn.Module, world: World | None = None) -> nn.Module:
    """Let every BatchNorm inside see the samples of all ranks; names of parameters and buffers stay. Returns the module.

    world: None for all ranks of the job.
    """
    world = world_of("world") if world is None else world
    if isinstance(module, _BatchNorm):
        return SynchronisedBatchNorm.like(module, world)
    for name, child in module.named_children():
        setattr(module, name, synchronise_batchnorm(child, world))
    return module

"""Several processes (ranks) that compute what one process would, by torch.distributed.

Every rank gathers the features of the whole batch and computes the same loss. The gradient then stops at the rank's own rows,
so the sum over ranks of the parameters' gradients is the gradient of the whole batch.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, ParamSpec, Self, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous
from torch.nn.modules.batchnorm import _BatchNorm

from sdgmnet.errors import InputError, Stopped
from sdgmnet.storage import reason_of

SECONDS_TO_REPORT = 2.0

Group = dist.ProcessGroup | Literal["world"]
Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")
Loss = TypeVar("Loss", bound=nn.Module)


class RankLost(Stopped):
    """Another rank of the job has ended or hangs."""


class SilentExit(Stopped):
    """Ends a rank without a message: another rank reports the reason."""

    def __init__(self, exit_code: int) -> None:
        super().__init__("")
        self.exit_code = exit_code


class World:
    """The ranks of a job. With one rank, every method returns its argument and nothing is copied.

    group: a process group of torch.distributed; None for all processes of the job.
    """

    def __init__(self, rank: int = 0, size: int = 1, group: dist.ProcessGroup | None = None) -> None:
        self.rank, self.size, self.group = rank, size, group
        self.gathered_bytes = 0  # size of all gathered tensors so far
        self.summed_bytes = 0  # size of all tensors summed over the ranks so far

    @property
    def is_rank_zero(self) -> bool:
        return self.rank == 0

    def rows(self, count: int) -> slice:
        """This rank's rows of a batch of `count` pairs."""
        if count % self.size:
            fitting = max(count // self.size, 1) * self.size
            raise InputError(
                f"--batch-size {count} is not a multiple of the {self.size} ranks: use {fitting} or another multiple."
            )
        share = count // self.size
        return slice(self.rank * share, (self.rank + 1) * share)

    def gather(self, x: Tensor, scale: float = 1.0) -> Tensor:
        """(n, ...) of every rank -> (k n, ...) in the order of ranks.

        The backward pass returns the gradient of this rank's own rows, times `scale`, without communication. This is right if
        all ranks compute the same from the gathered tensor. DistributedDataParallel divides gradients by k: use scale = k.
        """
        return x if self.size == 1 else _Gather.apply(x, self, scale)

    def gather_sides(self, sides: Tensor, scale: float = 1.0) -> Tensor:
        """(2, n, ...) of every rank -> (2, k n, ...)."""
        return sides if self.size == 1 else self.gather(sides[None], scale).transpose(0, 1).flatten(1, 2)

    def sum(self, x: Tensor) -> Tensor:
        """The sum over ranks. The backward pass also sums, because each rank uses the sum for a different part."""
        return x if self.size == 1 else _Sum.apply(x, self)

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Sum the parameters' gradients over ranks, to the same bits on all ranks."""
        if self.size == 1:
            return
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        self.all_reduce(flat)
        for gradient, summed in zip(gradients, flat.split([one.numel() for one in gradients]), strict=True):
            gradient.copy_(summed.view_as(gradient))

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """For each flag: whether it is set on any rank."""
        if self.size == 1:
            return flags
        votes = torch.tensor(flags, dtype=torch.int32)
        self.all_reduce(votes, dist.ReduceOp.MAX)
        return tuple(bool(vote) for vote in votes)

    def broadcast(self, content: Result) -> Result:
        """Rank 0's object, on all ranks."""
        if self.size == 1:
            return content
        box = [content if self.is_rank_zero else None]
        with self._report_lost_ranks():
            dist.broadcast_object_list(box, group_src=0, group=self.group, device=torch.device("cpu"))
        return box[0]  # type: ignore[return-value]

    def all_gather_object(self, content: Result) -> list[Result]:
        """The objects of all ranks, on all ranks."""
        if self.size == 1:
            return [content]
        boxes: list[Any] = [None] * self.size
        with self._report_lost_ranks():
            dist.all_gather_object(boxes, content, self.group)
        return boxes

    def on_rank_zero(
        self, work: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result | None:
        """Call work(*args, **kwargs) on rank 0 while the others wait. If it fails, all ranks end and rank 0 reports why."""
        if self.size == 1:
            return work(*args, **kwargs)
        result, failure = None, None
        if self.is_rank_zero:
            try:
                result = work(*args, **kwargs)
            except Exception as error:
                failure = error
        exit_code = self.broadcast(None if failure is None else getattr(failure, "exit_code", 2))
        if failure is not None:
            raise failure
        if exit_code is not None:
            raise SilentExit(exit_code)
        return result

    def from_rank_zero(
        self, work: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """As `on_rank_zero`; its result, on all ranks."""
        return self.broadcast(self.on_rank_zero(work, *args, **kwargs))  # type: ignore[return-value]

    def rank_zero_first(
        self, work: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """Call work(*args, **kwargs) on rank 0, then on the others, which find what it left in a cache."""
        result = self.on_rank_zero(work, *args, **kwargs)

        def on_this_rank() -> Result:
            return result if self.is_rank_zero else work(*args, **kwargs)  # type: ignore[return-value]

        return self.on_all_ranks(on_this_rank)

    def on_all_ranks(
        self, work: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """Call work(*args, **kwargs) on every rank. If one fails, all end; of equal errors only one rank reports it."""
        try:
            result, failure = work(*args, **kwargs), None
        except InputError as error:
            failure = error
        sentences = self.all_gather_object(str(failure or ""))
        if failure is not None and sentences.index(str(failure)) == self.rank:
            raise failure
        if any(sentences):
            raise SilentExit(2)
        return result

    def require_equal(self, content: str, what: str, do: str) -> None:
        """End the job unless `content` is the same on all ranks."""
        contents = self.all_gather_object(content)
        others = [str(rank) for rank, other in enumerate(contents) if other != contents[0]]
        if others and self.is_rank_zero:
            raise InputError(f"{what} of rank 0 and of rank {', '.join(others)} differ: {do}.")
        if others:
            raise SilentExit(2)

    def all_reduce(self, x: Tensor, by: Any = dist.ReduceOp.SUM) -> None:
        with self._report_lost_ranks():
            dist.all_reduce(x, by, self.group)
        self.summed_bytes += x.nbytes

    def all_gather(self, x: Tensor) -> Tensor:
        out = x.new_empty(self.size * x.shape[0], *x.shape[1:])
        with self._report_lost_ranks():
            dist.all_gather(list(out.split(len(x))), x.contiguous(), self.group)
        self.gathered_bytes += out.nbytes
        return out

    @contextmanager
    def _report_lost_ranks(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # all errors of gloo and nccl are
            raise RankLost(
                f"rank {self.rank} of {self.size} cannot reach another rank, which ended or hangs ({reason_of(error)})"
            ) from error


ALONE = World()


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, world: World, scale: float) -> Tensor:
        ctx.rank, ctx.count, ctx.scale = world.rank, len(x), scale
        return world.all_gather(x)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        own = upstream[ctx.rank * ctx.count : (ctx.rank + 1) * ctx.count]
        return own if ctx.scale == 1 else own * ctx.scale, None, None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, world: World) -> Tensor:
        ctx.world = world
        total = x.clone()
        world.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        total = upstream.clone()
        ctx.world.all_reduce(total)
        return total, None


def world_of(group: Group | None) -> World:
    """The ranks of a process group, or of the job for "world"; this process alone if there is no process group."""
    if group is None or not (dist.is_available() and dist.is_initialized()):
        return ALONE
    chosen = None if group == "world" else group
    if (rank := dist.get_rank(chosen)) < 0:
        raise InputError(
            "this process is not in the process group of the loss: call the loss on the ranks of its group only."
        )
    return World(rank, dist.get_world_size(chosen), chosen)


@contextmanager
def open_world(cuda: bool = False) -> Iterator[World]:
    """The ranks that torchrun started. An existing process group is used and left open.

    cuda: use nccl for tensors on GPUs (not run on a GPU); everything else uses gloo.
    """
    if dist.is_available() and dist.is_initialized():
        yield world_of("world")
        return
    if _number("WORLD_SIZE", 1) <= 1:
        yield ALONE
        return
    try:
        store, rank, size = next(iter(rendezvous("env://")))
        # torchrun keeps its store through restarts: a prefix per restart hides the addresses of dead ranks.
        fresh = dist.PrefixStore(f"sdgmnet-{_number('TORCHELASTIC_RESTART_COUNT', 0)}", store)
        backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
        dist.init_process_group(backend, store=fresh, rank=rank, world_size=size)
    except (ValueError, RuntimeError) as error:
        raise InputError(
            f"WORLD_SIZE is set, but the other ranks cannot be reached ({reason_of(error)}): start them with torchrun."
        ) from error
    try:
        yield world_of("world")
    except SilentExit:  # torchrun ends all ranks as soon as one has ended: the one that reports the reason goes first
        time.sleep(SECONDS_TO_REPORT)
        raise
    finally:
        dist.destroy_process_group()


def is_rank_zero_process() -> bool:
    """Whether this process is rank 0, before or after the process group is opened."""
    return _number("RANK", 0) == 0


def was_restarted() -> bool:
    """Whether torchrun started this process to replace one that failed (--max-restarts)."""
    return _number("TORCHELASTIC_RESTART_COUNT", 0) > 0


def local_rank() -> int:
    """The number of this process on its machine, and of its GPU."""
    return _number("LOCAL_RANK", 0)


def _number(name: str, otherwise: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else otherwise


def share_of(count: int, rank: int, size: int, block: int) -> slice:
    """A rank's part of `count` items, split at multiples of `block`: what is computed in blocks keeps its bits."""
    blocks = -(-count // block)
    first, last = (min(count, block * (blocks * one // size)) for one in (rank, rank + 1))
    return slice(first, last)


# BatchNorm over the samples of all ranks


class SynchronisedBatchNorm(_BatchNorm):
    """BatchNorm with mean and variance of the global batch: equal to BatchNorm in one process with all samples.

    torch's own SyncBatchNorm needs GPUs. Forward and backward pass sum two numbers per channel over the ranks.
    """

    world: World

    @classmethod
    def like(cls, norm: _BatchNorm, world: World) -> Self:
        """A replacement of `norm` that shares its parameters and buffers."""
        made = cls(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
        made._parameters, made._buffers = norm._parameters, norm._buffers
        made.world, made.training = world, norm.training
        return made

    def _check_input_dim(self, input: Tensor) -> None:
        """Any number of dimensions after the channels is allowed."""

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
        # from centred values: a mean of squares minus a squared mean would lose digits
        variance = self.world.sum(centred.square().sum(across)) / count
        self._update_running(mean.detach(), variance.detach() * count / (count - 1))
        normalised = centred * torch.rsqrt(variance + self.eps).view(channels)
        if self.weight is None:
            return normalised
        return normalised * self.weight.view(channels) + self.bias.view(channels)

    @torch.no_grad()
    def _update_running(self, mean: Tensor, unbiased: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked += 1
        share = 1 / self.num_batches_tracked.item() if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, share)
        self.running_var.lerp_(unbiased, share)


def synchronise_batchnorm(module: nn.Module, world: World | None = None) -> nn.Module:
    """Replace every BatchNorm inside by a synchronised one; names of parameters and buffers stay. Returns the module.

    world: None for all ranks of the job.
    """
    world = world_of("world") if world is None else world
    if isinstance(module, _BatchNorm):
        return SynchronisedBatchNorm.like(module, world)
    for name, child in module.named_children():
        setattr(module, name, synchronise_batchnorm(child, world))
    return module


# Losses over the pairs of all ranks


class GatheredFeatures(NamedTuple):
    """Features of all ranks that a loss needs besides descriptors."""

    raw: Tensor
    maps: tuple[Tensor, ...]


def across_ranks(loss: Loss, group: Group = "world") -> Loss:
    """Let a loss see the pairs of all ranks: called with n pairs, it returns the loss of all k n, the same on every rank.

    For training loops with DistributedDataParallel, which divides gradients by k: the gradient of the n descriptors is k times
    that of the whole batch. Every rank must give the same number of pairs. State of the loss (statistics, histograms) is
    then the same on all ranks. Without a process group the loss is unchanged.

    Args:
        loss: a loss of this package, or any loss called in the same way.
        group: a process group, or "world" for all processes.

    Example:
        >>> from sdgmnet.loss import HardNetLoss
        >>> loss = across_ranks(HardNetLoss())
    """
    if any(isinstance(hook, _GatherFirst) for hook in loss._forward_pre_hooks.values()):
        raise InputError(f"{type(loss).__name__} already sees the pairs of all ranks: give it a group once.")
    loss.register_forward_pre_hook(_GatherFirst(group), with_kwargs=True)
    return loss


class _GatherFirst:
    def __init__(self, group: Group) -> None:
        self.group = group

    def __call__(
        self, loss: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        world = world_of(self.group)
        if world.size == 1:
            return None
        first = [*positional, *(named.pop(name) for name in ("anchor", "positive") if name in named)]
        anchor, positive, *rest = first
        require_equal_counts(world, anchor)
        sides = world.gather_sides(torch.stack([anchor, positive]), scale=world.size)
        needs = getattr(loss, "needs", ())
        for name in ("anchor_encoded", "positive_encoded"):
            if named.get(name) is not None:
                named[name] = _gathered(world, named[name], "maps" in needs)
        return (sides[0], sides[1], *rest), named


def _gathered(world: World, encoded: Any, with_maps: bool) -> GatheredFeatures:
    maps = tuple(world.gather(one, scale=world.size) for one in encoded.maps) if with_maps else ()
    return GatheredFeatures(world.gather(encoded.raw, scale=world.size), maps)


def gather_labelled(group: Group | None, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Embeddings (m, D) and labels (m,) of each rank -> those of all ranks, with gradients as in `across_ranks`."""
    world = world_of(group)
    if world.size == 1:
        return embeddings, labels
    require_equal_counts(world, embeddings)
    return world.gather(embeddings, scale=world.size), world.gather(labels)


def require_equal_counts(world: World, x: Tensor) -> None:
    """Tensors of different sizes would make a collective hang or crash."""
    counts = world.all_gather(torch.tensor([len(x)], device=x.device)).tolist()
    if len(set(counts)) > 1:
        raise InputError(
            f"the batch sizes of the ranks differ ({', '.join(map(str, counts))}): make them equal, e.g. drop the last "
            "batch of an epoch (drop_last=True)."
        )

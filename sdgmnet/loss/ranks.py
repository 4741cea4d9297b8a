"""Losses in other people's DistributedDataParallel loops: mined, measured and modulated over the batch of all ranks."""

from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from sdgmnet.distributed import Group, World, world_of
from sdgmnet.errors import InputError

Loss = TypeVar("Loss", bound=nn.Module)


class GatheredFeatures(NamedTuple):
    """What a loss needs besides descriptors, of all ranks."""

    raw: Tensor
    maps: tuple[Tensor, ...]


def across_ranks(loss: Loss, group: Group = "world") -> Loss:
    """Let any loss see the pairs of all ranks: it gets n pairs and computes the value of the k n of all, the same everywhere.

    For loops with DistributedDataParallel, which divides gradients by k: what goes back to the n descriptors is k times the
    gradient of the whole batch, so that the mean is it. Every rank gives as many pairs. State of the loss (statistics,
    histograms) stays the same on all ranks, for all see the same. Without a process group the loss is as it was.

    Args:
        loss: any of this package, or of one's own with its contract.
        group: a process group, or "world" for all processes.

    Example:
        >>> from sdgmnet.loss import HardNetLoss
        >>> loss = across_ranks(HardNetLoss())
    """
    if any(isinstance(hook, _GatherFirst) for hook in loss._forward_pre_hooks.values()):
        raise InputError(f"{type(loss).__name__} sees the pairs of all ranks already: give it a group once.")
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
        demand_equal_counts(world, anchor)
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
    """Embeddings (m, D) and labels (m,) of each rank -> those of all, gradients as `across_ranks` has them."""
    world = world_of(group)
    if world.size == 1:
        return embeddings, labels
    demand_equal_counts(world, embeddings)
    return world.gather(embeddings, scale=world.size), world.gather(labels)


def demand_equal_counts(world: World, x: Tensor) -> None:
    """Before tensors of different sizes meet in a collective, which would hang or crash."""
    counts = world.all_gather(torch.tensor([len(x)], device=x.device)).tolist()
    if len(set(counts)) > 1:
        raise InputError(
            f"the ranks bring batches of different sizes ({', '.join(map(str, counts))}): all must be equal; drop the last, "
            "smaller batch of an epoch (drop_last=True)."
        )

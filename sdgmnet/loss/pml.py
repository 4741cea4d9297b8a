"""Bridge to pytorch-metric-learning: its losses called as ours are, and SDGM's called as its losses are.

Our losses take the two sides of matching pairs, theirs take embeddings and labels. Needs pip install 'sdgmnet[pml]'.
"""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sdgmnet.errors import InputError
from sdgmnet.loss.checks import require_pairs, require_progress
from sdgmnet.loss.sdgm import SDGMLoss


class PMLLoss(nn.Module):
    """A pair-based loss of pytorch-metric-learning, called `loss(anchor, positive, *, progress=1.0)`.

    Args:
        name: name of its class, such as "CircleLoss".
        options: arguments of its constructor.

    Shape:
        anchor, positive (N, D), row i of both from the same point -> scalar; every point has its own label.
    """

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__()
        self.loss = _pair_based(name, options)
        _try(name, options, self.loss)

    def forward(self, anchor: Tensor, positive: Tensor, *, progress: float = 1.0) -> Tensor:
        require_progress(progress)
        require_pairs(anchor, positive, unit_length=False)
        labels = torch.arange(len(anchor), device=anchor.device).repeat(2)
        value: Tensor = self.loss(torch.cat([anchor, positive]), labels)
        return value


class SDGMLossOfLabels(nn.Module):
    """SDGM's loss called as those of pytorch-metric-learning are: `loss(embeddings, labels)`.

    It works in their trainers and in `MultipleLosses`. Their wrappers `CrossBatchMemory`, `SelfSupervisedLoss` and
    `DistributedLossWrapper` accept only losses of their own: for several processes give `group="world"`. The running
    statistics are state: save its `state_dict` with the model's.

    Args:
        total_steps: number of batches of the training, for the warm-up; None: no warm-up.
        options: arguments of `SDGMLoss`.

    Shape:
        embeddings (M, D) of any length, labels (M,) -> scalar; 0, with gradient 0, where no label occurs twice.
    """

    steps: Tensor  # batches seen in training

    def __init__(self, total_steps: int | None = None, **options: Any) -> None:
        super().__init__()
        if total_steps is not None and total_steps < 1:
            raise InputError(f"total_steps must be at least 1, not {total_steps}.")
        self.loss, self.total_steps = SDGMLoss(**options), total_steps
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: Any = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        if indices_tuple is not None or (ref_emb is not None and ref_emb is not embeddings):
            raise InputError(
                "SDGM mines triplets in its batch: miners' tuples and reference embeddings are not supported."
            )
        progress = 1.0 if self.total_steps is None else min(1.0, self.steps.item() / self.total_steps)
        value = self.loss.from_labels(F.normalize(embeddings, dim=1), labels.to(embeddings.device), progress=progress)
        if self.training:
            self.steps += 1
        return value


def _pair_based(name: str, options: dict[str, Any]) -> nn.Module:
    try:
        from pytorch_metric_learning import losses
    except ModuleNotFoundError:
        raise InputError(
            f"--loss pml:{name} needs pytorch-metric-learning: pip install 'sdgmnet[pml]', or use another loss."
        ) from None
    kind = getattr(losses, name, None)
    if not isinstance(kind, type) or not issubclass(kind, losses.BaseMetricLossFunction):
        raise InputError(
            f"pytorch-metric-learning has no loss {name!r}: use a pair-based one, such as CircleLoss, MultiSimilarityLoss "
            "or NTXentLoss."
        )
    try:
        loss: nn.Module = kind(**options)
    except Exception as error:  # another library can raise anything
        classes = " Losses that need the number of classes are not pair-based and cannot be used here."
        more = classes if "num_classes" in str(error) else ""
        raise InputError(f"pml:{name} rejects the options {options} ({error}).{more}") from error
    if next(loss.parameters(), None) is not None:
        raise InputError(f"pml:{name} has trainable parameters: only pair-based losses can be used here.")
    return loss


def _try(name: str, options: dict[str, Any], loss: nn.Module) -> None:
    """Run two steps of a copy on random pairs: a loss that needs more than embeddings and labels, or keeps a graph, fails."""
    loss, generator = copy.deepcopy(loss), torch.Generator().manual_seed(0)
    try:
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):  # the run's random numbers stay the same
            for _ in range(2):
                embeddings = F.normalize(torch.randn(8, 128, generator=generator), dim=1).requires_grad_()
                value = loss(embeddings, torch.arange(4).repeat(2))
                value.backward()
    except Exception as error:  # another library can raise anything
        raise InputError(
            f"pml:{name} with the options {options} fails on random pairs with {type(error).__name__} ({error})."
        ) from error
    if value.dim() != 0:
        raise InputError(f"pml:{name} returns a tensor {tuple(value.shape)}: a loss must return a scalar.")

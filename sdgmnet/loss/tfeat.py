"""TFeat's loss: a triplet margin with anchor swap and random negatives."""

import torch
from torch import Tensor, nn

from sdgmnet.loss.checks import require_numbers, require_pairs, require_progress


class TFeatLoss(nn.Module):
    r"""TFeat's triplet margin with anchor swap and random negatives.

    .. math:: L = \frac{1}{N} \sum_i \max(0,\, \mu + d(a_i, p_i) - \min(d(a_i, n_i), d(p_i, n_i)))

    The negative is the positive of the previous row: the batch rolled by one.

    Args:
        margin: :math:`\mu`; 2 in the published code, for descriptors in (-1, 1) that are not of unit length.

    Shape:
        anchor, positive (N, D) of any length -> scalar.
    """

    def __init__(self, margin: float = 2.0) -> None:
        super().__init__()
        require_numbers(self, margin=margin)
        self.margin = margin

    def forward(self, anchor: Tensor, positive: Tensor, *, progress: float = 1.0) -> Tensor:
        require_progress(progress)
        require_pairs(anchor, positive, unit_length=False)
        negative = positive.roll(1, dims=0)
        swapped = torch.minimum(_distance(anchor, negative), _distance(positive, negative))
        return (self.margin + _distance(anchor, positive) - swapped).clamp_min(0).mean()


def _distance(a: Tensor, b: Tensor) -> Tensor:
    return torch.linalg.vector_norm(a - b, dim=1)  # gradient 0 where the rows coincide

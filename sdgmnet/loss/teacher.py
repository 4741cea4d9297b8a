"""Distillation: the angles between a student's descriptors follow those between a teacher's."""

import torch
from torch import Tensor

from sdgmnet.errors import InputError

LARGEST_COSINE = 1 - 1e-6  # beyond it the arc cosine has no finite gradient


def angle_distillation(anchor: Tensor, positive: Tensor, taught_anchor: Tensor, taught_positive: Tensor) -> Tensor:
    r""":math:`\frac{1}{N^2} \sum_{ij} (\theta_{ij} - \theta^T_{ij})^2` over the angles of all anchors with all positives.

    Angles and not values: the teacher's descriptors may have another size, and any rotation of them is as good.

    Args:
        anchor, positive: the student's descriptors (N, D) of unit length.
        taught_anchor, taught_positive: the teacher's (N, E), of unit length.
    """
    if len(anchor) != len(taught_anchor) or len(positive) != len(taught_positive):
        counts = f"{len(taught_anchor)} anchors and {len(taught_positive)} positives"
        raise InputError(f"the teacher has descriptors of {counts}, the student of {len(anchor)} and {len(positive)}.")
    return (angles(anchor, positive) - angles(taught_anchor, taught_positive)).square().mean()


def angles(anchor: Tensor, positive: Tensor) -> Tensor:
    """(N, N) angles of all anchors with all positives."""
    return torch.arccos((anchor @ positive.T).clamp(-LARGEST_COSINE, LARGEST_COSINE))

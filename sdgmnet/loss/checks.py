"""What losses require of their inputs and options; InputError otherwise."""

from numbers import Real
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from sdgmnet.errors import InputError

Reduction = Literal["sum", "mean"]


class Encoded(Protocol):
    """What a loss sees of `encoder.encode(patches)`."""

    @property
    def raw(self) -> Tensor: ...  # (N, D) before normalisation
    @property
    def maps(self) -> tuple[Tensor, ...]: ...  # feature maps (N, C, H, W) of the first and the last block


def require(loss: nn.Module, holds: bool, rule: str, value: object) -> None:
    """Check an option of a loss: `rule` is how it must be."""
    if not holds:
        raise InputError(f"{type(loss).__name__}: {rule}, not {value!r}.")


def require_numbers(loss: nn.Module, **options: object) -> None:
    """Check that options of a loss are numbers, before they are compared with their bounds."""
    for name, value in options.items():
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        require(loss, is_number, f"{name} must be a number", value)


def require_progress(progress: float) -> None:
    if not 0 <= progress <= 1:
        raise InputError(
            f"progress must be the share of training done, in [0, 1], such as step / steps; not {progress}."
        )


def require_encoded(loss: nn.Module, anchor: Encoded | None, positive: Encoded | None) -> tuple[Encoded, Encoded]:
    if anchor is None or positive is None:
        raise InputError(
            f"{type(loss).__name__} needs more than descriptors: call it as loss(a.descriptors, p.descriptors, "
            "anchor_encoded=a, positive_encoded=p), with a and p from encoder.encode(patches)."
        )
    return anchor, positive


def require_pairs(anchor: Tensor, positive: Tensor, *, unit_length: bool = True) -> None:
    if anchor.ndim != 2 or anchor.shape != positive.shape:
        raise InputError(
            f"anchor and positive must both be (N, D) with row i showing the same point, "
            f"not {tuple(anchor.shape)} and {tuple(positive.shape)}."
        )
    if len(anchor) < 2:
        raise InputError(f"a batch needs at least 2 pairs, so that each has a negative; got N = {len(anchor)}.")
    for name, side in (("anchor", anchor), ("positive", positive)):
        if unit_length:
            _require_unit_length(name, side)
        elif not torch.isfinite(side).all():
            raise InputError(f"{name} contains NaN or infinite descriptors: find their cause in the encoder.")


def require_labelled(embeddings: Tensor, labels: Tensor) -> None:
    if embeddings.ndim != 2 or labels.shape != embeddings.shape[:1]:
        raise InputError(
            f"embeddings must be (M, D) and labels (M,), not {tuple(embeddings.shape)} and {tuple(labels.shape)}."
        )
    _require_unit_length("embeddings", embeddings)


def _require_unit_length(name: str, x: Tensor) -> None:
    if not x.is_floating_point():
        raise InputError(f"{name} must be floating point, not {x.dtype}.")
    tolerance = 0.02 if x.dtype in (torch.float16, torch.bfloat16) else 1e-3
    norm = torch.linalg.vector_norm(x.detach().float(), dim=1)
    wrong = ((norm - 1).abs() <= tolerance).logical_not()  # also true for NaN
    if wrong.any():
        row = int(wrong.nonzero()[0])
        raise InputError(
            f"{name} must hold finite descriptors of unit length: row {row} has length {norm[row].item():.4g} "
            f"({int(wrong.sum())} of {len(x)} rows are wrong); normalise them, and look for NaN in the encoder."
        )

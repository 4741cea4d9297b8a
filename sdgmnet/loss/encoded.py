"""Losses that need more than descriptors: what they are given, and what they say when they are not."""

from typing import Protocol

from torch import Tensor, nn

from sdgmnet.errors import InputError


class Encoded(Protocol):
    """What `encoder.encode(patches)` gives, as a loss sees it."""

    @property
    def raw(self) -> Tensor: ...  # (N, D) before normalisation
    @property
    def maps(self) -> tuple[Tensor, ...]: ...  # intermediate maps (N, C, H, W), after the first and the last block


def require_encoded(loss: nn.Module, anchor: Encoded | None, positive: Encoded | None) -> tuple[Encoded, Encoded]:
    if anchor is None or positive is None:
        raise InputError(
            f"{type(loss).__name__} needs more than descriptors: call it as loss(a.descriptors, p.descriptors, "
            "anchor_encoded=a, positive_encoded=p) with a and p of encoder.encode(patches)."
        )
    return anchor, positive

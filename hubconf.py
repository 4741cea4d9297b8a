"""Entry points of torch.hub: torch.hub.load(CLONE, "sdgmnet", source="local"), where CLONE is a clone of this repository.

Nothing is downloaded here: weights are shipped with the repository, or named by the caller.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sdgmnet.encoders import FastSDGMNet, SDGMNet
    from sdgmnet.loss.sdgm import SDGMLoss

dependencies = ["torch", "numpy", "safetensors", "filelock", "rich"]  # torch.hub checks them
FAST = "sdgmnet-fast"


def sdgmnet(weights: Path | str | None = None) -> "SDGMNet":
    """SDGMNet in eval mode: patches (B, 1, 32, 32) in [0, 1] -> unit descriptors (B, 128).

    weights: as for SDGMNet.from_pretrained; None: the best shipped weights.
    """
    from sdgmnet.encoders import SDGMNet

    return SDGMNet.from_pretrained(weights)


def sdgmnet_fast(weights: Path | str | None = None) -> "FastSDGMNet":
    """The small encoder, with an eighth of the operations; otherwise as sdgmnet. None: the weights sdgmnet-fast."""
    from sdgmnet.encoders import FastSDGMNet
    from sdgmnet.errors import InputError
    from sdgmnet.pretrained import shipped_names

    if weights is None and FAST not in shipped_names():
        raise InputError(f"this version has no weights {FAST}: give your own, sdgmnet_fast(weights='runs/mine').")
    return FastSDGMNet.from_pretrained(FAST if weights is None else weights)


def sdgm_loss(**options: Any) -> "SDGMLoss":
    """The loss of the paper: loss(anchor, positive, progress=...) of descriptors (N, D) -> scalar. Options of SDGMLoss."""
    from sdgmnet.loss.sdgm import SDGMLoss

    return SDGMLoss(**options)

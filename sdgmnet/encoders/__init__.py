"""Encoders: patches (B, 1, 32, 32) -> descriptors (B, 128), of unit length except TFeat's.

To add one, write `sdgmnet/encoders/NAME.py` with a subclass of `Encoder` and add a line to `ENCODERS` in sdgmnet/registry.py.
"""

from pathlib import Path
from typing import Any

from torch import nn

from sdgmnet import registry
from sdgmnet.encoders.base import Encoded, Encoder, is_finite
from sdgmnet.encoders.l2net import L2Net
from sdgmnet.encoders.sdgmnet import FastSDGMNet, FilterResponseNorm, SDGMNet, ThresholdedLinearUnit
from sdgmnet.encoders.tfeat import TFeat, load_tfeat
from sdgmnet.errors import InputError
from sdgmnet.pretrained import ALIAS, find_weights, read_weights, write_weights
from sdgmnet.registry import WINDOW, is_window, load_all

__all__ = [
    "ENCODERS",
    "Encoded",
    "Encoder",
    "FastSDGMNet",
    "FilterResponseNorm",
    "L2Net",
    "SDGMNet",
    "TFeat",
    "ThresholdedLinearUnit",
    "initialise_orthogonally",
    "load_encoder",
    "load_tfeat",
    "save_encoder",
]

DROPOUT = 0.3  # of weights whose card does not have it

ENCODERS: dict[str, type[Encoder]] = load_all(registry.ENCODERS)


def load_encoder(source: Path | str = ALIAS) -> tuple[Encoder, dict[str, Any]]:
    """The encoder of a source of weights (see pretrained.py) in eval mode, and its card."""
    path = find_weights(source)
    tensors, card = read_weights(path)
    name, dropout = card.get("encoder"), card.get("dropout", DROPOUT)
    if not isinstance(name, str) or name not in ENCODERS:
        raise InputError(f"{path} is for the encoder {name!r}, which is not one of {', '.join(ENCODERS)}.")
    if not isinstance(dropout, (int, float)) or not 0 <= dropout < 1:
        raise InputError(f"{path}: dropout in its card must lie in [0, 1), not {dropout!r}.")
    window = card.get("window", WINDOW)
    if not is_window(window):
        raise InputError(f"{path}: window in its card must be a number from 1 to 100, not {window!r}.")
    try:
        encoder = ENCODERS[name](dropout)
    except InputError as error:
        raise InputError(f"{path}: its card does not match the encoder ({error})") from error
    try:
        encoder.load_state_dict(tensors)  # converts half precision to single
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"{path} does not match the encoder {name}: {reason}") from error
    if not is_finite(encoder):
        raise InputError(f"{path} holds NaN or infinite weights: use another file.")
    encoder.window = float(window)
    return encoder.eval(), card


def save_encoder(encoder: Encoder, path: Path | str, card: dict[str, Any], card_path: Path | None = None) -> None:
    """Write `path` (.safetensors) with the card inside it, and the card as a JSON file next to it."""
    name = next((name for name, kind in ENCODERS.items() if type(encoder) is kind), None)
    if name is None:
        kind = type(encoder).__name__
        raise InputError(f"a {kind} cannot be saved: it is not one of the encoders {', '.join(ENCODERS)}.")
    own = {"encoder": name, "dropout": encoder.dropout, "window": encoder.window}
    write_weights(encoder.state_dict(), path, {**own, **card, "window": encoder.window}, card_path)


def initialise_orthogonally(encoder: Encoder, gain: float = 0.6) -> None:
    """Initialisation of HardNet and CDFDesc: orthogonal filters, biases 0.01."""
    for module in encoder.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.orthogonal_(module.weight, gain)
            if module.bias is not None:
                nn.init.constant_(module.bias, 0.01)

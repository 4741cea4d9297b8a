"""What a configuration can name. Nothing slow is imported here: help and errors of the command line do not wait for torch.

A loss or an encoder is one file and one line: its name and the place, module:name, of what makes it.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from sdgmnet.errors import InputError
from sdgmnet.storage import parse_json

LOSSES: dict[str, str] = {
    "sdgm": "sdgmnet.loss.sdgm:SDGMLoss",
    "hardnet": "sdgmnet.loss.hardnet:HardNetLoss",
    "hardnet-original": "sdgmnet.loss.hardnet:HardNetOriginalLoss",
    "tfeat": "sdgmnet.loss.tfeat:TFeatLoss",
    "l2net": "sdgmnet.loss.l2net:L2NetLoss",
    "cdf": "sdgmnet.loss.cdf:CDFLoss",
    "sosnet": "sdgmnet.loss.sosnet:SOSNetLoss",
    "hynet": "sdgmnet.loss.hynet:HyNetLoss",
    "keller": "sdgmnet.loss.modulated:keller_loss",
    "exp-tl": "sdgmnet.loss.modulated:exp_tl_loss",
    "sface": "sdgmnet.loss.modulated:sface_loss",
}
ENCODERS: dict[str, str] = {
    "sdgmnet": "sdgmnet.encoders.sdgmnet:SDGMNet",
    "fast": "sdgmnet.encoders.sdgmnet:FastSDGMNet",
    "l2net": "sdgmnet.encoders.l2net:L2Net",
    "tfeat": "sdgmnet.encoders.tfeat:TFeat",
}

Augmentation = Literal["none", "paper", "strong", "detector", "turned", "hardnet", "hynet", "cdfdesc"]
Balance = Literal["points", "scenes"]
Engine = Literal["auto", "eager", "native"]

WINDOW = 12.0  # side of a patch in sigmas of its keypoint, unless weights or a PatchSet have another

PML = "pml:"  # losses of pytorch-metric-learning


def is_window(value: object) -> bool:
    """Whether this can be the side of a patch in sigmas."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 1 <= value <= 100


def load(place: str) -> Any:
    """What module:name stands for."""
    module, name = place.split(":")
    return getattr(import_module(module), name)


def load_all(places: Mapping[str, str]) -> dict[str, Any]:
    return {name: load(place) for name, place in places.items()}


def own_file(name: str) -> tuple[Path, str] | None:
    """File and name in it if `name` has the form FILE.py:NAME; otherwise None."""
    path, _, what = name.rpartition(":")
    return (Path(path), what) if path.endswith(".py") and what.isidentifier() else None


def is_loss_name(name: str) -> bool:
    """Whether `name` has a valid form; `loss_by_name` checks that the loss exists."""
    return name in LOSSES or (name.startswith(PML) and name != PML) or own_file(name) is not None


def parse_options(texts: Sequence[str]) -> dict[str, Any]:
    """["margin=1", "reduction=mean"] -> {"margin": 1, "reduction": "mean"}; values are JSON, or else strings."""
    options: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier() or name in options:
            raise InputError(f"loss options must be NAME=VALUE, each name once, not {text!r}.")
        try:
            options[name] = parse_json(value)
        except ValueError:
            options[name] = value
    return options

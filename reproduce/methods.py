"""The methods of Table 1 and the frameworks of Fig. 6 (c): what they are called, and which recipe trains them."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from sdgmnet.errors import InputError

Presets = Literal["table", "native", "sdgm"]  # "table": each method's own one, below


class Method(NamedTuple):
    label: str
    recipe: str | None  # None: hand-made, nothing to train
    preset: str


# Rows in the order of Table 1. The FRN rows differ in their loss alone; the others are as their own papers have them.
METHODS = {
    "sift": Method("SIFT", None, ""),
    "tfeat": Method("TFeat", "tfeat", "native"),
    "l2net": Method("L2Net", "l2net", "native"),
    "hardnet": Method("HardNet", "hardnet", "native"),
    "cdfdesc": Method("CDFDesc", "cdfdesc", "native"),
    "sosnet": Method("SOSNet", "sosnet", "native"),
    "hardnet+frn": Method("HardNet+FRN", "hardnet+frn", "sdgm"),
    "hynet": Method("HyNet", "hynet", "sdgm"),
    "sdgmnet": Method("SDGMNet", "sdgmnet", "sdgm"),
}

# Fig. 6 (c): self weights, each trained with -PA and +PA. The last one with +PA is SDGMNet.
ABLATION = {"theta": "&θ", "s": "&s", "l2": "&l₂", "af": "&AF"}


def preset_of(name: str, presets: Presets) -> str:
    """Of a learned method, where the table is made with these presets."""
    return METHODS[name].preset if presets == "table" else presets


def require_methods(names: Sequence[str]) -> list[str]:
    """The names, in the order of Table 1."""
    unknown = [name for name in names if name not in METHODS]
    if unknown:
        raise InputError(f"--methods {unknown[0]}: no such method; there are {', '.join(METHODS)}.")
    if not names:
        raise InputError("--methods names no method: leave it out for all of them.")
    return [name for name in METHODS if name in names]

"""The methods of Table 1 and the frameworks of Fig. 6 (c): label, recipe and the one colour each has in every figure."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from sdgmnet.errors import InputError


class Method(NamedTuple):
    label: str
    recipe: str | None  # None: hand-made, nothing to train
    preset: str
    colour: str


# Rows in the order of Table 1. The FRN rows differ in their loss alone; the others are as their own papers have them.
METHODS = {
    "sift": Method("SIFT", None, "", "#7f7f7f"),
    "tfeat": Method("TFeat", "tfeat", "native", "#8c564b"),
    "l2net": Method("L2Net", "l2net", "native", "#bcbd22"),
    "hardnet": Method("HardNet", "hardnet", "native", "#2ca02c"),
    "cdfdesc": Method("CDFDesc", "cdfdesc", "native", "#17becf"),
    "sosnet": Method("SOSNet", "sosnet", "native", "#9467bd"),
    "hardnet+frn": Method("HardNet+FRN", "hardnet+frn", "sdgm", "#222222"),
    "hynet": Method("HyNet", "hynet", "sdgm", "#d62728"),
    "sdgmnet": Method("SDGMNet", "sdgmnet", "sdgm", "#1f77b4"),
}

# Fig. 6 (c): self weight, then -PA and +PA. The last one is SDGMNet.
ABLATION = {
    "theta": ("&θ", "#e6ab02"),
    "s": ("&s", "#e7298a"),
    "l2": ("&l₂", "#66a61e"),
    "af": ("&AF", METHODS["sdgmnet"].colour),
}

# What a small run needs otherwise than its recipe says, by method; stated in captions.
SMALL_SETTINGS: dict[str, dict[str, Any]] = {}


def demand_methods(names: Sequence[str]) -> list[str]:
    """The names, in the order of Table 1."""
    unknown = [name for name in names if name not in METHODS]
    if unknown:
        raise InputError(f"--methods {unknown[0]}: no such method; there are {', '.join(METHODS)}.")
    if not names:
        raise InputError("--methods names no method: leave it out for all of them.")
    return [name for name in METHODS if name in names]

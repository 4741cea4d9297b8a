"""Prints how far each build of the kernels is from torch: python tests/native/parity.py, with any installed sdgmnet.

Takes the targets that this processor runs. Exits with 1 where a difference is more than rounding.
"""

import sys

import numpy as np
import torch

from sdgmnet import SDGMNet, describe_patches
from sdgmnet.encoders import Encoder, FastSDGMNet, L2Net
from sdgmnet.native import build
from sdgmnet.native.nearest import two_nearest_and_back
from sdgmnet.native.targets import runnable_targets

TOLERANCE = 1e-5  # of unit descriptors


def encoders() -> dict[str, Encoder]:
    """With the shipped weights, or with those of a seed."""
    torch.manual_seed(0)
    return {"sdgmnet": SDGMNet.from_pretrained(), "fast": FastSDGMNet(), "l2net": L2Net()}


def differences(target: str) -> dict[str, float]:
    """Encoder -> largest difference of a component of its descriptors from torch's. "matches": neighbours that differ."""
    random = np.random.default_rng(0)
    patches = random.integers(0, 256, (33, 64, 64), dtype=np.uint8)
    a, b = random.normal(size=(2, 301, 128)).astype(np.float32)
    found = {}
    for name, encoder in encoders().items():
        expected = describe_patches(encoder, patches, engine="eager")
        with build.forced(target):
            found[name] = float(np.abs(describe_patches(encoder, patches, engine="native") - expected).max())
    with build.forced("none"):
        expected_pairs = two_nearest_and_back(a, b)
    with build.forced(target):
        pairs = two_nearest_and_back(a, b)
    found["matches"] = float(sum((one != other).sum() for one, other in zip(pairs, expected_pairs, strict=True)))
    return found


def main() -> int:
    largest = 0.0
    for target in runnable_targets():
        found = differences(target)
        largest = max(largest, *found.values())
        with build.forced(target):
            print(*(f"{name} {value:.1e}" for name, value in found.items()), build.kernels().origin, sep="  ")
    return int(largest > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())

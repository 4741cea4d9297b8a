"""The window of a PatchSet, the side of its patches in sigmas. The centre of a wide patch is a patch of a narrower window."""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from sdgmnet.data.patchset import PATCH_SIDE, PatchSet
from sdgmnet.engine import resample_matrix
from sdgmnet.errors import InputError

SMALLEST_PART = 4  # of a patch's side that can be used: 16 pixels of 64


def training_window(patchsets: Sequence[PatchSet], window: float | None) -> float:
    """The window to train at: the given one, or the narrowest of the sets. InputError where a set is too narrow."""
    narrowest, widest = (choose(patchsets, key=lambda patchset: patchset.window) for choose in (min, max))
    if window is None:
        window = narrowest.window
    if window * SMALLEST_PART < widest.window:
        raise InputError(
            f"{widest.name} was cut at {widest.window:g} sigma: {window:g} sigma would be too few of its pixels."
        )
    if narrowest.window < window:
        raise InputError(
            f"{narrowest.name} was cut at {narrowest.window:g} sigma, --window {window:g} is wider: "
            f"make it again with --window {window:g}, or train at {narrowest.window:g}."
        )
    return window


def centre(patches: np.ndarray, share: float) -> np.ndarray:
    """The middle `share` of the side of patches (N, 64, 64) uint8, resampled to the same size."""
    if share >= 1 or not len(patches):
        return patches
    length = torch.tensor([PATCH_SIDE * share])
    matrix = resample_matrix((PATCH_SIDE - length) / 2, length, PATCH_SIDE, PATCH_SIDE)[0]
    pixels = matrix @ torch.from_numpy(np.array(patches)).float() @ matrix.T
    return pixels.round().to(torch.uint8).numpy()


def at_window(
    describe: Callable[[np.ndarray], np.ndarray], patchset: PatchSet, window: float
) -> Callable[[np.ndarray], np.ndarray]:
    """`describe` for a set's patches: of wider ones it gets the centre, narrower ones as they are."""
    return lambda patches: describe(centre(patches, window / patchset.window))

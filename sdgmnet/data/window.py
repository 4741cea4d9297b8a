"""The window of a PatchSet, the side of its patches in sigmas. The centre of a wide patch is a patch of a narrower window."""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from sdgmnet.data.patchset import PATCH_SIDE, PatchSet
from sdgmnet.engine import resample_matrix
from sdgmnet.errors import InputError


def training_window(patchsets: Sequence[PatchSet], window: float | None) -> float:
    """The window to train at: the given one, or the narrowest of the sets. InputError where a set is too narrow."""
    narrowest = min(patchsets, key=lambda patchset: patchset.window)
    if window is None:
        return narrowest.window
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
    """`describe` for a set's patches: of wider ones it gets the centre. Narrower ones are all there is."""
    return lambda patches: describe(centre(patches, window / patchset.window))

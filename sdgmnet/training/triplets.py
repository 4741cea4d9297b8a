"""Triplets of a PatchSet as a network sees them: two patches of a point and the nearest patch of another one."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sdgmnet.data.patchset import PatchSet
from sdgmnet.data.window import centre
from sdgmnet.loss.mining import hardest_in_batch
from sdgmnet.sphere import angle
from sdgmnet.storage import new_file

TRIPLETS = "triplets.npz"  # in the folder of a run
POINTS = 500  # of which a run keeps the hardest triplets
KEPT = 8


class PatchTriplet(NamedTuple):
    """Anchor, positive and negative, as indices of the PatchSet, and their angles in radians."""

    patches: tuple[int, int, int]
    theta_pos: float
    theta_neg: float
    theta_other: float  # between positive and negative


def draw_pairs(patchset: PatchSet, points: int, seed: int) -> np.ndarray:
    """(N, 2) patches: two of each of at most `points` random points, no two of which are ambiguous."""
    order = np.argsort(patchset.point_id, kind="stable")
    ids, start, size = np.unique(patchset.point_id[order], return_index=True, return_counts=True)
    near: dict[int, set[int]] = {}
    for one, other in [] if patchset.conflicts is None else np.asarray(patchset.conflicts).tolist():
        near.setdefault(one, set()).add(other)
        near.setdefault(other, set()).add(one)
    chosen: dict[int, int] = {}
    for place in np.random.default_rng(seed).permutation(np.flatnonzero(size >= 2)).tolist():
        if len(chosen) == points:
            break
        if not near.get(int(ids[place]), set()) & chosen.keys():
            chosen[int(ids[place])] = place
    return np.stack([order[start[list(chosen.values())] + view] for view in (0, 1)], axis=1)


def locate(sides: Tensor, pairs: np.ndarray, row: int, theta_neg: float) -> PatchTriplet:
    """The triplet of a row of descriptors (N, 2, D) of `pairs` (N, 2), whose nearest negative is theta_neg away.

    Of the row's two sides, the one that the nearest negative is nearest to is the anchor.
    """
    cosines = sides[row] @ sides.flatten(0, 1).T  # (2, 2 N)
    cosines[:, 2 * row : 2 * row + 2] = -2
    side, other = divmod(int((cosines - math.cos(theta_neg)).abs().argmin()), cosines.shape[1])
    a, p, n = sides[row, side], sides[row, 1 - side], sides.flatten(0, 1)[other]
    patches = (int(pairs[row, side]), int(pairs[row, 1 - side]), int(pairs.reshape(-1)[other]))
    return PatchTriplet(patches, *(float(angle(*two)) for two in ((a, p), (a, n), (p, n))))


def hardest_triplets(
    describe: Callable[[np.ndarray], np.ndarray], patchset: PatchSet, threshold: float, points: int = POINTS
) -> list[PatchTriplet]:
    """At most `KEPT`, the one of the largest θʳ first. `describe` gives descriptors (N, D) of patches (N, 64, 64)."""
    pairs = draw_pairs(patchset, points, seed=0)
    if len(pairs) < 2:
        return []
    descriptors = torch.from_numpy(np.asarray(describe(patchset.patches[pairs.ravel()]))).double()
    sides = torch.nn.functional.normalize(descriptors, dim=1).unflatten(0, pairs.shape)  # TFeat's are of any length
    found = hardest_in_batch(sides[:, 0], sides[:, 1], threshold)
    relative = found.theta_rel.masked_fill(~found.admissible, -math.inf)
    rows = relative.argsort(descending=True, stable=True)[: min(KEPT, int(found.admissible.sum()))]
    return [locate(sides, pairs, row, float(found.theta_neg[row])) for row in rows.tolist()]


def save_triplets(patchset: PatchSet, triplets: list[PatchTriplet], window: float, step: int, path: Path) -> None:
    """As `draw_triplets` reads them: the part of the patches within the window that the network sees."""
    patches = np.stack([patchset.patches[list(one.patches)] for one in triplets])  # (T, 3, 64, 64)
    seen = centre(patches.reshape(-1, *patches.shape[2:]), window / patchset.window)
    angles = np.array([(one.theta_pos, one.theta_neg) for one in triplets])
    with new_file(path) as part, open(part, "wb") as stream:
        np.savez(
            stream, patches=seen.reshape(*patches.shape[:2], *seen.shape[1:]), angles=angles, step=np.array([step])
        )

"""Keypoints that see the same point, moved onto the same spot of it, before a model is estimated.

A detector places the keypoints of each photo by that photo alone, so those of one point differ by a fraction of a sigma. Of
all keypoints that verified matches connect, the one with most matches stays where it is. Those it matches are moved until
their patches agree with its own under an affine map; the others follow those they match, round by round. The map is found by
Lucas and Kanade's alignment in the inverse compositional form of Baker and Matthews (IJCV 2004), whose derivatives are those
of the reference, with brightness and contrast normalised.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from sdgmnet.features.keypoints import Keypoints, concatenate
from sdgmnet.features.patches import cut_frames, local_frames
from sdgmnet.report import OnProgress, no_progress

WINDOW = 10.0  # sigmas: wider patches reach across more edges of depth
SIDE = 19  # samples per side of a patch
STEPS = 20  # of one alignment
ROUNDS = 6
SMALL_STEP = 0.003  # of half a patch: an alignment that moves less has converged
LARGE_STEP = 0.7  # of half a patch, or of a factor of the affine map: an alignment that moves more has failed
SMALL_AREA = 0.1  # of a patch after a step, over that before
MAX_SHIFT = 2.0  # sigmas between the detected and the refined location
MIN_CORRELATION = 0.6  # of the patches where the keypoint ends
MIN_CONTRAST = 1.0  # gray levels: the standard deviation of a patch is taken to be at least this
DAMPING = 1e-3  # of the mean curvature, for patches that fix no affine map
AT_ONCE = 4096  # keypoints, to bound the memory

_along = (np.arange(SIDE) + 0.5) * 2 / SIDE - 1
PLACES = np.stack(np.meshgrid(_along, _along), axis=-1).reshape(-1, 2).astype(np.float32)  # (P, 2) x and y in [-1, 1]
WEIGHTS = np.exp(-2 * np.square(PLACES).sum(axis=1))  # (P,) Gaussian, with a standard deviation of half the half side
WEIGHTS /= WEIGHTS.sum()


class Aligned(NamedTuple):
    frames: np.ndarray  # (N, 2, 3), from [-1, 1]^2 to the image
    correlation: np.ndarray  # (N,) of their patches with the references


def best_connected(count: int, matches: np.ndarray, sigma: np.ndarray) -> np.ndarray:
    """Of each group of keypoints that matches (M, 2) connect the one with most matches; of equals, with the smallest sigma."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    degree = np.bincount(matches.ravel(), minlength=count)
    graph = coo_array((np.ones(len(matches), dtype=np.int8), tuple(matches.T)), shape=(count, count))
    _, group = connected_components(graph, directed=False)
    order = np.lexsort((np.arange(count), sigma, -degree, group))
    best = order[np.unique(group[order], return_index=True)[1]]
    return np.sort(best[degree[best] > 0])


def choose_references(matches: np.ndarray, waiting: np.ndarray, score: np.ndarray) -> np.ndarray:
    """(K, 2) of each keypoint that waits (N,) and has a match with a score (N,) above 0, and of these the best, ordered."""
    both = np.concatenate([matches, matches[:, ::-1]])
    both = both[waiting[both[:, 0]] & (score[both[:, 1]] > 0)]
    both = both[np.lexsort((both[:, 1], -score[both[:, 1]], both[:, 0]))]
    return both[np.unique(both[:, 0], return_index=True)[1]]


def normalise(patches: np.ndarray) -> np.ndarray:
    """(N, P) float32 of weighted mean 0 and standard deviation 1, of patches (N, SIDE, SIDE)."""
    rows = patches.reshape(len(patches), len(PLACES)).astype(np.float32)
    rows -= (rows @ WEIGHTS)[:, None]
    return rows / np.maximum(np.sqrt(np.square(rows) @ WEIGHTS), MIN_CONTRAST)[:, None]


def solver(references: np.ndarray) -> np.ndarray:
    """(N, 6, P): from the difference of a patch and its reference (N, P) to the step of an affine map that explains most of it.

    A step is (x, y, and what is added to the identity: xx, xy, yx, yy). What a change of brightness or contrast explains is
    left out.
    """
    rows, columns = np.gradient(references.reshape(-1, SIDE, SIDE), 2 / SIDE, axis=(1, 2))
    along_x, along_y = (one.reshape(references.shape) for one in (columns, rows))
    x, y = PLACES.T
    slopes = np.stack([along_x, along_y, along_x * x, along_x * y, along_y * x, along_y * y], axis=1)
    slopes -= (slopes @ WEIGHTS)[:, :, None]
    slopes -= (slopes @ (references * WEIGHTS)[:, :, None]) * references[:, None]
    weighted = slopes * WEIGHTS
    curvature = weighted @ slopes.transpose(0, 2, 1)
    mean = np.trace(curvature, axis1=1, axis2=2)[:, None, None] / 6
    return np.linalg.solve(curvature + (DAMPING * mean + 1e-12) * np.eye(6, dtype=np.float32), weighted)


def align(image: np.ndarray, frames: np.ndarray, references: np.ndarray) -> Aligned:
    """Frames (N, 2, 3) of an image (H, W) uint8, moved until their patches agree with normalised references (N, P)."""
    solve, count = solver(references), len(frames)
    frames = frames.astype(np.float64)
    best, after = frames.copy(), np.full(count, -1.0)
    moving = np.arange(count)
    for _ in range(STEPS + 1):
        patches = normalise(cut_frames(image, frames[moving], SIDE))
        correlation = (patches * references[moving]) @ WEIGHTS
        better = correlation > after[moving]
        best[moving[better]], after[moving[better]] = frames[moving[better]], correlation[better]
        moves = (solve[moving] @ (patches - references[moving])[:, :, None])[:, :, 0]
        size = np.abs(moves).max(axis=1)
        area = (1 + moves[:, 2]) * (1 + moves[:, 5]) - moves[:, 3] * moves[:, 4]
        going = (size > SMALL_STEP) & (size < LARGE_STEP) & (area > SMALL_AREA)
        moving, moves = moving[going], moves[going].astype(np.float64)
        change = np.zeros((len(moving), 3, 3))
        change[:, :2, 2], change[:, :2, :2], change[:, 2, 2] = moves[:, :2], moves[:, 2:].reshape(-1, 2, 2), 1
        change[:, [0, 1], [0, 1]] += 1
        frames[moving] = frames[moving] @ np.linalg.inv(change)
    return Aligned(best, after)


def refine_keypoints(
    read_image: Callable[[int], np.ndarray],
    keypoints: Sequence[Keypoints],
    matches: Sequence[tuple[int, int, np.ndarray]],
    on_progress: OnProgress = no_progress,
) -> list[Keypoints]:
    """The keypoints of each image, those with matches at their refined locations. Sigma, angle and order stay.

    Args:
        read_image: the gray image (H, W) uint8 of a number; read twice per round.
        matches: verified ones, as (image, other image, pairs (M, 2) of their keypoints).
    """
    first = np.cumsum([0, *(len(one.xy) for one in keypoints)])
    count, images = int(first[-1]), len(keypoints)
    total = 2 * ROUNDS * images  # each round reads every image twice
    shifted = [pairs + first[[one, other]] for one, other, pairs in matches]
    edges = np.concatenate([np.empty((0, 2), dtype=np.int64), *shifted])
    whole = concatenate(keypoints)
    frames = local_frames(whole, WINDOW)
    waiting, score = np.bincount(edges.ravel(), minlength=count) > 0, np.zeros(count)
    roots = best_connected(count, edges, whole.sigma)
    waiting[roots], score[roots] = False, 1.0
    aligned = np.zeros(count, dtype=bool)
    for done in range(ROUNDS):
        moved, reference = choose_references(edges, waiting, score).T
        needed = np.unique(reference)
        patches = np.empty((len(needed), SIDE, SIDE), dtype=np.uint8)
        for number in range(images):
            own = slice(*np.searchsorted(needed, first[number : number + 2]))
            if own.start < own.stop:
                patches[own] = cut_frames(read_image(number), frames[needed[own]], SIDE)
            on_progress("refining keypoints", 2 * done * images + number, total)
        score[:] = 0
        for number in range(images):
            own = slice(*np.searchsorted(moved, first[number : number + 2]))
            for start in range(own.start, own.stop, AT_ONCE):
                part = slice(start, min(start + AT_ONCE, own.stop))
                some = moved[part]
                references = normalise(patches[np.searchsorted(needed, reference[part])])
                found = align(read_image(number), frames[some], references)
                shift = np.linalg.norm(found.frames[:, :, 2] - whole.xy[some], axis=1)
                kept = (shift <= MAX_SHIFT * whole.sigma[some]) & (found.correlation >= MIN_CORRELATION)
                frames[some[kept]], score[some[kept]] = found.frames[kept], found.correlation[kept]
            on_progress("refining keypoints", (2 * done + 1) * images + number, total)
        aligned |= score > 0
        waiting &= ~aligned
    on_progress("refining keypoints", total, total)
    parts = np.split(np.where(aligned[:, None], frames[:, :, 2], whole.xy), first[1:-1])
    return [one._replace(xy=xy) for one, xy in zip(keypoints, parts, strict=True)]

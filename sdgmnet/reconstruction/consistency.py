"""A depth is believed when other photos' depth maps say the same: carried there and back it returns to its pixel."""

import numpy as np

from sdgmnet.reconstruction.views import View, project, unproject


def confirmations(
    reference: View,
    depths: np.ndarray,
    others: list[tuple[View, np.ndarray]],
    reprojection: float,
    depth_difference: float,
) -> np.ndarray:
    """How many other maps confirm each depth: (H, W) int. Views have the size of their maps; depth 0 is unknown.

    A pixel is carried to the other photo, the depth found there is carried back; it must return to within `reprojection`
    pixels with a depth that differs by at most the fraction `depth_difference`.
    """
    counts = np.zeros(depths.shape, dtype=np.int64)
    rows, columns = np.nonzero(depths > 0)
    pixels = np.stack([columns, rows], 1).astype(np.float64)
    known = depths[rows, columns].astype(np.float64)
    points = unproject(reference, pixels, known)
    for view, there in others:
        seen, depth = project(view, points)
        column, row = np.rint(np.where(np.abs(seen) < 1e6, seen, -1)).astype(np.int64).T
        inside = (depth > 0) & (column >= 0) & (row >= 0) & (column < view.width) & (row < view.height)
        which = np.flatnonzero(inside)
        found = there[row[which], column[which]].astype(np.float64)
        which, found = which[found > 0], found[found > 0]
        # The depth of the nearest pixel, on the ray of the exact place: the half pixel between them is no error of depth.
        back, again = project(reference, unproject(view, seen[which], found))
        error = np.hypot(*(back - pixels[which]).T)
        agree = (error <= reprojection) & (np.abs(again - known[which]) <= depth_difference * known[which])
        counts[rows[which[agree]], columns[which[agree]]] += 1
    return counts

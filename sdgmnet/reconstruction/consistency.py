"""A depth is believed when other photos' depth maps say the same: carried there and back it returns to its pixel."""

import numpy as np
import torch
from torch import Tensor

from sdgmnet.reconstruction.stereo import relative_pose
from sdgmnet.reconstruction.views import View


def confirmations(
    reference: View,
    depths: np.ndarray,
    others: list[tuple[View, np.ndarray]],
    reprojection: float,
    depth_difference: float,
    device: torch.device | str = "cpu",
) -> np.ndarray:
    """How many other maps confirm each depth: (H, W) int64. Views have the size of their maps; depth 0 is unknown.

    A pixel is carried to the other photo, the depth found there is carried back; it must return to within `reprojection`
    pixels with a depth that differs by at most the fraction `depth_difference`.
    """
    counts = np.zeros(depths.shape, dtype=np.int64)
    rows, columns = np.nonzero(depths > 0)
    pixels = torch.from_numpy(np.stack([columns, rows]).astype(np.float64)).to(device)
    known = torch.from_numpy(depths[rows, columns].astype(np.float64)).to(device)
    total = torch.zeros(len(rows), dtype=torch.int64, device=device)
    for view, found in others:
        seen, depth = carry(reference, view, pixels, known)
        column, row = seen.round()
        inside = (depth > 0) & (column >= 0) & (row >= 0) & (column < view.width) & (row < view.height)
        place = torch.where(inside, row * view.width + column, 0).long()
        there = torch.from_numpy(found.astype(np.float64)).to(device).ravel()[place]
        # The depth of the nearest pixel, on the ray of the exact place: the half pixel between them is no error of depth.
        back, again = carry(view, reference, seen, there)
        close = (back - pixels).square().sum(0) <= reprojection**2
        total += inside & (there > 0) & close & ((again - known).abs() <= depth_difference * known)
    counts[rows, columns] = total.cpu().numpy()
    return counts


def carry(start: View, end: View, pixels: Tensor, depths: Tensor) -> tuple[Tensor, Tensor]:
    """Pixels (2, N) of one view at depths (N,) -> pixels and depths in another; nan or a depth below 0 where unseen."""
    matrix, shift = (torch.from_numpy(part).to(pixels.device) for part in relative_pose(start, end))
    there = (matrix[:, :2] @ pixels + matrix[:, 2:]) * depths + shift[:, None]
    return there[:2] / there[2], there[2]

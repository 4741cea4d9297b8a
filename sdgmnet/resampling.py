"""One antialiased filter for all resampling of patches: a triangle as wide as the reduction, which is what PIL does."""

import torch
from torch import Tensor


def resample_matrix(start: Tensor, length: Tensor, source_side: int, target_side: int) -> Tensor:
    """Matrices (B, target_side, source_side) that resample [start, start + length), start and length (B,) in pixels.

    The triangle is cut off at the ends of the range and normalised.
    """
    scale = (length / target_side)[:, None, None]
    source = torch.arange(source_side, device=start.device, dtype=start.dtype) + 0.5 - start[:, None, None]
    target = torch.arange(target_side, device=start.device, dtype=start.dtype)[:, None] + 0.5
    weight = (1 - (source - target * scale).abs() / scale.clamp_min(1)).clamp_min(0)
    weight = weight * ((source > 0) & (source < length[:, None, None]))
    return weight / weight.sum(dim=2, keepdim=True)


def halve(pixels: Tensor) -> Tensor:
    """(B, 2S, 2S) -> (B, S, S) float with the separable filter [1, 3, 3, 1] / 8, renormalised at the borders."""
    side = pixels.shape[-1]
    matrix = resample_matrix(pixels.new_zeros(1), pixels.new_full((1,), side), side, side // 2)[0]
    return matrix @ pixels @ matrix.T

"""`cut_patches` with torch operations alone, for export: image and keypoints in one graph, with free sizes.

The levels of the pyramid are stacked into one image, so that a single `grid_sample` reads every patch from its own level.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

LEVELS = 9  # cells of up to 512 pixels; larger ones are read from the last level
TAPS = 4  # pixels that a cell of the next level can touch: it is at most 2.5 pixels wide


def cut_patches(image: Tensor, keypoints: Tensor, window: float, side: int = 64) -> Tensor:
    """Patches (N, side, side) of an image (1, 1, H, W) in [0, 1], rounded to the 256 gray levels of `patches.cut_patches`.

    keypoints (N, 4): x, y, sigma, angle; pixel centres at integers, angles in radians, clockwise.
    """
    levels = pyramid(image)
    heights, widths = (torch.cat([torch.full((1,), one.shape[axis]) for one in levels]) for axis in (2, 3))
    x, y, sigma, angle = keypoints[:, :, None, None].unbind(1)  # (N, 1, 1) each
    level = torch.floor(torch.log2((sigma * (window / side)).clamp(1, 2 ** (LEVELS - 1)))).long()
    along = (torch.arange(side, device=image.device) + 0.5) * (2 / side) - 1  # from -1 to 1 over the patch
    right, down = along[None, None, :] * sigma * (window / 2), along[None, :, None] * sigma * (window / 2)
    cos, sin = torch.cos(angle), torch.sin(angle)
    column = on_level(x + cos * right - sin * down, widths, level)
    row = on_level(y + sin * right + cos * down, heights, level) + (heights.cumsum(0) - heights)[level]
    stacked = torch.cat([F.pad(one, (0, image.shape[3] - one.shape[3])) for one in levels], dim=2)
    size = torch.cat([widths[:1], heights.sum()[None]])
    grid = (torch.stack([column, row], dim=-1) + 0.5) * (2 / size) - 1
    read = F.grid_sample(stacked, grid.reshape(1, -1, side, 2), padding_mode="border", align_corners=False)
    return torch.round(read.reshape(-1, side, side) * 255) / 255


def on_level(along: Tensor, sizes: Tensor, level: Tensor) -> Tensor:
    """Coordinates in the image -> on each patch's level, which repeats its border outside."""
    size = sizes[level]
    scaled = (along + 0.5) * (size / sizes[0]) - 0.5
    return torch.minimum(scaled.clamp(min=0), size - 1.0)


def pyramid(image: Tensor) -> list[Tensor]:
    """The image (1, 1, H, W), then levels of half the size of the one before, as OpenCV's INTER_AREA resizes them."""
    levels = [image]
    for _ in range(1, LEVELS):
        levels.append(halve_columns(halve_columns(levels[-1]).transpose(2, 3)).transpose(2, 3))
    return levels


def halve_columns(image: Tensor) -> Tensor:
    """(1, 1, H, W) -> (1, 1, H, W / 2), half a column rounded to even: weighted means of the columns that a cell covers."""
    old = image.shape[3]
    new = torch.sym_max(1, (old + old // 2 % 2) // 2)
    width = image.new_full((), old) / image.new_full((), new)  # of a cell; a tensor, since ONNX needs one
    start = torch.arange(new, device=image.device) * width
    first = torch.floor(start)
    total = torch.zeros_like(image[..., :1])
    for tap in range(TAPS):
        covered = torch.minimum(first + tap + 1, start + width) - torch.maximum(first + tap, start)
        total = total + image[..., (first + tap).clamp(max=old - 1).long()] * covered.clamp(min=0)
    return total / width

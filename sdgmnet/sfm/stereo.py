"""PatchMatch stereo: depth and slope of every pixel of a photo from a few other photos.

A plane sweep at a coarse size gives a first depth. From coarse to fine, each pixel then tries the planes of its neighbours,
averages and random changes of them, and keeps what correlates best (docs/decisions/own-stereo.md says why it is our own).

A surface is stored as inverse depth over the image, because a plane of the world is then affine in pixels:
1 / z (x + a, y + b) = inverse + across a + down b. Pixel p of the reference is seen by a source at A p + (1 / z) b with A, b
of `relative_pose`, so that a window on a plane is an affine window of the source image.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from sdgmnet.sfm.scene import View

CHUNK = {"cpu": 16384, "cuda": 1 << 18}  # pixels at once: fits a core's cache; fills a GPU
CHESSBOARD = 2  # every other sample of a window: nearly as exact in two thirds of the time
DIRECTIONS, DISTANCES = ((-1, 0), (1, 0), (0, -1), (0, 1)), (1, 3, 5, 9)  # in which planes are propagated, in pixels


@dataclass(frozen=True)
class DenseOptions:
    """What the maps depend on. Window, noise and lead were chosen by measurement; the others are first choices."""

    size: int = 800  # longest side of the depth maps in pixels; time grows with its square
    sources: int = 4  # photos that each photo is compared with
    agreeing: int = 2  # only the best of them count: a surface may be hidden in the others
    window: int = 5  # samples along a side of the correlation window
    spacing: int = 2  # pixels between the samples: 5 samples span 9 pixels
    noise: float = 0.6  # standard deviation in gray levels of 255: without it, noise on a flat wall correlates
    colour_sigma: float = 0.25  # of gray 0..1; pixels unlike the centre likely belong to another surface
    coarsest: int = 200  # longest side at which the whole depth range is swept
    rounds: tuple[int, ...] = (4, 2, 1)  # of refinement, coarsest level first; the last one for all finer levels
    smallest_correlation: float = 0.5  # below it a depth is unknown
    smallest_lead: float = -0.1  # of the correlation over that of the best other depth in the sweep
    neighbours: int = 8  # photos that may confirm a depth
    confirmations: int = 2  # that must agree; 1 if a photo has only one or two neighbours
    reprojection: float = 1.5  # pixels, to the other photo and back
    depth_difference: float = 0.01  # relative
    seed: int = 0  # of the random planes


class PosedImage(NamedTuple):
    """A photo at one size: gray (H, W) in -0.5..0.5 and its camera."""

    gray: Tensor
    view: View


class Surface(NamedTuple):
    """Plane and score of every pixel of the reference."""

    planes: Tensor  # (3, H, W): inverse depth and its change per pixel across and down
    score: Tensor  # (H, W): mean correlation of the best sources, -1..1


def relative_pose(reference: View, source: View) -> tuple[np.ndarray, np.ndarray]:
    """A (3, 3) and b (3,) float64: pixel p at inverse depth w is seen by the source at A p + w b, homogeneous."""
    rotation = source.rotation @ reference.rotation.T
    translation = source.translation - rotation @ reference.translation
    return source.intrinsics @ rotation @ np.linalg.inv(reference.intrinsics), source.intrinsics @ translation


class Matcher:
    """Correlation of a reference with its sources at one size, for one plane per pixel."""

    def __init__(self, reference: PosedImage, sources: list[PosedImage], options: DenseOptions) -> None:
        self.height, self.width = reference.gray.shape
        self.device = reference.gray.device
        self.options = options
        self.chunk = CHUNK.get(self.device.type, CHUNK["cpu"])
        self.reference, self.sources = reference, sources
        as_tensor = partial(torch.as_tensor, dtype=torch.float32, device=self.device)
        self.poses = [tuple(map(as_tensor, relative_pose(reference.view, one.view))) for one in sources]
        reach = (options.window - 1) // 2 * options.spacing
        steps = torch.arange(-reach, reach + 1, options.spacing, device=self.device, dtype=torch.float32)
        down, across = torch.meshgrid(steps, steps, indexing="ij")
        self.offsets = torch.stack([torch.ones_like(across), across, down], -1).reshape(-1, 3)[::CHESSBOARD]
        self.noise = (options.noise / 255) ** 2
        self._weigh_windows(reach)

    def _weigh_windows(self, reach: int) -> None:
        """Bilateral weights and the weighted, centred reference of every window: they do not depend on the planes."""
        gray = self.reference.gray[None, None]
        padded = functional.pad(gray, (reach,) * 4, mode="replicate")
        windows = functional.unfold(padded, self.options.window, dilation=self.options.spacing)[0, ::CHESSBOARD]
        squares = (self.offsets[:, 1:] ** 2).sum(1) / max(reach, 1) ** 2
        weights = (windows - gray.reshape(1, -1)).square_().mul_(-0.5 / self.options.colour_sigma**2)
        weights.sub_(squares[:, None] / 2).exp_()
        weights.div_(weights.sum(0))
        windows.sub_((weights * windows).sum(0))
        windows.mul_(weights)
        self.weights, self.weighted = weights, windows
        self.variance = (windows.square() / weights.clamp_min(1e-12)).sum(0)

    def score(self, planes: Tensor) -> Tensor:
        """Planes (3, H, W) -> mean correlation (H, W) of the `agreeing` best sources."""
        flat = planes.reshape(3, -1)
        out = torch.empty(flat.shape[1], device=self.device)
        for start in range(0, flat.shape[1], self.chunk):
            end = min(start + self.chunk, flat.shape[1])
            best: list[Tensor] = []
            for index in range(len(self.sources)):
                keep_best(best, self._correlate(index, flat[:, start:end], start, end), self.options.agreeing)
            out[start:end] = torch.stack(best).mean(0)
        return out.reshape(self.height, self.width)

    def _correlate(self, index: int, planes: Tensor, start: int, end: int) -> Tensor:
        inverse, across, down = planes
        matrix, shift = self.poses[index]
        gray = self.sources[index].gray
        height, width = gray.shape
        pixel = torch.arange(start, end, device=self.device)
        x, y = (pixel % self.width).float(), (pixel // self.width).float()
        centre = matrix[:, :1] * x + matrix[:, 1:2] * y + matrix[:, 2:] + shift[:, None] * inverse
        depth = centre[2].clamp_min(1e-6)
        place = centre[:2] / depth
        by_x, by_y = matrix[:, :1] + shift[:, None] * across, matrix[:, 1:2] + shift[:, None] * down
        affine = torch.stack([place, (by_x[:2] - place * by_x[2]) / depth, (by_y[:2] - place * by_y[2]) / depth])
        seen = (centre[2] > 0) & (place[0] >= 0) & (place[0] <= width - 1) & (place[1] >= 0) & (place[1] <= height - 1)
        # to grid_sample's range -1..1, x and y interleaved
        scale = torch.tensor([2 / (width - 1), 2 / (height - 1)], device=self.device)
        affine *= scale[:, None]
        affine[0] -= 1
        grid = self.offsets @ affine.transpose(1, 2).reshape(3, -1)  # (samples, 2 N)
        grid = grid.reshape(1, len(self.offsets), end - start, 2)
        sampled = functional.grid_sample(gray[None, None], grid, padding_mode="border", align_corners=True)[0, 0]
        weights, weighted = self.weights[:, start:end], self.weighted[:, start:end]
        covariance = (weighted * sampled).sum(0)
        noise = self.noise
        lighter = weights * sampled
        mean = lighter.sum(0)
        variance = lighter.mul_(sampled).sum(0) - mean * mean
        correlation = covariance * torch.rsqrt((self.variance[start:end] + noise) * (variance.clamp_min_(0) + noise))
        return torch.where(seen, correlation, -1.0)


def keep_best(best: list[Tensor], new: Tensor, count: int) -> None:
    """Keep the `count` largest values of each element, largest first."""
    for place, held in enumerate(best):
        best[place], new = torch.maximum(held, new), torch.minimum(held, new)
    if len(best) < count:
        best.append(new)


def box_mean(images: Tensor, side: int) -> Tensor:
    """Mean over side x side pixels of (N, H, W), fewer at the border."""
    rows = functional.avg_pool2d(images[:, None], (side, 1), 1, (side // 2, 0), count_include_pad=False)
    return functional.avg_pool2d(rows, (1, side), 1, (0, side // 2), count_include_pad=False)[:, 0]


def sweep(matcher: Matcher, inverses: Tensor, side: int = 7) -> tuple[Surface, Tensor]:
    """The best plane parallel to the image for each pixel, and the best score of a clearly different depth."""
    height, width = matcher.height, matcher.width
    gray = matcher.reference.gray
    mean = box_mean(gray[None], side)
    variance = (box_mean(gray[None].square(), side) - mean.square())[0].clamp_min_(0) + matcher.noise
    pixels = torch.stack(pixel_grid(height, width, matcher.device)).reshape(2, -1)
    volume = torch.empty(len(inverses), height, width, device=matcher.device)
    for place, inverse in enumerate(inverses):
        best: list[Tensor] = []
        for source, (matrix, shift) in zip(matcher.sources, matcher.poses, strict=True):
            seen = matrix[:, :2] @ pixels + (matrix[:, 2] + shift * inverse)[:, None]
            there = seen[:2] / seen[2].clamp_min(1e-6)
            high, wide = source.gray.shape
            grid = there * torch.tensor([[2 / (wide - 1)], [2 / (high - 1)]], device=matcher.device) - 1
            inside = ((grid.abs() <= 1).all(0) & (seen[2] > 0)).reshape(height, width)
            grid = grid.T.reshape(1, height, width, 2)
            warped = functional.grid_sample(source.gray[None, None], grid, padding_mode="border", align_corners=True)[0]
            means = box_mean(torch.cat([warped, warped.square(), warped * gray]), side)
            spread = (means[1] - means[0].square()).clamp_min(0)
            covariance = means[2] - means[0] * mean[0]
            correlation = covariance * torch.rsqrt(variance * (spread + matcher.noise))
            keep_best(best, torch.where(inside, correlation, -1.0), matcher.options.agreeing)
        volume[place] = torch.stack(best).mean(0)
    score, chosen = volume.max(0)
    planes = torch.zeros(3, height, width, device=matcher.device)
    planes[0] = inverses[chosen]
    steps = torch.arange(len(inverses), device=matcher.device)[:, None, None]
    other = torch.where((steps - chosen).abs() > 2, volume, -1.0).amax(0)
    return Surface(planes, score), other


def pixel_grid(height: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """x and y of every pixel, (H, W) float32 each."""
    y, x = torch.meshgrid(torch.arange(height, device=device), torch.arange(width, device=device), indexing="ij")
    return x.float(), y.float()


def shifted(values: Tensor, across: int, down: int) -> Tensor:
    """(..., H, W) -> at each pixel the value of the pixel (across, down) further on; the border repeats."""
    height, width = values.shape[-2:]
    reach = max(abs(across), abs(down))
    padded = functional.pad(values.reshape(1, -1, height, width), (reach,) * 4, mode="replicate")
    moved = padded[0, :, reach + down : reach + down + height, reach + across : reach + across + width]
    return moved.reshape(values.shape)


def best_neighbours(surface: Surface, direction: tuple[int, int], distances: tuple[int, ...]) -> Tensor:
    """For each pixel, the plane of the best pixel in one direction, extrapolated to it: (3, H, W)."""
    height, width = surface.score.shape
    x, y = pixel_grid(height, width, surface.score.device)
    best, planes = torch.full_like(surface.score, -2), torch.empty_like(surface.planes)
    for distance in distances:
        across, down = direction[0] * distance, direction[1] * distance
        score, there = shifted(surface.score, across, down), shifted(surface.planes, across, down)
        # less far at the border
        moved_x = (x + across).clamp_(0, width - 1) - x
        moved_y = (y + down).clamp_(0, height - 1) - y
        there[0] -= there[1] * moved_x + there[2] * moved_y
        better = score > best
        best = torch.where(better, score, best)
        planes = torch.where(better, there, planes)
    return planes


def smoothed_planes(surface: Surface, reach: int = 1) -> Tensor:
    """Planes averaged over the neighbours of each pixel; weights grow with score and similarity of depth."""
    inverse = surface.planes[0]
    weight_sum = torch.zeros_like(inverse)
    total = torch.zeros_like(surface.planes)
    for down in range(-reach, reach + 1):
        for across in range(-reach, reach + 1):
            there = shifted(surface.planes, across, down)
            there[0] -= there[1] * across + there[2] * down
            weight = shifted(surface.score, across, down).clamp_min(0.01).square()
            weight = weight * torch.exp(-(((there[0] - inverse) / (0.02 * inverse)) ** 2))
            weight_sum += weight
            total += there * weight
    return total / weight_sum.clamp_min(1e-12)


def improve(matcher: Matcher, surface: Surface, candidates: Tensor, limits: tuple[float, float]) -> Surface:
    candidates[0].clamp_(*limits)
    score = matcher.score(candidates)
    better = score > surface.score
    return Surface(torch.where(better, candidates, surface.planes), torch.where(better, score, surface.score))


def refine(
    matcher: Matcher, surface: Surface, step: float, limits: tuple[float, float], rounds: int, random: torch.Generator
) -> Surface:
    """Propagate planes to neighbours and perturb them, keeping what correlates better. `step`: see `pixel_step`."""
    focal = float(matcher.reference.view.intrinsics[0, 0])
    shape = surface.planes.shape
    for turn in range(rounds):
        for direction in DIRECTIONS:
            surface = improve(matcher, surface, best_neighbours(surface, direction, DISTANCES), limits)
        surface = improve(matcher, surface, smoothed_planes(surface), limits)
        noise = torch.randn(2, *shape, generator=random).to(matcher.device)
        strength = 0.5**turn
        perturbed = surface.planes.clone()
        perturbed[1:] += noise[0, 1:] * (0.5 * strength * surface.planes[0] / focal)
        surface = improve(matcher, surface, perturbed, limits)
        perturbed = surface.planes.clone()
        perturbed[0] += noise[1, 0] * (step * strength)
        surface = improve(matcher, surface, perturbed, limits)
    return surface


def to_peak(matcher: Matcher, surface: Surface, step: float, limits: tuple[float, float]) -> Surface:
    """Move each depth to the top of the parabola through three scores."""
    before, after = surface.planes.clone(), surface.planes.clone()
    before[0] -= step
    after[0] += step
    low, high = matcher.score(before), matcher.score(after)
    bend = (2 * surface.score - low - high).clamp_min(1e-6)
    peak = surface.planes.clone()
    peak[0] += step * ((high - low) / (2 * bend)).clamp_(-1, 1)
    return improve(matcher, surface, peak, limits)


def finer(surface: Surface, height: int, width: int) -> Tensor:
    """Planes (3, h, w) resampled to an image of height x width."""
    small_height, small_width = surface.score.shape
    x, y = pixel_grid(height, width, surface.score.device)
    x, y = (x + 0.5) * (small_width / width) - 0.5, (y + 0.5) * (small_height / height) - 0.5
    near_x, near_y = x.round().clamp_(0, small_width - 1), y.round().clamp_(0, small_height - 1)
    planes = surface.planes[:, near_y.long(), near_x.long()]
    planes[0] += planes[1] * (x - near_x) + planes[2] * (y - near_y)
    planes[1] *= small_width / width
    planes[2] *= small_height / height
    return planes


def pixel_step(reference: View, sources: list[View], inverse: float) -> float:
    """Change of inverse depth that moves the middle of the image by one pixel in the typical source."""
    middle = np.array([(reference.width - 1) / 2, (reference.height - 1) / 2, 1])
    moves = []
    for source in sources:
        matrix, shift = relative_pose(reference, source)
        centre = matrix @ middle + shift * inverse
        moves.append(np.hypot(*((shift[:2] - centre[:2] / centre[2] * shift[2]) / centre[2])))
    return 1 / float(np.median(moves))


def level_sizes(width: int, height: int, options: DenseOptions) -> list[tuple[int, int]]:
    """(width, height) from the coarsest to the finest, each about half the next."""
    count = 1 + max(0, round(math.log2(max(width, height) / options.coarsest)))
    return [(round(width / 2**power), round(height / 2**power)) for power in reversed(range(count))]


def reconstruct_surface(
    pyramids: list[list[PosedImage]], inverse_range: tuple[float, float], options: DenseOptions, seed: int
) -> tuple[Surface, Tensor]:
    """Surface of the first pyramid, matched with the others, and the best score (H, W) of another depth in the sweep.

    Each pyramid lists a photo from coarse to fine.
    """
    random = torch.Generator().manual_seed(seed)
    low, high = inverse_range
    for level, images in enumerate(zip(*pyramids, strict=True)):
        reference, sources = images[0], list(images[1:])
        matcher = Matcher(reference, sources, options)
        step = pixel_step(reference.view, [one.view for one in sources], (low + high) / 2)
        if level == 0:
            count = int(np.clip((high - low) / (0.7 * step), 24, 256))
            surface, rival = sweep(matcher, torch.linspace(low, high, count, device=matcher.device))
            planes = surface.planes
        else:
            planes = finer(surface, matcher.height, matcher.width)
        surface = Surface(planes, matcher.score(planes))
        rounds = options.rounds[min(level, len(options.rounds) - 1)]
        surface = refine(matcher, surface, step, (low, high), rounds, random)
    surface = to_peak(matcher, surface, 0.5 * step, (low, high))
    return surface, functional.interpolate(rival[None, None], surface.score.shape, mode="bilinear")[0, 0]


def count_consistent(
    reference: View,
    depths: np.ndarray,
    others: list[tuple[View, np.ndarray]],
    reprojection: float,
    depth_difference: float,
    device: torch.device | str = "cpu",
) -> np.ndarray:
    """How many other depth maps confirm each depth: (H, W) int64. Views have the size of their maps; depth 0 is unknown.

    A pixel is reprojected to the other photo, and the depth found there is reprojected back: it must arrive within
    `reprojection` pixels, with a depth that differs by at most the fraction `depth_difference`.
    """
    counts = np.zeros(depths.shape, dtype=np.int64)
    rows, columns = np.nonzero(depths > 0)
    pixels = torch.from_numpy(np.stack([columns, rows]).astype(np.float64)).to(device)
    known = torch.from_numpy(depths[rows, columns].astype(np.float64)).to(device)
    total = torch.zeros(len(rows), dtype=torch.int64, device=device)
    for view, found in others:
        seen, depth = reproject(reference, view, pixels, known)
        column, row = seen.round()
        inside = (depth > 0) & (column >= 0) & (row >= 0) & (column < view.width) & (row < view.height)
        place = torch.where(inside, row * view.width + column, 0).long()
        there = torch.from_numpy(found.astype(np.float64)).to(device).ravel()[place]
        # The depth of the nearest pixel on the ray of the exact location: the rounding is not an error of depth.
        back, again = reproject(view, reference, seen, there)
        close = (back - pixels).square().sum(0) <= reprojection**2
        total += inside & (there > 0) & close & ((again - known).abs() <= depth_difference * known)
    counts[rows, columns] = total.cpu().numpy()
    return counts


def reproject(start: View, end: View, pixels: Tensor, depths: Tensor) -> tuple[Tensor, Tensor]:
    """Pixels (2, N) of one view at depths (N,) -> pixels and depths in another; nan or a depth below 0 if not visible."""
    matrix, shift = (torch.from_numpy(part).to(pixels.device) for part in relative_pose(start, end))
    there = (matrix[:, :2] @ pixels + matrix[:, 2:]) * depths + shift[:, None]
    return there[:2] / there[2], there[2]

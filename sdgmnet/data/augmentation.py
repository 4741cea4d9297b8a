"""Random augmentation of training patches: random numbers are drawn on the host, patches are changed on the device.

"paper" is the authors' augmentation: small rotations and crops of each patch, quarter turns and flips of each pair. "strong"
adds what detectors and cameras do between two photos: larger rotations, crops and stretches, exposure, defocus, noise and
compression. "detector" turns and scales each patch as far as a detector's keypoints of one point mostly differ between photos;
"turned" scales further and turns 15 % of the patches by any angle, as keypoints are often found again with another orientation.
"hardnet", "hynet" and "cdfdesc" are those methods' own: quarter turns and flips of each pair only.
"""

import math
from typing import Literal, NamedTuple

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sdgmnet.data.patchset import PATCH_SIDE
from sdgmnet.engine import halve, resample_matrix
from sdgmnet.registry import Augmentation

Outside = Literal["zeros", "border"]

OUTPUT_SIDE = PATCH_SIDE // 2
CROP_TRIES = 10
CACHE_BLOCK = 128  # patches rotated and cropped at a time on a CPU, so that they stay in its cache


class Ranges(NamedTuple):
    """How far the geometry of one patch may change."""

    turn: float  # largest rotation in radians
    least_area: float  # smallest area of a crop, as a share of the patch
    least_aspect: float  # smallest width / height of a crop
    most_aspect: float


PAPER = Ranges(math.radians(5), 0.9, 0.9, 1.1)
STRONG = Ranges(math.radians(18), 0.65, 0.77, 1.3)


class Misfit(NamedTuple):
    """Largest changes of each patch, drawn independently: the two of a pair differ by up to twice as much."""

    turn: float  # largest rotation in radians of most patches
    any_turn: float  # share of patches turned by any angle
    octaves: float  # largest change of scale


MISFITS: dict[Augmentation, Misfit] = {
    "detector": Misfit(math.radians(30), 0.0, 0.35),
    "turned": Misfit(math.radians(30), 0.15, 0.5),
}


class Geometry(NamedTuple):
    """Random geometry of B patches."""

    turn: np.ndarray  # (B,) radians, counter-clockwise on the image
    crop: np.ndarray  # (B, 4) top, left, height, width in pixels of the 64 x 64 patch


class Light(NamedTuple):
    """Random exposure of B patches, each (B,)."""

    gamma: np.ndarray
    contrast: np.ndarray
    brightness: np.ndarray
    blur: np.ndarray  # sigma in pixels of the 32 x 32 patch; 0 leaves it sharp
    noise: np.ndarray  # standard deviation, of a full range of 1


def augment(
    patches: np.ndarray,
    kind: Augmentation,
    rng: np.random.Generator,
    batch_size: int,
    rows: slice,
    device: torch.device | str,
    share: np.ndarray | None = None,
) -> Tensor:
    """Patches (2, count, 64, 64) uint8 of pairs `rows` of a batch -> (2, count, 1, 32, 32) float32 in [0, 1].

    share (2, count): of each patch only so much of its side about the centre is used; None uses all of every patch.
    Random numbers are drawn for the whole batch, so that a pair is the same whichever rows are made.
    """
    count, both = patches.shape[1], 2 * batch_size

    def of_rows(drawn: np.ndarray) -> np.ndarray:
        """Of random numbers (2 * batch_size, ...) those of the pairs that are made."""
        return drawn.reshape(2, batch_size, *drawn.shape[1:])[:, rows].reshape(2 * count, *drawn.shape[1:])

    flat = patches.reshape(-1, PATCH_SIDE, PATCH_SIDE)
    if kind == "strong":
        flat = compress(flat, of_rows(draw_qualities(rng, both)))
    pixels = torch.from_numpy(flat).to(device).float()
    if kind == "none":
        return (shrink(pixels, share) / 255).view(2, count, 1, OUTPUT_SIDE, OUTPUT_SIDE)
    if kind in MISFITS:
        geometry = Geometry(*map(of_rows, draw_misfit(rng, both, MISFITS[kind])))
        small = turn_and_crop(pixels, within_patch(towards_centre(geometry, share)), outside="border") / 255
        return small.view(2, count, 1, OUTPUT_SIDE, OUTPUT_SIDE)
    if kind == "paper":
        geometry = Geometry(*map(of_rows, draw_geometry(rng, both, PAPER)))
        small = turn_and_crop(pixels, towards_centre(geometry, share)) / 255
    elif kind == "strong":
        geometry = Geometry(*map(of_rows, draw_geometry(rng, both, STRONG)))
        light = Light(*map(of_rows, draw_light(rng, both)))
        grain = of_rows(rng.standard_normal((both, OUTPUT_SIDE, OUTPUT_SIDE), dtype=np.float32))
        small = turn_and_crop(pixels, towards_centre(geometry, share), outside="border") / 255
        small = relight(small, light, grain)
    else:
        small = shrink(pixels, share) / 255
    pairs = small.view(2, count, OUTPUT_SIDE, OUTPUT_SIDE).transpose(0, 1)
    turns, flips = draw_turns_and_flips(rng, batch_size, kind)
    pairs = quarter_turns_and_flips(pairs, turns[rows], flips[rows])
    return pairs.transpose(0, 1)[:, :, None].contiguous()


def shrink(pixels: Tensor, share: np.ndarray | None) -> Tensor:
    """(B, 64, 64) -> (B, 32, 32): all of each patch, or that share of its side about the centre."""
    if share is None:
        return halve(pixels)
    length = torch.from_numpy(PATCH_SIDE * share.ravel()).to(pixels)
    matrix = resample_matrix((PATCH_SIDE - length) / 2, length, PATCH_SIDE, OUTPUT_SIDE)
    return matrix @ pixels @ matrix.transpose(1, 2)


def towards_centre(geometry: Geometry, share: np.ndarray | None) -> Geometry:
    """The same geometry of the middle of each patch."""
    if share is None:
        return geometry
    kept = share.reshape(-1, 1)
    corner = (1 - kept) * PATCH_SIDE / 2 * np.array([1, 1, 0, 0])
    return geometry._replace(crop=geometry.crop * kept + corner)


def within_patch(geometry: Geometry) -> Geometry:
    """Square crops that reach beyond the patch, made smaller about the same centre."""
    side = np.minimum(geometry.crop[:, 2:], PATCH_SIDE)
    return geometry._replace(crop=np.hstack([geometry.crop[:, :2] + (geometry.crop[:, 2:] - side) / 2, side]))


def draw_misfit(rng: np.random.Generator, count: int, misfit: Misfit) -> Geometry:
    """Orientation and scale as a detector may find them: wrong by an angle, sometimes by any, and by a share of an octave."""
    turn = rng.uniform(-misfit.turn, misfit.turn, count)
    if misfit.any_turn:
        turn = np.where(rng.random(count) < misfit.any_turn, rng.uniform(-math.pi, math.pi, count), turn)
    side = PATCH_SIDE * 2 ** rng.uniform(-misfit.octaves, misfit.octaves, (count, 1))
    return Geometry(turn, np.hstack([(PATCH_SIDE - side) / 2] * 2 + [side] * 2))


def draw_geometry(rng: np.random.Generator, count: int, ranges: Ranges = PAPER) -> Geometry:
    """The geometry of the authors' published code: rotation within 5 degrees, then a crop of 90 to 100 % of the area.

    A crop's aspect ratio is log-uniform. A crop that does not fit is drawn again, up to ten times; then there is no crop.
    """
    turn = rng.uniform(-ranges.turn, ranges.turn, count)
    area = PATCH_SIDE**2 * rng.uniform(ranges.least_area, 1, (count, CROP_TRIES))
    aspect = np.exp(rng.uniform(math.log(ranges.least_aspect), math.log(ranges.most_aspect), (count, CROP_TRIES)))
    width, height = np.rint(np.sqrt(area * aspect)), np.rint(np.sqrt(area / aspect))
    fits = (width <= PATCH_SIDE) & (height <= PATCH_SIDE)
    chosen = np.arange(count), fits.argmax(axis=1)
    none_fits = ~fits.any(axis=1)
    height = np.where(none_fits, PATCH_SIDE, height[chosen])
    width = np.where(none_fits, PATCH_SIDE, width[chosen])
    top = np.floor(rng.random(count) * (PATCH_SIDE - height + 1))
    left = np.floor(rng.random(count) * (PATCH_SIDE - width + 1))
    return Geometry(turn, np.stack([top, left, height, width], axis=1))


def turn_and_crop(pixels: Tensor, geometry: Geometry, outside: Outside = "zeros") -> Tensor:
    """Rotate about the centre (bilinear), crop, resample with antialiasing: (B, 64, 64) -> (B, 32, 32).

    outside: beyond the patch, "zeros" is black, as PIL's rotate leaves it: a pixel whose source lies outside is 0, and inside
    the border is repeated for interpolation. "border" repeats it outside too.
    """
    block = CACHE_BLOCK if pixels.device.type == "cpu" else max(1, len(pixels))
    out = pixels.new_empty(len(pixels), OUTPUT_SIDE, OUTPUT_SIDE)
    for rows in (slice(start, start + block) for start in range(0, len(pixels), block)):
        out[rows] = _turn_and_crop(pixels[rows], Geometry(geometry.turn[rows], geometry.crop[rows]), outside)
    return out


def _turn_and_crop(pixels: Tensor, geometry: Geometry, outside: Outside) -> Tensor:
    turn = torch.from_numpy(geometry.turn).to(pixels)[:, None, None]
    cos, sin = torch.cos(turn), torch.sin(turn)
    across = (torch.arange(PATCH_SIDE, device=pixels.device, dtype=pixels.dtype) * 2 + 1) / PATCH_SIDE - 1
    down = across[:, None]
    grid = torch.stack([cos * across - sin * down, sin * across + cos * down], dim=3)
    turned = F.grid_sample(pixels[:, None], grid, mode="bilinear", padding_mode="border", align_corners=False)[:, 0]
    if outside == "zeros":
        turned = turned * ((grid >= -1) & (grid < 1)).all(dim=3)
    top, left, height, width = torch.from_numpy(geometry.crop).to(pixels).unbind(1)
    return (
        resample_matrix(top, height, PATCH_SIDE, OUTPUT_SIDE)
        @ turned
        @ resample_matrix(left, width, PATCH_SIDE, OUTPUT_SIDE).transpose(1, 2)
    )


def quarter_turns_and_flips(pairs: Tensor, turns: np.ndarray, flips: np.ndarray) -> Tensor:
    """The same quarter turn (0 to 3, counter-clockwise) and flip (0 none, 1 vertical, 2 horizontal) for both of a pair.

    pairs (N, 2, S, S); returns the same shape.
    """
    out = torch.empty_like(pairs)
    for turn in range(4):
        for flip in range(3):
            rows = torch.from_numpy(np.flatnonzero((turns == turn) & (flips == flip))).to(pairs.device)
            moved = torch.rot90(pairs[rows], turn, dims=(2, 3))
            out[rows] = moved if flip == 0 else moved.flip(2 if flip == 1 else 3)
    return out


def draw_turns_and_flips(rng: np.random.Generator, count: int, kind: Augmentation) -> tuple[np.ndarray, np.ndarray]:
    """Quarter turns and flips (count,) for `quarter_turns_and_flips`, as a method's published code draws them.

    hardnet: half are transposed, then half are mirrored left to right. hynet (and TFeat): half are turned by 90, 180 or 270
    degrees, then half are flipped upside down. Others: one of the four quarter turns, then no flip or one of the two.
    """
    if kind == "hardnet":
        transposed, mirrored = rng.integers(2, size=(2, count))
        # A transposition is a quarter turn and a vertical flip; mirrored, it is a quarter turn the other way.
        return np.where(transposed, np.where(mirrored, 3, 1), 0), np.where(transposed, 1 - mirrored, 2 * mirrored)
    if kind == "hynet":
        turned, flipped = rng.integers(2, size=(2, count))
        return turned * rng.integers(1, 4, size=count), flipped
    return rng.integers(4, size=count), rng.integers(3, size=count)


def draw_light(rng: np.random.Generator, count: int) -> Light:
    """Exposure within an octave either way, half of the patches out of focus, noise up to 4 % of the range."""
    blur = np.where(rng.random(count) < 0.5, rng.uniform(0.3, 1.2, count), 0)
    return Light(
        gamma=2 ** rng.uniform(-0.8, 0.8, count),
        contrast=2 ** rng.uniform(-1, 0.6, count),
        brightness=rng.uniform(-0.2, 0.2, count),
        blur=blur,
        noise=rng.uniform(0, 0.04, count),
    )


def relight(patches: Tensor, light: Light, grain: np.ndarray) -> Tensor:
    """Patches (B, S, S) in [0, 1] under another exposure, in [0, 1]; grain (B, S, S) is standard normal noise."""
    gamma, contrast, brightness, noise = (
        torch.from_numpy(one).to(patches)[:, None, None]
        for one in (light.gamma, light.contrast, light.brightness, light.noise)
    )
    seen = patches.clamp(0, 1) ** gamma
    middle = seen.mean(dim=(1, 2), keepdim=True)
    seen = blurred((seen - middle) * contrast + middle + brightness, light.blur)
    return (seen + noise * torch.from_numpy(grain).to(patches)).clamp(0, 1)


def blurred(patches: Tensor, sigma: np.ndarray) -> Tensor:
    """Gaussian blur of (B, S, S) with a sigma per patch; weights are renormalised at the border."""
    position = torch.arange(patches.shape[-1], device=patches.device, dtype=patches.dtype)
    width = torch.from_numpy(np.maximum(sigma, 1e-3)).to(patches)[:, None, None]
    weights = torch.exp(-0.5 * ((position[:, None] - position[None]) / width) ** 2)
    weights = weights / weights.sum(dim=2, keepdim=True)
    return weights @ patches @ weights.transpose(1, 2)


def draw_qualities(rng: np.random.Generator, count: int) -> np.ndarray:
    """JPEG qualities (count,) from 15 to 75 for a quarter of the patches, 0 for the others."""
    quality = rng.integers(15, 76, count)
    return np.where(rng.random(count) < 0.25, quality, 0)


def compress(patches: np.ndarray, quality: np.ndarray) -> np.ndarray:
    """Patches (B, S, S) uint8, compressed as JPEG where their quality (B,) is above 0."""
    out = patches.copy()
    for row in np.flatnonzero(quality):
        coded = cv2.imencode(".jpg", patches[row], [cv2.IMWRITE_JPEG_QUALITY, int(quality[row])])[1]
        out[row] = cv2.imdecode(coded, cv2.IMREAD_GRAYSCALE)
    return out

"""Augmentation by docs/protocols.md 1.5, against PIL; the stronger one against OpenCV and by hand."""

import math
from collections.abc import Iterable

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

from sdgmnet.data.augmentation import (
    MISFITS,
    PAPER,
    STRONG,
    Augmentation,
    Geometry,
    Light,
    Ranges,
    blurred,
    compress,
    draw_geometry,
    draw_light,
    draw_misfit,
    draw_qualities,
    draw_turns_and_flips,
    quarter_turns_and_flips,
    relight,
    towards_centre,
    turn_and_crop,
    within_patch,
)
from sdgmnet.engine import halve

WHOLE = (0.0, 0.0, 64.0, 64.0)


def geometry_of(turns: list[float], crops: list[tuple[float, ...]]) -> Geometry:
    return Geometry(np.array(turns), np.array(crops))


@pytest.mark.parametrize("kind", ["detector", "turned"])
def test_misfit_of_a_detector_fills_its_ranges(kind: Augmentation) -> None:
    """Rotation and scale of each patch about its centre; a crop of part of a patch may reach to its border and no further."""
    misfit = MISFITS[kind]
    drawn = draw_misfit(np.random.default_rng(0), 20000, misfit)
    large = np.abs(drawn.turn) > misfit.turn
    assert large.mean() == pytest.approx(misfit.any_turn * (1 - misfit.turn / math.pi), abs=0.01)
    assert np.abs(drawn.turn).max() <= math.pi and abs(drawn.turn.mean()) < 0.03
    assert np.abs(drawn.turn[~large]).max() > 0.998 * misfit.turn
    octaves = np.log2(drawn.crop[:, 2] / 64)
    assert 0.998 * misfit.octaves < np.abs(octaves).max() <= misfit.octaves and abs(octaves.mean()) < 0.01
    for share in (1.0, 20 / 24, 0.5):
        top, left, height, width = within_patch(towards_centre(drawn, np.full(20000, share))).crop.T
        assert np.array_equal(top, left) and np.array_equal(height, width) and np.allclose(top + height / 2, 32)
        assert np.allclose(height, np.minimum(64, 64 * share * 2**octaves)) and (top > -1e-9).all()


@pytest.mark.parametrize("ranges", [PAPER, STRONG])
def test_geometry_fills_its_ranges(ranges: Ranges) -> None:
    """docs/protocols.md 1.5: rotations within 5 degrees, 90 to 100 % of the area, nearly square, anywhere in the patch."""
    drawn = draw_geometry(np.random.default_rng(0), 20000, ranges)
    assert drawn.turn.shape == (20000,) and ranges.turn in (math.radians(5), math.radians(18))
    assert 0.998 * ranges.turn < np.abs(drawn.turn).max() <= ranges.turn
    assert abs(drawn.turn.mean()) < 5 * drawn.turn.std() / math.sqrt(20000)
    assert drawn.turn.std() == pytest.approx(2 * ranges.turn / math.sqrt(12), rel=0.02)
    top, left, height, width = drawn.crop.T
    assert np.array_equal(drawn.crop, np.round(drawn.crop))
    assert (top >= 0).all() and (left >= 0).all() and (top + height <= 64).all() and (left + width <= 64).all()
    # Sides are rounded by half a pixel at most: an area and an aspect within the ranges must be within reach.
    least = ranges.least_area
    assert ((height + 0.5) * (width + 0.5) >= least * 4096).all() and ((height - 0.5) * (width - 0.5) <= 4096).all()
    assert ((width - 0.5) / (height + 0.5) <= ranges.most_aspect).all()
    assert ((width + 0.5) / (height - 0.5) >= ranges.least_aspect).all()
    area, aspect = height * width / 4096, width / height
    assert area.min() == pytest.approx(least, abs=0.02) and area.max() > 0.99
    assert aspect.min() == pytest.approx(ranges.least_aspect, abs=0.04)
    assert aspect.max() == pytest.approx(ranges.most_aspect, abs=0.04)
    assert abs(np.log(aspect).mean()) < 0.005  # as often wide as high
    smaller = height == 61
    places, counts = np.unique(top[smaller], return_counts=True)
    assert places.tolist() == [0, 1, 2, 3] and counts.min() > 0.8 * smaller.sum() / 4
    assert set(np.unique(left[width == 62]).tolist()) == {0, 1, 2}


def rotated_by_pil(patch: np.ndarray, degrees: float) -> np.ndarray:
    return np.asarray(Image.fromarray(patch).rotate(degrees, Image.Resampling.BILINEAR))


@pytest.mark.parametrize("degrees", [5.0, -3.3, 1.0, 0.0, 18.0])
def test_turn_is_pils_over_the_whole_patch(degrees: float) -> None:
    """Hard black outside, the border repeated inside; PIL cuts the turned patch off to whole grey levels."""
    patch = np.random.default_rng(1).integers(100, 256, size=(64, 64), dtype=np.uint8)
    expected = halve(torch.from_numpy(rotated_by_pil(patch, degrees).astype(np.float64))[None])[0]
    result = turn_and_crop(torch.from_numpy(patch)[None].double(), geometry_of([math.radians(degrees)], [WHOLE]))[0]
    assert (result - expected).min() > -0.01 and (result - expected).max() < 1
    corners = [float(result[row, column]) for row in (0, 31) for column in (0, 31)]
    assert degrees != 5 or max(corners) < 50
    assert degrees != 0 or min(corners) > 90


@pytest.mark.parametrize("degrees", [5, -5, 2])
@pytest.mark.parametrize("crop", [(0, 0, 64, 64), (1, 2, 61, 60), (3, 0, 60, 63)])
def test_turn_and_crop_is_what_pil_does(degrees: int, crop: tuple[int, int, int, int]) -> None:
    """Over the whole patch; PIL rounds to whole grey levels three times."""
    patch = np.random.default_rng(2).integers(256, size=(64, 64), dtype=np.uint8)
    top, left, height, width = crop
    turned = Image.fromarray(rotated_by_pil(patch, degrees))
    cropped = turned.crop((left, top, left + width, top + height)).resize((32, 32), Image.Resampling.BILINEAR)
    geometry = geometry_of([math.radians(degrees)], [tuple(map(float, crop))])
    result = turn_and_crop(torch.from_numpy(patch)[None].float(), geometry)[0].numpy()
    assert np.abs(result - np.asarray(cropped, dtype=float)).max() <= 2


def test_each_patch_has_its_own_geometry() -> None:
    patches = torch.from_numpy(np.random.default_rng(3).integers(256, size=(5, 64, 64)).astype(np.float32))
    geometry = draw_geometry(np.random.default_rng(4), 5)
    together = turn_and_crop(patches, geometry)
    for row in range(5):
        one = Geometry(geometry.turn[row : row + 1], geometry.crop[row : row + 1])
        assert torch.allclose(turn_and_crop(patches[row : row + 1], one)[0], together[row], atol=1e-3)


def test_a_turn_may_repeat_the_border() -> None:
    patch = torch.full((1, 64, 64), 90.0)
    turned = turn_and_crop(patch, geometry_of([math.radians(18)], [WHOLE]), outside="border")
    torch.testing.assert_close(turned, torch.full((1, 32, 32), 90.0))


def test_light_by_hand() -> None:
    grain = np.random.default_rng(0).standard_normal((4, 32, 32))
    patches = torch.rand(4, 32, 32, dtype=torch.float64) * 0.5 + 0.25
    same = Light(*(np.full(4, value) for value in (1.0, 1.0, 0.0, 0.0, 0.0)))

    def relit(**changes: float) -> torch.Tensor:
        return relight(patches, same._replace(**{name: np.full(4, value) for name, value in changes.items()}), grain)

    middle = patches.mean(dim=(1, 2), keepdim=True)
    torch.testing.assert_close(relit(), patches)
    torch.testing.assert_close(relit(gamma=2.0), patches**2)
    torch.testing.assert_close(relit(contrast=0.5, brightness=0.1), (patches - middle) / 2 + middle + 0.1)
    torch.testing.assert_close(relit(noise=0.02), (patches + 0.02 * torch.from_numpy(grain)).clamp(0, 1))
    assert torch.equal(relit(brightness=5.0), torch.ones_like(patches))


@pytest.mark.parametrize("sigma", [0.5, 1.2])
def test_blur_is_opencvs_away_from_the_border(sigma: float) -> None:
    patches = np.random.default_rng(1).random((2, 32, 32))
    mine = blurred(torch.from_numpy(patches), np.array([sigma, 0.0])).numpy()
    expected = cv2.GaussianBlur(patches[0], (21, 21), sigma)
    np.testing.assert_allclose(mine[0, 8:-8, 8:-8], expected[8:-8, 8:-8], atol=1e-5)
    np.testing.assert_allclose(mine[1], patches[1], atol=1e-12)


def test_light_keeps_to_its_ranges() -> None:
    light = draw_light(np.random.default_rng(0), 20000)
    assert 0.57 < light.gamma.min() < 0.59 and 1.7 < light.gamma.max() < 1.75
    assert 0.5 <= light.contrast.min() < 0.51 and 1.5 < light.contrast.max() < 1.52
    assert np.mean(light.blur == 0) == pytest.approx(0.5, abs=0.02) and light.blur.max() < 1.2
    assert light.noise.min() >= 0 and light.noise.max() <= 0.04


def test_compression_changes_a_share_and_little() -> None:
    smooth = cv2.GaussianBlur(np.random.default_rng(0).uniform(0, 255, (64, 64)), (0, 0), 3)
    patches = np.repeat(smooth.astype(np.uint8)[None], 200, axis=0)
    out = compress(patches, draw_qualities(np.random.default_rng(0), len(patches)))
    changed = (out != patches).any(axis=(1, 2))
    assert changed.mean() == pytest.approx(0.25, abs=0.1)
    assert np.abs(out.astype(int) - patches).mean() < 5
    assert out is not patches and out.dtype == np.uint8


PATCH = np.arange(16.0).reshape(4, 4)


def shares(cases: Iterable[tuple[np.ndarray, float]]) -> dict[bytes, float]:
    """How often each image comes out of one patch, by the image itself."""
    found: dict[bytes, float] = {}
    for image, share in cases:
        key = np.ascontiguousarray(image).tobytes()
        found[key] = found.get(key, 0.0) + share
    return found


def expected_shares(kind: Augmentation) -> dict[bytes, float]:
    """From the protocol's words, by numpy's own transpositions, turns and mirrorings."""
    if kind == "hardnet":
        return shares((change(one), 1 / 4) for one in (PATCH, PATCH.T) for change in (np.array, np.fliplr))
    turned = [np.rot90(PATCH, turn) for turn in range(4)]
    if kind == "hynet":
        chances = zip(turned, (1 / 4, 1 / 12, 1 / 12, 1 / 12), strict=True)
        return shares((change(one), chance) for one, chance in chances for change in (np.array, np.flipud))
    return shares((change(one), 1 / 12) for one in turned for change in (np.array, np.fliplr, np.flipud))


@pytest.mark.parametrize("kind", ["hardnet", "hynet", "cdfdesc", "paper"])
def test_turns_and_flips_are_drawn_as_each_method_does(kind: Augmentation) -> None:
    turns, flips = draw_turns_and_flips(np.random.default_rng(0), 20000, kind)
    pairs = torch.from_numpy(np.broadcast_to(PATCH, (20000, 2, 4, 4)).copy())
    drawn = quarter_turns_and_flips(pairs, turns, flips)[:, 0].numpy()
    mine, theirs = shares((image, 1 / 20000) for image in drawn), expected_shares(kind)
    assert mine.keys() == theirs.keys()
    assert all(mine[key] == pytest.approx(theirs[key], abs=0.015) for key in mine)

"""Keypoints aligned by their pixels: against images whose true motion is known, and against loops over small examples."""

from itertools import pairwise

import cv2
import numpy as np
import pytest

from sdgmnet.errors import InputError
from sdgmnet.features.keypoints import Keypoints
from sdgmnet.features.patches import local_frames
from sdgmnet.sfm import refine
from sdgmnet.sfm.refine import (
    PLACES,
    SIDE,
    WEIGHTS,
    WINDOW,
    align,
    best_connected,
    choose_references,
    normalise,
    solver,
)

SIZE = 400


def texture(seed: int = 0) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(size=(SIZE, SIZE)).astype(np.float32)
    smooth = cv2.GaussianBlur(noise, None, 2.5)
    return np.clip(128 + 45 * smooth / smooth.std(), 0, 255).astype(np.uint8)


def grid(sigma: float = 3.0) -> Keypoints:
    places = np.arange(60.0, SIZE - 60, 35)
    xy = np.stack(np.meshgrid(places, places), axis=-1).reshape(-1, 2)
    return Keypoints(xy, np.full(len(xy), sigma), np.zeros(len(xy)), np.ones(len(xy)))


def moved(image: np.ndarray, affine: np.ndarray) -> np.ndarray:
    return cv2.warpAffine(image, affine, (SIZE, SIZE), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REFLECT)


# From the first image to the others: foreshortened by a seventh, rotated by five degrees, and both with a shift.
MOTIONS = [
    np.array([[0.86, 0.05, 20.0], [-0.03, 1.0, 9.0]]),
    np.array([[0.9962, -0.0872, 18.0], [0.0872, 0.9962, -15.0]]),
]


def test_keypoints_end_where_the_reference_is() -> None:
    """Of three images with known motion; locations are wrong by half a sigma, brightness and contrast differ."""
    image, keypoints, random = texture(), grid(), np.random.default_rng(1)
    images = [image, *((0.7 * moved(image, motion) + 40).astype(np.uint8) for motion in MOTIONS)]
    true = [keypoints.xy, *(keypoints.xy @ motion[:, :2].T + motion[:, 2] for motion in MOTIONS)]
    noise = [0, *(1.5 * random.uniform(-1, 1, keypoints.xy.shape) for _ in MOTIONS)]
    given = [keypoints._replace(xy=xy + more) for xy, more in zip(true, noise, strict=True)]
    rows = np.arange(len(keypoints.xy))
    same = np.column_stack([rows, rows])
    found = refine.refine_keypoints(images.__getitem__, given, [(0, 1, same), (0, 2, same[:-1])])
    np.testing.assert_array_equal(found[0].xy, given[0].xy)
    np.testing.assert_array_equal(found[2].xy[-1], given[2].xy[-1])  # has no match
    for number in (1, 2):
        before, after = (np.linalg.norm(one.xy - true[number], axis=1)[:-1] for one in (given[number], found[number]))
        assert np.median(before) > 1 and np.median(after) < 0.06 and (after < 0.3).mean() > 0.97
        np.testing.assert_array_equal(found[number].sigma, given[number].sigma)


def test_other_content_stays_where_it_was() -> None:
    given = [grid(), grid()]
    rows = np.arange(len(given[0].xy))
    found = refine.refine_keypoints(
        [texture(0), texture(5)].__getitem__, given, [(0, 1, np.column_stack([rows, rows]))]
    )
    kept = (found[1].xy == given[1].xy).all(axis=1).mean()
    assert kept > 0.9


def test_keypoints_follow_those_they_match(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain of images: the last matches no reference, and follows in the second round."""
    image, keypoints = texture(), grid()
    rows = np.arange(len(keypoints.xy))
    same = np.column_stack([rows, rows])
    given = [
        keypoints,
        keypoints._replace(xy=keypoints.xy + 0.8),
        keypoints,
        keypoints._replace(xy=keypoints.xy - 0.9),
    ]
    matches = [(one, other, same) for one, other in pairwise(range(4))]
    for rounds, followed in ((1, False), (2, True)):
        monkeypatch.setattr(refine, "ROUNDS", rounds)
        found = refine.refine_keypoints(lambda number: image, given, matches)
        spread = np.linalg.norm(found[3].xy - found[1].xy, axis=1)
        assert (np.median(spread) < 0.05) == followed


def test_a_step_explains_a_small_affine_change() -> None:
    """The solver against differences of a smooth function of the place, brightness and contrast changed too."""

    def patch(places: np.ndarray) -> np.ndarray:
        x, y = places.T
        return np.sin(1.7 * x + 0.3) + np.cos(2.1 * y) + 0.5 * np.sin(1.3 * x * y + x)

    step = np.array([0.004, -0.003, 0.005, 0.002, -0.004, 0.003])
    changed = PLACES + step[:2] + PLACES @ step[2:].reshape(2, 2).T
    reference = normalise(100 * patch(PLACES)[None])
    other = normalise(37 * patch(changed)[None] + 80)
    found = solver(reference)[0] @ (other - reference)[0]
    np.testing.assert_allclose(found, step, atol=4e-4)


def test_normalised_patches() -> None:
    patches = np.random.default_rng(0).integers(0, 256, (5, SIDE, SIDE))
    patches[0] = 9  # without contrast
    rows = normalise(patches)
    np.testing.assert_allclose(rows @ WEIGHTS, 0, atol=1e-5)
    np.testing.assert_allclose(np.square(rows[1:]) @ WEIGHTS, 1, rtol=1e-5)
    assert not rows[0].any()


def test_a_patch_without_texture_does_not_move() -> None:
    frames = local_frames(grid(), WINDOW)
    found = align(np.full((SIZE, SIZE), 90, np.uint8), frames, np.zeros((len(frames), SIDE * SIDE), np.float32))
    np.testing.assert_allclose(found.frames, frames)


def test_references_by_brute_force() -> None:
    random = np.random.default_rng(3)
    matches, sigma = np.unique(random.integers(0, 30, (25, 2)), axis=0), random.uniform(1, 2, 30)
    matches = matches[matches[:, 0] < matches[:, 1]]
    neighbours = {k: {int(b) for a, b in [*matches, *matches[:, ::-1]] if a == k} for k in range(30)}
    roots = set()
    for start in range(30):
        group, grown = {start}, True
        while grown:
            grown = bool(more := {n for k in group for n in neighbours[k]} - group)
            group |= more
        if len(group) > 1:
            roots.add(min(group, key=lambda k: (-len(neighbours[k]), sigma[k])))
    assert best_connected(30, matches, sigma).tolist() == sorted(roots)
    score = np.where(np.isin(np.arange(30), list(roots)), random.uniform(0.5, 1, 30), 0)
    waiting = score == 0
    wanted = []
    for k in range(30):
        known = [n for n in neighbours[k] if score[n] > 0]
        if waiting[k] and known:
            wanted.append([k, max(known, key=lambda n: score[n])])
    assert choose_references(matches, waiting, score).tolist() == wanted


def test_no_matches_and_no_keypoints() -> None:
    def unread(number: int) -> np.ndarray:
        raise InputError(f"image {number} is not needed")

    empty = Keypoints(np.zeros((0, 2)), *(np.zeros(0) for _ in range(3)))
    for given in ([grid(), grid()], [empty, empty], [grid()]):
        found = refine.refine_keypoints(unread, given, [])
        assert all(np.array_equal(one.xy, other.xy) for one, other in zip(found, given, strict=True))

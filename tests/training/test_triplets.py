"""The hardest triplets that a training run keeps."""

from pathlib import Path

import numpy as np
import pytest

from sdgmnet.data.patchset import PatchSet
from sdgmnet.errors import InputError
from sdgmnet.plots.patches import draw_triplets
from sdgmnet.storage import read_arrays
from sdgmnet.training.triplets import KEPT, draw_pairs, hardest_triplets, save_triplets

THRESHOLD = 0.1


def describe(patches: np.ndarray) -> np.ndarray:
    """Random projections of the pixels."""
    pixels = patches.reshape(len(patches), -1).astype(np.float64)
    return (pixels - pixels.mean()) @ np.random.default_rng(3).normal(size=(pixels.shape[1], 16))


def test_pairs_are_of_points_that_may_be_negatives(blobs: PatchSet) -> None:
    ids = np.unique(blobs.point_id)
    near = PatchSet("near", blobs.patches, blobs.point_id, conflicts=np.stack([ids[:-1], ids[1:]], axis=1))
    pairs = draw_pairs(near, 100, 0)
    chosen = near.point_id[pairs]
    assert (chosen[:, 0] == chosen[:, 1]).all() and (pairs[:, 0] != pairs[:, 1]).all()
    assert len(np.unique(chosen[:, 0])) == len(chosen) > 10
    assert np.diff(np.sort(np.searchsorted(ids, chosen[:, 0]))).min() >= 2
    assert len(draw_pairs(blobs, 12, 0)) == 12
    alone = PatchSet("alone", blobs.patches[::3], blobs.point_id[::3])
    assert not len(draw_pairs(alone, 10, 0))


def test_the_hardest_are_those_of_all_comparisons(blobs: PatchSet) -> None:
    pairs = draw_pairs(blobs, 40, 0)
    rows = describe(blobs.patches[pairs.ravel()])
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    angles = np.arccos(np.clip(rows @ rows.T, -1, 1))
    hardness = []
    for i in range(len(pairs)):
        candidates = []
        for j in range(len(pairs)):
            four = angles[2 * i : 2 * i + 2, 2 * j : 2 * j + 2]
            if j != i and four.min() > THRESHOLD:
                candidates.append(four.min())
        if candidates:
            hardness.append(angles[2 * i, 2 * i + 1] - min(candidates))
    triplets = hardest_triplets(describe, blobs, THRESHOLD, points=40)
    found = [one.theta_pos - one.theta_neg for one in triplets]
    np.testing.assert_allclose(found, sorted(hardness, reverse=True)[:KEPT], atol=1e-6)
    for one in triplets:
        anchor, positive, negative = blobs.point_id[list(one.patches)]
        assert anchor == positive != negative


def test_they_are_saved_as_the_network_sees_them_and_drawn(blobs: PatchSet, tmp_path: Path) -> None:
    triplets = hardest_triplets(describe, blobs, THRESHOLD)
    saved = tmp_path / "triplets.npz"
    save_triplets(blobs, triplets, blobs.window, 7, saved)
    patches = read_arrays(saved, ["patches"])["patches"]
    np.testing.assert_array_equal(patches, blobs.patches[[one.patches for one in triplets]])
    save_triplets(blobs, triplets, blobs.window / 2, 7, saved)
    assert (read_arrays(saved, ["patches"])["patches"] != patches).any()
    draw_triplets(saved, tmp_path / "triplets.png")
    assert (tmp_path / "triplets.png").stat().st_size > 10_000
    np.savez(saved, patches=patches[0], angles=np.zeros((1, 2)), step=[1])
    with pytest.raises(InputError):
        draw_triplets(saved, tmp_path / "triplets.png")


def test_points_of_one_patch_have_no_triplet(blobs: PatchSet) -> None:
    _, first = np.unique(blobs.point_id, return_index=True)
    assert hardest_triplets(describe, PatchSet("alone", blobs.patches[first], blobs.point_id[first]), THRESHOLD) == []

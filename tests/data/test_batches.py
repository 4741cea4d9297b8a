"""Sampling by PROTOCOLS 1.6, against loops."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from sdgmnet.data.augmentation import Augmentation
from sdgmnet.data.patchset import PatchSet
from sdgmnet.data.sampler import PairSampler
from sdgmnet.engine import halve
from sdgmnet.errors import InputError


def blank_set(point_id: np.ndarray | list[int], name: str = "blank", **arrays: np.ndarray) -> PatchSet:
    ids = np.asarray(point_id, dtype=np.int64)
    return PatchSet(name, np.zeros((len(ids), 64, 64), dtype=np.uint8), ids, **arrays)


def noise_set(points: int = 40, views: int = 3, seed: int = 0) -> PatchSet:
    rng = np.random.default_rng(seed)
    patches = rng.integers(256, size=(points * views, 64, 64), dtype=np.uint8)
    return PatchSet(f"noise{seed}", patches, rng.permutation(np.repeat(np.arange(points), views)))


def uneven_ids(seed: int) -> np.ndarray:
    """30 points with two to five patches and 10 with one, their ids with gaps and out of order."""
    rng = np.random.default_rng(seed)
    ids = rng.choice(10**9, 40, replace=False)
    counts = np.concatenate([rng.integers(2, 6, 30), np.ones(10, dtype=np.int64)])
    return rng.permutation(np.repeat(ids, counts))


# ------------------------------------------------------------------------------------------------------ sampling


def test_batches_are_distinct_points_with_two_distinct_patches() -> None:
    ids = uneven_ids(0)
    sampler = PairSampler([blank_set(ids)], seed=3)
    for step in range(200):
        anchors, positives = sampler.indices(step, 16)
        assert np.array_equal(ids[anchors], ids[positives])
        assert (anchors != positives).all()
        assert len(set(ids[anchors].tolist())) == 16


def test_sets_with_the_same_ids_are_never_mixed() -> None:
    first, second, third = uneven_ids(0), uneven_ids(0)[::-1], np.arange(5)  # the third has no pairs at all
    every_id = np.concatenate([first, second, third])
    owner = np.repeat([0, 1, 2], [len(first), len(second), len(third)])
    sampler = PairSampler([blank_set(first), blank_set(second), blank_set(third)], seed=1)
    seen: set[tuple[int, int]] = set()
    for step in range(100):
        anchors, positives = sampler.indices(step, 20)
        assert np.array_equal(owner[anchors], owner[positives])
        assert np.array_equal(every_id[anchors], every_id[positives])
        points = list(zip(owner[anchors].tolist(), every_id[anchors].tolist(), strict=True))
        assert len(set(points)) == 20
        seen.update(points)
    assert len(seen) == 60  # 30 points of each of the first two


def test_a_batch_may_take_every_point() -> None:
    ids = uneven_ids(2)
    anchors, _ = PairSampler([blank_set(ids)], seed=0).indices(0, 30)
    assert len(set(ids[anchors].tolist())) == 30


def test_points_with_one_patch_are_never_drawn() -> None:
    ids = uneven_ids(4)
    values, counts = np.unique(ids, return_counts=True)
    lonely = set(values[counts == 1].tolist())
    sampler = PairSampler([blank_set(ids)], seed=0)
    drawn = {int(point) for step in range(100) for point in ids[sampler.indices(step, 10)[0]]}
    assert not drawn & lonely
    assert drawn == set(values.tolist()) - lonely


def test_conflicting_points_are_never_together() -> None:
    """40 points in ten groups whose members conflict, one way round or the other; a second set has the same ids."""
    ids = np.repeat(np.arange(40) * 3 + 1, 2)
    conflicts = [
        (3 * a + 1, 3 * b + 1) if (a + b) % 2 else (3 * b + 1, 3 * a + 1)
        for group in range(10)
        for a, b in itertools.combinations(range(4 * group, 4 * group + 4), 2)
    ]
    conflicts += [(1, 999), (5000, 5001)]  # name points that are not in the set
    free = blank_set(ids, "free")
    bound = blank_set(ids, "bound", conflicts=np.array(conflicts))
    alone, both = PairSampler([bound], seed=0), PairSampler([free, bound], seed=0)
    unbound = PairSampler([free], seed=0)
    forbidden = {frozenset(pair) for pair in conflicts}

    def clashes(indices: np.ndarray) -> int:
        points = ids[indices].tolist()
        return sum(frozenset(pair) in forbidden for pair in itertools.combinations(points, 2))

    assert sum(clashes(unbound.indices(step, 8)[0]) for step in range(50)) > 50  # there is something to avoid
    together = 0
    for step in range(100):
        anchors, positives = alone.indices(step, 8)
        assert len(set(ids[anchors].tolist())) == 8
        assert np.array_equal(ids[anchors], ids[positives])
        assert clashes(anchors) == 0
        anchors = both.indices(step, 16)[0]
        assert clashes(anchors[anchors >= 80] - 80) == 0
        together += clashes(anchors[anchors < 80])
    assert together > 100  # the conflicts of one set do not bind the other


def test_conflicts_that_leave_too_few_points_are_an_error() -> None:
    conflicts = np.array(list(itertools.combinations(range(10), 2)))
    sampler = PairSampler([blank_set(np.repeat(np.arange(10), 2), conflicts=conflicts)], seed=0)
    with pytest.raises(InputError, match="--batch-size"):
        sampler.indices(0, 4)


def test_a_step_can_be_made_again() -> None:
    sampler, again = PairSampler([noise_set()], seed=5), PairSampler([noise_set()], seed=5)
    later = sampler.batch(7, 6)
    for step in (3, 7, 0, 7):
        assert np.array_equal(sampler.indices(step, 12), again.indices(step, 12))
    assert torch.equal(again.batch(7, 6), later)


def test_steps_and_seeds_differ() -> None:
    sampler, other = PairSampler([noise_set()], seed=5), PairSampler([noise_set()], seed=6)
    drawn = [sampler.indices(step, 12).tobytes() for step in range(50)] + [other.indices(0, 12).tobytes()]
    assert len(set(drawn)) == 51
    batches = {sampler.batch(step, 4).numpy().tobytes() for step in range(5)} | {other.batch(0, 4).numpy().tobytes()}
    assert len(batches) == 6


def test_every_point_is_equally_likely() -> None:
    """Whatever the number of its patches: chi-square over 30 points, and over ordered pairs of a point's patches."""
    ids = np.repeat(np.arange(30), [2] * 10 + [4] * 10 + [12] * 10)
    sampler = PairSampler([blank_set(ids)], seed=0)
    drawn = np.concatenate([sampler.indices(step, 10) for step in range(1500)], axis=1)
    counts = np.bincount(ids[drawn[0]], minlength=30)
    expected = drawn.shape[1] / 30
    assert ((counts - expected) ** 2 / expected).sum() < 29 + 5 * math.sqrt(2 * 29)
    four = drawn[:, (ids[drawn[0]] >= 10) & (ids[drawn[0]] < 20)]
    start = np.searchsorted(ids, ids[four[0]])
    orders = np.bincount(4 * (four[0] - start) + four[1] - start, minlength=16).reshape(4, 4)
    assert not orders.diagonal().any()
    apart = orders[~np.eye(4, dtype=bool)]
    assert ((apart - apart.mean()) ** 2 / apart.mean()).sum() < 11 + 5 * math.sqrt(2 * 11)


def test_batch_sizes_that_cannot_be() -> None:
    sampler = PairSampler([blank_set(uneven_ids(0), "left"), blank_set(uneven_ids(1), "right")], seed=0)
    sampler.require_batch_size(2)
    sampler.require_batch_size(60)
    with pytest.raises(InputError, match="left, right.*61 .*--batch-size 60"):
        sampler.require_batch_size(61)
    for size in (1, 0, -5):
        with pytest.raises(InputError, match=f"at least 2 pairs, not {size}"):
            sampler.require_batch_size(size)


def test_patches_by_number_run_through_all_sets() -> None:
    first, second = noise_set(5, 2, seed=0), noise_set(7, 2, seed=1)
    sampler = PairSampler([first, second], seed=0)
    numbers = np.array([[0, 9, 10], [23, 4, 10]])
    expected = [[first.patches[0], first.patches[9], second.patches[0]]]
    expected += [[second.patches[13], first.patches[4], second.patches[0]]]
    assert np.array_equal(sampler.patches(numbers), np.array(expected))


# --------------------------------------------------------------------------------------------------------- batch


def test_batch_without_augmentation_is_the_halved_patches() -> None:
    patchset = noise_set()
    sampler = PairSampler([patchset], seed=2)
    batch = sampler.batch(4, 9, augmentation="none")
    assert batch.shape == (2, 9, 1, 32, 32) and batch.dtype == torch.float32
    for side, numbers in enumerate(sampler.indices(4, 9)):
        for row, number in enumerate(numbers):
            expected = halve(torch.from_numpy(patchset.patches[number])[None].double())[0] / 255
            assert torch.allclose(batch[side, row, 0].double(), expected, atol=1e-6)


@pytest.mark.parametrize("augmentation", ["none", "paper", "strong", "hardnet", "hynet", "cdfdesc"])
def test_batches_are_a_function_of_seed_and_step(augmentation: Augmentation) -> None:
    one, same, other = (PairSampler([noise_set()], seed) for seed in (2, 2, 3))
    assert torch.equal(one.batch(5, 9, augmentation=augmentation), same.batch(5, 9, augmentation=augmentation))
    for different in (one.batch(6, 9, augmentation=augmentation), other.batch(5, 9, augmentation=augmentation)):
        assert not torch.equal(one.batch(5, 9, augmentation=augmentation), different)


@pytest.mark.parametrize("level", [0, 255, None])
def test_strong_batches_lie_between_0_and_1(level: int | None) -> None:
    patchset = noise_set()
    if level is not None:
        patchset = PatchSet("flat", np.full_like(patchset.patches, level), patchset.point_id)
    batch = PairSampler([patchset], seed=2).batch(0, 30, augmentation="strong")
    assert batch.shape == (2, 30, 1, 32, 32) and batch.dtype == torch.float32 and batch.is_contiguous()
    assert torch.isfinite(batch).all() and float(batch.min()) >= 0 and float(batch.max()) <= 1


@pytest.mark.parametrize("level", [0, 255, None])
def test_batch_lies_between_0_and_1(level: int | None) -> None:
    patchset = noise_set()
    if level is not None:
        patchset = PatchSet("flat", np.full_like(patchset.patches, level), patchset.point_id)
    batch = PairSampler([patchset], seed=2).batch(0, 30)
    assert batch.shape == (2, 30, 1, 32, 32) and batch.dtype == torch.float32 and batch.is_contiguous()
    assert float(batch.min()) >= 0 and float(batch.max()) <= 1 + 1e-6
    assert level != 255 or float(batch[:, :, :, 12:20, 12:20].min()) > 0.999
    assert level != 0 or not batch.any()


def test_augmented_batch_shows_the_patches_that_were_drawn() -> None:
    """A flat patch stays its own grey level in the middle, so anchors and positives can be told by it."""
    levels = np.arange(80, dtype=np.uint8) * 3
    patches = np.broadcast_to(levels[:, None, None], (80, 64, 64)).copy()
    sampler = PairSampler([PatchSet("levels", patches, np.repeat(np.arange(40), 2))], seed=0)
    shown = sampler.batch(3, 20)[:, :, 0, 16, 16] * 255
    assert torch.allclose(shown, torch.from_numpy(levels[sampler.indices(3, 20)]).float(), atol=0.01)


def test_augmentation_differs_between_the_patches_of_a_batch() -> None:
    """Anchors and positives that are the same image do not stay the same."""
    patch = np.random.default_rng(0).integers(256, size=(64, 64), dtype=np.uint8)
    patchset = PatchSet("same", np.stack([patch] * 20), np.repeat(np.arange(10), 2))
    anchors, positives = PairSampler([patchset], seed=0).batch(0, 10)
    assert len({image.numpy().tobytes() for image in [*anchors, *positives]}) == 20


def dihedral(image: np.ndarray) -> list[np.ndarray]:
    """Four turns, then four turns of the mirror image."""
    return [np.rot90(start, turn) for start in (image, np.fliplr(image)) for turn in range(4)]


def best_symmetry(images: Tensor, candidates: list[np.ndarray]) -> np.ndarray:
    flat = images.reshape(len(images), -1).numpy()
    table = np.stack([candidate.ravel() for candidate in candidates])
    return ((flat[:, None] - table[None]) ** 2).sum(axis=2).argmin(axis=1)


def test_both_patches_of_a_pair_share_turn_and_flip() -> None:
    """All patches are one lopsided image; the symmetry that each shows must be its partner's.

    Four turns and three flips (none, vertical, horizontal): a pure turn comes 1 of 12 times, a mirror image 2 of 12.
    """
    picture = np.zeros((64, 64), dtype=np.uint8)
    picture[8:20, 8:56], picture[8:56, 8:20], picture[8:20, 30:56] = 200, 120, 250
    count = 400
    patchset = PatchSet("lopsided", np.broadcast_to(picture, (2 * count, 64, 64)), np.repeat(np.arange(count), 2))
    sampler = PairSampler([patchset], seed=0)
    candidates = dihedral(halve(torch.from_numpy(picture)[None].float())[0].numpy() / 255)
    shown = []
    for step in range(3):
        anchors, positives = (best_symmetry(side, candidates) for side in sampler.batch(step, count))
        assert np.array_equal(anchors, positives)
        shown.append(anchors)
    counts = np.bincount(np.concatenate(shown), minlength=8)
    expected = 3 * count * np.array([1, 1, 1, 1, 2, 2, 2, 2]) / 12
    assert ((counts - expected) ** 2 / expected).sum() < 7 + 5 * math.sqrt(14)


def test_an_augmentation_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InputError, match="one of none, paper, strong"):
        PairSampler([noise_set()], seed=0).batch(0, 4, augmentation="storng")  # type: ignore[arg-type]

"""Sampling by docs/protocols.md 1.6, against loops; and which points share a batch."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from sdgmnet.data.augmentation import Augmentation
from sdgmnet.data.patchset import PatchSet
from sdgmnet.data.sampler import BatchPlan, PairSampler, PointPool, connected, equal_shares
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


def test_batches_are_distinct_points_with_two_distinct_patches() -> None:
    ids = uneven_ids(0)
    sampler = PairSampler([blank_set(ids)], seed=3)
    for step in range(200):
        anchors, positives = sampler.indices(step, 16)
        assert np.array_equal(ids[anchors], ids[positives])
        assert (anchors != positives).all()
        assert len(set(ids[anchors].tolist())) == 16
    values, counts = np.unique(ids, return_counts=True)
    drawn = {int(point) for step in range(100) for point in ids[sampler.indices(step, 10)[0]]}
    assert drawn == set(values[counts >= 2].tolist())  # never a point with one patch
    assert len(set(ids[sampler.indices(0, 30)[0]].tolist())) == 30  # a batch may take every point


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


def test_ambiguous_points_are_never_together() -> None:
    """40 points in ten groups whose members are ambiguous, one way round or the other; a second set has the same ids."""
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
    assert together > 100  # the ambiguous pairs of one set do not bind the other


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
    rows = one.batch(5, 9, augmentation=augmentation, rows=slice(2, 6))
    torch.testing.assert_close(rows, one.batch(5, 9, augmentation=augmentation)[:, 2:6])
    assert torch.equal(one.batch(5, 9, augmentation=augmentation), same.batch(5, 9, augmentation=augmentation))
    for different in (one.batch(6, 9, augmentation=augmentation), other.batch(5, 9, augmentation=augmentation)):
        assert not torch.equal(one.batch(5, 9, augmentation=augmentation), different)


@pytest.mark.parametrize("augmentation", ["paper", "strong"])
@pytest.mark.parametrize("level", [0, 255, None])
def test_batches_lie_between_0_and_1(level: int | None, augmentation: Augmentation) -> None:
    patchset = noise_set()
    if level is not None:
        patchset = PatchSet("flat", np.full_like(patchset.patches, level), patchset.point_id)
    batch = PairSampler([patchset], seed=2).batch(0, 30, augmentation=augmentation)
    assert batch.shape == (2, 30, 1, 32, 32) and batch.dtype == torch.float32 and batch.is_contiguous()
    assert float(batch.min()) >= 0 and float(batch.max()) <= 1 + 1e-6
    if augmentation == "paper":
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
    image = np.zeros((64, 64), dtype=np.uint8)
    image[8:20, 8:56], image[8:56, 8:20], image[8:20, 30:56] = 200, 120, 250
    count = 400
    patchset = PatchSet("lopsided", np.broadcast_to(image, (2 * count, 64, 64)), np.repeat(np.arange(count), 2))
    sampler = PairSampler([patchset], seed=0)
    candidates = dihedral(halve(torch.from_numpy(image)[None].float())[0].numpy() / 255)
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


# Which points share a batch: never two sets of one scene, never two images of a set of views.


def real(name: str, points: int, detected: np.ndarray | None = None) -> PatchSet:
    """A set with three patches a point; patch k shows the number k % 256."""
    count = 3 * points
    observations = None
    if detected is not None:
        observations = np.zeros(count, dtype=[("detected", "?")])
        observations["detected"] = detected
    return PatchSet(name, numbered(count), np.repeat(np.arange(points), 3), observations=observations)


def views(scene: str, images: int, points: int) -> PatchSet:
    """Synthetic views of several photos of a scene: two patches a point, points of a photo one after the other."""
    count = 2 * images * points
    observations = np.zeros(count, dtype=[("image", "i4"), ("view", "i4")])
    observations["image"] = np.repeat(np.arange(images), 2 * points)
    origin = {"source": "views", "scene": scene, "one_image_a_batch": True}
    ids = np.repeat(np.arange(images * points), 2)
    return PatchSet(f"{scene}-views", numbered(count), ids, observations=observations, origin=origin)


def numbered(count: int) -> np.ndarray:
    return np.broadcast_to((np.arange(count) % 256).astype(np.uint8)[:, None, None], (count, 64, 64))


def places(sampler: PairSampler, step: int, batch_size: int) -> list[tuple[str, int]]:
    """The set and, of views, the photo of each anchor of a batch."""
    found = []
    for number in sampler.indices(step, batch_size)[0]:
        which = int(np.searchsorted(sampler.set_start, number, side="right")) - 1
        patchset, row = sampler.patchsets[which], number - sampler.set_start[which]
        image = -1
        if patchset.observations is not None and "image" in (patchset.observations.dtype.names or ()):
            image = int(patchset.observations["image"][row])
        found.append((patchset.name, image))
    return found


def test_a_batch_sees_one_set_of_a_scene_and_one_photo_of_its_views() -> None:
    sampler = PairSampler([real("one", 40), views("one", 5, 30), real("two", 50), views("two", 4, 30)], 0)
    met = set()
    for step in range(60):
        here = set(places(sampler, step, 40))
        for scene in ("one", "two"):
            assert sum(name.startswith(scene) for name, _ in here) == 1
        met |= here
    assert met == {
        ("one", -1),
        ("two", -1),
        *(("one-views", k) for k in range(5)),
        *(("two-views", k) for k in range(4)),
    }


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_views_are_shown_as_often_as_asked(share: float) -> None:
    sampler = PairSampler([real("one", 40), views("one", 5, 40)], 1, views=share)
    shown = [places(sampler, step, 8)[0][0] == "one-views" for step in range(400)]
    assert np.mean(shown) == pytest.approx(share, abs=0.08 if 0 < share < 1 else 0)


def test_views_that_do_not_say_their_image_are_refused() -> None:
    patchset = PatchSet("bare-views", numbered(20), np.repeat(np.arange(10), 2), origin={"one_image_a_batch": True})
    with pytest.raises(InputError, match="bare-views"):
        PairSampler([patchset], 0)


def test_scenes_are_balanced_when_asked() -> None:
    sets = [real("small", 100), real("large", 2000)]
    for balance, expected in (("points", 100 / 2100), ("scenes", 0.5)):
        sampler = PairSampler(sets, 0, balance=balance)  # type: ignore[arg-type]
        names = [name for step in range(40) for name, _ in places(sampler, step, 50)]
        assert np.mean([name == "small" for name in names]) == pytest.approx(expected, abs=0.06)
        points = sampler.indices(0, 60)
        assert len({(number // 3) for number in points[0].tolist()}) == 60


def test_images_are_drawn_as_often_as_they_have_points() -> None:
    choices = [PointPool(np.arange(900), True, 900), PointPool(np.arange(900, 1000), True, 100)]
    pools, rng = BatchPlan({"one": choices}, "points", 0.5, 50), np.random.default_rng(0)
    large = [len(pools.draw(rng, 50)[0].points) == 900 for _ in range(1000)]
    assert np.mean(large) == pytest.approx(0.9, abs=0.03)


def test_a_image_too_poor_for_the_batch_is_left_out() -> None:
    rich, poor = PointPool(np.arange(900), True, 900), PointPool(np.arange(900, 905), True, 5)
    assert BatchPlan({"one": [rich, poor]}, "points", 0.5, 256).capacity == 900
    assert BatchPlan({"one": [rich, poor]}, "points", 0.5, 5).capacity == 5
    assert BatchPlan({"one": [poor]}, "points", 0.5, 256).capacity == 5  # where there is nothing else
    photos = PointPool(np.arange(2000, 7000), False, 5000)
    for share, room in ((0.0, 5000), (0.5, 5), (1.0, 5)):  # what is never shown does not count
        assert BatchPlan({"one": [photos, poor]}, "points", share, 5).capacity == room


def test_models_of_a_reconstruction_alternate() -> None:
    patchset = real("one", 40)
    observations = np.zeros(len(patchset), dtype=[("image", "i4")])
    observations["image"] = np.repeat([0, 1, 2, 3], 30)
    origin = {"source": "photos", "images": ["0/a", "0/b", "1/c", "1/d"]}
    two = PatchSet("two", patchset.patches, patchset.point_id, observations=observations, origin=origin)
    sampler, met = PairSampler([two], 0), set()
    for step in range(20):
        models = {int(number) // 60 for number in sampler.indices(step, 10).ravel()}
        assert len(models) == 1
        met |= models
    assert met == {0, 1}


def test_connected_by_walking() -> None:
    rng = np.random.default_rng(0)
    for count, edges in ((1, 0), (30, 10), (200, 150), (200, 400)):
        pairs = rng.integers(count, size=(edges, 2))
        neighbours: dict[int, set[int]] = {number: set() for number in range(count)}
        for one, other in pairs.tolist():
            neighbours[one].add(other)
            neighbours[other].add(one)
        label = connected(count, pairs)
        for number in range(count):
            seen, stack = {number}, [number]
            while stack:
                for other in neighbours[stack.pop()] - seen:
                    seen.add(other)
                    stack.append(other)
            assert set(np.flatnonzero(label == label[number]).tolist()) == seen


def test_equal_shares() -> None:
    rng = np.random.default_rng(0)
    assert equal_shares(12, np.array([100, 100, 100]), rng).tolist() == [4, 4, 4]
    assert sorted(equal_shares(13, np.array([100, 100, 100]), rng).tolist()) == [4, 4, 5]
    assert equal_shares(100, np.array([5, 90, 20]), rng).tolist() == [5, 75, 20]
    with pytest.raises(InputError, match="batch-size"):
        equal_shares(10, np.array([5, 4]), rng)


def test_a_full_batch_is_found_among_many_ambiguous_points() -> None:
    """Thirty groups of four points of which any two are ambiguous: thirty points can always be drawn, thirty-one never."""
    ids = np.repeat(np.arange(120), 2)
    conflicts = np.array([(4 * g + i, 4 * g + j) for g in range(30) for i in range(4) for j in range(i)])
    sampler = PairSampler([PatchSet("crowded", numbered(240), ids, conflicts=conflicts)], 0)
    sampler.require_batch_size(30)
    for step in range(20):
        assert sorted((sampler.indices(step, 30)[0] // 8).tolist()) == list(range(30))
    with pytest.raises(InputError, match="--batch-size 30 or less"):
        sampler.require_batch_size(31)


def test_reprojected_patches_can_be_left_out() -> None:
    detected = np.tile([True, True, False], 30)
    detected[:3] = [True, False, False]  # the first point has but one detected patch
    patchset = real("one", 30, detected)
    used = np.concatenate(
        [PairSampler([patchset], 0, reprojected=False).indices(step, 20).ravel() for step in range(30)]
    )
    assert set(used.tolist()) == set(np.flatnonzero(detected).tolist()) - {0}
    every = np.concatenate([PairSampler([patchset], 0).indices(step, 20).ravel() for step in range(60)])
    assert set(every.tolist()) == set(range(90))


def test_a_batch_larger_than_every_pool_is_refused() -> None:
    sampler = PairSampler([real("one", 40), views("one", 5, 30)], 0)
    sampler.require_batch_size(30)
    assert not sampler.plan(30).left_out
    sampler.require_batch_size(35)  # of the photos alone
    assert sampler.plan(35).left_out == {"one": 5}
    with pytest.raises(InputError, match="one"):
        sampler.require_batch_size(41)

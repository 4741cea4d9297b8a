"""Sampling by docs/protocols.md 1.6, against loops; and which points share a batch."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch

from sdgmnet.data.patchset import PatchSet
from sdgmnet.data.sampler import BatchPlan, PairSampler, PointPool, _generator, equal_shares
from sdgmnet.engine import halve
from sdgmnet.errors import InputError
from sdgmnet.registry import Augmentation, Balance
from tests.data.samples import blank_set, noise_set


def uneven_ids(seed: int) -> np.ndarray:
    """30 points with two to five patches and 10 with one, their ids with gaps and out of order."""
    rng = np.random.default_rng(seed)
    ids = rng.choice(10**9, 40, replace=False)
    counts = np.concatenate([rng.integers(2, 6, 30), np.ones(10, dtype=np.int64)])
    return rng.permutation(np.repeat(ids, counts))


def test_batches_are_distinct_points_with_two_distinct_patches() -> None:
    """Also over several sets, which may have the same ids or no pairs at all; a batch may take every point."""
    sets = [uneven_ids(0), uneven_ids(0)[::-1], np.arange(5)]
    owner, ids = np.repeat([0, 1, 2], [len(one) for one in sets]), np.concatenate(sets)
    known = [(number, *np.unique(one, return_counts=True)) for number, one in enumerate(sets)]
    usable = {(number, int(point)) for number, points, counts in known for point in points[counts >= 2]}
    sampler = PairSampler([blank_set(one, f"{number}") for number, one in enumerate(sets)], seed=3)
    for batch_size, steps in ((20, 100), (60, 3)):
        seen: set[tuple[int, int]] = set()
        for step in range(steps):
            anchors, positives = sampler.indices(step, batch_size)
            assert np.array_equal(owner[anchors], owner[positives]) and np.array_equal(ids[anchors], ids[positives])
            assert (anchors != positives).all()
            points = set(zip(owner[anchors].tolist(), ids[anchors].tolist(), strict=True))
            assert len(points) == batch_size
            seen |= points
        assert seen == usable and len(usable) == 60  # never a point with one patch


def test_ambiguous_points_are_never_together() -> None:
    """40 points in ten groups whose members are ambiguous, one way round or the other; a second set has the same ids."""
    ids = np.repeat(np.arange(40) * 3 + 1, 2)
    conflicts = [
        (3 * a + 1, 3 * b + 1) if (a + b) % 2 else (3 * b + 1, 3 * a + 1)
        for group in range(10)
        for a, b in itertools.combinations(range(4 * group, 4 * group + 4), 2)
    ]
    conflicts += [(1, 999), (5000, 5001)]  # name points that are not in the set
    free, bound = blank_set(ids, "free"), blank_set(ids, "bound", conflicts=np.array(conflicts))
    alone, both = PairSampler([bound], seed=0), PairSampler([free, bound], seed=0)
    forbidden = {frozenset(pair) for pair in conflicts}

    def clashes(indices: np.ndarray) -> int:
        return sum(frozenset(pair) in forbidden for pair in itertools.combinations(ids[indices].tolist(), 2))

    together = 0
    for step in range(100):
        anchors, positives = alone.indices(step, 8)
        assert len(set(ids[anchors].tolist())) == 8 and np.array_equal(ids[anchors], ids[positives])
        assert clashes(anchors) == 0
        anchors = both.indices(step, 16)[0]
        assert clashes(anchors[anchors >= 80] - 80) == 0
        together += clashes(anchors[anchors < 80])
    assert together > 100  # the ambiguous pairs of one set do not bind the other


def chi_square(counts: np.ndarray, expected: np.ndarray | float) -> float:
    """In standard deviations above its mean."""
    free = len(counts) - 1
    return (((counts - expected) ** 2 / expected).sum() - free) / math.sqrt(2 * free)


def test_every_point_is_equally_likely() -> None:
    """Whatever the number of its patches; and so are the ordered pairs of a point's patches."""
    ids = np.repeat(np.arange(30), [2] * 10 + [4] * 10 + [12] * 10)
    sampler = PairSampler([blank_set(ids)], seed=0)
    drawn = np.concatenate([sampler.indices(step, 10) for step in range(1500)], axis=1)
    assert chi_square(np.bincount(ids[drawn[0]], minlength=30), drawn.shape[1] / 30) < 5
    four = drawn[:, (ids[drawn[0]] >= 10) & (ids[drawn[0]] < 20)]
    start = np.searchsorted(ids, ids[four[0]])
    orders = np.bincount(4 * (four[0] - start) + four[1] - start, minlength=16).reshape(4, 4)
    assert not orders.diagonal().any()
    apart = orders[~np.eye(4, dtype=bool)]
    assert chi_square(apart, apart.mean()) < 5


def test_patches_by_number_run_through_all_sets() -> None:
    first, second = noise_set(5, 2, seed=0), noise_set(7, 2, seed=1)
    every = np.concatenate([first.patches, second.patches])
    numbers = np.array([[0, 9, 10], [23, 4, 10]])
    assert np.array_equal(PairSampler([first, second], seed=0).patches(numbers), every[numbers])


def test_batch_without_augmentation_is_the_halved_patches() -> None:
    patchset = noise_set(40)
    sampler = PairSampler([patchset], seed=2)
    batch = sampler.batch(4, 9, augmentation="none")
    assert batch.shape == (2, 9, 1, 32, 32) and batch.dtype == torch.float32
    drawn = torch.from_numpy(patchset.patches[sampler.indices(4, 9).ravel()]).double()
    assert torch.allclose(batch.double().view(18, 32, 32), halve(drawn) / 255, atol=1e-6)


@pytest.mark.parametrize(("window", "share"), [(24.0, 1.0), (12.0, 0.5)])
def test_a_batch_shows_the_window(window: float, share: float) -> None:
    """Patches of 24 sigma whose gray level is 3 x: the slope of a batch shows how much of their side is used."""
    ramp = np.broadcast_to(3 * np.arange(64, dtype=np.uint8), (200, 64, 64))
    patchset = PatchSet("ramp", ramp, np.repeat(np.arange(100), 2), origin={"window": 24.0})

    def shown(jitter: float) -> torch.Tensor:
        sampler = PairSampler([patchset], 0, window=window, window_jitter=jitter)
        rows = sampler.batch(0, 100, augmentation="none")[:, :, 0, 16] * 255
        return (rows[..., 28] - rows[..., 4]) / (3 * 2 * 24)

    assert shown(0.0).numpy() == pytest.approx(share, abs=0.01)
    anchors, positives = shown(0.4) / share
    assert torch.allclose(anchors, positives)
    assert [anchors.min().item(), anchors.max().item()] == pytest.approx([0.6, 1.0], abs=0.02)


@pytest.mark.parametrize(
    "augmentation", ["none", "paper", "strong", "detector", "turned", "hardnet", "hynet", "cdfdesc"]
)
def test_batches_are_a_function_of_seed_and_step(augmentation: Augmentation) -> None:
    one, same, other = (PairSampler([noise_set(40)], seed) for seed in (2, 2, 3))
    batch = one.batch(5, 9, augmentation=augmentation)
    assert torch.equal(one.batch(5, 9, augmentation=augmentation, rows=slice(2, 6)), batch[:, 2:6])
    assert torch.equal(batch, same.batch(5, 9, augmentation=augmentation))
    for different in (one.batch(6, 9, augmentation=augmentation), other.batch(5, 9, augmentation=augmentation)):
        assert not torch.equal(batch, different)


@pytest.mark.parametrize("augmentation", ["paper", "strong", "detector", "turned"])
@pytest.mark.parametrize("level", [0, 255, None])
def test_batches_lie_between_0_and_1(level: int | None, augmentation: Augmentation) -> None:
    patchset = noise_set(40)
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
    sampler = PairSampler([blank_set(np.repeat(np.arange(40), 2))], seed=0)
    shown = sampler.batch(3, 20)[:, :, 0, 16, 16] * 255
    assert torch.allclose(shown, torch.from_numpy(sampler.indices(3, 20)).float(), atol=0.01)


def test_both_patches_of_a_pair_share_turn_and_flip() -> None:
    """All patches are one lopsided image; the symmetry that each shows must be its partner's, the small changes are its own.

    Four turns and three flips (none, vertical, horizontal): a pure turn comes 1 of 12 times, a mirror image 2 of 12.
    """
    image = np.zeros((64, 64), dtype=np.uint8)
    image[8:20, 8:56], image[8:56, 8:20], image[8:20, 30:56] = 200, 120, 250
    count = 400
    patchset = PatchSet("lopsided", np.broadcast_to(image, (2 * count, 64, 64)), np.repeat(np.arange(count), 2))
    sampler = PairSampler([patchset], seed=0)
    small = halve(torch.from_numpy(image)[None].float())[0].numpy() / 255
    table = np.stack([np.rot90(start, turn).ravel() for start in (small, np.fliplr(small)) for turn in range(4)])
    counts = np.zeros(8)
    for step in range(3):
        batch = sampler.batch(step, count).reshape(2, count, -1).numpy()
        assert len(np.unique(batch.reshape(2 * count, -1), axis=0)) == 2 * count
        anchors, positives = (((side[:, None] - table) ** 2).sum(axis=2).argmin(axis=1) for side in batch)
        assert np.array_equal(anchors, positives)
        counts += np.bincount(anchors, minlength=8)
    assert chi_square(counts, 3 * count * np.array([1, 1, 1, 1, 2, 2, 2, 2]) / 12) < 5


def test_an_augmentation_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InputError, match="storng"):
        PairSampler([noise_set()], seed=0).batch(0, 4, augmentation="storng")  # type: ignore[arg-type]


# Which points share a batch: never two sets of one scene, never two images of a set of views.


def real(name: str, points: int, **fields: Any) -> PatchSet:
    """A set with three patches per point."""
    return blank_set(np.repeat(np.arange(points), 3), name, **fields)


def views(scene: str, images: int, points: int) -> PatchSet:
    """Synthetic views of several photos of a scene: two patches per point, points of a photo one after the other."""
    image = np.repeat(np.arange(images), 2 * points)
    origin = {"source": "views", "scene": scene, "one_image_a_batch": True}
    ids = np.repeat(np.arange(images * points), 2)
    return blank_set(ids, f"{scene}-views", observations=column("image", image), origin=origin)


def column(name: str, values: np.ndarray) -> np.ndarray:
    return np.asarray(values).astype([(name, np.asarray(values).dtype)])


def places(sampler: PairSampler, step: int, batch_size: int) -> list[tuple[str, int]]:
    """The set and, of views, the photo of each anchor of a batch."""
    found = []
    for number in sampler.indices(step, batch_size)[0]:
        which = int(np.searchsorted(sampler.set_start, number, side="right")) - 1
        patchset, row = sampler.patchsets[which], number - sampler.set_start[which]
        image = -1 if patchset.observations is None else int(patchset.observations["image"][row])
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
    photos = {("one-views", k) for k in range(5)} | {("two-views", k) for k in range(4)}
    assert met == {("one", -1), ("two", -1)} | photos


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_views_are_shown_as_often_as_asked(share: float) -> None:
    sampler = PairSampler([real("one", 40), views("one", 5, 40)], 1, views=share)
    shown = [places(sampler, step, 8)[0][0] == "one-views" for step in range(400)]
    assert np.mean(shown) == pytest.approx(share, abs=0.08 if 0 < share < 1 else 0)


def test_views_that_do_not_say_their_image_are_refused() -> None:
    with pytest.raises(InputError, match="bare-views"):
        PairSampler([real("bare-views", 10, origin={"one_image_a_batch": True})], 0)


def test_scenes_are_balanced_when_asked() -> None:
    sets = [real("small", 100), real("large", 2000)]
    for balance, expected in (("points", 100 / 2100), ("scenes", 0.5)):
        sampler = PairSampler(sets, 0, balance=balance)  # type: ignore[arg-type]
        names = [name for step in range(40) for name, _ in places(sampler, step, 50)]
        assert np.mean([name == "small" for name in names]) == pytest.approx(expected, abs=0.06)
        assert len({number // 3 for number in sampler.indices(0, 60)[0].tolist()}) == 60


@pytest.mark.parametrize("balance", ["points", "scenes"])
def test_a_batch_of_few_scenes(balance: Balance) -> None:
    sets = [real(name, 100) for name in ("one", "two", "three", "four")]
    sampler = PairSampler(sets, 0, balance=balance, scenes_per_batch=2)
    seen = [frozenset(name for name, _ in places(sampler, step, 60)) for step in range(200)]
    counts = [seen.count(pair) for pair in set(seen)]
    assert len(counts) == 6 and {len(pair) for pair in seen} == {2} and min(counts) > 15
    with pytest.raises(InputError, match="--batch-size 200"):
        sampler.require_batch_size(201)
    assert (PairSampler(sets, 0, scenes_per_batch=9).indices(0, 60) == PairSampler(sets, 0).indices(0, 60)).all()


def test_images_are_drawn_as_often_as_they_have_points_and_poor_ones_left_out() -> None:
    rich, poor = PointPool(np.arange(900), True, 900), PointPool(np.arange(900, 1000), True, 100)
    plan, rng = BatchPlan({"one": [rich, poor]}, "points", 0.5, 50), np.random.default_rng(0)
    large = [len(plan.draw(rng, 50)[0].points) == 900 for _ in range(1000)]
    assert np.mean(large) == pytest.approx(0.9, abs=0.03)
    assert BatchPlan({"one": [rich, poor]}, "points", 0.5, 256).capacity == 900
    assert BatchPlan({"one": [rich, poor]}, "points", 0.5, 100).capacity == 100
    assert BatchPlan({"one": [poor]}, "points", 0.5, 256).capacity == 100  # where there is nothing else
    photos = PointPool(np.arange(2000, 7000), False, 5000)
    for share, room in ((0.0, 5000), (0.5, 100), (1.0, 100)):  # what is never shown does not count
        assert BatchPlan({"one": [photos, poor]}, "points", share, 100).capacity == room


def test_models_of_a_reconstruction_alternate() -> None:
    observations = column("image", np.repeat([0, 1, 2, 3], 30))
    origin = {"source": "photos", "images": ["0/a", "0/b", "1/c", "1/d"]}
    sampler = PairSampler([real("two", 40, observations=observations, origin=origin)], 0)
    models = [set((sampler.indices(step, 10).ravel() // 60).tolist()) for step in range(20)]
    assert all(len(one) == 1 for one in models) and set.union(*models) == {0, 1}


def test_equal_shares() -> None:
    rng = np.random.default_rng(0)
    assert equal_shares(12, np.array([100, 100, 100]), rng).tolist() == [4, 4, 4]
    assert sorted(equal_shares(13, np.array([100, 100, 100]), rng).tolist()) == [4, 4, 5]
    assert equal_shares(100, np.array([5, 90, 20]), rng).tolist() == [5, 75, 20]
    with pytest.raises(InputError, match="batch-size"):
        equal_shares(10, np.array([5, 4]), rng)


def test_reprojected_patches_can_be_left_out() -> None:
    detected = np.tile([True, True, False], 30)
    detected[:3] = [True, False, False]  # the first point has but one detected patch
    patchset = real("one", 30, observations=column("detected", detected))
    for reprojected, expected in ((False, set(np.flatnonzero(detected).tolist()) - {0}), (True, set(range(90)))):
        sampler = PairSampler([patchset], 0, reprojected=reprojected)
        assert {number for step in range(60) for number in sampler.indices(step, 20).ravel().tolist()} == expected


def test_a_full_batch_is_found_among_many_ambiguous_points() -> None:
    """Thirty groups of four points of which any two are ambiguous: thirty points can always be drawn, thirty-one never."""
    conflicts = np.array([(4 * g + i, 4 * g + j) for g in range(30) for i in range(4) for j in range(i)])
    sampler = PairSampler([blank_set(np.repeat(np.arange(120), 2), "crowded", conflicts=conflicts)], 0)
    for step in range(20):
        assert sorted((sampler.indices(step, 30)[0] // 8).tolist()) == list(range(30))
    assert_largest_batch(sampler, 30)


def test_points_are_drawn_as_by_the_plain_loop() -> None:
    """Draw, drop whoever is ambiguous with an earlier one, fill up with others, until nobody is dropped."""
    conflicts = np.array([(k, k + 1) for k in range(0, 119, 3)])
    sampler = PairSampler([blank_set(np.repeat(np.arange(120), 2), "crowded", conflicts=conflicts)], 0)
    clash = {frozenset(pair) for pair in conflicts.tolist()}
    pool, repeated = np.arange(120), 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        points = rng.choice(pool, size=60, replace=False)
        while True:
            kept = [
                one for k, one in enumerate(points) if not any(frozenset((one, other)) in clash for other in points[:k])
            ]
            if len(kept) == 60:
                break
            repeated += 1
            fresh = sorted(set(rng.choice(pool, size=60, replace=False).tolist()) - set(kept))
            points = np.array([*kept, *rng.permutation(fresh)[: 60 - len(kept)]])
        assert sampler._draw(np.random.default_rng(seed), pool, 60).tolist() == points.tolist()
    assert repeated > 30


def assert_largest_batch(sampler: PairSampler, size: int) -> None:
    sampler.require_batch_size(size)
    name = sampler.patchsets[0].name
    with pytest.raises(InputError, match=f"{name}.*{size + 1} .*--batch-size {size}"):
        sampler.require_batch_size(size + 1)


def test_batch_sizes_that_cannot_be() -> None:
    sampler = PairSampler([blank_set(uneven_ids(0), "left"), blank_set(uneven_ids(1), "right")], seed=0)
    sampler.require_batch_size(2)
    assert_largest_batch(sampler, 60)
    for size in (1, 0, -5):
        with pytest.raises(InputError, match=f"not {size}"):
            sampler.require_batch_size(size)
    assert_largest_batch(PairSampler([real("tiny", 2)], 0), 2)
    sampler = PairSampler([real("one", 40), views("one", 5, 30)], 0)
    sampler.require_batch_size(30)
    assert not sampler.plan(30).left_out
    sampler.require_batch_size(40)  # of the photos alone
    assert sampler.plan(35).left_out == {"one": 5}
    with pytest.raises(InputError, match="one"):
        sampler.require_batch_size(41)


def test_pairs_and_augmentation_have_random_streams_of_their_own() -> None:
    """Otherwise the geometry of a patch would depend on which point was drawn."""
    streams = [_generator(5, 3, purpose).random(4).tolist() for purpose in ("pairs", "augmentation")]
    assert streams[0] != streams[1] and streams[0] == _generator(5, 3, "pairs").random(4).tolist()
    others = [_generator(seed, step, "pairs").random(4).tolist() for seed, step in ((5, 4), (6, 3), (3, 5))]
    assert all(one not in others for one in streams) and len({*map(tuple, others)}) == 3

"""Which points share a batch: never two sets of one scene, never two photos of a set of views."""

import numpy as np
import pytest

from sdgmnet.data.patchset import PatchSet
from sdgmnet.data.sampler import BatchPlan, PairSampler, PointPool, connected, equal_shares
from sdgmnet.errors import InputError


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


def test_views_that_do_not_say_their_picture_are_refused() -> None:
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


def test_without_turns_and_balance_the_draw_is_the_plain_one() -> None:
    points = np.arange(500)
    parts = BatchPlan({"one": [PointPool(points, False, 500)]}, "points", 0.5, 10).draw(np.random.default_rng(0), 10)
    assert len(parts) == 1 and parts[0].wanted == 10 and np.array_equal(parts[0].points, points)


def test_pictures_are_drawn_as_often_as_they_have_points() -> None:
    choices = [PointPool(np.arange(900), True, 900), PointPool(np.arange(900, 1000), True, 100)]
    pools, rng = BatchPlan({"one": choices}, "points", 0.5, 50), np.random.default_rng(0)
    large = [len(pools.draw(rng, 50)[0].points) == 900 for _ in range(1000)]
    assert np.mean(large) == pytest.approx(0.9, abs=0.03)


def test_a_picture_too_poor_for_the_batch_is_left_out() -> None:
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

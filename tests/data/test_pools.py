"""Which points share a batch: never two sets of one scene, never two photos of a set of views."""

import numpy as np
import pytest

from sdgmnet.data.batches import PairSampler
from sdgmnet.data.patchset import PatchSet
from sdgmnet.data.pools import Choice, Pools
from sdgmnet.data.view_sets import OBSERVATION as VIEW_OBSERVATION
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
    observations = np.zeros(count, dtype=VIEW_OBSERVATION)
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
    pool = Pools([[Choice(points, False)]], "points", 0.5).draw(np.random.default_rng(0))
    assert pool.shares is None and np.array_equal(pool.points, points)


def test_carried_patches_can_be_left_out() -> None:
    detected = np.tile([True, True, False], 30)
    detected[:3] = [True, False, False]  # the first point has but one detected patch
    patchset = real("one", 30, detected)
    used = np.concatenate([PairSampler([patchset], 0, carried=False).indices(step, 20).ravel() for step in range(30)])
    assert set(used.tolist()) == set(np.flatnonzero(detected).tolist()) - {0}
    every = np.concatenate([PairSampler([patchset], 0).indices(step, 20).ravel() for step in range(60)])
    assert set(every.tolist()) == set(range(90))


def test_a_batch_larger_than_the_smallest_pool_is_refused() -> None:
    sampler = PairSampler([real("one", 40), views("one", 5, 30)], 0)
    sampler.check_batch_size(30)
    with pytest.raises(InputError, match="only 30 points"):
        sampler.check_batch_size(31)

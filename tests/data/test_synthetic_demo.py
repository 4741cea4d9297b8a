"""The embedded data set as it comes out."""

import numpy as np
import pytest

from sdgmnet.data.patchset import PatchSet
from sdgmnet.data.synthetic import demo
from sdgmnet.data.synthetic.demo import TEST_IMAGES, TRAIN_IMAGES, build, read_demo, read_image
from sdgmnet.errors import InputError

Sets = tuple[PatchSet, PatchSet]


@pytest.fixture(scope="module")
def sets() -> Sets:
    """The demo's sets of two images each: all of them take half a minute on one core."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "TRAIN_IMAGES", TRAIN_IMAGES[:2])
        patch.setattr(demo, "TEST_IMAGES", TEST_IMAGES[:2])
        return read_demo()


def test_missing_images_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="no_such_image.png"):
        read_image("no_such_image.png")

    def missing(_: str) -> None:
        raise ModuleNotFoundError

    monkeypatch.setattr(demo, "package_files", missing)
    with pytest.raises(InputError, match=r"sdgmnet\[demo\]"):
        read_image(TEST_IMAGES[0])


def test_training_and_test_images_are_disjoint(sets: Sets) -> None:
    train, test = sets
    assert (train.name, test.name) == ("demo-train", "demo-test")
    assert train.origin["pictures"] == list(TRAIN_IMAGES[:2])
    assert test.origin["pictures"] == list(TEST_IMAGES[:2])
    names = [*TRAIN_IMAGES, *TEST_IMAGES]
    assert len(set(names)) == len(names)
    pixels = {read_image(name).tobytes() for name in names}
    assert len(pixels) == len(names)  # nor is one a copy of another


def test_no_patch_is_in_both_sets(sets: Sets) -> None:
    train, test = ({patch.tobytes() for patch in patchset.patches} for patchset in sets)
    assert not train & test


def test_building_again_gives_the_same_arrays() -> None:
    image = TEST_IMAGES[:1]
    once, again = build("once", image), build("again", image)
    assert len(once) > 100
    assert np.array_equal(once.patches, again.patches)
    assert np.array_equal(once.point_id, again.point_id)
    assert once.conflicts is not None and again.conflicts is not None
    assert np.array_equal(once.conflicts, again.conflicts)


def test_every_point_has_two_patches_or_more_and_not_more_than_views(sets: Sets) -> None:
    """More patches than views would mean that points of different images share a number."""
    for patchset in sets:
        _, counts = np.unique(patchset.point_id, return_counts=True)
        assert counts.min() >= 2 and counts.max() <= patchset.origin["views"]
        assert len(counts) > 500


def test_test_pairs_are_labelled_by_points_and_avoid_conflicts(sets: Sets) -> None:
    _, test = sets
    pairs, conflicts = test.test_pairs, test.conflicts
    assert pairs is not None and conflicts is not None
    assert 1000 < len(pairs) <= demo.TEST_PAIRS and 2 * int(pairs[:, 2].sum()) == len(pairs)
    first, second = test.point_id[pairs[:, 0]], test.point_id[pairs[:, 1]]
    assert np.array_equal(pairs[:, 2] == 1, first == second)
    assert (pairs[:, 0] != pairs[:, 1]).all()
    forbidden = {frozenset(pair) for pair in conflicts.tolist()}
    assert not any(frozenset(pair) in forbidden for pair in zip(first.tolist(), second.tolist(), strict=True))


def test_conflicts_are_between_two_points_of_the_set(sets: Sets) -> None:
    for patchset in sets:
        assert patchset.conflicts is not None and len(patchset.conflicts) > 10
        assert (patchset.conflicts[:, 0] != patchset.conflicts[:, 1]).all()
        assert np.isin(patchset.conflicts, patchset.point_id).all()
        assert len({frozenset(pair) for pair in patchset.conflicts.tolist()}) == len(patchset.conflicts)


def test_patches_of_one_point_look_alike(sets: Sets) -> None:
    """The geometry is right: patches that share a point correlate, others do not."""
    _, test = sets
    assert test.test_pairs is not None
    pairs = test.test_pairs[:1000]
    flat = test.patches[pairs[:, :2]].reshape(len(pairs), 2, -1).astype(np.float64)
    flat -= flat.mean(axis=2, keepdims=True)
    flat /= np.linalg.norm(flat, axis=2, keepdims=True) + 1e-9
    correlation = (flat[:, 0] * flat[:, 1]).sum(axis=1)
    assert np.median(correlation[pairs[:, 2] == 1]) > 0.6
    assert np.median(correlation[pairs[:, 2] == 0]) < 0.3

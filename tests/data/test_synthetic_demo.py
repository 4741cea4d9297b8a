"""The embedded data set as it comes out."""

import numpy as np
import pytest

from sdgmnet.data.patchset import PatchSet, pairs_in
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
    assert train.origin["pictures"] == list(TRAIN_IMAGES[:2]) and test.origin["pictures"] == list(TEST_IMAGES[:2])
    names = [*TRAIN_IMAGES, *TEST_IMAGES]
    assert len({read_image(name).tobytes() for name in names}) == len(names)  # nor is one a copy of another
    assert {patch.tobytes() for patch in train.patches}.isdisjoint(patch.tobytes() for patch in test.patches)
    again = build("again", TEST_IMAGES[:2])
    for array in ("patches", "point_id", "conflicts"):
        assert np.array_equal(getattr(test, array), getattr(again, array))


def test_points_and_conflicts(sets: Sets) -> None:
    """More patches than views would mean that points of different images share a number."""
    for patchset in sets:
        _, counts = np.unique(patchset.point_id, return_counts=True)
        assert counts.min() >= 2 and counts.max() <= patchset.origin["views"] and len(counts) > 500
        assert patchset.conflicts is not None and len(patchset.conflicts) > 10
        assert (patchset.conflicts[:, 0] != patchset.conflicts[:, 1]).all()
        assert np.isin(patchset.conflicts, patchset.point_id).all()
        assert len({frozenset(pair) for pair in patchset.conflicts.tolist()}) == len(patchset.conflicts)


def test_patches_of_one_point_look_alike(sets: Sets) -> None:
    """The geometry is right: patches that share a point correlate, others do not. Pairs avoid ambiguous points."""
    _, test = sets
    assert test.test_pairs is not None and test.conflicts is not None
    assert 1000 < len(test.test_pairs) <= demo.TEST_PAIRS
    points = test.point_id[test.test_pairs[:, :2]]
    assert not pairs_in(points[points[:, 0] != points[:, 1]], test.conflicts).any()
    pairs = test.test_pairs[:1000]
    flat = test.patches[pairs[:, :2]].reshape(len(pairs), 2, -1).astype(np.float64)
    flat -= flat.mean(axis=2, keepdims=True)
    flat /= np.linalg.norm(flat, axis=2, keepdims=True) + 1e-9
    correlation = (flat[:, 0] * flat[:, 1]).sum(axis=1)
    assert np.median(correlation[pairs[:, 2] == 1]) > 0.6
    assert np.median(correlation[pairs[:, 2] == 0]) < 0.3

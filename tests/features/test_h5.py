"""hloc's layout of features and matches."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from sdgmnet.errors import InputError
from sdgmnet.features.h5 import features_to_arrays, matches_to_arrays, pair_name, read_features, read_matches
from sdgmnet.features.h5_store import open_store
from sdgmnet.features.match import Matches
from tests.features.samples import groups, some_features


@pytest.mark.parametrize("count", [0, 1, 50])
def test_features_are_in_hlocs_layout(tmp_path: Path, count: int) -> None:
    features, name = some_features(count), "mapping/cam 1/größe.jpg"
    with open_store(tmp_path / "features.h5", "features") as store:
        store.add(name, features_to_arrays(features))
    arrays = groups(tmp_path / "features.h5")[name]
    assert {key: (values.shape, values.dtype.name) for key, values in arrays.items()} == {
        "keypoints": ((count, 2), "float32"),
        "descriptors": ((128, count), "float32"),
        "image_size": ((2,), "int64"),
        **dict.fromkeys(("scores", "scales", "oris"), ((count,), "float32")),
    }
    np.testing.assert_array_equal(arrays["image_size"], [640, 480])
    np.testing.assert_allclose(arrays["keypoints"], features.keypoints.xy, rtol=1e-6)  # no half pixel is added
    np.testing.assert_allclose(arrays["oris"], features.keypoints.angle * 180 / np.pi, rtol=1e-6)
    again = read_features(tmp_path / "features.h5", name)
    np.testing.assert_array_equal(again.descriptors, features.descriptors)
    for column, wanted in zip(again.keypoints, features.keypoints, strict=True):
        np.testing.assert_allclose(column, wanted, rtol=1e-6)
    assert again.size == features.size


def test_hlocs_own_files_are_read(tmp_path: Path) -> None:
    """Half precision, no scales and no angles."""
    with h5py.File(tmp_path / "hloc.h5", "w", libver="latest") as file:
        group = file.create_group("db/1.jpg")
        group["keypoints"] = np.array([[1, 2], [3, 4]], dtype=np.float16)
        group["descriptors"] = np.ones((256, 2), dtype=np.float16)
        group["scores"] = np.ones(2, dtype=np.float16)
        group["image_size"] = np.array([20, 10])
    found = read_features(tmp_path / "hloc.h5", "db/1.jpg")
    assert found.descriptors.shape == (2, 256) and found.descriptors.dtype == np.float32
    np.testing.assert_array_equal(found.keypoints.xy, [[1, 2], [3, 4]])
    np.testing.assert_array_equal(found.keypoints.angle, 0)


def test_matches_are_in_hlocs_layout(tmp_path: Path) -> None:
    path = tmp_path / "matches.h5"
    matches = Matches(np.array([[1, 7], [4, 2]]), np.array([0.5, 1.0], np.float32), np.array([0.6, 0.7], np.float32))
    with open_store(path, "matches") as store:
        store.add(pair_name("a/1.jpg", "b/2.jpg"), matches_to_arrays(matches, 6))
    arrays = groups(path)["a-1.jpg/b-2.jpg"]
    np.testing.assert_array_equal(arrays["matches0"], [-1, 7, -1, -1, 2, -1])
    assert (arrays["matches0"].dtype, arrays["matching_scores0"].dtype) == (np.int16, np.float16)
    cosines = 1 - np.square(matches.distance) / 2
    np.testing.assert_allclose(arrays["matching_scores0"][[1, 4]], (1 + cosines) / 2, rtol=1e-3)
    pairs, scores = read_matches(path, "a/1.jpg", "b/2.jpg")
    np.testing.assert_array_equal(pairs, matches.pairs)
    assert scores.shape == (2,)
    np.testing.assert_array_equal(read_matches(path, "b/2.jpg", "a/1.jpg")[0], matches.pairs[:, ::-1])
    with pytest.raises(InputError, match="matches.h5 has no matches of a and b"):
        read_matches(path, "a", "b")
    with pytest.raises(InputError, match="none.h5"):
        read_features(tmp_path / "none.h5", "a")
    many = Matches(np.array([[0, 40_000]]), *np.ones((2, 1), np.float32))  # more than int16 holds
    assert matches_to_arrays(many, 2)["matches0"].tolist() == [40_000, -1]

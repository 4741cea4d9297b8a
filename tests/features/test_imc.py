"""The Image Matching Challenge's files, read with h5py as the benchmark reads them."""

from itertools import combinations
from pathlib import Path

import h5py
import numpy as np
import pytest

from sdgmnet.cli import main
from sdgmnet.features.h5 import features_to_arrays, matches_to_arrays, pair_name, read_features
from sdgmnet.features.h5_store import open_store
from sdgmnet.features.match import Matches
from tests.features.samples import some_features

NAMES = ("c.jpg", "a.png", "sub/b.png")


def load(path: Path) -> dict[str, np.ndarray]:
    with h5py.File(path, "r") as file:
        return {key: file[key][()] for key in file}


def write(path: Path, names: tuple[str, ...] = NAMES) -> Path:
    with open_store(path, "features") as store:
        for seed, name in enumerate(names):
            store.add(name, features_to_arrays(some_features(20 + seed, seed)))
    return path


def write_matches(path: Path, first: str, second: str, pairs: list[tuple[int, int]], count: int = 20) -> Path:
    with open_store(path, "matches") as store:
        zeros = np.zeros(len(pairs), dtype=np.float32)
        found = Matches(np.array(pairs, dtype=np.int64), zeros, zeros)
        store.add(pair_name(first, second), matches_to_arrays(found, count))
    return path


def test_files_and_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    features = write(tmp_path / "features.h5")
    matches = write_matches(tmp_path / "matches.h5", "a.png", "c.jpg", [(0, 5), (3, 19), (20, 7)], 21)
    out = tmp_path / "scene"
    assert main(["export", "imc", str(features), "--matches", str(matches), "-o", str(out)]) == 0
    assert "3 images, 3 pairs, 1 with matches" in capsys.readouterr().out
    names = ("keypoints", "descriptors", "scores", "scales", "angles")
    assert {one.name for one in out.iterdir()} == {f"{name}.h5" for name in (*names, "matches")}
    keypoints, descriptors, scores, scales, angles = (load(out / f"{name}.h5") for name in names)
    for name in NAMES:
        expected, key = read_features(features, name), Path(name).stem
        assert np.array_equal(keypoints[key], expected.keypoints.xy) and keypoints[key].shape[1] == 2
        assert np.array_equal(descriptors[key], expected.descriptors)
        assert np.array_equal(scores[key], expected.keypoints.response)
        assert np.array_equal(scales[key], expected.keypoints.sigma)
        np.testing.assert_allclose(np.deg2rad(angles[key]), expected.keypoints.angle, rtol=1e-6)
    found = load(out / "matches.h5")  # as submission_validator.py checks it
    assert set(found) == {f"{b}-{a}" for a, b in combinations("abc", 2)}
    assert found["c-a"].tolist() == [[5, 19, 7], [0, 3, 20]]  # rows: c's keypoints, a's keypoints
    assert found["b-a"].shape == found["c-b"].shape == (2, 0)


def test_without_matches(tmp_path: Path) -> None:
    out = tmp_path / "scene"
    assert main(["export", "imc", str(write(tmp_path / "features.h5")), "-o", str(out)]) == 0
    assert not (out / "matches.h5").exists() and set(load(out / "keypoints.h5")) == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("names", "match", "said"),
    [
        (("a.png", "sub/a.jpg"), (0, 1), "two images called a"),
        (("a-b.png", "c.png"), (0, 1), "a-b.png"),
        (("c.jpg", "a.png"), (0, 99), "matches.h5"),  # of other features
        ((), (0, 1), "features.h5"),
    ],
)
def test_what_makes_no_file(
    tmp_path: Path, names: tuple[str, ...], match: tuple[int, int], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    features = write(tmp_path / "features.h5", names)
    matches = write_matches(tmp_path / "matches.h5", *(names or NAMES[:2]), [match])
    assert main(["export", "imc", str(features), "--matches", str(matches), "-o", str(tmp_path / "scene")]) == 2
    assert said in capsys.readouterr().err and not (tmp_path / "scene").exists()

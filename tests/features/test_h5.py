"""hloc's files: its schema, and that they are whole whenever the process that writes them is killed."""

import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest

from sdgmnet.errors import InputError
from sdgmnet.features import h5
from sdgmnet.features.describe import Features
from sdgmnet.features.h5 import (
    Store,
    features_to_arrays,
    matches_to_arrays,
    names_in,
    pair_name,
    parts_folder,
    read_features,
    read_matches,
)
from sdgmnet.features.keypoints import Keypoints
from sdgmnet.features.match import Matches


def some_features(count: int, seed: int = 0) -> Features:
    rng = np.random.default_rng(seed)
    xy, sigma = rng.uniform(0, 100, (count, 2)), rng.uniform(1, 9, count)
    points = Keypoints(xy, sigma, rng.uniform(0, 6, count), rng.uniform(0, 1, count))
    return Features(points, rng.normal(size=(count, 128)).astype(np.float32), (640, 480))


def groups(path: Path) -> dict[str, dict[str, np.ndarray]]:
    """All arrays of a file by the name of their group, found as hloc's own `list_h5_names` finds them."""
    found: dict[str, dict[str, np.ndarray]] = {}

    def visit(_: str, one: h5py.Group | h5py.Dataset) -> None:
        if isinstance(one, h5py.Dataset):
            found.setdefault(one.parent.name.strip("/"), {})[one.name.rpartition("/")[2]] = one[()]

    with h5py.File(path, "r") as file:
        file.visititems(visit)
    return found


@pytest.mark.parametrize("count", [0, 1, 50])
def test_features_are_hlocs(tmp_path: Path, count: int) -> None:
    features = some_features(count)
    with Store(tmp_path / "features.h5", "features") as store:
        store.add("mapping/cam 1/größe.jpg", features_to_arrays(features))
    arrays = groups(tmp_path / "features.h5")["mapping/cam 1/größe.jpg"]
    shapes = {key: (values.shape, values.dtype) for key, values in arrays.items()}
    f32 = np.dtype(np.float32)
    assert shapes == {
        "keypoints": ((count, 2), f32),
        "descriptors": ((128, count), f32),
        "scores": ((count,), f32),
        "image_size": ((2,), np.dtype(np.int64)),
        "scales": ((count,), f32),
        "oris": ((count,), f32),
    }
    np.testing.assert_array_equal(arrays["image_size"], [640, 480])
    np.testing.assert_allclose(arrays["keypoints"], features.keypoints.xy, rtol=1e-6)  # no half pixel is added
    np.testing.assert_allclose(arrays["oris"], features.keypoints.angle * 180 / np.pi, rtol=1e-6)
    again = read_features(tmp_path / "features.h5", "mapping/cam 1/größe.jpg")
    np.testing.assert_array_equal(again.descriptors, features.descriptors)
    for ours, wanted in zip(again.keypoints, features.keypoints, strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-6)
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
    assert found.descriptors.shape == (2, 256)
    assert found.descriptors.dtype == np.float32
    np.testing.assert_array_equal(found.keypoints.xy, [[1, 2], [3, 4]])
    np.testing.assert_array_equal(found.keypoints.angle, 0)


def test_matches_are_hlocs(tmp_path: Path) -> None:
    matches = Matches(np.array([[1, 7], [4, 2]]), np.array([0.5, 1.0], np.float32), np.array([0.6, 0.7], np.float32))
    with Store(tmp_path / "matches.h5", "matches") as store:
        store.add(pair_name("a/1.jpg", "b/2.jpg"), matches_to_arrays(matches, 6))
    arrays = groups(tmp_path / "matches.h5")["a-1.jpg/b-2.jpg"]
    np.testing.assert_array_equal(arrays["matches0"], [-1, 7, -1, -1, 2, -1])
    assert arrays["matches0"].dtype == np.int16
    assert arrays["matching_scores0"].dtype == np.float16
    cosines = 1 - np.square(matches.distance) / 2
    np.testing.assert_allclose(arrays["matching_scores0"][[1, 4]], (1 + cosines) / 2, rtol=1e-3)
    pairs, scores = read_matches(tmp_path / "matches.h5", "a/1.jpg", "b/2.jpg")
    np.testing.assert_array_equal(pairs, matches.pairs)
    assert scores.shape == (2,)
    np.testing.assert_array_equal(
        read_matches(tmp_path / "matches.h5", "b/2.jpg", "a/1.jpg")[0], matches.pairs[:, ::-1]
    )
    with pytest.raises(InputError, match="no matches of a and b"):
        read_matches(tmp_path / "matches.h5", "a", "b")


def test_more_keypoints_than_16_bits_hold() -> None:
    matches = Matches(np.array([[0, 40_000]]), np.ones(1, np.float32), np.ones(1, np.float32))
    assert matches_to_arrays(matches, 2)["matches0"].tolist() == [40_000, -1]


def test_a_finished_name_is_known_and_replaced_without_a_hole(tmp_path: Path) -> None:
    path, sizes = tmp_path / "features.h5", []
    for round_ in range(3):
        with Store(path, "features") as store:
            for name in ("x/a.png", "x/b.png"):
                assert (name in store) == (round_ > 0)
                store.add(name, features_to_arrays(some_features(2000, seed=round_)))
        sizes.append(path.stat().st_size)
        assert sizes[-1] < 1.02 * sizes[0]
        np.testing.assert_array_equal(
            read_features(path, "x/a.png").descriptors, some_features(2000, round_).descriptors
        )
    assert sorted(names_in(path)) == ["x/a.png", "x/b.png"]
    assert not parts_folder(path).exists()


def test_other_options_are_not_mixed(tmp_path: Path) -> None:
    path = tmp_path / "features.h5"
    arrays = features_to_arrays(some_features(3))
    with Store(path, "features", {"descriptor": "sift"}) as store:
        store.add("a", arrays)
    with pytest.raises(
        InputError, match="made in another way .descriptor sift; now descriptor rootsift.: choose another"
    ):
        Store(path, "features", {"descriptor": "rootsift"})
    with Store(path, "features", {"descriptor": "rootsift"}, overwrite=True) as store:
        store.add("b", arrays)
    assert names_in(path) == ["b"]


def test_what_is_no_h5_file_is_said_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.h5").write_text("precious")
    with pytest.raises(InputError, match="thesis.h5 is not an h5 file"):
        Store(tmp_path / "thesis.h5", "features", overwrite=True)
    assert (tmp_path / "thesis.h5").read_text() == "precious"
    with pytest.raises(InputError, match="is a folder"):
        Store(tmp_path, "features")
    with pytest.raises(InputError, match="does not exist"):
        read_features(tmp_path / "none.h5", "a")


def test_what_others_put_into_the_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "f.h5"
    for _ in range(3):
        with Store(path, "features", {"limit": 1}) as store:
            for name in ("a/1.jpg", "a/2.jpg", "b.jpg"):
                if name == "a/1.jpg" or name not in store:
                    store.add(name, features_to_arrays(some_features(5)))
        with h5py.File(path, "a") as file:
            file.require_group("a/1.jpg").parent.require_dataset("global", (3,), "f4")
            file.require_dataset("more/words", (2,), "i8")
            file.attrs["mine"] = file["a"].attrs["camera"] = "kept"
            if "gone" not in list(file):
                file["gone"] = h5py.SoftLink("/nowhere")
    found = groups(path)
    with h5py.File(path) as file:
        assert file.attrs["mine"] == file["a"].attrs["camera"] == "kept"
        assert isinstance(file.get("gone", getlink=True), h5py.SoftLink)
    assert set(found) == {"a", "a/1.jpg", "a/2.jpg", "b.jpg", "more"} and "global" in found["a"]


def test_a_full_disk_is_said_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f.h5"
    with Store(path, "features") as store:
        store.add("1.jpg", features_to_arrays(some_features(5)))
    before = path.read_bytes()
    monkeypatch.setattr(h5.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(InputError, match="the disk is full"), Store(path, "features") as store:
        store.add("2.jpg", features_to_arrays(some_features(5)))
    assert path.read_bytes() == before
    monkeypatch.undo()
    with Store(path, "features"):
        pass
    assert sorted(names_in(path)) == ["1.jpg", "2.jpg"]  # it waited beside the file


def test_begun_anew_the_old_file_stays_until_there_is_something_new(tmp_path: Path) -> None:
    path = tmp_path / "f.h5"
    with Store(path, "features", {"limit": 1}) as store:
        store.add("1.jpg", features_to_arrays(some_features(5)))
    before = path.read_bytes()
    with Store(path, "features", {"limit": 2}, overwrite=True) as store:
        assert "1.jpg" not in store and path.read_bytes() == before
        store.add("2.jpg", features_to_arrays(some_features(5)))
        assert names_in(path) == ["2.jpg"]


def test_nothing_added_is_no_file(tmp_path: Path) -> None:
    with Store(tmp_path / "features.h5", "features"):
        pass
    assert not any(tmp_path.iterdir())


def test_an_error_keeps_what_was_added(tmp_path: Path) -> None:
    path = tmp_path / "features.h5"
    with pytest.raises(KeyError), Store(path, "features", pause=1000) as store:
        store.add("a", features_to_arrays(some_features(3)))
        store.add("b", features_to_arrays(some_features(3)))
        raise KeyError("b")
    assert sorted(names_in(path)) == ["a", "b"]


def write_many(path: Path, pause: float, total: int, told: int) -> None:
    """What a killed process does: adds groups, and tells each by a byte."""
    h5.OFTEN = h5.SHARE = 0.0  # put together all the time: as many chances as can be to be killed in the middle of it
    with Store(path, "features", pause=pause) as store:
        os.write(told, b".")
        for number in range(total):
            name = f"folder/{number:04}.jpg"
            if name not in store:
                store.add(name, {"keypoints": np.full((500, 2), number), "descriptors": np.full((128, 500), number)})
                os.write(told, b".")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("pause", [0.0, 0.05])
def test_killed_at_any_moment_it_is_whole_and_goes_on(tmp_path: Path, pause: float) -> None:
    path, total, kills = tmp_path / "features.h5", 80, 20
    rng, held, in_the_middle = np.random.default_rng(int(pause * 100)), 0, 0
    for turn in range(kills + 1):
        reading, telling = os.pipe()
        process = os.fork()  # a new interpreter would take seconds to begin
        if not process:
            code = 1
            try:
                write_many(path, pause, total, telling)
                code = 0
            finally:
                os._exit(code)
        os.close(telling)
        with open(reading, "rb") as told:
            told.read(1)  # it is busy from here on
            time.sleep(rng.uniform(0, 0.06))
            if turn < kills:
                os.kill(process, signal.SIGKILL)
            added = len(told.read())
        code = os.waitpid(process, 0)[1]
        found = groups(path) if path.exists() else {}
        for name, arrays in found.items():
            number = int(name[-8:-4])
            assert arrays["descriptors"].shape == (128, 500)
            assert (arrays["keypoints"] == number).all() and (arrays["descriptors"] == number).all()
        kept = {*found, *(name for part in parts_folder(path).glob("[0-9]*.h5") for name in names_in(part))}
        if not pause:
            assert len(kept) >= held + added  # whatever was told is there
        assert len(kept) >= held  # and nothing is done twice
        held = len(kept)
        in_the_middle += held < total
    assert in_the_middle >= 3
    assert code == 0
    assert len(found) == total
    assert [one.name for one in tmp_path.iterdir()] == ["features.h5"]


def test_parts_of_a_killed_process_are_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "features.h5"
    first = Store(path, "features")
    for name in "abc":
        first.add(name, features_to_arrays(some_features(3)))
    assert names_in(path) == ["a"]  # the others wait beside it
    assert len(list(parts_folder(path).glob("*.h5"))) == 2
    (parts_folder(path) / ".half-written.part").write_bytes(b"half")
    with Store(path, "features") as second:
        assert all(name in second for name in "abc")
    assert names_in(path) == ["a", "b", "c"]
    assert not parts_folder(path).exists()


def test_it_is_put_together_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(h5, "OFTEN", 0.0)
    monkeypatch.setattr(h5, "SHARE", 0.0)
    store = Store(tmp_path / "features.h5", "features")
    for number, name in enumerate("abc", start=1):
        store.add(name, features_to_arrays(some_features(3)))
        assert len(names_in(tmp_path / "features.h5")) == number

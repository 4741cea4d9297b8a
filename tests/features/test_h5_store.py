"""A store is valid whenever the process that writes it is killed, and continued by the next."""

import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest

from sdgmnet.errors import InputError
from sdgmnet.features import h5_store
from sdgmnet.features.h5 import features_to_arrays, names_in, read_features
from sdgmnet.features.h5_store import open_store, parts_folder
from tests.features.samples import groups, some_features

SMALL = features_to_arrays(some_features(3))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "features.h5"


@pytest.fixture
def merge_always(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MERGE_SECONDS", "MERGE_FACTOR"):
        monkeypatch.setattr(h5_store, name, 0.0)


def test_a_group_is_replaced_without_a_hole(path: Path) -> None:
    sizes: list[int] = []
    for turn in range(3):
        with open_store(path, "features") as store:
            for name in ("x/a.png", "x/b.png"):
                assert (name in store) == (turn > 0)
                store.add(name, features_to_arrays(some_features(2000, seed=turn)))
        sizes.append(path.stat().st_size)
        assert sizes[-1] < 1.02 * sizes[0]
        found = read_features(path, "x/a.png").descriptors
        np.testing.assert_array_equal(found, some_features(2000, turn).descriptors)
    assert sorted(names_in(path)) == ["x/a.png", "x/b.png"]
    assert not parts_folder(path).exists()


def test_other_options_are_refused_or_replace_the_file(path: Path) -> None:
    with open_store(path, "features", {"descriptor": "sift", "limits": (1, 2)}) as store:
        store.add("a", SMALL)
    with open_store(path, "features", {"limits": (1, 2), "descriptor": "sift"}) as store:
        assert "a" in store
    before = path.read_bytes()
    refused = pytest.raises(InputError, match="descriptor sift \\(now rootsift\\), other limits: choose another -o")
    with refused, open_store(path, "features", {"descriptor": "rootsift"}):
        pass
    with open_store(path, "features", {"descriptor": "rootsift"}, overwrite=True) as store:
        assert "a" not in store and path.read_bytes() == before  # it stays until there is something new
        store.add("b", SMALL)
        assert names_in(path) == ["b"]


@pytest.mark.parametrize("name", ["thesis.h5", ""])
def test_other_files_and_folders_are_refused_and_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / "thesis.h5").write_text("precious")
    with pytest.raises(InputError, match=str(tmp_path / name)), open_store(tmp_path / name, "features", overwrite=True):
        pass
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("thesis.h5", "precious")]


def test_what_others_put_into_the_file_stays(path: Path) -> None:
    for _ in range(3):
        with open_store(path, "features", {"limit": 1}) as store:
            for name in ("a/1.jpg", "a/2.jpg", "b.jpg"):
                if name == "a/1.jpg" or name not in store:
                    store.add(name, SMALL)
        with h5py.File(path, "a") as file:
            file["a"].require_dataset("global", (3,), "f4")
            file.require_dataset("more/words", (2,), "i8")
            file.attrs["mine"] = file["a"].attrs["camera"] = "kept"
            if "gone" not in list(file):
                file["gone"] = h5py.SoftLink("/nowhere")
    found = groups(path)
    with h5py.File(path) as file:
        assert file.attrs["mine"] == file["a"].attrs["camera"] == "kept"
        assert isinstance(file.get("gone", getlink=True), h5py.SoftLink)
    assert set(found) == {"a", "a/1.jpg", "a/2.jpg", "b.jpg", "more"} and "global" in found["a"]


def test_a_full_disk_is_seen_before_anything_is_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store(path, "features") as store:
        store.add("1.jpg", SMALL)
    before = path.read_bytes()
    monkeypatch.setattr(h5_store.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(InputError, match="disk is full"), open_store(path, "features") as store:
        store.add("2.jpg", SMALL)
    assert path.read_bytes() == before
    monkeypatch.undo()
    with open_store(path, "features"):
        pass
    assert sorted(names_in(path)) == ["1.jpg", "2.jpg"]  # it waited next to the file


def test_an_error_keeps_what_was_added_by_one_process_at_a_time(path: Path) -> None:
    with open_store(path, "features"), pytest.raises(InputError, match="features.h5"), open_store(path, "features"):
        pass
    assert not any(path.parent.iterdir())  # no groups, no file
    with pytest.raises(KeyError), open_store(path, "features", pause=1000) as store:
        store.add("a", SMALL)
        store.add("b", SMALL)
        raise KeyError("b")
    assert sorted(names_in(path)) == ["a", "b"]


def write_many(path: Path, pause: float, total: int, told: int) -> None:
    """What a killed process does: adds groups, and reports each by a byte."""
    with open_store(path, "features", pause=pause) as store:
        os.write(told, b".")
        for number in range(total):
            name = f"folder/{number:04}.jpg"
            if name not in store:
                store.add(name, {"keypoints": np.full((500, 2), number), "descriptors": np.full((128, 500), number)})
                os.write(told, b".")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("pause", [0.0, pytest.param(0.05, marks=pytest.mark.slow)])
def test_killed_at_any_moment_it_is_valid_and_continued(path: Path, pause: float, merge_always: None) -> None:
    """It merges after every group: as many chances as can be to be killed in the middle of it."""
    parts_folder(path).mkdir()
    (parts_folder(path) / ".half-written.part").write_bytes(b"half")
    total, kills = 80, 10
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
        # Whatever was reported is there (with a pause: may be lost), and nothing is done twice.
        assert len(kept) >= held + (0 if pause else added)
        held = len(kept)
        in_the_middle += held < total
    assert in_the_middle >= 3 and code == 0 and len(found) == total
    assert [one.name for one in path.parent.iterdir()] == ["features.h5"]


def test_parts_are_merged_from_time_to_time(path: Path, merge_always: None) -> None:
    with open_store(path, "features") as store:
        for number, name in enumerate("abc", start=1):
            store.add(name, SMALL)
            assert len(names_in(path)) == number

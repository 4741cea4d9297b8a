"""What `--data` and `--holdout` may name."""

from pathlib import Path

import numpy as np
import pytest

from sdgmnet.data import sources
from sdgmnet.data.patchset import PatchSet
from sdgmnet.data.phototour import write_phototour
from sdgmnet.data.sources import open_patchsets, open_sources
from sdgmnet.errors import InputError
from tests.data.samples import blank_set

PAIRS = np.array([[0, 1, 1], [2, 5, 0]])


def make_set(name: str, pairs: np.ndarray | None = PAIRS) -> PatchSet:
    return blank_set(np.repeat(np.arange(20), 2), name, test_pairs=pairs)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three PatchSets, two of them without pairs, a PhotoTour folder, and two things that are neither."""
    make_set("alpha").save(tmp_path / "all" / "a")
    make_set("beta", None).save(tmp_path / "all" / "b")
    make_set("empty", PAIRS[:0]).save(tmp_path / "all" / "e")
    write_phototour(make_set("gamma"), tmp_path / "all" / "gamma")
    (tmp_path / "all" / "notes").mkdir()
    (tmp_path / "all" / "readme.txt").write_text("hello")
    return tmp_path / "all"


def names(patchsets: list[PatchSet]) -> list[str]:
    return [patchset.name for patchset in patchsets]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["a"], ["alpha"]),
        (["gamma"], ["gamma"]),
        (["."], ["alpha", "beta", "empty", "gamma"]),
        (["b", "a"], ["beta", "alpha"]),
    ],
)
def test_folders_of_sets(root: Path, words: list[str], expected: list[str]) -> None:
    for _ in range(2):  # a PhotoTour folder contains its converted copy the second time
        found = open_patchsets([str(root / word) for word in words])
        assert names(found) == expected
        for one in found:
            assert np.array_equal(one.patches, make_set("").patches)
            assert one.name not in ("alpha", "gamma") or np.array_equal(one.test_pairs, PAIRS)  # type: ignore[arg-type]


def test_sets_are_held_out_by_name(root: Path) -> None:
    opened = open_sources([str(root)])
    assert names(opened.train) == ["alpha", "beta", "empty", "gamma"] and opened.test == []
    opened = open_sources([str(root)], ["gamma", "alpha"])
    assert names(opened.train) == ["beta", "empty"] and names(opened.test) == ["alpha", "gamma"]
    assert all(np.array_equal(one.test_pairs, PAIRS) for one in opened.test)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["beta", "empty"])
def test_held_out_sets_without_pairs_get_drawn_ones(root: Path, name: str) -> None:
    held_out, again = (open_sources([str(root)], [name]).test[0] for _ in range(2))
    pairs = held_out.test_pairs
    assert pairs is not None and again.test_pairs is not None and np.array_equal(again.test_pairs, pairs)
    assert np.array_equal(pairs[:, 2] == 1, held_out.point_id[pairs[:, 0]] == held_out.point_id[pairs[:, 1]])
    assert 0 < pairs[:, 2].sum() < len(pairs)


@pytest.mark.parametrize(
    ("data", "holdout", "message"),
    [
        (["."], ["alpha", "delta"], "delta.* alpha, beta, empty, gamma"),
        (["a"], ["alpha"], "held out"),
        (["a", "none"], [], "none"),
        (["readme.txt"], [], "readme.txt"),
        (["notes"], [], "notes"),
        (["a", "."], [], "alpha more than once"),
        ([], [], "--data"),
    ],
)
def test_what_cannot_be_opened_is_named(root: Path, data: list[str], holdout: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        open_sources([str(root / word) for word in data], holdout)


def test_damaged_sets_are_an_error_and_not_left_out(root: Path) -> None:
    (root / "b" / "point_id.npy").unlink()
    with pytest.raises(InputError, match="point_id.npy"):
        open_sources([str(root)])


def test_the_demos_test_images_are_always_held_out(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "read_demo", lambda on_progress: (make_set("demo-train"), make_set("demo-test")))
    opened = open_sources(["demo", str(root / "a")])
    assert names(opened.train) == ["demo-train", "alpha"] and names(opened.test) == ["demo-test"]

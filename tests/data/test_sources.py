"""What `--data` and `--holdout` may name."""

from pathlib import Path

import numpy as np
import pytest

from sdgmnet.data import sources
from sdgmnet.data.patchset import PatchSet
from sdgmnet.data.phototour import write_phototour
from sdgmnet.data.sources import open_patchsets, open_sources
from sdgmnet.errors import InputError


def make_set(name: str, seed: int = 0, pairs: bool = True) -> PatchSet:
    rng = np.random.default_rng(seed)
    patches = rng.integers(256, size=(40, 64, 64), dtype=np.uint8)
    test_pairs = np.array([[0, 1, 1], [2, 5, 0]]) if pairs else None
    return PatchSet(name, patches, np.repeat(np.arange(20), 2), test_pairs)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two PatchSets, one PhotoTour folder, and two things that are neither."""
    make_set("alpha", 0).save(tmp_path / "all" / "a")
    make_set("beta", 1, pairs=False).save(tmp_path / "all" / "b")
    write_phototour(make_set("gamma", 2), tmp_path / "all" / "gamma")
    (tmp_path / "all" / "notes").mkdir()
    (tmp_path / "all" / "readme.txt").write_text("hello")
    return tmp_path / "all"


def names(patchsets: list[PatchSet]) -> list[str]:
    return [patchset.name for patchset in patchsets]


def test_one_patchset(root: Path) -> None:
    (opened,) = open_patchsets([str(root / "a")])
    assert opened.name == "alpha"
    assert np.array_equal(opened.patches, make_set("alpha", 0).patches)


def test_a_phototour_folder(root: Path) -> None:
    (opened,) = open_patchsets([str(root / "gamma")])
    assert opened.name == "gamma"
    assert np.array_equal(opened.patches, make_set("gamma", 2).patches)
    assert opened.test_pairs is not None and opened.test_pairs.tolist() == [[0, 1, 1], [2, 5, 0]]
    (again,) = open_patchsets([str(root / "gamma")])  # now with its converted copy inside
    assert again.name == "gamma" and np.array_equal(again.patches, opened.patches)


def test_a_folder_of_several(root: Path) -> None:
    for _ in range(2):
        assert names(open_patchsets([str(root)])) == ["alpha", "beta", "gamma"]


def test_several_folders_keep_their_order(root: Path) -> None:
    assert names(open_patchsets([str(root / "b"), str(root / "a")])) == ["beta", "alpha"]


def test_everything_is_for_training_unless_held_out(root: Path) -> None:
    opened = open_sources([str(root)])
    assert names(opened.train) == ["alpha", "beta", "gamma"] and opened.test == []


def test_holdout_by_name(root: Path) -> None:
    opened = open_sources([str(root)], ["gamma", "alpha"])
    assert names(opened.train) == ["beta"] and names(opened.test) == ["alpha", "gamma"]
    for patchset in opened.test:
        assert patchset.test_pairs is not None and patchset.test_pairs.tolist() == [[0, 1, 1], [2, 5, 0]]


def test_held_out_sets_without_pairs_get_drawn_ones(root: Path) -> None:
    (held_out,) = open_sources([str(root)], ["beta"]).test
    pairs = held_out.test_pairs
    assert pairs is not None and len(pairs) > 0
    assert np.array_equal(pairs[:, 2] == 1, held_out.point_id[pairs[:, 0]] == held_out.point_id[pairs[:, 1]])
    assert 0 < pairs[:, 2].sum() < len(pairs)
    (again,) = open_sources([str(root)], ["beta"]).test
    assert again.test_pairs is not None and np.array_equal(again.test_pairs, pairs)


def test_held_out_sets_with_an_empty_list_of_pairs_get_drawn_ones(tmp_path: Path) -> None:
    make_set("empty", pairs=False).with_test_pairs(np.empty((0, 3), dtype=np.int64)).save(tmp_path / "all" / "empty")
    make_set("other").save(tmp_path / "all" / "other")
    (held_out,) = open_sources([str(tmp_path / "all")], ["empty"]).test
    assert held_out.test_pairs is not None and len(held_out.test_pairs) > 0


def test_unknown_holdout_is_refused_with_the_names_there_are(root: Path) -> None:
    with pytest.raises(InputError, match="delta") as caught:
        open_sources([str(root)], ["alpha", "delta"])
    assert "alpha, beta, gamma" in str(caught.value)


def test_holding_out_everything_is_refused(root: Path) -> None:
    with pytest.raises(InputError, match="held out"):
        open_sources([str(root / "a")], ["alpha"])


def test_missing_folders_are_named(root: Path) -> None:
    with pytest.raises(InputError, match="none"):
        open_sources([str(root / "a"), str(root / "none")])
    with pytest.raises(InputError, match="readme.txt"):
        open_sources([str(root / "readme.txt")])


def test_folders_with_nothing_in_them_are_named(root: Path) -> None:
    with pytest.raises(InputError, match="notes"):
        open_sources([str(root / "notes")])


def test_no_data_at_all_is_refused() -> None:
    with pytest.raises(InputError, match="--data"):
        open_sources([])


def test_damaged_sets_are_an_error_and_not_left_out(root: Path) -> None:
    (root / "b" / "point_id.npy").unlink()
    with pytest.raises(InputError, match="point_id.npy"):
        open_sources([str(root)])


def test_the_demos_test_images_are_always_held_out(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = make_set("demo-train", 3), make_set("demo-test", 4)
    monkeypatch.setattr(sources, "read_demo", lambda: stand_in)
    opened = open_sources(["demo", str(root / "a")])
    assert names(opened.train) == ["demo-train", "alpha"] and names(opened.test) == ["demo-test"]

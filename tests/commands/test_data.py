"""`sdgmnet data pairs`."""

from pathlib import Path

import numpy as np
import pytest

from sdgmnet.cli import main
from sdgmnet.data.patchset import PatchSet, pairs_in
from tests.data.samples import blank_set


def small_set(folder: Path, points: int = 40) -> Path:
    """A set in which each point conflicts with the next."""
    conflicts = np.column_stack([np.arange(points - 1), np.arange(1, points)])
    blank_set(np.repeat(np.arange(points), 4), folder.name, conflicts=conflicts).save(folder)
    return folder


def test_pairs_are_written_into_sets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small_set(tmp_path / "sets/one")
    assert main(["data", "pairs", str(tmp_path / "sets"), "--count", "400"]) == 0
    made = PatchSet.open(tmp_path / "sets/one")
    assert made.test_pairs is not None
    assert made.test_pairs.shape == (400, 3)
    assert made.test_pairs[:, 2].sum() == 200
    ids = made.point_id[made.test_pairs[:, :2]]
    np.testing.assert_array_equal(ids[:, 0] == ids[:, 1], made.test_pairs[:, 2] == 1)
    assert not pairs_in(ids[made.test_pairs[:, 2] == 0], np.asarray(made.conflicts)).any()
    assert main(["data", "pairs", str(tmp_path / "sets")]) == 2
    assert "--replace" in capsys.readouterr().err
    assert main(["data", "pairs", str(tmp_path / "sets"), "--count", "100", "--replace"]) == 0
    assert main(["data", "pairs", str(tmp_path)]) == 2


def test_sets_that_have_pairs_keep_them_and_the_others_get_theirs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = [small_set(tmp_path / name) for name in ("first", "second", "third")]
    assert main(["data", "pairs", str(sets[1]), "--count", "100"]) == 0
    before = (sets[1] / "test_pairs.npy").stat().st_mtime_ns
    assert main(["data", "pairs", *map(str, sets), str(tmp_path), "--count", "50"]) == 0
    said = capsys.readouterr().err
    assert str(sets[1]) in said and "--replace" in said
    assert (sets[1] / "test_pairs.npy").stat().st_mtime_ns == before
    assert [len(np.load(one / "test_pairs.npy")) for one in sets] == [50, 100, 50]


def test_a_set_without_pairs_to_draw_leaves_all_as_they_were(tmp_path: Path) -> None:
    sets = [small_set(tmp_path / "good"), small_set(tmp_path / "single", points=1)]
    assert main(["data", "pairs", *map(str, sets), "--count", "50"]) == 2
    assert not (sets[0] / "test_pairs.npy").exists()

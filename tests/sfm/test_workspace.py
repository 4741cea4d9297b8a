"""Maps made in different ways never mix."""

import json
import shutil
from pathlib import Path

import pytest

from sdgmnet.errors import InputError
from sdgmnet.sfm.depth import DenseOptions, estimate_depths
from sdgmnet.sfm.workspace import map_path, note_path, noted_options, read_map, same_options_or_error
from tests.sfm.rendered import OPTIONS, WIDTH


def test_maps_of_other_options_are_not_mixed(workspace: Path) -> None:
    with pytest.raises(InputError, match="made with another seed: use the same"):
        estimate_depths(workspace, DenseOptions(size=WIDTH, coarsest=WIDTH // 2, seed=1))


def test_maps_of_other_options_are_made_anew_where_that_is_asked_for(workspace: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    shutil.copytree(workspace, again)
    smaller = DenseOptions(size=60, coarsest=60, rounds=(1,))
    estimate_depths(again, smaller, remake=True)
    note = noted_options(again)
    assert note is not None
    assert (note["maker"], note["size"]) == ("sdgmnet", 60)
    for path in (again / "stereo").rglob("*.bin"):
        assert max(read_map(path).shape[:2]) == 60
    before = map_path(again, "depth", "0.png", "geometric").stat().st_mtime_ns
    estimate_depths(again, smaller, remake=True)
    assert map_path(again, "depth", "0.png", "geometric").stat().st_mtime_ns == before


def test_maps_of_unknown_origin_are_refused_or_removed(workspace: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    shutil.copytree(workspace, again)
    note_path(again).unlink()
    with pytest.raises(InputError, match="unknown origin"):
        same_options_or_error(again, OPTIONS, "sdgmnet")
    same_options_or_error(again, OPTIONS, "sdgmnet", remake=True)
    assert not list((again / "stereo").rglob("*.bin"))
    assert (again / "stereo/depth_maps").is_dir()


def test_a_note_without_a_maker_is_of_our_own_stereo(workspace: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    shutil.copytree(workspace, again)
    note = json.loads(note_path(again).read_text())
    assert note.pop("maker") == "sdgmnet"
    note_path(again).write_text(json.dumps(note))
    same_options_or_error(again, OPTIONS, "sdgmnet")
    with pytest.raises(InputError, match="another maker"):
        same_options_or_error(again, OPTIONS, "colmap")

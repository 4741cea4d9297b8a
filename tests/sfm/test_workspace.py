"""Map files as COLMAP has them; maps made in different ways never mix; nothing is written among somebody's files."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from sdgmnet.errors import InputError
from sdgmnet.sfm.depth import DenseOptions, estimate_depths
from sdgmnet.sfm.workspace import (
    INPUTS,
    Workspace,
    map_options_path,
    map_path,
    read_map,
    read_map_options,
    require_apart,
    require_own_folder,
    require_same_map_options,
    write_map,
)
from tests.sfm.rendered import OPTIONS, WIDTH


@pytest.mark.parametrize("shape", [(3, 5), (3, 5, 3)])
def test_maps_survive_the_disk(tmp_path: Path, shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    write_map(tmp_path / "sub" / "one.bin", values)
    again = read_map(tmp_path / "sub" / "one.bin")
    assert again.dtype == np.float32
    np.testing.assert_array_equal(again, values)


def test_bytes_are_those_of_colmap(tmp_path: Path) -> None:
    """x fastest, then y, then channel."""
    write_map(tmp_path / "one.bin", np.arange(12, dtype=np.float32).reshape(2, 2, 3))
    content = (tmp_path / "one.bin").read_bytes()
    assert content.startswith(b"2&2&3&")
    assert np.frombuffer(content[6:], "<f4").tolist() == [0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11]


@pytest.mark.parametrize("content", [b"4&4&1&" + b"\0" * 61, b"12&", None])
def test_malformed_maps(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "one.bin").write_bytes(content)
    with pytest.raises(InputError, match=r"one\.bin"):
        read_map(tmp_path / "one.bin")


def test_maps_of_other_options_are_refused_or_made_anew(workspace: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"seed 0 \(now 1\)"):
        estimate_depths(workspace, DenseOptions(size=WIDTH, coarsest=WIDTH // 2, seed=1))
    again, smaller = tmp_path / "again", DenseOptions(size=60, coarsest=60, rounds=(1,))
    shutil.copytree(workspace, again)
    estimate_depths(again, smaller, remake=True)
    made_with = read_map_options(again)
    assert made_with is not None and (made_with["maker"], made_with["size"]) == ("sdgmnet", 60)
    assert all(max(read_map(path).shape[:2]) == 60 for path in (again / "stereo").rglob("*.bin"))
    before = map_path(again, "depth", "0.png", "geometric").stat().st_mtime_ns
    estimate_depths(again, smaller, remake=True)
    assert map_path(again, "depth", "0.png", "geometric").stat().st_mtime_ns == before


def test_maps_of_unknown_origin_are_refused_or_removed(workspace: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    shutil.copytree(workspace, again)
    map_options_path(again).unlink()
    with pytest.raises(InputError, match="unknown origin"):
        require_same_map_options(again, asdict(OPTIONS), "sdgmnet")
    require_same_map_options(again, asdict(OPTIONS), "sdgmnet", remake=True)
    assert not list((again / "stereo").rglob("*.bin")) and (again / "stereo/depth_maps").is_dir()


def test_records_without_a_maker_are_of_our_own_stereo(workspace: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    shutil.copytree(workspace, again)
    record = json.loads(map_options_path(again).read_text())
    assert record.pop("maker") == "sdgmnet"
    map_options_path(again).write_text(json.dumps(record))
    require_same_map_options(again, asdict(OPTIONS), "sdgmnet")
    with pytest.raises(InputError, match="maker sdgmnet .now colmap"):
        require_same_map_options(again, asdict(OPTIONS), "colmap")


@pytest.mark.parametrize(
    ("folder", "outside", "refused"),
    [
        ("photos", False, True),
        (".", False, True),
        ("photos/a", False, False),
        ("photos/a", True, True),
        ("b", True, False),
    ],
)
def test_nothing_is_written_among_the_photos(folder: str, outside: bool, refused: bool, tmp_path: Path) -> None:
    if not refused:
        return require_apart(tmp_path / folder, tmp_path / "photos", outside=outside)
    with pytest.raises(InputError, match="photos"):
        require_apart(tmp_path / folder, tmp_path / "photos", outside=outside)
    return None


def test_a_folder_with_other_files_is_not_ours(tmp_path: Path) -> None:
    require_own_folder(tmp_path / "new")
    (tmp_path / "letter.txt").touch()
    with pytest.raises(InputError, match=tmp_path.name):
        require_own_folder(tmp_path)
    with pytest.raises(InputError, match=r"letter\.txt"):
        require_own_folder(tmp_path / "letter.txt")
    Workspace(tmp_path).records.mkdir()
    (Workspace(tmp_path).records / INPUTS).touch()
    require_own_folder(tmp_path)

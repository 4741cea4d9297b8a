"""COLMAP writes its models without a word about a full disk: what may be cut off never gets its name."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sdgmnet.errors import InputError
from sdgmnet.sfm import sparse
from sdgmnet.storage import require_room_left, write_json


def disk_with(free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))


def test_room_that_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_room_left(tmp_path)
    disk_with(4096, monkeypatch)
    with pytest.raises(OSError, match="No space left"):
        require_room_left(tmp_path)


@pytest.mark.parametrize("free", [0, 1 << 30])
def test_model_that_was_cut_off(free: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(folder: Path) -> None:
        (folder / "images.bin").write_bytes(b"")

    model = SimpleNamespace(num_reg_images=lambda: 5, num_points3D=lambda: 9, write=write)
    colmap = SimpleNamespace(incremental_mapping=lambda *_: {0: model})
    monkeypatch.setitem(sys.modules, "pycolmap", colmap)  # type: ignore[arg-type]
    monkeypatch.setattr(sparse, "mapping_options", lambda *_: None)
    write_json(tmp_path / "photos.json", {"photos": []})
    disk_with(free, monkeypatch)
    options: dict[str, Any] = {"smallest_model": 5, "seed": 0}
    if free:
        assert sparse.map_scene(str(tmp_path), options) == {"models": [5]}
    else:
        with pytest.raises(InputError, match="disk is full"):
            sparse.map_scene(str(tmp_path), options)
    assert (tmp_path / "sparse").exists() == bool(free)
    assert not list(tmp_path.glob(".sparse*"))

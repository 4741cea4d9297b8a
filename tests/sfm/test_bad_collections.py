"""Collections as people have them: duplicates, two cameras, a photo of something else, damaged records, a full disk."""

import errno
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import pytest

from sdgmnet.cli import main
from sdgmnet.errors import InputError
from sdgmnet.sfm import reconstruct as driver
from sdgmnet.sfm.colmap_text import read_model
from sdgmnet.sfm.feature_sources import ReconstructOptions, Run
from sdgmnet.sfm.workspace import Workspace
from tests.features.samples import unit_rows
from tests.sfm.planes import photograph, views_around, write_photos

pytest.importorskip("pycolmap", reason="pycolmap is not installed: pip install 'sdgmnet[sfm]'")
pytest.importorskip("faiss", reason="faiss is not installed: pip install 'sdgmnet[sfm]'")


def test_duplicates_two_cameras_and_a_photo_that_matches_nothing(tmp_path: Path) -> None:
    photos, out = tmp_path / "photos", tmp_path / "model"
    paths = write_photos(photos, 5)
    shutil.copyfile(paths[0], photos / "copy.png")
    for view in views_around(5, 400, 300)[1:3]:  # another camera, between the others
        cv2.imwrite(str(photos / f"small_{view.name}"), photograph(view))
    cv2.imwrite(str(photos / "lone.png"), photograph(views_around(1)[0], seed=20))
    words = ["reconstruct", str(photos), "-o", str(out), "--descriptor", "rootsift", "--keypoints", "600"]
    # The incremental mapper would try every pair of accidental matches of the lone photo.
    assert main([*words, "--threads", "1", "--pairs", "retrieval", "--ratio", "0.8", "--mapper", "global"]) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert summary["registered"] >= 7 and not summary["implausible"]
    assert "lone.png" in summary["unregistered"]
    sizes = {(camera.width, camera.height) for camera in read_model(out / "sparse/0").cameras.values()}
    assert sizes == {(480, 360), (400, 300)}


def run_of(folder: Path, count: int = 4) -> tuple[Run, Any]:
    workspace = Workspace(folder)
    workspace.records.mkdir(parents=True)
    photos: Any = [{"name": f"{number}.png"} for number in range(count)]
    descriptors = {photo["name"]: unit_rows(50, 16, number) for number, photo in enumerate(photos)}
    source: Any = SimpleNamespace(read_descriptors=lambda _, name: descriptors[name])
    return Run(workspace, photos, ReconstructOptions(), lambda *_: None), source


@pytest.mark.parametrize("content", [b"", b"\x00\xff", b"[[1, 2]]", b'[["0.png"]]', b'{"pairs": []}'])
def test_a_damaged_record_of_retrieved_pairs_is_named(content: bytes, tmp_path: Path) -> None:
    run, source = run_of(tmp_path)
    record = run.workspace.records / driver.RETRIEVED
    record.write_bytes(content)
    with pytest.raises(InputError, match=r"retrieved\.json"):
        driver.retrieve(run, source, 2)


def test_a_full_disk_leaves_no_record_and_the_pairs_are_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, source = run_of(tmp_path)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(driver, "write_json", full)
        with pytest.raises(OSError, match="No space left"):
            driver.retrieve(run, source, 2)
    assert not (run.workspace.records / driver.RETRIEVED).exists()
    found = driver.retrieve(run, source, 2)
    assert found == driver.retrieve(run, source, 2) and len(found) >= 4

"""Photos -> sets of synthetic views."""

import errno
import os
from pathlib import Path

import cv2
import numpy as np
import pytest

from sdgmnet.cli import main
from sdgmnet.data.patchset import PatchSet
from sdgmnet.data.synthetic import sets as view_sets
from sdgmnet.data.synthetic.sets import ViewOptions, make_view_sets
from sdgmnet.data.synthetic.views import Viewing
from sdgmnet.errors import InputError
from tests.features.samples import noise_image, write_image

OPTIONS = ViewOptions(Viewing(views=3, keypoints=200), photos=3, size=300)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for number in range(5):
        write_image(tmp_path / "photos" / "wall" / f"{number}.png", noise_image(400, 300, number))
    write_image(tmp_path / "photos" / "tree" / "only.png", noise_image(200, 260, 9))
    return tmp_path / "photos"


def test_a_set_a_scene_whatever_the_threads(photos: Path, tmp_path: Path) -> None:
    sets, broken, failures = make_view_sets(photos, tmp_path / "one", OPTIONS)
    again, _, _ = make_view_sets(photos, tmp_path / "two", OPTIONS, threads=2)
    assert [one.name for one in sets] == ["tree-views", "wall-views"] and not broken and not failures
    for one, other in zip(sets, again, strict=True):
        assert np.array_equal(one.patches, other.patches) and np.array_equal(one.point_id, other.point_id)
        assert np.bincount(one.point_id)[one.point_id].min() >= 2
    wall = sets[1]
    assert wall.origin["images"] == ["0.png", "2.png", "4.png"] and wall.origin["scene"] == "wall"
    assert wall.observations is not None and wall.conflicts is not None
    image = np.asarray(wall.observations["image"])
    assert set(image.tolist()) == {0, 1, 2} and wall.observations["x"].max() < 300
    assert all(len(set(image[wall.point_id == point].tolist())) == 1 for point in np.unique(wall.point_id)[:50])
    assert np.isin(wall.conflicts, wall.point_id).all()


def test_what_is_there_is_kept_and_other_options_or_photos_are_refused(photos: Path, tmp_path: Path) -> None:
    make_view_sets(photos, tmp_path / "out", OPTIONS)
    before = (tmp_path / "out/wall-views/patches.npy").stat().st_mtime_ns
    make_view_sets(photos, tmp_path / "out", OPTIONS)
    assert (tmp_path / "out/wall-views/patches.npy").stat().st_mtime_ns == before
    failures = make_view_sets(photos, tmp_path / "out", ViewOptions(OPTIONS.viewing, 2, 300)).failures
    assert "tree-views" in failures[0].reason
    write_image(photos / "wall" / "2.png", noise_image(400, 300, 77))  # another photo under the same name
    failures = make_view_sets(photos, tmp_path / "out", OPTIONS).failures
    assert [failure.scene for failure in failures] == ["wall"]


def test_broken_photos_are_named_and_the_rest_is_done(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (photos / "wall" / "2.png").write_bytes(b"")
    (photos / "flat").mkdir()
    cv2.imwrite(str(photos / "flat" / "gray.png"), np.full((200, 200), 128, np.uint8))
    code = main(
        ["data", "views", str(photos), "-o", str(tmp_path / "out"), "--photos", "3", "--views", "2", "--size", "300"]
    )
    said = capsys.readouterr()
    assert code == 0
    assert "wall/2.png is empty" in said.err and "flat skipped" in said.err
    assert "wall-views" in said.out and "tree-views" in said.out
    assert PatchSet.open(tmp_path / "out/wall-views").origin["images"] == ["0.png", "4.png"]
    assert not (tmp_path / "out/flat-views").exists()


def test_odd_names_and_thin_images(photos: Path, tmp_path: Path) -> None:
    odd = os.fsencode(photos / "wall") + b"/caf\xe9.png"
    Path(os.fsdecode(odd)).write_bytes((photos / "wall" / "0.png").read_bytes())
    cv2.imwrite(str(photos / "wall" / "9.png"), np.full((1, 3000), 9, np.uint8))
    options = ViewOptions(OPTIONS.viewing, photos=9, size=300)
    sets, broken, failures = make_view_sets(photos, tmp_path / "out", options)
    assert not broken and not failures
    assert "caf%E9.png" in sets[1].origin["images"]


def test_a_full_disk_ends_the_work(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise InputError("the disk is full") from OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(view_sets, "write_patchset", full)
    with pytest.raises(InputError, match="disk is full"):
        make_view_sets(photos, tmp_path / "out", OPTIONS)


def test_photos_that_cannot_be_read_are_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/a.jpg").write_bytes(b"no image")
    words = ["data", "views", str(tmp_path / "photos"), "-o", str(tmp_path / "out")]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "no photo could be read (a.jpg" in said and "keypoint" not in said
    cv2.imwrite(str(tmp_path / "photos/flat.png"), np.full((200, 300), 128, dtype=np.uint8))
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "they have no texture; 1 of 2 could not be read (a.jpg" in said

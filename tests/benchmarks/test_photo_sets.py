from pathlib import Path

import numpy as np
import pytest

from sdgmnet.benchmarks.photo_sets import read_photo_sets, read_truth
from sdgmnet.errors import InputError
from tests.sfm.planes import views_around
from tests.sfm.rendered import SparseScene, write_sparse_text


def test_sets_are_found_in_both_layouts(tmp_path: Path) -> None:
    names = ("b/images/1.png", "b/images/0.png", "a/x.jpg", "a/ground_truth/no.jpg", "c/readme.txt", ".hidden/y.jpg")
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "b/keypoints").mkdir()
    (tmp_path / "K.txt").touch()
    one, two = read_photo_sets(tmp_path)
    assert (one.name, one.images, one.photos, one.keypoints) == ("a", tmp_path / "a", ("x.jpg",), None)
    assert (two.name, two.photos, two.keypoints) == ("b", ("0.png", "1.png"), tmp_path / "b/keypoints")
    assert one.truth == tmp_path / "a/ground_truth" and two.truth is None
    assert read_photo_sets(tmp_path / "b") == [two]
    assert read_photo_sets(tmp_path, without=[tmp_path / "a", tmp_path / "none"]) == [two]
    assert read_photo_sets(tmp_path, names=["b"]) == [two]
    for folder, wanted, shown in (("c", [], "/c "), ("none", [], "none"), (".", ["castle"], "castle")):
        with pytest.raises(InputError, match=shown):
            read_photo_sets(tmp_path / folder, names=wanted)


def test_colmaps_text_gives_the_cameras_back(tmp_path: Path) -> None:
    views = views_around(3)
    write_sparse_text(SparseScene(tuple(views), np.zeros((0, 3)), np.zeros((0, 2), int)), tmp_path / "ground_truth")
    for view, read in zip(views, read_truth(tmp_path / "ground_truth").values(), strict=True):
        assert (read.name, read.width, read.height) == (view.name, view.width, view.height)
        for ours, theirs in zip(view[3:], read[3:], strict=True):
            np.testing.assert_allclose(theirs, ours, atol=1e-9)
    text = (tmp_path / "ground_truth/cameras.txt").read_text()
    (tmp_path / "ground_truth/cameras.txt").write_text("# a comment\n" + text.replace("PINHOLE", "OPENCV"))
    with pytest.raises(InputError, match="OPENCV"):
        read_truth(tmp_path / "ground_truth")


def test_strechas_files_give_the_cameras_back(tmp_path: Path) -> None:
    """The axes of the camera are the columns of the rotation, and its place is given, not the translation."""
    (view,) = views_around(1)
    rows = [*view.intrinsics, [0, 0, 0], *view.rotation.T, view.centre(), [view.width, view.height]]
    (tmp_path / "0000.png.camera").write_text("".join(" ".join(map(str, row)) + " \n" for row in rows))
    (read,) = read_truth(tmp_path).values()
    assert (read.name, read.width, read.height) == ("0000.png", view.width, view.height)
    for ours, theirs in zip(view[3:], read[3:], strict=True):
        np.testing.assert_allclose(theirs, ours, atol=1e-9)
    for content in ("1 2 3", "one"):
        (tmp_path / "0000.png.camera").write_text(content)
        with pytest.raises(InputError, match=r"0000\.png\.camera"):
            read_truth(tmp_path)
    (tmp_path / "0000.png.camera").unlink()
    with pytest.raises(InputError, match=tmp_path.name):
        read_truth(tmp_path)

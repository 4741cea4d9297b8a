import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import cv2
import numpy as np
import pytest

from sdgmnet.features.images import find_photos
from sdgmnet.sfm.colmap_steps import create_database
from sdgmnet.sfm.photo_import import copied_name, import_photos
from tests.sfm.planes import photograph, views_around, with_focal_length, with_orientation, write_photos

pytest.importorskip("pycolmap", reason="pycolmap is not installed: pip install 'sdgmnet[sfm]'")


def test_photos_are_read_upright_and_made_smaller_once(tmp_path: Path) -> None:
    image = photograph(views_around(1, 640, 480)[0])
    cv2.imwrite(str(tmp_path / "plain.png"), image)
    stored = cv2.imencode(".jpg", np.rot90(image), [cv2.IMWRITE_JPEG_QUALITY, 100])[1].tobytes()
    (tmp_path / "turned.jpg").write_bytes(with_orientation(stored, 6))
    (tmp_path / "empty.jpg").write_bytes(b"")
    (tmp_path / "text.png").write_text("no image")
    names = ["empty.jpg", "plain.png", "text.png", "turned.jpg"]
    imported = import_photos(str(tmp_path), names, str(tmp_path / "work"), 320)
    kinds = "is not a supported image (JPEG, PNG, TIFF, WebP, BMP, PPM, PGM)"
    assert imported["broken"] == [["empty.jpg", "is empty"], ["text.png", kinds]]
    assert [(photo["width"], photo["height"]) for photo in imported["photos"]] == [(320, 240), (320, 240)]
    plain, turned = (cv2.imread(str(tmp_path / "work" / name), 0) for name in ("plain.png", "turned.jpg"))
    assert np.abs(plain.astype(int) - turned).mean() < 3


def test_what_is_upright_and_small_enough_is_copied_as_it_is(tmp_path: Path) -> None:
    paths = write_photos(tmp_path / "photos", count=1)
    import_photos(str(tmp_path / "photos"), ["00.png"], str(tmp_path / "work"), 480)
    assert (tmp_path / "work/00.png").read_bytes() == paths[0].read_bytes()


def test_the_focal_length_of_exif_is_that_of_the_camera(tmp_path: Path) -> None:
    """Also of a resized copy, which is written without EXIF. A photo without it gets COLMAP's guess."""
    image = photograph(views_around(1, 640, 480)[0])
    jpeg = cv2.imencode(".jpg", image)[1].tobytes()
    (tmp_path / "photos").mkdir()
    for name, content in (
        ("a.jpg", with_focal_length(jpeg, 28)),
        ("b.jpg", with_focal_length(jpeg, 28)),
        ("c.jpg", jpeg),
    ):
        (tmp_path / "photos" / name).write_bytes(content)
    work, database = tmp_path / "work", tmp_path / "database.db"
    imported = import_photos(str(tmp_path / "photos"), ["a.jpg", "b.jpg", "c.jpg"], str(work), 320)
    share = imported["photos"][0]["focal"]
    assert share == pytest.approx(28 / 36, rel=0.05)  # of 36 mm, the longer side of the film
    assert [photo["focal"] for photo in imported["photos"]] == [share, share, None]
    create_database(str(database), str(work), imported["photos"], "auto")
    with closing(sqlite3.connect(database)) as opened:
        rows = opened.execute("SELECT params, prior_focal_length FROM cameras ORDER BY camera_id").fetchall()
    focal = [(np.frombuffer(params)[0], bool(prior)) for params, prior in rows]
    assert focal == [(pytest.approx(320 * share), True), (pytest.approx(320 * 1.2), False)]


def test_names_without_white_space_stay_apart() -> None:
    assert copied_name("my photo.jpg", {"my_photo.jpg"}) == "my_photo_2.jpg"
    assert copied_name("sub/a.tif", set()) == "sub/a.tif.jpg"
    assert copied_name("a.PNG", set()) == "a.PNG"


def test_names_that_are_no_text_are_copied_under_names_that_are(tmp_path: Path) -> None:
    source = write_photos(tmp_path / "photos", count=1)[0]
    odd = os.fsdecode(b"caf\xe9 1.png")
    try:
        source.rename(tmp_path / "photos" / odd)
    except OSError:
        pytest.skip("this file system takes no such names")
    (tmp_path / "photos" / os.fsdecode(b"\xff.png")).touch()
    names = find_photos(tmp_path / "photos")
    assert json.loads(json.dumps(names)) == names
    imported = import_photos(str(tmp_path / "photos"), names, str(tmp_path / "work"), 480)
    assert [(photo["name"], photo["source"]) for photo in imported["photos"]] == [("caf%E9_1.png", "caf%E9 1.png")]
    assert imported["broken"] == [["%FF.png", "is empty"]]
    assert (tmp_path / "work/caf%E9_1.png").exists()


def test_a_file_that_only_its_name_calls_a_jpeg_is_written_anew(tmp_path: Path) -> None:
    """COLMAP goes by the name and would leave the photo out."""
    image = photograph(views_around(1, 320, 240)[0])
    (tmp_path / "web.jpg").write_bytes(cv2.imencode(".webp", image)[1].tobytes())
    imported = import_photos(str(tmp_path), ["web.jpg"], str(tmp_path / "work"), 320)
    assert [photo["name"] for photo in imported["photos"]] == ["web.jpg"]
    copy = tmp_path / "work/web.jpg"
    assert copy.read_bytes()[:2] == b"\xff\xd8"
    assert np.abs(cv2.imread(str(copy), 0).astype(int) - image).mean() < 5


@pytest.mark.parametrize("name", ["twelve.tif", "twelve.png"])
def test_twelve_bits_in_sixteen_are_not_black(name: str, tmp_path: Path) -> None:
    image = photograph(views_around(1, 320, 240)[0])
    cv2.imwrite(str(tmp_path / name), image.astype(np.uint16) * 16)
    (photo,) = import_photos(str(tmp_path), [name], str(tmp_path / "work"), 320)["photos"]
    copy = cv2.imread(str(tmp_path / "work" / photo["name"]), cv2.IMREAD_UNCHANGED)
    assert copy.dtype == np.uint8
    assert np.abs(cv2.cvtColor(copy, cv2.COLOR_BGR2GRAY).astype(int) - image).mean() < 3

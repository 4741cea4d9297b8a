"""Hostile files: pipes and endless devices, compression without bounds, links, names that leave the folder."""

import os
import signal
import sqlite3
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import cv2
import h5py
import numpy as np
import pytest
import torch

from sdgmnet.benchmarks.photo_sets import read_truth
from sdgmnet.cli import main
from sdgmnet.data.download import unpack_zip
from sdgmnet.data.hpatches.files import read_descriptor_file
from sdgmnet.data.patchset import PatchSet, map_array
from sdgmnet.data.phototour import read_bitmap, read_integers
from sdgmnet.data.sequences import read_homography
from sdgmnet.descriptors import load_kornia, load_onnx
from sdgmnet.encoders import load_encoder, load_tfeat
from sdgmnet.errors import InputError
from sdgmnet.features import eth, h5
from sdgmnet.features.compact import load_projection
from sdgmnet.features.images import MAX_PIXELS, declared_pixels, read_color, read_gray
from sdgmnet.features.keypoint_files import read_keypoints
from sdgmnet.features.pairs import read_pairs
from sdgmnet.sfm import database
from sdgmnet.sfm.scene import load_scene
from sdgmnet.sfm.viewer import read_ply
from sdgmnet.sfm.workspace import read_map
from sdgmnet.storage import only_worker, read_arrays, read_json, write_json
from sdgmnet.training.checkpoint import read_checkpoint
from sdgmnet.training.config import TrainConfig
from sdgmnet.training.log import RunLog, read_log
from tests.trust.readers import make_database, make_h5, make_patchset, make_scene


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    """A reader that hangs fails its test instead of stopping the suite."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


# Pipes and devices


def truth_in(path: Path) -> Any:
    folder = path.parent / "trap-truth"
    folder.mkdir()
    (folder / "a.camera").symlink_to(path)
    return read_truth(folder)


READERS: dict[str, Callable[[Path], Any]] = {
    "image": read_gray,
    "json": read_json,
    "configuration": TrainConfig.load,
    "log": lambda path: read_log(path, "epoch"),
    "h5": lambda path: h5.read_features(path, "a.png"),
    "npz": read_arrays,
    "npy": map_array,
    "keypoints": lambda path: read_keypoints(path, "a.png"),
    "table": eth.read_descriptors,
    "map": read_map,
    "cloud": read_ply,
    "homography": read_homography,
    "descriptors": read_descriptor_file,
    "integers": lambda path: read_integers(path, 2),
    "bitmap": read_bitmap,
    "cameras": truth_in,
    "pairs": lambda path: read_pairs(path, {"a", "b"}),
    "archive": lambda path: unpack_zip(path, path.parent / "out"),
    "checkpoint": read_checkpoint,
    "weights": load_encoder,
    "projection": load_projection,
    "tfeat": load_tfeat,
    "kornia": lambda path: load_kornia(f"HardNet:{path}"),
    "onnx": load_onnx,
    "scene": load_scene,
    "database": lambda path: database.open_database(path).__enter__(),
}


NOT_FILES: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "endless device": lambda path: path.symlink_to("/dev/zero"),
    "folder": Path.mkdir,
    "empty file": Path.touch,
}
EMPTY_IS_VALID = ("log", "keypoints", "integers", "database")


@pytest.mark.parametrize("kind", NOT_FILES)
@pytest.mark.parametrize("name", READERS)
def test_what_is_not_a_file_is_refused(name: str, kind: str, tmp_path: Path) -> None:
    if kind == "empty file" and name in EMPTY_IS_VALID:
        pytest.skip("an empty file is valid")
    NOT_FILES[kind](tmp_path / "trap")
    with pytest.raises(InputError, match="trap"):
        READERS[name](tmp_path / "trap")


# Archives that unpack without bounds


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
@pytest.mark.parametrize("read", [read_arrays, read_checkpoint, load_tfeat, lambda path: unpack_zip(path, "out")])
def test_compression_without_bounds_is_refused_before_unpacking(
    method: int, read: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """zipfile decompresses them at once, whatever their declared size: 600 bytes become 600 MB."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("keypoints.npy", bytes(1000))
    monkeypatch.setattr(zipfile.ZipExtFile, "read", lambda *_: pytest.fail("it was unpacked"))
    with pytest.raises(InputError, match=r"a\.npz"):
        read(path)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("read", [read_checkpoint, load_tfeat, lambda path: load_kornia(f"HardNet:{path}")])
def test_deflated_weights_that_unpack_to_far_more_are_refused(read: Callable[[Path], Any], tmp_path: Path) -> None:
    """torch writes them uncompressed, and reads both."""
    torch.save({"step": 3, "w": torch.zeros(75_000_000)}, tmp_path / "plain.pt")
    with (
        zipfile.ZipFile(tmp_path / "plain.pt") as plain,
        zipfile.ZipFile(tmp_path / "w.pt", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed,
    ):
        for name in plain.namelist():
            packed.writestr(name, plain.read(name))
    (tmp_path / "plain.pt").unlink()
    with pytest.raises(InputError, match="would decompress to 300 MB"):
        read(tmp_path / "w.pt")


# h5


def test_h5_soft_links_through_external_links_are_refused(tmp_path: Path) -> None:
    make_h5(tmp_path)
    (tmp_path / "features.h5").rename(tmp_path / "secret.h5")
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["door"] = h5py.ExternalLink(str(tmp_path / "secret.h5"), "/")
        file["a.png"] = h5py.SoftLink("/door/a.png")
        group = file.create_group("b.png")
        group["keypoints"] = h5py.SoftLink("/door/a.png/keypoints")
    with pytest.raises(InputError, match="a.png"):
        h5.read_features(tmp_path / "f.h5", "a.png")
    with pytest.raises(InputError, match="b.png"):
        h5.read_features(tmp_path / "f.h5", "b.png")


def test_h5_chunk_that_is_far_larger_than_its_array(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f.h5", "w") as file:
        made = file.create_dataset(
            "a.png/keypoints", (5, 2), "<f4", maxshape=(None, 2), chunks=(2**26, 2), compression="gzip"
        )
        packer = zlib.compressobj(1)
        made.id.write_direct_chunk((0, 0), b"".join(packer.compress(bytes(2**20)) for _ in range(512)) + packer.flush())
    with pytest.raises(InputError, match="would decompress to 537 MB"):
        h5.read_features(tmp_path / "f.h5", "a.png")


# Images


def test_images_of_other_kinds_are_refused_before_they_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenCV allocates gigabytes for the header of a GIF, and writes a temporary file for a Radiance image."""
    monkeypatch.setattr(cv2, "imdecode", lambda *_: pytest.fail("it was decoded"))
    side = struct.pack("<HH", 20_000, 20_000)
    for name, content in {
        "a.gif": b"GIF89a" + side + b"\x80\0\0" + bytes(6) + b",\0\0\0\0" + side + b"\0\x02\x02L\x01\0;",
        "a.hdr": b"#?RADIANCE\nFORMAT=32-bit_rle_rgbe\n\n-Y 20000 +X 20000\n" + bytes(100),
        "a.ppm": b"P6\n" + b"#\n" * 150 + b"20000 20000\n255\n" + bytes(100),
        "a.webp": b"RIFF\0\0\0\0WEBPXXXX" + bytes(100),
    }.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=name):
            read_gray(tmp_path / name)


def test_size_of_a_jpeg_with_bytes_between_its_markers() -> None:
    content = bytearray(cv2.imencode(".jpg", np.zeros((30, 40), dtype=np.uint8))[1].tobytes())
    frame = content.index(b"\xff\xc0")
    content[frame + 5 : frame + 9] = struct.pack(">HH", 20_000, 20_000)
    content[frame:frame] = b"\0"
    assert declared_pixels(bytes(content)) == 20_000**2 > MAX_PIXELS


def test_size_of_a_tiff_with_duplicate_tags() -> None:
    entries = [struct.pack("<HHII", tag, 4, 1, side) for tag in (256, 257) for side in (20_000, 4)]
    assert declared_pixels(b"II*\0" + struct.pack("<IH", 8, 4) + b"".join(entries)) == 20_000**2


@pytest.mark.parametrize("quality", [101, 80])  # lossless, lossy
def test_webp_is_read(quality: int, tmp_path: Path) -> None:
    pixels = cv2.resize(np.arange(48, dtype=np.uint8).reshape(6, 8), (41, 30))
    content = cv2.imencode(".webp", pixels, [cv2.IMWRITE_WEBP_QUALITY, quality])[1].tobytes()
    (tmp_path / "a.webp").write_bytes(content)
    assert declared_pixels(content) == 1230
    assert read_color(tmp_path / "a.webp").shape == (30, 41, 3)


# Names that leave the folder


@pytest.mark.parametrize("name", ["../../escaped", "a/b", "..", "", "a\0b", "a\\b"])
def test_sets_whose_name_leads_to_another_folder(name: str, tmp_path: Path) -> None:
    make_patchset(tmp_path)
    card = read_json(tmp_path / "set/set.json")
    write_json(tmp_path / "set/set.json", card | {"name": name})
    with pytest.raises(InputError, match="set.json"):
        PatchSet.open(tmp_path / "set")


@pytest.mark.parametrize("name", ["../a.png", "/a.png", "b/../../a.png", ""])
def test_scenes_whose_views_lead_to_another_folder(name: str, tmp_path: Path) -> None:
    make_scene(tmp_path)
    with np.load(tmp_path / "scene.npz") as held:
        arrays = dict(held)
    np.savez(tmp_path / "scene.npz", **(arrays | {"name": np.array([name, "b.png"])}))
    with pytest.raises(InputError, match="scene.npz"):
        load_scene(tmp_path / "scene.npz")


def test_database_with_an_endless_view(tmp_path: Path) -> None:
    make_database(tmp_path)
    with sqlite3.connect(tmp_path / "database.db") as made:
        made.execute("DROP TABLE images")
        made.execute(
            "CREATE VIEW images AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) "
            "SELECT x AS image_id, 'a' AS name FROM n"
        )
    made.close()
    with pytest.raises(InputError, match="views"), database.open_database(tmp_path / "database.db"):
        pytest.fail("it was opened")


# Where results go


def test_a_pipe_or_device_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    """As root, a rename would replace /dev/null by a file."""
    os.mkfifo(tmp_path / "trap")
    with pytest.raises(InputError, match="pipe"):
        write_json(tmp_path / "trap", {})
    assert (tmp_path / "trap").is_fifo() and os.listdir(tmp_path) == ["trap"]


@pytest.mark.parametrize("keep_bytes", [None, 2])
def test_log_of_a_run_that_is_a_link(keep_bytes: int | None, tmp_path: Path) -> None:
    """A run folder from others must not redirect its log into another file."""
    (tmp_path / "other.txt").write_text("mine")
    (tmp_path / "log.jsonl").symlink_to(tmp_path / "other.txt")
    with pytest.raises(InputError, match="link"):
        RunLog(tmp_path / "log.jsonl", keep_bytes)
    assert (tmp_path / "other.txt").read_text() == "mine"


def test_lock_that_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/.lock").symlink_to(tmp_path / "other.txt")
    with pytest.raises(OSError, match="lock"), only_worker(tmp_path / "run"):
        pass
    assert not (tmp_path / "other.txt").exists()


def test_out_of_memory_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def hungry(*_: object) -> int:
        raise MemoryError("Unable to allocate 8 TiB")

    monkeypatch.setattr("sdgmnet.cli.dispatch", hungry)
    assert main(["describe"]) == 2
    assert capsys.readouterr().err == "sdgmnet: out of memory (Unable to allocate 8 TiB).\n"

"""Damaged and hostile files: one table of readers x damages, one of changes to valid folders, and bombs, images and links."""

import io
import json
import os
import pickle
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
from safetensors.torch import save_file

from sdgmnet.benchmarks.photo_sets import read_truth
from sdgmnet.cli import main
from sdgmnet.data.download import unpack_zip
from sdgmnet.data.hpatches.files import read_descriptor_file
from sdgmnet.data.patchset import map_array
from sdgmnet.data.phototour import read_bitmap, read_integers
from sdgmnet.data.sequences import read_homography
from sdgmnet.descriptors import load_descriptor, load_kornia, load_onnx
from sdgmnet.encoders import load_encoder, load_tfeat
from sdgmnet.errors import InputError
from sdgmnet.features import eth, h5
from sdgmnet.features.compact import load_projection
from sdgmnet.features.images import MAX_PIXELS, declared_pixels, read_color, read_gray
from sdgmnet.features.keypoint_files import read_keypoints
from sdgmnet.features.pairs import read_pairs
from sdgmnet.plots.patches import read_triplets
from sdgmnet.sfm import database
from sdgmnet.sfm.scene import load_scene
from sdgmnet.sfm.viewer import read_ply
from sdgmnet.sfm.workspace import read_map
from sdgmnet.storage import read_arrays, read_json, write_json
from sdgmnet.training.checkpoint import load_checkpoint, read_checkpoint
from sdgmnet.training.config import TrainConfig
from sdgmnet.training.log import RunLog, read_log
from tests.conftest import blob_patches
from tests.trust.fuzz import mutated_input, write_valid
from tests.trust.readers import TARGETS


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


# Every reader of one file x what is no file, and pickles that would run code


def read_camera(path: Path) -> Any:
    (path.parent / "truth").mkdir()
    (path.parent / "truth/a.camera").symlink_to(path)
    return read_truth(path.parent / "truth")


READERS: dict[str, Callable[[Path], Any]] = {
    "image.png": read_gray,
    "card.json": read_json,
    "config.json": TrainConfig.load,
    "log.jsonl": lambda path: read_log(path, "epoch"),
    "features.h5": lambda path: h5.read_features(path, "a.png"),
    "arrays.npz": read_arrays,
    "triplets.npz": read_triplets,
    "array.npy": map_array,
    "keypoints.npz": lambda path: read_keypoints(path, "a.png"),
    "keypoints.txt": lambda path: read_keypoints(path, "a.png"),
    "table.bin": eth.read_descriptors,
    "map.bin": read_map,
    "cloud.ply": read_ply,
    "H_1_2": read_homography,
    "descriptors.csv": read_descriptor_file,
    "integers.txt": lambda path: read_integers(path, 2),
    "patches.bmp": read_bitmap,
    "camera": read_camera,
    "pairs.txt": lambda path: read_pairs(path, {"a", "b"}),
    "archive.zip": lambda path: unpack_zip(path, path.parent / "out"),
    "checkpoint-000000003.pt": read_checkpoint,
    "checkpoints/checkpoint-000000003.pt": lambda path: load_checkpoint(path.parent),
    "weights.safetensors": load_encoder,
    "projection.safetensors": load_projection,
    "tfeat.params": load_tfeat,
    "tfeat.pt": lambda path: load_descriptor(f"tfeat:{path}"),
    "hardnet.pt": lambda path: load_kornia(f"HardNet:{path}"),
    "hardnet.pth": lambda path: load_descriptor(f"kornia:HardNet:{path}"),
    "model.onnx": load_onnx,
    "described.onnx": lambda path: load_descriptor(str(path)),
    "scene.npz": load_scene,
    "database.db": lambda path: database.open_database(path).__enter__(),
}
EMPTY_IS_VALID = ("log.jsonl", "keypoints.npz", "integers.txt", "database.db")


class Attack:
    """Makes a folder beside the file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.mark = str(path.parent / "attacked")

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.mark,)


def pickled(path: Path) -> None:
    path.write_bytes(pickle.dumps(Attack(path)))


def pickled_by_torch(path: Path) -> None:
    torch.save({"step": 3, "encoder": Attack(path)}, path)


def pickled_by_old_torch(path: Path) -> None:
    torch.save({"step": 3, "encoder": Attack(path)}, path, _use_new_zipfile_serialization=False)


def hidden_in_an_archive(path: Path) -> None:
    """A valid torch archive whose pickle is replaced, with valid checksums."""
    torch.save({"step": 3}, path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, pickle.dumps(Attack(path), 2) if name.endswith("data.pkl") else content)


def object_array(path: Path) -> None:
    save = np.savez if path.suffix == ".npz" else np.save
    with path.open("wb") as file:
        save(file, np.array([Attack(path)] * 18, dtype=object), allow_pickle=True)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "endless device": lambda path: path.symlink_to("/dev/zero"),
    "folder": Path.mkdir,
    "empty file": Path.touch,
    **{made.__name__: made for made in (pickled, pickled_by_torch, pickled_by_old_torch, hidden_in_an_archive)},
    "object_array": object_array,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", READERS)
def test_damaged_files_are_refused_and_run_nothing(name: str, damage: str, tmp_path: Path) -> None:
    if damage == "empty file" and name in EMPTY_IS_VALID:
        pytest.skip("an empty file is valid")
    if damage in ("pickled_by_torch", "hidden_in_an_archive") and name == "archive.zip":
        pytest.skip("a valid archive, which is unpacked and not run")
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    DAMAGES[damage](path)
    with pytest.raises(InputError, match="no checkpoint" if "/" in name else path.stem):
        READERS[name](path)
    assert not list(tmp_path.rglob("attacked"))


def test_the_attack_works_where_pickles_are_trusted(tmp_path: Path) -> None:
    pickled(tmp_path / "w.pt")
    pickle.loads((tmp_path / "w.pt").read_bytes())
    assert (tmp_path / "attacked").is_dir()


# Changes to one file of a valid folder: (target, file, change)

Change = Callable[[Path], Any]


def text(old: str, new: str) -> Change:
    def change(path: Path) -> None:
        content = path.read_bytes()
        assert old.encode() in content
        path.write_bytes(content.replace(old.encode(), new.encode(), 1))

    return change


def card(**values: Any) -> Change:
    return lambda path: path.write_text(json.dumps(json.loads(path.read_text()) | values))


def column(name: str, row: int, value: Any) -> Change:
    def change(path: Path) -> None:
        rows = np.load(path)
        rows[name][row] = value
        np.save(path, rows)

    return change


def arrays(**values: Any) -> Change:
    def change(path: Path) -> None:
        with np.load(path) as held:
            before = dict(held)
        np.savez(path, **before | values)

    return change


def saved(content: Any) -> Change:
    return lambda path: torch.save(content, path)


def weights_with_card(content: str) -> Change:
    return lambda path: save_file({"x": torch.ones(1)}, path, {"card": content})


def in_h5(change: Callable[[h5py.File, str], Any]) -> Change:
    """Change an open file of features; a copy of it is what links can lead to."""

    def apply(path: Path) -> None:
        secret = path.with_name("secret.h5")
        secret.write_bytes(path.read_bytes())
        with h5py.File(path, "a") as file:
            change(file, str(secret))

    return apply


def h5_value(key: str, value: Any) -> Change:
    def change(file: h5py.File, _: str) -> None:
        del file[f"a.png/{key}"]
        file[f"a.png/{key}"] = value

    return in_h5(change)


def h5_link_of_group(file: h5py.File, secret: str) -> None:
    del file["a.png"]
    file["a.png"] = h5py.ExternalLink(secret, "/a.png")


def h5_link_of_array(file: h5py.File, secret: str) -> None:
    del file["a.png/keypoints"]
    file["a.png/keypoints"] = h5py.ExternalLink(secret, "/a.png/keypoints")


def h5_soft_link_through_a_link(file: h5py.File, secret: str) -> None:
    del file["a.png"]
    file["door"] = h5py.ExternalLink(secret, "/")
    file["a.png"] = h5py.SoftLink("/door/a.png")


def h5_array_in_another_file(file: h5py.File, secret: str) -> None:
    del file["a.png/keypoints"]
    file["a.png"].create_dataset("keypoints", shape=(5, 2), dtype="<f4", external=[(secret, 0, 40)])


def h5_virtual_array(file: h5py.File, secret: str) -> None:
    del file["a.png/keypoints"]
    layout = h5py.VirtualLayout(shape=(5, 2), dtype="<f4")
    layout[:] = h5py.VirtualSource(secret, "/a.png/keypoints", shape=(5, 2))
    file["a.png"].create_virtual_dataset("keypoints", layout)


def h5_more_than_memory(file: h5py.File, _: str) -> None:
    del file["a.png/descriptors"]
    file["a.png"].create_dataset("descriptors", shape=(128, 2**40), dtype="<f4", chunks=(128, 1024))


def sql(statement: str) -> Change:
    def change(path: Path) -> None:
        with sqlite3.connect(path) as opened:
            opened.execute(statement)
        opened.close()

    return change


def endless_view(path: Path) -> None:
    sql("DROP TABLE images")(path)
    sql(
        "CREATE VIEW images AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) "
        "SELECT x AS image_id, 'a' AS name FROM n"
    )(path)


def invalid_utf8(path: Path) -> None:
    """sqlite's error message names the table, and Python cannot decode it."""
    content = path.read_bytes().replace(b"tableimagesimages", b"tableim\xca\xcaesimages")
    path.write_bytes(content.replace(b"CREATE TABLE images", b"CREATE TABBE images"))


def of(target: str, file: str, *changes: Change) -> list[tuple[str, str, Change]]:
    return [(target, file, change) for change in changes]


PATCHSET_ARRAYS = ("patches", "point_id", "test_pairs", "conflicts", "observations")
CHANGES = [
    *of("patchset folder", "set/patches.npy", text("64)", "64 ")),
    *(one for name in PATCHSET_ARRAYS for one in of("patchset folder", f"set/{name}.npy", object_array)),
    *of("patchset folder", "set/observations.npy", *(column("image", 4, value) for value in (2, -1, 2**40))),
    *of("patchset folder", "set/set.json", *(card(name=x) for x in ("../../out", "a/b", "..", "", "a\0b", "a\\b"))),
    *of("colmap cameras", "colmap/images.txt", text("1 1 0 0 0", "1 0 0 0 0"), text("0.3 1 a.png", "0.3 7 a.png")),
    *of("colmap cameras", "colmap/images.txt", text("0.1 0.2", "nan 0.2"), text(" 1 a.png", "")),
    *of("colmap cameras", "colmap/cameras.txt", text("PINHOLE 100 80", "PINHOLE 0 80"), text("# cameras", "x")),
    *of("colmap cameras", "colmap/cameras.txt", text("100 80 90 90", "100 80 90")),
    *of("colmap cameras", "colmap/cameras.txt", text("SIMPLE_PINHOLE 100 80 90 50 40", "SIMPLE_PINHOLE 100 80")),
    *of("ply cloud", "fused.ply", text("vertex 5", "vertex -5"), text("vertex 5", "vertex"), text(" blue", "")),
    *of("ply cloud", "fused.ply", text("float nz", "float n0"), text("float y", "float x")),
    *of("scenes and points", "scene.npz", *(arrays(name=[x, "b.png"]) for x in ("../a.png", "/a.png"))),
    *of("scenes and points", "scene.npz", *(arrays(name=[x, "b.png"]) for x in ("b/../../a.png", ""))),
    *of("scenes and points", "triplets.npz", arrays(step=["one"]), arrays(step=[np.nan]), arrays(step=[1, 2])),
    *of("scenes and points", "triplets.npz", arrays(angles=[[np.nan, 1]]), arrays(angles=[["a", "b"]])),
    *of("own keypoints", "own.npz", object_array),
    *of("hloc h5", "features.h5", h5_value("keypoints", np.full((5, 2), np.nan)), h5_value("keypoints", np.zeros(5))),
    *of("hloc h5", "features.h5", h5_value("descriptors", np.full((128, 5), np.inf)), h5_value("scales", np.ones(4))),
    *of("hloc h5", "features.h5", h5_value("image_size", np.array([0, 5])), h5_value("image_size", np.array([5]))),
    *of("hloc h5", "features.h5", h5_value("oris", np.array([b"a"] * 5))),
    *of("hloc h5", "features.h5", in_h5(h5_link_of_group), in_h5(h5_link_of_array), in_h5(h5_virtual_array)),
    *of("hloc h5", "features.h5", in_h5(h5_soft_link_through_a_link), in_h5(h5_array_in_another_file)),
    *of("hloc h5", "features.h5", in_h5(h5_more_than_memory)),
    *of("hloc h5", "features.h5", in_h5(lambda file, _: file.attrs.modify("sdgmnet", "{"))),
    *of("hloc h5", "features.h5", in_h5(lambda file, _: file.pop("a.png/keypoints"))),
    *of("colmap database", "database.db", sql("UPDATE images SET name = NULL"), sql("UPDATE matches SET pair_id = 5")),
    *of("colmap database", "database.db", sql("UPDATE matches SET data = x'0102'")),
    *of("colmap database", "database.db", sql("UPDATE keypoints SET rows = 'many'"), endless_view, invalid_utf8),
    *of("colmap database", "database.db", sql("DROP TABLE two_view_geometries")),
    *of("checkpoints", "checkpoints/checkpoint-000000004.pt", saved([1]), saved({}), saved(torch.ones(2))),
    *of("checkpoints", "checkpoints/checkpoint-000000004.pt", saved({"step": "4"}), saved({"step": -1})),
    *of("safetensors and cards", "w.safetensors", weights_with_card("1" * 10_000), weights_with_card("{")),
    *of("safetensors and cards", "w.safetensors", weights_with_card("[" * 100_000)),
    *of("safetensors and cards", "w.safetensors", weights_with_card('{"encoder": NaN}')),
    *of(
        "configuration and logs",
        "log.jsonl",
        *(text('{"kind": "ev', f"{x}\n") for x in ("3", "{}", "null", '"x"', "{")),
    ),
    *of("colmap maps", "depth.bin", lambda path: path.write_bytes(path.read_bytes()[:-1])),
]


@pytest.mark.parametrize(("target", "file", "change"), CHANGES)
def test_changed_files_are_refused_by_name(target: str, file: str, change: Change, tmp_path: Path) -> None:
    write_valid(target, tmp_path)
    change(tmp_path / file)
    with pytest.raises(InputError) as refused:
        TARGETS[target].read(tmp_path)
    assert any(part in str(refused.value) for part in file.split("/"))
    assert not list(tmp_path.rglob("attacked"))


@pytest.mark.parametrize(
    ("target", "seed", "number"),
    [("colmap database", 3, 537), ("colmap database", 3, 1119), ("configuration and logs", 2, 190),
     ("colmap cameras", 1, 61), ("patchset folder", 5, 546), ("records of work", 6, 51)],
)  # fmt: skip
def test_inputs_that_once_escaped(target: str, seed: int, number: int, tmp_path: Path) -> None:
    write_valid(target, tmp_path)
    name, content = mutated_input(target, seed, number)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError):
        TARGETS[target].read(tmp_path)


# Little that unpacks to much


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
@pytest.mark.parametrize("read", [read_arrays, read_checkpoint, load_tfeat, lambda path: unpack_zip(path, "out")])
def test_compression_without_bounds_is_refused_before_unpacking(
    method: int, read: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """zipfile decompresses them at once, whatever their declared size: 600 bytes become 600 MB."""
    monkeypatch.chdir(tmp_path)
    with zipfile.ZipFile(tmp_path / "a.npz", "w", method) as archive:
        archive.writestr("keypoints.npy", bytes(1000))
    monkeypatch.setattr(zipfile.ZipExtFile, "read", lambda *_: pytest.fail("it was unpacked"))
    with pytest.raises(InputError, match=r"a\.npz"):
        read(tmp_path / "a.npz")
    assert not (tmp_path / "out").exists()


def npz_bomb(path: Path) -> None:
    with path.open("wb") as file:
        np.savez_compressed(file, keypoints=np.zeros(40_000_000))


def torch_bomb(path: Path) -> None:
    """torch writes archives uncompressed, and reads both."""
    held = io.BytesIO()
    torch.save({"step": 3, "w": torch.zeros(75_000_000)}, held)
    with zipfile.ZipFile(held) as plain, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed:
        for name in plain.namelist():
            packed.writestr(name, plain.read(name))


def h5_bomb(path: Path) -> None:
    """A chunk that is far larger than its array."""
    with h5py.File(path, "w") as file:
        shape: dict[str, Any] = {"shape": (5, 2), "maxshape": (None, 2), "chunks": (2**26, 2)}
        made = file.create_dataset("a.png/keypoints", dtype="<f4", compression="gzip", **shape)
        packer = zlib.compressobj(1)
        made.id.write_direct_chunk((0, 0), b"".join(packer.compress(bytes(2**20)) for _ in range(512)) + packer.flush())


@pytest.mark.parametrize(
    ("make", "readers", "size"),
    [
        (npz_bomb, [read_arrays], 320),
        (torch_bomb, [read_checkpoint, load_tfeat, lambda path: load_kornia(f"HardNet:{path}")], 300),
        (h5_bomb, [lambda path: h5.read_features(path, "a.png")], 537),
    ],
)
def test_bombs_are_refused(make: Change, readers: list[Callable[[Path], Any]], size: int, tmp_path: Path) -> None:
    make(tmp_path / "bomb")
    assert (tmp_path / "bomb").stat().st_size < 3_000_000
    for read in readers:
        with pytest.raises(InputError, match=f"{size} MB"):
            read(tmp_path / "bomb")


# Images


def png_of(side: int) -> bytes:
    header, data = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0), zlib.compress(bytes(10_000))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in ((b"IHDR", header), (b"IDAT", data), (b"IEND", b""))
    )


def coded(suffix: str) -> bytearray:
    small = cv2.resize(np.arange(144, dtype=np.uint8).reshape(6, 8, 3), (40, 30))
    return bytearray(cv2.imencode(suffix, small)[1].tobytes())


def jpg_of(side: int) -> bytearray:
    content = coded(".jpg")
    frame = content.index(b"\xff\xc0")
    content[frame + 5 : frame + 9] = struct.pack(">HH", min(side, 65_000), min(side, 65_000))
    return content


def bmp_of(side: int) -> bytearray:
    content = coded(".bmp")
    content[18:26] = struct.pack("<ii", side, -side)
    return content


def tif_of(side: int) -> bytearray:
    content = coded(".tif")
    start = int.from_bytes(content[4:8], "little")
    for number in range(int.from_bytes(content[start : start + 2], "little")):
        at = start + 2 + 12 * number
        if int.from_bytes(content[at : at + 2], "little") in (256, 257):
            content[at + 2 : at + 12] = struct.pack("<HII", 4, 1, side)
    return content


def jpg_with_a_byte_between_its_markers(side: int) -> bytearray:
    content = jpg_of(side)
    frame = content.index(b"\xff\xc0")
    content[frame:frame] = b"\0"
    return content


def tif_with_duplicate_tags(side: int) -> bytes:
    entries = [struct.pack("<HHII", tag, 4, 1, length) for tag in (256, 257) for length in (side, 4)]
    return b"II*\0" + struct.pack("<IH", 8, 4) + b"".join(entries)


@pytest.mark.parametrize("side", [60_000, 20_000, 2**31 - 1])
@pytest.mark.parametrize(
    "make", [png_of, jpg_of, bmp_of, tif_of, jpg_with_a_byte_between_its_markers, tif_with_duplicate_tags]
)
def test_huge_images_are_refused_by_their_header(make: Callable[[int], bytes], side: int, tmp_path: Path) -> None:
    assert declared_pixels(bytes(make(side))) > MAX_PIXELS
    (tmp_path / "a.png").write_bytes(make(side))
    for read in (read_gray, read_color):
        with pytest.raises(InputError, match="megapixels"):
            read(tmp_path / "a.png")


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".bmp", ".ppm", ".tif"])
def test_declared_pixels_of_honest_images(suffix: str) -> None:
    assert declared_pixels(bytes(coded(suffix))) == 1200
    assert declared_pixels(b"nothing") == 0


@pytest.mark.parametrize("quality", [101, 80])  # lossless, lossy
def test_webp_is_read(quality: int, tmp_path: Path) -> None:
    pixels = cv2.resize(np.arange(48, dtype=np.uint8).reshape(6, 8), (41, 30))
    content = cv2.imencode(".webp", pixels, [cv2.IMWRITE_WEBP_QUALITY, quality])[1].tobytes()
    (tmp_path / "a.webp").write_bytes(content)
    assert declared_pixels(content) == 1230
    assert read_color(tmp_path / "a.webp").shape == (30, 41, 3)


SIDE = struct.pack("<HH", 20_000, 20_000)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.gif", b"GIF89a" + SIDE + b"\x80\0\0" + bytes(6) + b",\0\0\0\0" + SIDE + b"\0\x02\x02L\x01\0;"),
        ("a.hdr", b"#?RADIANCE\nFORMAT=32-bit_rle_rgbe\n\n-Y 20000 +X 20000\n" + bytes(100)),
        ("a.ppm", b"P6\n" + b"#\n" * 150 + b"20000 20000\n255\n" + bytes(100)),
        ("spaces.ppm", b"P6" + b" " * 20_000 + b"#" * 20_000),  # read in linear time
        ("a.webp", b"RIFF\0\0\0\0WEBPXXXX" + bytes(100)),
    ],
)
def test_images_of_other_kinds_are_refused_before_they_are_decoded(
    name: str, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenCV allocates gigabytes for the header of a GIF, and writes a temporary file for a Radiance image."""
    monkeypatch.setattr(cv2, "imdecode", lambda *_: pytest.fail("it was decoded"))
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=name):
        read_gray(tmp_path / name)


# Where results go, and what a run folder from others may do


def test_a_pipe_or_device_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    """As root, a rename would replace /dev/null by a file."""
    os.mkfifo(tmp_path / "trap")
    with pytest.raises(InputError, match="trap"):
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


def test_out_of_memory_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def hungry(*_: object) -> int:
        raise MemoryError("Unable to allocate 8 TiB")

    monkeypatch.setattr("sdgmnet.cli.dispatch", hungry)
    assert main(["describe"]) == 2
    assert capsys.readouterr().err == "sdgmnet: out of memory (Unable to allocate 8 TiB).\n"


def test_a_resumed_run_runs_nothing_that_only_its_folder_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run folder from others may come with a Python file, which runs only if the user names it, and with checkpoints."""
    loss, run, mark = tmp_path / "own.py", tmp_path / "run", tmp_path / "mark"
    loss.write_text("from sdgmnet.loss import LOSSES\nMine = LOSSES['hardnet']\n")
    blob_patches(points=8, views=2, seed=1).save(tmp_path / "set")
    words = ["train", "--data", str(tmp_path / "set"), "--iterations", "1", "--batch-size", "4", "--engine", "eager"]
    named, resume = ["--loss", f"{loss}:Mine"], ["train", "-o", str(run), "--resume"]
    assert main([*words, "-o", str(run), *named]) == 0
    (run / "results.json").unlink()  # as if the run had not finished
    loss.write_text(f"import os\nos.mkdir({str(mark)!r})\n")
    capsys.readouterr()
    assert main(resume) == 2
    assert " ".join(named) in capsys.readouterr().err and not mark.exists()
    assert main([*resume, *named]) == 2  # the file runs, and fails
    assert mark.exists()
    loss.write_text("from sdgmnet.loss import LOSSES\nMine = LOSSES['hardnet']\n")
    for path in (run / "checkpoints").glob("*.pt"):
        hidden_in_an_archive(path)
    assert main([*resume, *named]) == 2
    assert "no checkpoint" in capsys.readouterr().err and not list(tmp_path.rglob("attacked"))

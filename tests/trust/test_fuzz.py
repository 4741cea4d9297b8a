"""A short run of the fuzzer, and hand-made files that it would hardly find: bombs, links, paths that leave the folder."""

import io
import stat
import struct
import warnings
import zipfile
import zlib
from pathlib import Path

import cv2
import h5py
import numpy as np
import pytest
import torch

from sdgmnet.data.download import unpack_zip
from sdgmnet.data.patchset import PatchSet, batch_groups
from sdgmnet.encoders import load_encoder
from sdgmnet.errors import InputError
from sdgmnet.features import h5
from sdgmnet.features.h5_store import open_store
from sdgmnet.features.images import MAX_PIXELS, declared_pixels, read_color, read_gray
from sdgmnet.sfm import database
from sdgmnet.storage import read_arrays, read_json
from sdgmnet.training.checkpoint import read_checkpoint, save_checkpoint
from sdgmnet.training.config import TrainConfig
from sdgmnet.training.log import read_log
from tests.trust.fuzz import fuzz, mutated_input, table, write_valid
from tests.trust.mutations import mutate_bytes
from tests.trust.readers import TARGETS, make_database, make_h5, make_patchset, valid_files

needs_proc = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is bounded by what /proc says")


@pytest.mark.parametrize("name", TARGETS)
def test_valid_files_are_read(name: str, tmp_path: Path) -> None:
    write_valid(name, tmp_path)
    TARGETS[name].read(tmp_path)


@pytest.mark.parametrize("name", TARGETS)
def test_inputs_differ_from_the_valid_file_and_are_reproducible(name: str) -> None:
    file, content = mutated_input(name, 5, 1)
    assert content != valid_files(name)[file]
    assert mutated_input(name, 5, 1) == (file, content)


@needs_proc
def test_short_run_of_the_fuzzer() -> None:
    tallies = fuzz(count=400, seed=11)
    escapes = [escape for tally in tallies for escape in tally.escapes]
    assert not escapes, "\n".join(f"{one.target} {one.number}: {one.reason}" for one in escapes)
    assert sum(tally.inputs for tally in tallies) >= 390
    assert sum(tally.refused for tally in tallies) > 100
    assert sum(tally.read for tally in tallies) > 20  # some mutations are harmless
    assert "| all |" in table(tallies)


def forever() -> None:
    while True:
        pass


@needs_proc
@pytest.mark.parametrize(
    ("read", "said"),
    [
        (lambda folder: int("x"), "ValueError"),
        (lambda folder: np.empty(3 << 30, dtype=np.uint8), "MemoryError"),
        (lambda folder: Path("/tmp/sdgmnet-escape").write_text("x"), "Forbidden"),
        (lambda folder: (folder / "H_1_2").rename("/tmp/sdgmnet-escape"), "Forbidden"),
        (lambda folder: __import__("os").system("true"), "Forbidden"),
        (lambda folder: __import__("ctypes").string_at(0), "SIGSEGV"),
        (lambda folder: forever(), "Hang"),
        (lambda folder: sum(iter(int, 1)), "no alarm ends"),
    ],
)
def test_fuzzer_detects_every_kind_of_escape(read: object, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TARGETS, "homography", TARGETS["homography"]._replace(read=read))
    monkeypatch.setattr("tests.trust.fuzz.SECONDS_PER_INPUT", 0.3)
    if said == "no alarm ends":  # the others may be slow on a busy machine
        monkeypatch.setattr("tests.trust.fuzz.SECONDS_WITHOUT_NEWS", 3.0)
    [tally] = fuzz(count=1, seed=0, names=["homography"])
    assert [said in escape.reason for escape in tally.escapes] == [True], tally
    assert not Path("/tmp/sdgmnet-escape").exists()


@pytest.mark.parametrize(
    ("target", "seed", "number"),
    [
        ("colmap database", 3, 537),
        ("colmap database", 3, 1119),
        ("configuration and logs", 2, 190),
        ("colmap cameras", 1, 61),
        ("patchset folder", 5, 546),
        ("records of work", 6, 51),
    ],
)
def test_inputs_that_once_escaped(target: str, seed: int, number: int, tmp_path: Path) -> None:
    write_valid(target, tmp_path)
    name, content = mutated_input(target, seed, number)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError):
        TARGETS[target].read(tmp_path)


# Images


def png_of(width: int, height: int, data: bytes = b"") -> bytes:
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)), (b"IDAT", data), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in chunks
    )


@pytest.mark.parametrize("side", [60_000, 30_000, 2**31 - 1])
def test_huge_headers_are_refused_before_anything_is_decoded(side: int, tmp_path: Path) -> None:
    small = cv2.resize(np.arange(48, dtype=np.uint8).reshape(6, 8), (40, 30))
    bmp = bytearray(cv2.imencode(".bmp", small)[1].tobytes())
    bmp[18:26] = struct.pack("<ii", side, -side)
    jpg = bytearray(cv2.imencode(".jpg", small)[1].tobytes())
    frame = jpg.index(b"\xff\xc0")
    jpg[frame + 5 : frame + 9] = struct.pack(">HH", min(side, 65_000), min(side, 65_000))
    tif = bytearray(cv2.imencode(".tif", small)[1].tobytes())
    start = int.from_bytes(tif[4:8], "little")
    for number in range(int.from_bytes(tif[start : start + 2], "little")):
        at = start + 2 + 12 * number
        if int.from_bytes(tif[at : at + 2], "little") in (256, 257):
            tif[at + 2 : at + 12] = struct.pack("<HII", 4, 1, side)
    zeros = zlib.compress(bytes(10_000))
    for name, content in (("a.png", png_of(side, side, zeros)), ("a.bmp", bmp), ("a.jpg", jpg), ("a.tif", tif)):
        assert declared_pixels(bytes(content)) > MAX_PIXELS, name
        (tmp_path / name).write_bytes(content)
        for read in (read_gray, read_color):
            with pytest.raises(InputError, match="megapixels"):
                read(tmp_path / name)


def test_declared_pixels_of_honest_images() -> None:
    image = np.zeros((30, 40, 3), dtype=np.uint8)
    for suffix in ("png", "jpg", "bmp", "ppm", "tif"):
        assert declared_pixels(cv2.imencode(f".{suffix}", image)[1].tobytes()) == 1200, suffix
    assert declared_pixels(b"nothing") == 0


def test_header_of_a_portable_map_is_parsed_in_linear_time(tmp_path: Path) -> None:
    (tmp_path / "a.ppm").write_bytes(b"P6" + b" " * 20_000 + b"#" * 20_000)
    with pytest.raises(InputError):
        read_gray(tmp_path / "a.ppm")


# Archives


def zip_with(*members: tuple[zipfile.ZipInfo | str, bytes]) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a duplicate name
        for name, content in members:
            archive.writestr(name, content)
    return held.getvalue()


def link(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name)
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    return entry


@pytest.mark.parametrize(
    "members",
    [
        [("../escaped.txt", b"x")],
        [("inner/../../escaped.txt", b"x")],
        [("/tmp/sdgmnet-escaped.txt", b"x")],
        [("..\\escaped.txt", b"x")],
        [(link("door"), b".."), ("door/escaped.txt", b"x")],
        [("a.txt", b"x"), ("a.txt", b"y")],
        [("bomb", bytes(5_000_000))],
    ],
)
def test_archives_are_confined_to_their_folder_and_size(
    members: list[tuple[zipfile.ZipInfo | str, bytes]], tmp_path: Path
) -> None:
    (tmp_path / "a.zip").write_bytes(zip_with(*members))
    with pytest.raises(InputError):
        unpack_zip(tmp_path / "a.zip", tmp_path / "below" / "out", limit=1_000_000)
    assert not list(tmp_path.rglob("*escaped*")) and not Path("/tmp/sdgmnet-escaped.txt").exists()
    assert not (tmp_path / "below" / "out").exists()


def test_tar_archives_are_not_unpacked_at_all(tmp_path: Path) -> None:
    import tarfile

    with tarfile.open(tmp_path / "a.zip", "w") as archive:
        entry = tarfile.TarInfo("../escaped.txt")
        entry.size = 1
        archive.addfile(entry, io.BytesIO(b"x"))
    with pytest.raises(InputError, match="zip"):
        unpack_zip(tmp_path / "a.zip", tmp_path / "out")
    assert not list(tmp_path.rglob("*escaped*"))


def test_zip_with_a_false_size(tmp_path: Path) -> None:
    content = bytearray(zip_with(("bomb", bytes(2_000_000))))
    for mark, place in ((b"PK\x01\x02", 24), (b"PK\x03\x04", 22)):
        at = content.index(mark) + place
        content[at : at + 4] = struct.pack("<I", 10)
    (tmp_path / "a.zip").write_bytes(content)
    with pytest.raises(InputError):
        unpack_zip(tmp_path / "a.zip", tmp_path / "out", limit=1_000_000)
    assert not (tmp_path / "out").exists()


def test_npz_bomb_is_refused(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", keypoints=np.zeros(40_000_000))
    assert (tmp_path / "a.npz").stat().st_size < 1_000_000
    with pytest.raises(InputError, match="would decompress to 320 MB"):
        read_arrays(tmp_path / "a.npz")


def test_npz_round_trip(tmp_path: Path) -> None:
    given = {
        "rows": np.arange(6.0).reshape(2, 3),
        "columns": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "words": np.array(["a", "bc"]),
        "one": np.array("{}"),
        "none": np.zeros((0, 2)),
    }
    np.savez(tmp_path / "a.npz", **given)
    for name, array in read_arrays(tmp_path / "a.npz").items():
        assert array.dtype == given[name].dtype and np.array_equal(array, given[name])
        array.flags.writeable or pytest.fail("read-only")
    with pytest.raises(InputError, match="lacks other"):
        read_arrays(tmp_path / "a.npz", ["rows", "other"])
    np.savez(tmp_path / "b.npz", objects=np.array([{}, None], dtype=object))
    with pytest.raises(InputError, match="not a valid npz"):
        read_arrays(tmp_path / "b.npz")


# h5


def test_h5_links_to_other_files_are_refused(tmp_path: Path) -> None:
    make_h5(tmp_path)
    secret = tmp_path / "secret.h5"
    (tmp_path / "features.h5").rename(secret)
    (tmp_path / "raw.bin").write_bytes(np.ones(10, dtype="<f4").tobytes())
    path = tmp_path / "features.h5"
    good = {"descriptors": np.eye(8, 5, dtype=np.float32), "image_size": np.array([9, 9])}
    with h5py.File(path, "w") as file:
        file["linked.png"] = h5py.ExternalLink(str(secret), "/a.png")
        file["below"] = h5py.ExternalLink(str(secret), "/below")
        for name in ("parts.png", "raw.png", "virtual.png"):
            group = file.create_group(name)
            for key, values in good.items():
                group[key] = values
        file["parts.png"]["keypoints"] = h5py.ExternalLink(str(secret), "/a.png/keypoints")
        file["raw.png"].create_dataset(
            "keypoints", shape=(5, 2), dtype="<f4", external=[(str(tmp_path / "raw.bin"), 0, 40)]
        )
        layout = h5py.VirtualLayout(shape=(5, 2), dtype="<f4")
        layout[:] = h5py.VirtualSource(str(secret), "/a.png/keypoints", shape=(5, 2))
        file["virtual.png"].create_virtual_dataset("keypoints", layout)
    for name in ("linked.png", "below/b.png", "parts.png", "raw.png", "virtual.png"):
        with pytest.raises(InputError, match="features.h5"):
            h5.read_features(path, name)


def test_h5_that_declares_more_than_memory(tmp_path: Path) -> None:
    make_h5(tmp_path)
    with h5py.File(tmp_path / "features.h5", "a") as file:
        del file["a.png/descriptors"]
        file.create_dataset("a.png/descriptors", shape=(128, 2**40), dtype="<f4", chunks=(128, 1024))
    with pytest.raises(InputError, match="features.h5"):
        h5.read_features(tmp_path / "features.h5", "a.png")


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("keypoints", np.full((5, 2), np.nan)),
        ("keypoints", np.zeros(5)),
        ("descriptors", np.full((128, 5), np.inf)),
        ("scales", np.ones(4)),
        ("image_size", np.array([0, 5])),
        ("image_size", np.array([5])),
        ("oris", np.array([b"a"] * 5)),
    ],
)
def test_malformed_h5_features(key: str, values: np.ndarray, tmp_path: Path) -> None:
    make_h5(tmp_path)
    with h5py.File(tmp_path / "features.h5", "a") as file:
        del file[f"a.png/{key}"]
        file[f"a.png/{key}"] = values
    with pytest.raises(InputError, match=f"a.png has invalid {key}"):
        h5.read_features(tmp_path / "features.h5", "a.png")


def test_h5_whose_stamp_is_not_json(tmp_path: Path) -> None:
    make_h5(tmp_path)
    with h5py.File(tmp_path / "features.h5", "a") as file:
        file.attrs["sdgmnet"] = "{"
    refused = pytest.raises(InputError, match="features.h5")
    with refused, open_store(tmp_path / "features.h5", "features", {"descriptor": "sift"}):
        pass


# Found by the fuzzer


@pytest.mark.parametrize(
    "text", ["NaN", '{"a": Infinity}', "[" * 100_000, "1" * 10_000, "", "\ufeff{}"], ids=lambda text: repr(text[:12])
)
def test_malformed_json(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="a.json"):
        read_json(tmp_path / "a.json")


def test_json_that_is_a_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=tmp_path.name):
        read_json(tmp_path)


@pytest.mark.parametrize(
    "changed",
    [{"seed": "0"}, {"iterations": []}, {"iterations": 2**70}, {"threads": True}, {"data": "demo"}, {"data": [1]},
     {"engine": ["auto"]}, {"margin": None}, {"recompute": 1}, {"init": 3}, {"decay": 2.0},
     {"momentum": True}],
)  # fmt: skip
def test_configuration_of_other_types(changed: dict[str, object], tmp_path: Path) -> None:
    import json

    TrainConfig().save(tmp_path / "config.json")
    content = json.loads((tmp_path / "config.json").read_text())
    TrainConfig.load(tmp_path / "config.json")
    (tmp_path / "config.json").write_text(json.dumps(content | changed))
    with pytest.raises(InputError, match=next(iter(changed))):
        TrainConfig.load(tmp_path / "config.json")


@pytest.mark.parametrize("line", ["3", "{}", '{"kind": "epoch"', "null", '"x"'])
def test_malformed_log(line: str, tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text(f'{{"kind": "epoch", "step": 1}}\n{line}\n')
    with pytest.raises(InputError, match="log.jsonl"):
        read_log(tmp_path / "log.jsonl", "epoch")


@pytest.mark.parametrize("image", [2, -1, 2**40])
def test_patches_of_images_that_are_not_listed(image: int, tmp_path: Path) -> None:
    make_patchset(tmp_path)
    seen = np.load(tmp_path / "set/observations.npy")
    seen["image"][4] = image
    np.save(tmp_path / "set/observations.npy", seen)
    with pytest.raises(InputError, match="observations|set"):
        batch_groups(PatchSet.open(tmp_path / "set"))


CHANGED = [
    ("patchset folder", "set/patches.npy", "64)", "64 "),
    ("colmap cameras", "colmap/images.txt", "1 1 0 0 0", "1 0 0 0 0"),
    ("colmap cameras", "colmap/images.txt", "0.3 1 a.png", "0.3 7 a.png"),
    ("colmap cameras", "colmap/images.txt", "0.1 0.2", "nan 0.2"),
    ("colmap cameras", "colmap/images.txt", " 1 a.png", ""),
    ("colmap cameras", "colmap/cameras.txt", "PINHOLE 100 80", "PINHOLE 0 80"),
    ("colmap cameras", "colmap/cameras.txt", "100 80 90 90", "100 80 90"),
    ("colmap cameras", "colmap/cameras.txt", "# cameras", "x"),
    ("colmap cameras", "colmap/cameras.txt", "SIMPLE_PINHOLE 100 80 90 50 40", "SIMPLE_PINHOLE 100 80"),
    ("ply cloud", "fused.ply", "vertex 5", "vertex -5"),
    ("ply cloud", "fused.ply", "float nz", "float n0"),
    ("ply cloud", "fused.ply", "float y", "float x"),
    ("ply cloud", "fused.ply", " blue", ""),
    ("ply cloud", "fused.ply", "vertex 5", "vertex"),
]


@pytest.mark.parametrize(("target", "name", "old", "new"), CHANGED)
def test_malformed_headers_and_lines(target: str, name: str, old: str, new: str, tmp_path: Path) -> None:
    write_valid(target, tmp_path)
    content = (tmp_path / name).read_bytes()
    assert old.encode() in content
    (tmp_path / name).write_bytes(content.replace(old.encode(), new.encode(), 1))
    with pytest.raises(InputError):
        TARGETS[target].read(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE images SET name = NULL",
        "UPDATE matches SET pair_id = 5",
        "UPDATE matches SET data = x'0102'",
        "UPDATE keypoints SET rows = 'many'",
        "DROP TABLE two_view_geometries",
    ],
)
def test_malformed_databases(change: str, tmp_path: Path) -> None:
    make_database(tmp_path)
    with pytest.raises(InputError, match="database.db"), database.open_database(tmp_path / "database.db") as opened:
        opened.execute(change)
        ids = database.image_ids(opened)
        database.count_keypoints(opened)
        list(database.read_matches(opened, ids))
        database.count_verified(opened)


def test_a_database_with_invalid_utf8(tmp_path: Path) -> None:
    """sqlite's error message names the table, and Python cannot decode it."""
    make_database(tmp_path)
    path = tmp_path / "database.db"
    content = path.read_bytes().replace(b"tableimagesimages", b"tableim\xca\xcaesimages")
    path.write_bytes(content.replace(b"CREATE TABLE images", b"CREATE TABBE images"))
    with pytest.raises(InputError, match="database.db"), database.open_database(path) as opened:
        database.image_ids(opened)


@pytest.mark.parametrize("content", [[1], {"step": "4"}, {"step": -1}, {}, torch.ones(2)])
def test_checkpoints_without_a_step(content: object, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "checkpoint-000000004.pt")
    with pytest.raises(InputError, match="checkpoint-000000004.pt"):
        read_checkpoint(tmp_path / "checkpoint-000000004.pt")


def test_any_changed_byte_of_a_checkpoint_is_detected_or_harmless(tmp_path: Path) -> None:
    from random import Random

    path = save_checkpoint(tmp_path, 3, {"weights": torch.arange(5.0)})
    whole = path.read_bytes()
    for number in range(60):
        path.write_bytes(mutate_bytes(whole, Random(number)))
        try:
            found = read_checkpoint(path)
        except InputError:
            continue
        assert torch.equal(found["weights"], torch.arange(5.0)) and found["step"] == 3


def test_weights_whose_card_is_not_json(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    for card in ("1" * 10_000, "{", "[" * 100_000, '{"encoder": NaN}'):
        save_file({"x": torch.ones(1)}, tmp_path / "w.safetensors", {"card": card})
        with pytest.raises(InputError, match="safetensors"):
            load_encoder(tmp_path / "w.safetensors")

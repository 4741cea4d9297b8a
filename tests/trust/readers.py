"""Every reader of the package, with small valid files and the properties of valid results.

A target makes a folder of valid files and reads them all: it checks the results and returns, or raises InputError. Anything
else is an escape.
"""

import dataclasses
import io
import json
import sqlite3
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import torch

from reproduce.output import caption_of_run
from reproduce.results import FILE, Result, read_result
from sdgmnet.app.watching import run_progress, run_summary
from sdgmnet.benchmarks.photo_sets import read_truth
from sdgmnet.data.download import unpack_zip
from sdgmnet.data.hpatches.files import read_descriptor_file, read_strip
from sdgmnet.data.hpatches.strips import JITTERS, records
from sdgmnet.data.hpatches.tasks import read_retrieval, read_verification
from sdgmnet.data.patchset import PatchSet
from sdgmnet.data.photos.tracks import load_points, points_of_tracks, save_points
from sdgmnet.data.phototour import grid_of_patches, read_bitmap, read_phototour, read_point_ids, read_test_pairs
from sdgmnet.data.sampler import PairSampler
from sdgmnet.data.sequences import read_homography
from sdgmnet.data.sources import with_pairs
from sdgmnet.descriptors import load_kornia
from sdgmnet.encoders import TFeat, load_encoder, load_tfeat, save_encoder
from sdgmnet.features import eth, h5
from sdgmnet.features.compact import Projection, load_projection, save_projection
from sdgmnet.features.describe import Features
from sdgmnet.features.h5_store import open_store, read_stamp
from sdgmnet.features.images import read_color, read_gray
from sdgmnet.features.keypoint_files import read_keypoints
from sdgmnet.features.keypoints import Keypoints
from sdgmnet.features.pairs import read_pairs
from sdgmnet.plots.patches import read_triplets
from sdgmnet.sfm import database
from sdgmnet.sfm.colmap_text import read_model, view_of
from sdgmnet.sfm.photo_import import read_imported
from sdgmnet.sfm.scene import SparseScene, View, load_scene, save_scene
from sdgmnet.sfm.stage_timer import PersistentStageTimer
from sdgmnet.sfm.viewer import read_ply
from sdgmnet.sfm.workspace import read_map, read_map_options, write_map
from sdgmnet.storage import write_json
from sdgmnet.training.angles import Angles
from sdgmnet.training.checkpoint import checkpoints, fingerprint, load_checkpoint, read_checkpoint, save_checkpoint
from sdgmnet.training.config import TrainConfig
from sdgmnet.training.log import read_log
from sdgmnet.training.triplets import PatchTriplet, save_triplets
from tests.conftest import blob_patches
from tests.trust.mutations import (
    Mutate,
    mutate_bytes,
    mutate_h5,
    mutate_json,
    mutate_json_lines,
    mutate_lines,
    mutate_npy,
    mutate_npz,
    mutate_png,
    mutate_safetensors,
    mutate_zip,
)  # fmt: skip

Files = Mapping[str, bytes]


class Target(NamedTuple):
    """share: of all inputs, relative to other targets. mutated: the files to change, and how."""

    make: Callable[[Path], None]
    read: Callable[[Path], None]
    mutated: Mapping[str, Mutate]
    share: float = 1.0


@cache
def valid_files(name: str) -> Files:
    """The target's files, made once."""
    with tempfile.TemporaryDirectory() as folder:
        TARGETS[name].make(Path(folder))
        return {
            str(path.relative_to(folder)): path.read_bytes()
            for path in sorted(Path(folder).rglob("*"))
            if path.is_file()
        }


def demand(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(f"invalid result: {what}")


def all_finite(arrays: Iterable[np.ndarray]) -> bool:
    return all(np.isfinite(np.asarray(array, dtype=np.float64)).all() for array in arrays)


# PhotoTour


def make_bitmap(folder: Path) -> None:
    pixels = grid_of_patches(np.arange(64 * 64, dtype=np.uint8).reshape(1, 64, 64).repeat(8, axis=0))
    (folder / "patches0000.bmp").write_bytes(cv2.imencode(".bmp", pixels)[1].tobytes())


def check_bitmap(folder: Path) -> None:
    patches = read_bitmap(folder / "patches0000.bmp")
    demand(patches.shape == (256, 64, 64) and patches.dtype == np.uint8, "patches of a bitmap")


def make_texts(folder: Path) -> None:
    (folder / "info.txt").write_text("".join(f"{row // 2} 0\n" for row in range(8)))
    pairs = [(0, 1), (2, 3), (0, 2), (4, 6)]
    rows = [f"{a} {a // 2} 0 {b} {b // 2} 0 0\n" for a, b in pairs]
    (folder / "m50_4_4_0.txt").write_text("".join(rows))


def check_texts(folder: Path) -> None:
    ids = read_point_ids(folder / "info.txt")
    demand(ids.ndim == 1 and ids.dtype == np.int64 and len(ids) > 0 and ids.min() >= 0, "point ids")
    pairs = read_test_pairs(folder / "m50_4_4_0.txt", ids)
    demand(pairs.shape == (4, 3) and pairs.min() >= 0 and pairs[:, :2].max() < len(ids), "test pairs")


def make_phototour(folder: Path) -> None:
    make_bitmap(folder)
    make_texts(folder)


def check_phototour(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as out:
        opened = read_phototour(folder, Path(out) / "set", name="any")
        demand(len(opened) == len(opened.point_id) and opened.patches.shape[1:] == (64, 64), "converted set")


# PatchSets


def make_patchset(folder: Path) -> None:
    made = blob_patches(points=6, views=3, seed=3)
    kinds = [("image", "<i8"), ("detected", "?")]
    seen = np.array([(number % 2, True) for number in range(len(made))], dtype=kinds)
    origin = {"source": "photos", "scene": "one", "images": ["0/a.png", "1/b.png"], "one_image_a_batch": False}
    parts = {"conflicts": np.array([[3, 10], [10, 17]]), "observations": seen, "test_pairs": made.test_pairs[:20]}
    PatchSet("one", made.patches, made.point_id, origin=origin, **parts).save(folder / "set")
    views = origin | {"source": "views", "one_image_a_batch": True}
    PatchSet("two", made.patches, made.point_id, origin=views, observations=seen).save(folder / "views")


def check_patchset(folder: Path) -> None:
    for name in ("set", "views"):
        opened = PatchSet.open(folder / name)
        paired = with_pairs(opened)
        demand(len(fingerprint(paired)) == 16, "fingerprint")
        sampler = PairSampler([paired], 0)
        sampler.require_batch_size(2)
        chosen = sampler.indices(0, 2)
        demand(chosen.shape == (2, 2) and chosen.min() >= 0 and chosen.max() < len(opened), "drawn patches")
        demand(np.asarray(opened.patches[chosen[0]]).shape == (2, 64, 64), "patches")


# HPatches and sequences


def make_strip(folder: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (65 * 3, 65), dtype=np.uint8)
    (folder / "ref.png").write_bytes(cv2.imencode(".png", pixels)[1].tobytes())


def check_strip(folder: Path) -> None:
    strip = read_strip(folder / "ref.png")
    demand(strip.shape[1:] == (65, 65) and strip.dtype == np.uint8, "strip")


def make_csv(folder: Path) -> None:
    np.savetxt(folder / "ref.csv", np.random.default_rng(0).normal(size=(4, 6)), fmt="%.6g", delimiter=",")


def check_csv(folder: Path) -> None:
    rows = read_descriptor_file(folder / "ref.csv")
    demand(rows.ndim == 2 and rows.dtype == np.float32 and all_finite([rows]), "descriptors")


def make_tasks(folder: Path) -> None:
    pairs = "s1,t1,idx1,s2,t2,idx2\nv_a,1,0,v_b,2,3\nv_b,0,1,v_a,4,2\n"
    for kind in ("pos", "neg_intra", "neg_inter"):
        (folder / f"verif_{kind}_split-a.csv").write_text(pairs)
    for kind in ("queries", "distractors"):
        (folder / f"retr_{kind}_split-a.csv").write_text("s,idx\nv_a,1\nv_b,2\n")


def check_tasks(folder: Path) -> None:
    names, counts = ["v_a", "v_b"], [5, 5]
    verification, retrieval = (read(folder, "a", names, counts) for read in (read_verification, read_retrieval))
    for rows in (*(verification or ()), *(retrieval or ())):
        demand(rows.dtype == np.int32 and (not len(rows) or (rows.min() >= 0 and rows.max() <= 5)), "task rows")


def make_homography(folder: Path) -> None:
    (folder / "H_1_2").write_text("0.9 0.01 12.5\n-0.02 1.1 -3\n1e-5 2e-6 1\n")


def check_homography(folder: Path) -> None:
    matrix = read_homography(folder / "H_1_2")
    demand(matrix.shape == (3, 3) and all_finite([matrix, np.linalg.inv(matrix)]), "homography")


# Features and matches


def some_keypoints(count: int = 5) -> Keypoints:
    rng = np.random.default_rng(1)
    return Keypoints(rng.uniform(0, 99, (count, 2)), rng.uniform(1, 4, count), rng.uniform(0, 6, count), np.ones(count))


def make_h5(folder: Path) -> None:
    descriptors = np.eye(5, 128, dtype=np.float32)
    with open_store(folder / "features.h5", "features", {"descriptor": "sift", "size": 100}) as store:
        for name in ("a.png", "below/b.png"):
            store.add(name, h5.features_to_arrays(Features(some_keypoints(), descriptors, (100, 80))))
    with open_store(folder / "matches.h5", "matches", {"features": "{}"}) as store:
        arrays = {"matches0": np.array([1, -1, 0, 4, -1], np.int16), "matching_scores0": np.ones(5, np.float16)}
        store.add("a.png/below-b.png", arrays)


def check_h5(folder: Path) -> None:
    features, matches = folder / "features.h5", folder / "matches.h5"
    read_stamp(features)
    for name in h5.names_in(features):
        found = h5.read_features(features, name)
        count = len(found.keypoints.xy)
        demand(all(len(column) == count for column in found.keypoints) and len(found.descriptors) == count, "features")
        demand(all_finite([*found.keypoints, found.descriptors]) and min(found.size) > 0, "finite features")
    for read, names in ((read_keypoints, ("a.png", "below/b.png")),):
        for name in names:
            demand(all_finite(read(features, name)), "keypoints")
    pairs, scores = h5.read_matches(matches, "a.png", "below/b.png")
    demand(pairs.shape == (len(scores), 2) and (not len(pairs) or pairs.min() >= 0) and all_finite([scores]), "matches")
    with open_store(features, "features", {"descriptor": "sift", "size": 100}) as store:
        demand(all(isinstance(name, str) for name in store.names), "names of a store")


def make_keypoints(folder: Path) -> None:
    keypoints = some_keypoints()
    np.savez(folder / "own.npz", keypoints=keypoints.xy, scales=keypoints.sigma, oris=keypoints.angle)
    (folder / "own.txt").write_text("# x y sigma angle\n1.5 2 3 45\n10, 20, 2.5, 0\n7 8 1 0\n")


def check_keypoints(folder: Path) -> None:
    for name in ("own.npz", "own.txt"):
        found = read_keypoints(folder / name, "a.png")
        demand(
            all_finite(found) and len({len(column) for column in found}) == 1 and (found.sigma > 0).all(), "keypoints"
        )


def make_eth(folder: Path) -> None:
    eth.write_keypoints(folder / "a.png.bin", some_keypoints())
    eth.write_descriptors(folder / "descriptors.bin", np.eye(5, 8, dtype=np.float32))
    eth.write_matches(folder, "a", "b", np.array([[0, 1], [2, 3]]))


def check_eth(folder: Path) -> None:
    demand(all_finite(eth.read_keypoints(folder / "a.png.bin")), "keypoints")
    demand(all_finite([eth.read_descriptors(folder / "descriptors.bin")]), "descriptors")
    pairs = eth.read_matches(folder, "a", "b")
    demand(
        pairs is not None and pairs.ndim == 2 and pairs.shape[1] == 2 and (not len(pairs) or pairs.min() >= 0),
        "matches",
    )


def make_projection(folder: Path) -> None:
    save_projection(Projection(np.eye(8, 4, dtype=np.float32)), folder / "axes.safetensors")


def check_projection(folder: Path) -> None:
    axes = load_projection(folder / "axes.safetensors").axes
    demand(axes.ndim == 2 and axes.dtype.kind == "f" and all_finite([axes]), "projection")


# Images

SUFFIXES = ("png", "jpg", "bmp", "ppm", "pgm", "tif", "webp", "16.png")


def make_images(folder: Path) -> None:
    rng = np.random.default_rng(2)
    color = cv2.resize(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8), (40, 30))
    for suffix in SUFFIXES:
        deep = color.astype(np.uint16) * 16
        pixels = deep if suffix.startswith("16") else color[..., 0] if suffix == "pgm" else color
        (folder / f"a.{suffix}").write_bytes(cv2.imencode(f".{suffix.split('.')[-1]}", pixels)[1].tobytes())


def check_images(folder: Path) -> None:
    for suffix in SUFFIXES:
        for read, dimensions in ((read_gray, 2), (read_color, 3)):
            found = read(folder / f"a.{suffix}")
            demand(found.dtype == np.uint8 and found.ndim == dimensions and found.size > 0, "image")
            demand(found.size <= 3 * 2**28, "an image of bounded size")


# COLMAP


def make_map(folder: Path) -> None:
    write_map(folder / "depth.bin", np.ones((4, 5), dtype=np.float32))
    write_map(folder / "normal.bin", np.ones((4, 5, 3), dtype=np.float32))


def check_map(folder: Path) -> None:
    for name in ("depth.bin", "normal.bin"):
        found = read_map(folder / name)
        demand(found.ndim in (2, 3) and found.dtype == np.float32, "map")


def make_ply(folder: Path) -> None:
    kinds = [(one, "<f4") for one in ("x", "y", "z", "nx", "ny", "nz")] + [
        (one, "|u1") for one in ("red", "green", "blue")
    ]
    vertices = np.ones(5, dtype=kinds)
    properties = [f"property {'float' if kind == '<f4' else 'uchar'} {name}" for name, kind in kinds]
    header = ["ply", "format binary_little_endian 1.0", "element vertex 5", *properties, "end_header", ""]
    (folder / "fused.ply").write_bytes("\n".join(header).encode() + vertices.tobytes())


def check_ply(folder: Path) -> None:
    cloud = read_ply(folder / "fused.ply")
    demand(cloud.points.shape == (len(cloud.points), 3) and cloud.colours.shape == cloud.points.shape, "cloud")


def make_truth(folder: Path) -> None:
    colmap, strecha = folder / "colmap", folder / "strecha"
    colmap.mkdir()
    strecha.mkdir()
    (colmap / "cameras.txt").write_text("# cameras\n1 PINHOLE 100 80 90 90 50 40\n2 SIMPLE_PINHOLE 100 80 90 50 40\n")
    (colmap / "images.txt").write_text(
        "# images\n1 1 0 0 0 0.1 0.2 0.3 1 a.png\n\n2 0.9 0.1 0 0 0 0 1 2 b c.png\n1 2 3\n"
    )
    numbers = ["90 0 50", "0 90 40", "0 0 1", "0 0 0", "1 0 0", "0 1 0", "0 0 1", "0.5 0.5 2", "100 80"]
    (strecha / "a.png.camera").write_text("\n".join(numbers) + "\n")


def check_truth(folder: Path) -> None:
    for name in ("colmap", "strecha"):
        for view in read_truth(folder / name).values():
            demand(view.width > 0 and view.height > 0, "size of a view")
            demand(all_finite([view.intrinsics, view.rotation, view.translation]), "camera")


def make_text_model(folder: Path) -> None:
    (folder / "cameras.txt").write_text(
        "# cameras\n1 SIMPLE_RADIAL 100 80 90 50 40 0.1\n2 PINHOLE 100 80 90 90 50 40\n"
    )
    (folder / "images.txt").write_text(
        "# images\n1 1 0 0 0 0.1 0.2 0.3 1 a.png\n1 2 7 3 4 -1\n2 0.9 0.1 0 0 0 0 1 2 b.png\n5 6 7\n"
    )
    (folder / "points3D.txt").write_text("# points\n7 0.5 1 2 10 20 30 0.4 1 0 2 0\n")


def check_text_model(folder: Path) -> None:
    model = read_model(folder)
    for image in model.images.values():
        demand(all_finite(view_of(image, model.cameras[image.camera])[3:]) and all_finite([image.xy]), "image")
    for track in model.points.tracks:
        demand(all(len(model.images[image].xy) > keypoint for image, keypoint in track.tolist()), "track")
    demand(all_finite([model.points.xyz]), "points")


def make_scene(folder: Path) -> None:
    view = View("a.png", 20, 10, np.eye(3), np.eye(3), np.zeros(3))
    save_scene(
        SparseScene((view, view._replace(name="b.png")), np.ones((4, 3)), np.array([[0, 1], [1, 1]])),
        folder / "scene.npz",
    )
    keypoints = some_keypoints(4)
    columns = {"xy": keypoints.xy, "sigma": keypoints.sigma, "angle": keypoints.angle}
    np.savez(folder / "tracks.npz", view=np.array([0, 1, 0, 1]), point=np.array([1, 1, 2, 2]), **columns)
    points = points_of_tracks(folder)
    save_points(folder / "points.npz", points, "{}")
    Angles(np.ones(3), np.ones(3), np.ones((3, 2))).save(folder / "angles.npz")
    one = PatchTriplet((0, 1, 2), 0.4, 0.3, 0.5)
    save_triplets(blob_patches(points=2, views=2, seed=0), [one], 10, 4, folder / "triplets.npz")


def check_scene(folder: Path) -> None:
    scene = load_scene(folder / "scene.npz")
    demand(scene.points.shape[1:] == (3,) and scene.observations.shape[1:] == (2,), "scene")
    demand(all(view.intrinsics.shape == (3, 3) and view.width > 0 for view in scene.views), "views")
    points_of_tracks(folder)
    points = load_points(folder / "points.npz", "{}")
    demand(points is None or len(points.view) == len(points.keypoints.xy), "points")
    angles = Angles.load(folder / "angles.npz")
    demand(angles.moments.shape == (3, 2) and all_finite([angles.theta_pos, angles.theta_neg]), "angles")
    patches, thetas, step = read_triplets(folder / "triplets.npz")
    demand(thetas.shape == (len(patches), 2) and all_finite([thetas]) and patches.shape[1] == 3, "triplets")
    demand(patches.dtype == np.uint8 and isinstance(step, int), "triplets")


def make_database(folder: Path) -> None:
    with sqlite3.connect(folder / "database.db") as made:
        made.execute("CREATE TABLE images (image_id INTEGER PRIMARY KEY, name TEXT, camera_id INTEGER)")
        made.execute("CREATE TABLE keypoints (image_id INTEGER PRIMARY KEY, rows INTEGER, cols INTEGER, data BLOB)")
        for table in ("matches", "two_view_geometries"):
            made.execute(f"CREATE TABLE {table} (pair_id INTEGER PRIMARY KEY, rows INTEGER, cols INTEGER, data BLOB)")
            rows = np.array([[0, 1], [1, 0]], dtype="<u4").tobytes()
            made.execute(f"INSERT INTO {table} VALUES (?, 2, 2, ?)", (database.pair_id(1, 2), rows))
        made.executemany("INSERT INTO images VALUES (?, ?, 1)", [(1, "a.png"), (2, "b.png")])
        made.executemany("INSERT INTO keypoints VALUES (?, 2, 4, ?)", [(1, b"\0" * 32), (2, b"\0" * 32)])
    made.close()


def check_database(folder: Path) -> None:
    with database.open_database(folder / "database.db") as opened:
        ids = database.image_ids(opened)
        database.count_keypoints(opened)
        database.is_matched(opened, database.pair_id(1, 2))
        demand(database.count_pairs(opened, "matches", with_matches=True) >= 0, "counts")
        demand(
            database.count_pairs(opened, "two_view_geometries") >= 0 and database.count_verified(opened).pairs >= 0,
            "verified",
        )
        for table in ("matches", "two_view_geometries"):
            for first, second, pairs in database.read_matches(opened, ids, table):
                demand(first < second and pairs.shape[1:] == (2,), "matches")


# Weights, runs and what is written beside them


@cache
def small_encoder() -> TFeat:
    torch.manual_seed(0)
    return TFeat()


def make_weights(folder: Path) -> None:
    save_encoder(small_encoder(), folder / "w.safetensors", {"trained_on": ["liberty"], "scenes": ["liberty"]})


def check_weights(folder: Path) -> None:
    encoder, card = load_encoder(folder / "w.safetensors")
    demand(
        isinstance(card, dict) and all_finite(one.detach().numpy() for one in encoder.state_dict().values()), "weights"
    )


def make_foreign(folder: Path) -> None:
    state = small_encoder().state_dict()
    torch.save(state, folder / "tfeat.params")
    torch.save(state, folder / "old.params", _use_new_zipfile_serialization=False)


def check_foreign(folder: Path) -> None:
    for name in ("tfeat.params", "old.params"):
        loaded = load_tfeat(folder / name)
        demand(all_finite(one.detach().numpy() for one in loaded.state_dict().values()), "weights of TFeat")


def make_kornia(folder: Path) -> None:
    import kornia.feature

    torch.save({"state_dict": kornia.feature.HardNet(pretrained=False).state_dict()}, folder / "hardnet.pt")


def check_kornia(folder: Path) -> None:
    described = load_kornia(f"HardNet:{folder / 'hardnet.pt'}").describe(np.zeros((1, 32, 32), dtype=np.uint8))
    demand(described.shape == (1, 128), "descriptors of HardNet")


def make_checkpoint(folder: Path) -> None:
    for step in (4, 8):
        tensors = {"weight": torch.ones(3, 4), "bias": torch.zeros(3, dtype=torch.float64)}
        state = {"encoder": tensors, "loss": {}, "optimizer": {"state": {0: {"momentum_buffer": torch.ones(2)}}}}
        more = {"torch_random": torch.get_rng_state(), "sums": {"loss": 1.5}, "counted": 3, "best": {}, "log_bytes": 10}
        save_checkpoint(folder / "checkpoints", step, {**state, **more})


def check_checkpoint(folder: Path) -> None:
    content, complaints = load_checkpoint(folder / "checkpoints")
    demand(type(content["step"]) is int and len(complaints) < 2, "checkpoint")
    for path in checkpoints(folder / "checkpoints"):
        demand(read_checkpoint(path)["step"] >= 0, "checkpoint")


def make_texts_of_runs(folder: Path) -> None:
    TrainConfig(data=("demo",), iterations=10, batch_size=4).save(folder / "config.json")
    lines = [{"kind": "epoch", "step": 1, "loss": 0.5}, {"kind": "evaluation", "step": 2, "fpr95": {"mean": 0.1}}]
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    made = {
        "digest": "d", "name": "n", "config": {"encoder": "tfeat", "batch_size": 4}, "trained_on": ["liberty"],
        "checkpoints": [{"step": 1, "fpr95": {"a": 0.1}}], "seconds_per_iteration": 0.1, "diverged": None,
        "powers": [[1, 3.5, 4.5]], "last": {"a": 0.2}, "data": {"train": {"b": "1"}, "test": {"a": "2"}},
    }  # fmt: skip
    Result(**{field.name: made.get(field.name, {"a": 1}) for field in dataclasses.fields(Result)}).save(folder)


def check_texts_of_runs(folder: Path) -> None:
    config = TrainConfig.load(folder / "config.json")
    demand(config.iterations >= 1 and config.batch_size >= 2 and config.learning_rate_at(0) > 0, "configuration")
    demand(bool(config.evaluation_steps()) and 0 <= config.loss_setting("decay") < 1, "configuration")
    for line in read_log(folder / "log.jsonl", "epoch"):
        demand(line["kind"] == "epoch", "log")
    demand(bool(run_progress(folder / "log.jsonl")) and bool(run_summary(folder / "log.jsonl")), "progress")
    result = read_result(folder, "d")
    demand(result is not None and all(line["step"] is not None for line in result.checkpoints), "result")


def make_records(folder: Path) -> None:
    photo = {"name": "a/b.png", "source": "a/b c.png", "width": 40, "height": 30, "focal": 1.2}
    write_json(
        folder / "photos.json", {"photos": [photo, photo | {"name": "d.png", "focal": None}], "broken": [["e", "is"]]}
    )
    write_json(folder / "seconds.json", {"seconds": {"dense": 1.5}, "peak_bytes": 9, "peak_bytes_of": {"dense": 9}})
    write_json(folder / "stereo/options.json", {"maker": "colmap", "scene": "0"})
    strips = {"sequence": "one", "settings": {"a": 1}, "patches": 3, "detected_by": {"1": 2}, "sources": {"1.png": "0"}}
    write_json(folder / "one/strips.json", strips | {"median_overlap": dict.fromkeys(JITTERS, 0.5)})
    TrainConfig(data=("demo",)).save(folder / "config.json")
    write_json(folder / "last.json", {"trained_on": ["liberty"], "step": 3})


def check_records(folder: Path) -> None:
    copies = read_imported(folder / "photos.json")
    demand(all(copy["width"] * copy["height"] is not None for copy in copies["photos"]), "copies")
    demand(all(Path(folder, copy["source"]).is_relative_to(folder) for copy in copies["photos"]), "names of copies")
    demand(
        ".." not in "".join(copy["name"] + copy["source"] for copy in copies["photos"]).split("/"), "names that climb"
    )
    times = PersistentStageTimer(folder / "seconds.json").read()
    demand(max(times["peak_bytes"], *times["peak_bytes_of"].values(), 0) is not None, "bytes")
    demand(sum(times["seconds"].values()) is not None, "seconds")
    demand(isinstance(read_map_options(folder), dict), "options of maps")
    for record in records(folder):
        demand(sum(record["median_overlap"][noise] for noise in JITTERS) is not None, "overlaps")
    demand(isinstance(caption_of_run(folder), str), "caption")


def make_pairs(folder: Path) -> None:
    (folder / "pairs.txt").write_text("a.png b.png\na.png c.png\n")


def check_pairs(folder: Path) -> None:
    names = {"a.png", "b.png", "c.png"}
    found = read_pairs(folder / "pairs.txt", names)
    demand(bool(found) and all({*pair} <= names and pair[0] != pair[1] for pair in found), "pairs")


def make_archive(folder: Path) -> None:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("liberty/info.txt", "0 0\n" * 50)
        archive.writestr("liberty/m50_4_4_0.txt", "1 2 3\n" * 20)
    (folder / "liberty.zip").write_bytes(held.getvalue())


def check_archive(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as out:
        unpack_zip(folder / "liberty.zip", Path(out) / "unpacked", limit=100_000)
        inside = [path for path in Path(out).rglob("*") if path.is_file()]
        demand(all(not path.is_symlink() for path in inside), "links")
        demand(sum(path.stat().st_size for path in inside) <= 100_000, "a bounded size")


def each(mutate: Mutate, *names: str) -> dict[str, Mutate]:
    return dict.fromkeys(names, mutate)


PATCHSET_FILES = {
    **each(mutate_json, "set/set.json", "views/set.json"),
    **each(
        mutate_npy,
        *(f"set/{name}.npy" for name in ("point_id", "patches", "test_pairs", "conflicts", "observations")),
        "views/observations.npy",
    ),
}
IMAGE_FILES = {f"a.{suffix}": mutate_png if "png" in suffix else mutate_bytes for suffix in SUFFIXES}
TASK_FILES = [f"verif_{kind}_split-a.csv" for kind in ("pos", "neg_intra")] + ["retr_queries_split-a.csv"]
TRUTH_FILES = ("colmap/cameras.txt", "colmap/images.txt", "strecha/a.png.camera")
SCENE_FILES = ("scene.npz", "tracks.npz", "points.npz", "angles.npz", "triplets.npz")
CHECKPOINT_FILES = tuple(f"checkpoints/checkpoint-{step:09d}.pt" for step in (4, 8))
PHOTOTOUR_FILES = ("info.txt", "m50_4_4_0.txt")
KEYPOINT_FILES = {"own.npz": mutate_npz, "own.txt": mutate_lines}
ETH_FILES = ("a.png.bin", "descriptors.bin", "a---b.bin")
TEXT_MODEL_FILES = ("cameras.txt", "images.txt", "points3D.txt")
FOREIGN_FILES = {"tfeat.params": mutate_zip, "old.params": mutate_bytes}
RUN_FILES = {**each(mutate_json, "config.json", FILE), "log.jsonl": mutate_json_lines}
RECORD_FILES = ("photos.json", "seconds.json", "stereo/options.json", "one/strips.json", "last.json")

TARGETS: dict[str, Target] = {
    "phototour bitmap": Target(make_bitmap, check_bitmap, each(mutate_bytes, "patches0000.bmp"), 0.4),
    "phototour texts": Target(make_texts, check_texts, each(mutate_lines, *PHOTOTOUR_FILES), 2.0),
    "phototour folder": Target(make_phototour, check_phototour, each(mutate_lines, *PHOTOTOUR_FILES), 0.2),
    "patchset folder": Target(make_patchset, check_patchset, PATCHSET_FILES, 2.0),
    "hpatches strip": Target(make_strip, check_strip, each(mutate_png, "ref.png"), 1.0),
    "hpatches csv": Target(make_csv, check_csv, each(mutate_lines, "ref.csv"), 1.5),
    "hpatches tasks": Target(make_tasks, check_tasks, each(mutate_lines, *TASK_FILES), 1.5),
    "homography": Target(make_homography, check_homography, each(mutate_lines, "H_1_2"), 2.0),
    "hloc h5": Target(make_h5, check_h5, each(mutate_h5, "features.h5", "matches.h5"), 1.0),
    "own keypoints": Target(make_keypoints, check_keypoints, KEYPOINT_FILES),
    "eth tables": Target(make_eth, check_eth, each(mutate_bytes, *ETH_FILES), 2.0),
    "images": Target(make_images, check_images, IMAGE_FILES, 1.0),
    "colmap maps": Target(make_map, check_map, each(mutate_bytes, "depth.bin", "normal.bin"), 2.0),
    "colmap cameras": Target(make_truth, check_truth, each(mutate_lines, *TRUTH_FILES), 2.0),
    "colmap text": Target(make_text_model, check_text_model, each(mutate_lines, *TEXT_MODEL_FILES), 2.0),
    "colmap database": Target(make_database, check_database, each(mutate_bytes, "database.db"), 1.0),
    "ply cloud": Target(make_ply, check_ply, each(mutate_bytes, "fused.ply"), 2.0),
    "scenes and points": Target(make_scene, check_scene, each(mutate_npz, *SCENE_FILES), 1.0),
    "safetensors and cards": Target(make_weights, check_weights, each(mutate_safetensors, "w.safetensors"), 0.5),
    "projection": Target(make_projection, check_projection, each(mutate_safetensors, "axes.safetensors"), 1.5),
    "foreign weights": Target(make_foreign, check_foreign, FOREIGN_FILES, 0.2),
    "kornia weights": Target(make_kornia, check_kornia, each(mutate_zip, "hardnet.pt"), 0.1),
    "checkpoints": Target(make_checkpoint, check_checkpoint, each(mutate_zip, *CHECKPOINT_FILES), 1.0),
    "configuration and logs": Target(make_texts_of_runs, check_texts_of_runs, RUN_FILES, 2.0),
    "records of work": Target(make_records, check_records, each(mutate_json, *RECORD_FILES), 2.0),
    "lists of pairs": Target(make_pairs, check_pairs, each(mutate_lines, "pairs.txt"), 1.0),
    "zip archives": Target(make_archive, check_archive, each(mutate_zip, "liberty.zip"), 1.0),
}

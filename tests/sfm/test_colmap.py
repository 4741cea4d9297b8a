"""COLMAP's database: written, verified and mapped by the real COLMAP, and read back."""

import json
from itertools import combinations
from pathlib import Path

import cv2
import numpy as np
import pytest

from sdgmnet.descriptors import describe
from sdgmnet.errors import InputError
from sdgmnet.features.describe import Features
from sdgmnet.features.keypoints import Keypoints, detect
from sdgmnet.sfm import colmap
from sdgmnet.sfm.colmap import from_colmap, read_keypoints, to_colmap, verify, write_database
from tests.features.samples import noise_image
from tests.sfm.planes import in_pycolmap, turn_between, views_around, write_photos

pytest.importorskip("pycolmap", reason="pycolmap is not installed: pip install 'sdgmnet[sfm]'")
COUNT = 5
Verified = tuple[Path, dict[tuple[str, str], int]]


def mutual(first: Features, second: Features) -> np.ndarray:
    found = cv2.BFMatcher(cv2.NORM_L2, crossCheck=True).match(first.descriptors, second.descriptors)
    return np.array([(one.queryIdx, one.trainIdx) for one in found])


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("colmap") / "photos"
    write_photos(folder, COUNT)
    return folder


@pytest.fixture(scope="module")
def features(photos: Path) -> dict[str, Features]:
    return {path.name: describe(path, descriptor="rootsift", limit=800) for path in sorted(photos.iterdir())}


@pytest.fixture(scope="module")
def matches(features: dict[str, Features]) -> dict[tuple[str, str], np.ndarray]:
    """One pair stands there with the later image first."""
    pairs = {pair: mutual(features[pair[0]], features[pair[1]]) for pair in combinations(features, 2)}
    pairs["04.png", "00.png"] = pairs.pop(("00.png", "04.png"))[:, ::-1]
    return pairs


@pytest.fixture(scope="module")
def database(photos: Path, features: dict[str, Features], matches: dict[tuple[str, str], np.ndarray]) -> Verified:
    path = photos.parent / "database.db"
    write_database(path, features, matches)
    return path, verify(path, threads=1)


def test_matches_are_verified(database: Verified, matches: dict[tuple[str, str], np.ndarray]) -> None:
    counts = database[1]
    assert set(counts) == set(combinations([f"{number:02d}.png" for number in range(COUNT)], 2))
    assert all(counts[f"{number:02d}.png", f"{number + 1:02d}.png"] > 100 for number in range(COUNT - 1))
    assert all(counts[pair] <= len(found) for pair, found in matches.items() if pair in counts)
    assert counts["00.png", "04.png"] > 15  # written the other way round


def test_the_scene_is_mapped_with_the_true_poses(database: Verified, photos: Path, tmp_path: Path) -> None:
    code = """
options = pycolmap.IncrementalPipelineOptions()
options.num_threads = options.mapper.num_threads = 1
options.random_seed = options.mapper.random_seed = options.triangulation.random_seed = 0
models = pycolmap.incremental_mapping(sys.argv[1], sys.argv[2], sys.argv[3], options)
model = models[0]
images = sorted((model.image(number) for number in model.reg_image_ids()), key=lambda image: image.name)
np.savez(sys.argv[4], poses=[image.cam_from_world().matrix() for image in images],
         error=model.compute_mean_reprojection_error(), points=model.num_points3D())
"""
    (tmp_path / "model").mkdir()
    in_pycolmap(code, database[0], photos, tmp_path / "model", tmp_path / "out.npz")
    out = np.load(tmp_path / "out.npz")
    assert len(out["poses"]) == COUNT and out["points"] > 300 and out["error"] < 1
    truth = views_around(COUNT)
    views = [view._replace(rotation=pose[:, :3]) for view, pose in zip(truth, out["poses"], strict=True)]
    assert all(turn_between(views, truth, *pair) < 1.0 for pair in combinations(range(COUNT), 2))


def test_keypoints_are_read_back(database: Verified, features: dict[str, Features]) -> None:
    back = read_keypoints(database[0])
    assert list(back) == list(features)
    for name, one in features.items():
        for ours, read in zip(one.keypoints[:3], back[name][:3], strict=True):
            np.testing.assert_allclose(read, ours, atol=1e-4)  # single precision, and half a pixel further
        assert (back[name].response == 1).all()


def test_colmap_reads_scale_and_angle_as_they_are(tmp_path: Path) -> None:
    """Through its own class of keypoints, and back from its affine shape."""
    keypoints = Keypoints(np.array([[10.0, 20.0], [3.0, 4.0]]), np.array([2.0, 7.0]), np.array([0.7, 5.0]), np.ones(2))
    code = """
rows = np.load(sys.argv[1])
found = pycolmap.keypoints_from_matrix(rows)
print([[k.x, k.y, k.compute_scale(), k.compute_orientation() % (2 * np.pi), k.a11, k.a12, k.a21, k.a22] for k in found])
"""
    np.save(tmp_path / "rows.npy", to_colmap(keypoints))
    rows = np.array(json.loads(in_pycolmap(code, tmp_path / "rows.npy")))
    np.testing.assert_allclose(rows[:, :4], [[10.5, 20.5, 2.0, 0.7], [3.5, 4.5, 7.0, 5.0]], rtol=1e-6)
    affine = from_colmap(rows[:, [0, 1, 4, 5, 6, 7]])
    for ours, read in zip(keypoints, affine, strict=True):
        np.testing.assert_allclose(read, ours, rtol=1e-6)
    bare = from_colmap(rows[:, :2])
    assert bare.xy.tolist() == keypoints.xy.tolist() and bare.sigma.tolist() == [1, 1] and bare.angle.tolist() == [0, 0]
    assert from_colmap(np.zeros((0, 4))).xy.shape == (0, 2)


@pytest.mark.slow
def test_colmaps_own_keypoints_lie_where_ours_do(tmp_path: Path) -> None:
    """It detects in its own way: the same blobs, and for each the place to a tenth of a pixel, the scale and the angle."""
    image = noise_image(480, 400)
    (tmp_path / "images").mkdir()
    cv2.imwrite(str(tmp_path / "images" / "one.png"), image)
    code = """
options = pycolmap.FeatureExtractionOptions()
options.num_threads, options.use_gpu = 1, False
pycolmap.extract_features(sys.argv[1], sys.argv[2], extraction_options=options, device=pycolmap.Device.cpu)
"""
    in_pycolmap(code, tmp_path / "own.db", tmp_path / "images")
    theirs, ours = read_keypoints(tmp_path / "own.db")["one.png"], detect(image)
    away = np.linalg.norm(theirs.xy[:, None] - ours.xy[None], axis=2)
    grown = np.abs(np.log(theirs.sigma[:, None] / ours.sigma[None]))
    turn = theirs.angle[:, None] - ours.angle[None]
    turned = np.abs((turn + np.pi) % (2 * np.pi) - np.pi)
    same = (away < 1) & (grown < 0.2)  # whatever their angles
    assert same.any(axis=1).sum() > 100
    one, two = np.nonzero(same & (turned < 0.2))
    assert len(np.unique(one)) > 0.8 * same.any(axis=1).sum()  # by chance it were a sixteenth
    assert np.abs(np.median(theirs.xy[one] - ours.xy[two], axis=0)).max() < 0.1


def test_bytes_are_those_that_colmap_matches_itself(
    photos: Path, features: dict[str, Features], tmp_path: Path
) -> None:
    path = tmp_path / "sift.db"
    few = {name: features[name] for name in ("00.png", "01.png")}
    write_database(path, few, kind="sift", one_camera=False)
    code = """
options = pycolmap.FeatureMatchingOptions()
options.use_gpu, options.num_threads = False, 1
pycolmap.match_exhaustive(sys.argv[1], options, device=pycolmap.Device.cpu)
with pycolmap.Database.open(sys.argv[1]) as database:
    print(database.num_cameras(), database.num_inlier_matches(), database.read_descriptors(1).data.shape)
"""
    cameras, inliers, *shape = in_pycolmap(code, path).split(maxsplit=2)
    assert cameras == "2" and int(inliers) > 100 and shape == ["(800, 128)\n"]


def test_floats_stand_there_bit_by_bit(database: Verified, features: dict[str, Features], tmp_path: Path) -> None:
    code = """
with pycolmap.Database.open(sys.argv[1]) as database:
    np.save(sys.argv[2], database.read_descriptors(database.read_image_with_name("02.png").image_id).data)
"""
    in_pycolmap(code, database[0], tmp_path / "read.npy")
    assert np.array_equal(np.load(tmp_path / "read.npy").view(np.float32), features["02.png"].descriptors)


def test_images_without_keypoints_and_pairs_without_matches(tmp_path: Path) -> None:
    nothing = Features(Keypoints(np.empty((0, 2)), *(np.empty(0),) * 3), np.empty((0, 128), np.float32), (64, 48))
    path = tmp_path / "new" / "empty.db"
    write_database(path, {"a.jpg": nothing, "b.jpg": nothing}, {("a.jpg", "b.jpg"): np.empty((0, 2), int)})
    assert verify(path) == {}
    assert {name: len(one.xy) for name, one in read_keypoints(path).items()} == {"a.jpg": 0, "b.jpg": 0}
    assert [found.name for found in path.parent.iterdir()] == ["empty.db"]


def test_bad_input(features: dict[str, Features], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bad.db"
    for matches, sentence in (
        ({("00.png", "none.png"): np.zeros((1, 2), int)}, "none.png"),
        ({("00.png", "00.png"): np.zeros((1, 2), int)}, "00.png"),
        ({("00.png", "01.png"): np.array([[0, 10**6]])}, "01.png"),
        ({("00.png", "01.png"): np.array([[0, -1]])}, "01.png"),
        ({("00.png", "01.png"): np.zeros((1, 2), int), ("01.png", "00.png"): np.zeros((1, 2), int)}, "twice"),
    ):
        with pytest.raises(InputError, match=sentence):
            write_database(path, features, matches)
    signed = features["00.png"]._replace(descriptors=-features["00.png"].descriptors)
    with pytest.raises(InputError, match="00.png"):
        write_database(path, {"00.png": signed}, kind="sift")
    with pytest.raises(InputError, match="does not exist"):
        read_keypoints(path)
    path.write_bytes(b"of somebody")
    with pytest.raises(InputError, match="already exists"):
        write_database(path, features)
    assert list(tmp_path.iterdir()) == [path] and path.read_bytes() == b"of somebody"
    monkeypatch.setattr(colmap, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="sdgmnet\\[sfm\\]"):
        verify(path)

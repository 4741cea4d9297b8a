"""COLMAP's text models, as pycolmap writes them."""

import json
from pathlib import Path

import numpy as np
import pytest

from sdgmnet.errors import InputError
from sdgmnet.sfm.colmap_text import CAMERAS, IMAGES, MODELS, POINTS, read_cameras, read_model, view_of
from tests.sfm.planes import in_pycolmap

SYNTHETIC = """
options = pycolmap.SyntheticDatasetOptions()
options.num_rigs, options.num_frames_per_rig, options.num_points3D = 2, 3, 40
options.num_points2D_without_point3D = 3
options.camera_model_id = pycolmap.CameraModelId.RADIAL
options.camera_params = [900.0, 512.0, 384.0, 0.05, 0.01]
pycolmap.set_random_seed(0)
model = pycolmap.synthesize_dataset(options)
model.write_text(sys.argv[1])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("pycolmap", reason="pycolmap is not installed: pip install 'sdgmnet[sfm]'")
    folder = tmp_path_factory.mktemp("text")
    in_pycolmap(SYNTHETIC, folder)
    return folder


def test_a_model_is_what_pycolmap_reads(folder: Path) -> None:
    code = """
model = pycolmap.Reconstruction()
model.read_text(sys.argv[1])
print(json.dumps({
    "images": {image.name: {"pose": image.cam_from_world().matrix().tolist(), "K": image.camera.calibration_matrix().tolist(),
        "xy": [point.xy.tolist() for point in image.points2D],
        "point": [point.point3D_id if point.has_point3D() else -1 for point in image.points2D],
        "size": [image.camera.width, image.camera.height]} for image in model.images.values()},
    "points": {number: [point.xyz.tolist(), point.color.tolist(),
        [[model.image(one.image_id).name, one.point2D_idx] for one in point.track.elements]]
        for number, point in model.points3D.items()}}))
"""
    wanted, model = json.loads(in_pycolmap(code, folder)), read_model(folder)
    assert {image.name for image in model.images.values()} == set(wanted["images"]) and len(model.images) >= 6
    for image in model.images.values():
        theirs, view = wanted["images"][image.name], view_of(image, model.cameras[image.camera])
        np.testing.assert_allclose(np.column_stack([view.rotation, view.translation]), theirs["pose"], atol=1e-12)
        np.testing.assert_allclose(view.intrinsics, np.array(theirs["K"]) - [[0, 0, 0.5], [0, 0, 0.5], [0, 0, 0]])
        np.testing.assert_allclose(image.xy, theirs["xy"])
        assert image.point.tolist() == theirs["point"] and -1 in theirs["point"]
        assert [view.width, view.height] == theirs["size"]
        assert model.cameras[image.camera].distortion.tolist() == [0.05, 0.01]
    assert len(model.points.number) == len(wanted["points"]) > 20
    for number, xyz, colour, track in zip(*model.points, strict=True):
        theirs = wanted["points"][str(number)]
        np.testing.assert_allclose(xyz, theirs[0])
        named = sorted([model.images[image].name, keypoint] for image, keypoint in track.tolist())
        assert colour.tolist() == theirs[1] and named == sorted(theirs[2])


def test_every_camera_model_has_colmaps_parameters() -> None:
    pytest.importorskip("pycolmap", reason="pycolmap is not installed: pip install 'sdgmnet[sfm]'")
    code = """
found = {}
for name in sys.argv[1:]:
    camera = pycolmap.Camera.create_from_model_name(1, name, 90.0, 100, 80)
    found[name] = [len(camera.focal_length_idxs()), len(camera.params)]
print(json.dumps(found))
"""
    assert json.loads(in_pycolmap(code, *MODELS)) == {name: list(counts) for name, counts in MODELS.items()}


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (CAMERAS, "1 RADIAL 1024 768 900\n"),
        (CAMERAS, "1 NEW 1024 768 900 512 384\n"),
        (CAMERAS, "1 PINHOLE 0 768 900 900 512 384\n"),
        (CAMERAS, "1 PINHOLE 10 768 nan 900 512 384\n"),
        (IMAGES, "1 1 0 0 0 0 0 1 99 a.png\n\n"),
        (IMAGES, "1 1 0 0 0 0 0 1 1 ../a.png\n\n"),
        (IMAGES, "1 0 0 0 0 0 0 1 1 a.png\n\n"),
        (IMAGES, "1 1 0 0 0 0 0 1 1 a.png\n1 2\n"),
        (IMAGES, "1 1 0 0 0 0 0 1 1 a.png\n1 2 123456\n"),
        (POINTS, "1 0 0 0 0 0\n"),
        (POINTS, "1 0 0 0 0 0 256 0.1 1 0 2 0\n"),
        (POINTS, "1 0 0 0 0 0 0 0.1 1 0 2\n"),
        (POINTS, "1 0 0 0 0 0 0 0.1 1 99999\n"),
    ],
)
def test_a_damaged_model_is_refused_with_its_path(file: str, text: str, folder: Path, tmp_path: Path) -> None:
    for name in (CAMERAS, IMAGES, POINTS):
        (tmp_path / name).write_text((folder / name).read_text())
    (tmp_path / file).write_text(text)
    with pytest.raises(InputError, match=str(tmp_path)):
        read_model(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cameras.txt does not exist"):
        read_cameras(tmp_path / CAMERAS)

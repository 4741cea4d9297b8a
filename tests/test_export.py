"""ONNX: the file alone gives the encoder's descriptors of patches; or those of `describe` of an image, in Python and in C++."""

import json
import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sdgmnet import export
from sdgmnet.cli import main
from sdgmnet.data.synthetic.demo import read_image
from sdgmnet.descriptors import describe, load_descriptor
from sdgmnet.encoders import ENCODERS, SDGMNet, save_encoder
from sdgmnet.engine import describe_patches
from sdgmnet.errors import InputError
from sdgmnet.features import patches_torch
from sdgmnet.features.keypoints import Keypoints, detect
from sdgmnet.features.patches import cut_patches, pyramid
from tests.features.samples import noise_image, random_keypoints, write_image

EXAMPLE = Path(__file__).parent.parent / "examples" / "onnx" / "describe.cpp"
NEEDED = ("onnx", "onnxscript", "onnxruntime")
HEADERS = ("/usr/include/onnxruntime", "/usr/local/include/onnxruntime", "/usr/local/include")
needs_onnx = pytest.mark.skipif(
    not all(map(find_spec, NEEDED)), reason="onnx is not installed: pip install 'sdgmnet[onnx]'"
)


@pytest.fixture(scope="module")
def encoder() -> SDGMNet:
    torch.manual_seed(0)
    encoder = SDGMNet().eval()
    encoder.window = 20.0
    assert encoder.norm.running_mean is not None and encoder.norm.running_var is not None
    encoder.norm.running_mean.normal_()
    encoder.norm.running_var.uniform_(0.5, 2)
    return encoder


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory, encoder: SDGMNet) -> Path:
    path = tmp_path_factory.mktemp("weights") / "own.safetensors"
    save_encoder(encoder, path, {"trained_on": ["liberty"]})
    return path


@needs_onnx
def test_the_exported_file_alone_gives_the_encoders_descriptors(weights: Path, encoder: SDGMNet) -> None:
    """One test: export takes half a minute."""
    import onnx

    path = weights.parent / "out" / "model.onnx"
    assert main(["export", "onnx", str(weights), "-o", str(path)]) == 0
    assert [one.name for one in path.parent.iterdir()] == ["model.onnx"]
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    card = json.loads(next(item.value for item in model.metadata_props if item.key == "card"))
    assert card == {"encoder": "sdgmnet", "dropout": 0.3, "window": 20, "trained_on": ["liberty"]}
    shape = model.graph.input[0].type.tensor_type.shape.dim
    assert [one.dim_param or one.dim_value for one in shape] == ["batch", 1, 32, 32]
    session = open_session(path)
    for batch in (1, 3, 64, 0):
        patches = torch.rand(batch, 1, 32, 32, generator=torch.Generator().manual_seed(batch))
        (descriptors,) = session.run(["descriptors"], {"patches": patches.numpy()})
        assert descriptors.shape == (batch, 128) and descriptors.dtype == np.float32
        with torch.inference_mode():
            np.testing.assert_allclose(descriptors, encoder(patches).numpy(), atol=1e-4)
    descriptor = load_descriptor(str(path))
    assert descriptor.label == "model" and descriptor.fingerprint.startswith("model.onnx ")
    image = noise_image(200, 160)
    found, wanted = (describe(image, descriptor=one, limit=20).descriptors for one in (descriptor, encoder))
    assert descriptor.window == 20
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    for side in (64, 65):
        large = np.random.default_rng(1).integers(256, size=(5, side, side), dtype=np.uint8)
        np.testing.assert_allclose(descriptor.describe(large), describe_patches(encoder, large), atol=1e-4)
    with pytest.raises(InputError, match="50, 50"):
        descriptor.describe(large[:, :50, :50])


@pytest.mark.parametrize(
    ("source", "target", "said"),
    [
        ("{weights}", "model.onnx", "pip install 'sdgmnet[onnx]'"),
        ("none.safetensors", "model.onnx", "none.safetensors"),
        ("{weights}", "", "is a folder"),
    ],
)
def test_bad_arguments_and_missing_packages_are_refused(
    source: str, target: str, said: str,
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(export, "find_spec", lambda name: None)
    assert main(["export", "onnx", source.format(weights=weights), "-o", str(tmp_path / target)]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ENCODERS)
def test_what_is_exported_describes_as_the_encoder_does(name: str) -> None:
    other = ENCODERS[name](0.0).eval()
    patches = torch.rand(3, 1, 32, 32)
    with torch.inference_mode():
        torch.testing.assert_close(export.Inference(other)(patches), other(patches), rtol=1e-5, atol=1e-6)


# Image and keypoints to descriptors


def rows_of(keypoints: Keypoints) -> np.ndarray:
    """(N, 4) float32: x, y, sigma, angle, the second input of the model."""
    return np.column_stack([keypoints.xy, keypoints.sigma, keypoints.angle]).astype(np.float32)


def tensor_of(image: np.ndarray) -> np.ndarray:
    """(1, 1, H, W) float32, the first input of the model."""
    return image[None, None].astype(np.float32) / 255


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all tests: export takes half a minute."""
    path = tmp_path_factory.mktemp("export") / "model.onnx"
    assert main(["export", "onnx", "sdgmnet", "-o", str(path), "--input", "image"]) == 0
    return path


def open_session(model: Path) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])


@needs_onnx
def test_the_exported_file_alone_gives_the_descriptors_of_describe(model: Path) -> None:
    session = open_session(model)
    assert [(one.name, one.shape) for one in session.get_inputs()] == [
        ("image", [1, 1, "height", "width"]), ("keypoints", ["count", 4])
    ]  # fmt: skip
    for name in ("camera.png", "coins.png", "rocket.jpg"):
        image = read_image(name)[:, :-3]
        wanted = describe(image, limit=200)
        (found,) = session.run(None, {"image": tensor_of(image), "keypoints": rows_of(wanted.keypoints)})
        cosine = (found * wanted.descriptors).sum(axis=1)
        assert found.shape == (200, 128) and np.median(cosine) > 0.999999 and cosine.min() > 0.999


@needs_onnx
@pytest.mark.parametrize(("shape", "count"), [((1, 1), 2), ((5, 3), 1), ((700, 40), 3), ((50, 60), 0)])
def test_any_size_of_the_image_and_any_number_of_keypoints(model: Path, shape: tuple[int, int], count: int) -> None:
    image = np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8)
    keypoints = random_keypoints(count, (0, 0), shape[::-1], (1, 60))
    (found,) = open_session(model).run(None, {"image": tensor_of(image), "keypoints": rows_of(keypoints)})
    assert found.shape == (count, 128) and np.isfinite(found).all()


@pytest.mark.parametrize("shape", [(300, 400), (303, 381), (301, 51), (3, 1)])
def test_the_levels_are_those_of_opencv(shape: tuple[int, int]) -> None:
    image = noise_image(*shape[::-1])
    levels = patches_torch.pyramid(torch.from_numpy(tensor_of(image)))
    for found, wanted in zip(levels, pyramid(image, patches_torch.LEVELS), strict=True):
        np.testing.assert_allclose(found[0, 0].numpy() * 255, wanted, atol=0.02)


@pytest.mark.parametrize("window", [12.0, 20.0])
def test_patches_are_those_of_cut_patches(window: float) -> None:
    """On all levels, and beyond the border; a gray level may be rounded the other way."""
    image = read_image("coins.png")[:, :-3]
    keypoints = detect(image, 100)
    keypoints = keypoints._replace(sigma=keypoints.sigma * np.random.default_rng(0).uniform(1, 60, 100))
    found = patches_torch.cut_patches(torch.from_numpy(tensor_of(image)), torch.from_numpy(rows_of(keypoints)), window)
    change = np.abs(found.numpy() * 255 - cut_patches(image, keypoints, window=window))
    assert np.median(change) < 0.01 and np.quantile(change, 0.999) < 1.01


def test_patches_have_the_window_of_the_encoder(encoder: SDGMNet) -> None:
    image = read_image("coins.png")
    wanted = describe(image, limit=50, descriptor=encoder)
    with torch.inference_mode():
        inputs = torch.from_numpy(tensor_of(image)), torch.from_numpy(rows_of(wanted.keypoints))
        found = export.ImageInference(encoder)(*inputs).numpy()
    assert np.median((found * wanted.descriptors).sum(axis=1)) > 0.9999


@needs_onnx
def test_descriptors_of_patches_refuse_a_model_of_images(model: Path) -> None:
    with pytest.raises(InputError, match=model.name):
        load_descriptor(str(model))


@needs_onnx
def test_the_example_in_cpp_gives_the_same(model: Path, tmp_path: Path) -> None:
    """Compiled with the headers of ONNXRUNTIME_INCLUDE, or of the system, and the library of the Python package."""
    import onnxruntime

    given = os.environ.get("ONNXRUNTIME_INCLUDE")
    installed = (one for one in HEADERS if (Path(one) / "onnxruntime_cxx_api.h").is_file())
    include = given or next(installed, None)
    library = next((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*"), None)
    compiler = shutil.which("g++") or shutil.which("clang++")
    if include is None or library is None or compiler is None:
        advice = "ONNXRUNTIME_INCLUDE=$(sh tests/onnxruntime_headers.sh FOLDER)"
        pytest.skip(f"needs a C++ compiler and onnxruntime's headers: {advice}")
    program = tmp_path / "describe"
    (tmp_path / "libonnxruntime.so.1").symlink_to(library)  # the name that the program looks for
    command = [compiler, "-std=c++17", "-Wall", f"-I{include}", EXAMPLE, library, f"-Wl,-rpath,{tmp_path}"]
    subprocess.run([*command, "-o", program], check=True)
    image = read_image("camera.png")
    write_image(tmp_path / "image.pgm", image)
    wanted = describe(image, limit=50)
    np.savetxt(tmp_path / "keypoints.txt", rows_of(wanted.keypoints))
    words = [program, model, tmp_path / "image.pgm", tmp_path / "keypoints.txt"]
    printed = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    found = np.array(printed.split(), dtype=np.float32).reshape(-1, 128)
    assert found.shape == (50, 128) and np.median((found * wanted.descriptors).sum(axis=1)) > 0.999

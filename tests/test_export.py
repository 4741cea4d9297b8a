"""ONNX: the file alone gives the encoder's descriptors."""

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from sdgmnet import export
from sdgmnet.cli import main
from sdgmnet.descriptors import describe, load_descriptor
from sdgmnet.encoders import ENCODERS, SDGMNet, save_encoder
from sdgmnet.engine import describe_patches
from sdgmnet.errors import InputError
from tests.features.samples import noise_image

NEEDED = ("onnx", "onnxscript", "onnxruntime")


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


@pytest.mark.skipif(not all(map(find_spec, NEEDED)), reason="onnx is not installed: pip install 'sdgmnet[onnx]'")
def test_the_exported_file_alone_gives_the_encoders_descriptors(weights: Path, encoder: SDGMNet) -> None:
    """One test: export takes half a minute."""
    import onnx
    import onnxruntime

    path = weights.parent / "out" / "model.onnx"
    assert main(["export", "onnx", str(weights), "-o", str(path)]) == 0
    assert [one.name for one in path.parent.iterdir()] == ["model.onnx"]
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    card = json.loads(next(item.value for item in model.metadata_props if item.key == "card"))
    assert card == {"encoder": "sdgmnet", "dropout": 0.3, "window": 20, "trained_on": ["liberty"]}
    shape = model.graph.input[0].type.tensor_type.shape.dim
    assert [one.dim_param or one.dim_value for one in shape] == ["batch", 1, 32, 32]
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
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

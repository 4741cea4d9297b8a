"""ONNX: the file alone gives the encoder's descriptors."""

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from sdgmnet import export
from sdgmnet.cli import main
from sdgmnet.encoders import ENCODERS, SDGMNet, save_encoder

NEEDED = ("onnx", "onnxscript", "onnxruntime")
with_onnx = pytest.mark.skipif(
    not all(find_spec(name) for name in NEEDED), reason="onnx is not installed: pip install 'sdgmnet[onnx]'"
)


@pytest.fixture(scope="module")
def encoder() -> SDGMNet:
    torch.manual_seed(0)
    encoder = SDGMNet().eval()
    assert encoder.norm.running_mean is not None and encoder.norm.running_var is not None
    encoder.norm.running_mean.normal_()
    encoder.norm.running_var.uniform_(0.5, 2)
    return encoder


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory, encoder: SDGMNet) -> Path:
    path = tmp_path_factory.mktemp("weights") / "own.safetensors"
    save_encoder(encoder, path, {"trained_on": ["liberty"]})
    return path


@pytest.fixture(scope="module")
def model(weights: Path) -> Path:
    """Made once, by the command: it takes half a minute."""
    path = weights.parent / "out" / "model.onnx"
    assert main(["export", "onnx", str(weights), "-o", str(path)]) == 0
    return path


@with_onnx
@pytest.mark.parametrize("batch", [1, 3, 64, 0])
def test_any_batch_gives_the_encoders_descriptors(model: Path, encoder: SDGMNet, batch: int) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    patches = torch.rand(batch, 1, 32, 32, generator=torch.Generator().manual_seed(batch))
    (descriptors,) = session.run(["descriptors"], {"patches": patches.numpy()})
    assert descriptors.shape == (batch, 128) and descriptors.dtype == np.float32
    with torch.inference_mode():
        np.testing.assert_allclose(descriptors, encoder(patches).numpy(), atol=1e-4)


@with_onnx
def test_the_file_is_whole_alone_and_says_where_it_comes_from(model: Path) -> None:
    import onnx

    assert [path.name for path in model.parent.iterdir()] == ["model.onnx"]
    read = onnx.load(model)
    onnx.checker.check_model(read, full_check=True)
    card = json.loads(next(item.value for item in read.metadata_props if item.key == "card"))
    assert card == {"encoder": "sdgmnet", "dropout": 0.3, "trained_on": ["liberty"]}
    shape = read.graph.input[0].type.tensor_type.shape.dim
    assert [one.dim_param or one.dim_value for one in shape] == ["batch", 1, 32, 32]


def test_a_missing_package_is_said(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(export, "find_spec", lambda name: None)
    assert main(["export", "onnx", str(weights), "-o", str(tmp_path / "model.onnx")]) == 2
    said = capsys.readouterr().err
    assert "pip install 'sdgmnet[onnx]'" in said and said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_bad_arguments_are_said(weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "onnx", str(tmp_path / "none.safetensors"), "-o", str(tmp_path / "model.onnx")]) == 2
    assert main(["export", "onnx", str(weights), "-o", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "does not exist" in said and "is a folder" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ENCODERS)
def test_what_is_exported_describes_as_the_encoder_does(name: str) -> None:
    other = ENCODERS[name](0.0).eval()
    patches = torch.rand(3, 1, 32, 32)
    with torch.inference_mode():
        torch.testing.assert_close(export.Inference(other)(patches), other(patches), rtol=1e-5, atol=1e-6)

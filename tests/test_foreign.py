"""Descriptors of other libraries, against those libraries."""

from pathlib import Path

import kornia.feature
import numpy as np
import pytest
import torch

from sdgmnet.descriptors import descriptor_fingerprint, load_descriptor
from sdgmnet.encoders import SDGMNet
from sdgmnet.engine import describe_patches, prepare
from sdgmnet.errors import InputError
from sdgmnet.export import export_onnx


@pytest.fixture(scope="module")
def patches() -> np.ndarray:
    return np.random.default_rng(0).integers(256, size=(5, 64, 64), dtype=np.uint8)


@pytest.fixture(scope="module")
def encoder() -> SDGMNet:
    torch.manual_seed(0)
    return SDGMNet().eval()


@pytest.fixture(scope="module")
def onnx(tmp_path_factory: pytest.TempPathFactory, encoder: SDGMNet) -> Path:
    path = tmp_path_factory.mktemp("onnx") / "mine.onnx"
    export_onnx(encoder, path)
    return path


def test_an_onnx_file_is_a_contender(onnx: Path, encoder: SDGMNet, patches: np.ndarray) -> None:
    contender = load_descriptor(str(onnx))
    assert contender.label == "mine"
    np.testing.assert_allclose(contender.describe(patches), describe_patches(encoder, patches), atol=1e-4)
    larger = np.random.default_rng(1).integers(256, size=(3, 65, 65), dtype=np.uint8)
    np.testing.assert_allclose(contender.describe(larger), describe_patches(encoder, larger), atol=1e-4)
    assert "mine.onnx" in descriptor_fingerprint(str(onnx))


def test_broken_onnx_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="gone.onnx does not exist"):
        load_descriptor(str(tmp_path / "gone.onnx"))
    (tmp_path / "bad.onnx").write_bytes(b"nothing")
    with pytest.raises(InputError, match="bad.onnx"):
        load_descriptor(str(tmp_path / "bad.onnx"))


@pytest.mark.parametrize("name", ["HardNet", "HyNet", "SOSNet", "TFeat"])
def test_kornia_modules_with_a_file(name: str, tmp_path: Path, patches: np.ndarray) -> None:
    torch.manual_seed(0)
    module = getattr(kornia.feature, name)(pretrained=False).eval()
    path = tmp_path / "weights.pth"
    torch.save({"state_dict": module.state_dict()}, path)
    contender = load_descriptor(f"theirs=kornia:{name}:{path}")
    assert contender.label == "theirs"
    with torch.no_grad():
        expected = module(prepare(torch.from_numpy(patches), 32)).numpy()
    np.testing.assert_array_equal(contender.describe(patches), expected)
    assert descriptor_fingerprint(f"kornia:{name}:{path}") == descriptor_fingerprint(f"x=kornia:{name}:{path}")


def test_what_kornia_does_not_have_and_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="kornia:SURF is not known"):
        load_descriptor("kornia:SURF")
    with pytest.raises(InputError, match="gone.pth does not exist"):
        load_descriptor(f"kornia:HardNet:{tmp_path / 'gone.pth'}")
    (tmp_path / "bad.pth").write_bytes(b"nothing")
    with pytest.raises(InputError, match="kornia's HardNet cannot be loaded"):
        load_descriptor(f"kornia:HardNet:{tmp_path / 'bad.pth'}")


def test_patches_of_another_size_are_refused(onnx: Path) -> None:
    with pytest.raises(InputError, match="32, 64 or 65"):
        load_descriptor(str(onnx)).describe(np.zeros((2, 50, 50), dtype=np.uint8))

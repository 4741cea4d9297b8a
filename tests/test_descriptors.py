"""The grammar `[label=]spec`, and what each form loads."""

from pathlib import Path

import kornia.feature
import numpy as np
import pytest
import torch

from sdgmnet.cli import main
from sdgmnet.descriptors import DESCRIPTORS, Descriptor, accepted_forms, descriptor_fingerprint, load_descriptor
from sdgmnet.encoders import Encoder, L2Net, SDGMNet, TFeat, save_encoder
from sdgmnet.engine import describe_patches, halve, prepare
from sdgmnet.errors import InputError
from sdgmnet.features.h5 import read_features
from sdgmnet.features.sift import rootsift, sift
from tests.features.samples import noise_image, write_image


@pytest.fixture(scope="module")
def patches() -> np.ndarray:
    return np.random.default_rng(0).integers(256, size=(4, 64, 64), dtype=np.uint8)


@pytest.mark.parametrize(
    ("text", "label", "expected"),
    [
        ("sift", "sift", sift),
        ("two words=rootsift", "two words", rootsift),
        ("m=0.5=sift", "m=0.5", sift),
        ("sift=rootsift", "sift", rootsift),
        ("=sift", "sift", sift),
    ],
)
def test_names_and_labels(text: str, label: str, expected: object) -> None:
    descriptor = load_descriptor(text)
    assert (descriptor.label, descriptor.describe, descriptor.trained_on) == (label, expected, ())
    assert descriptor.describe_at_keypoints is not None
    assert descriptor.fingerprint == descriptor_fingerprint(text) == expected.__name__  # type: ignore[attr-defined]


def test_weights_by_file_and_by_folder(
    tmp_path: Path, encoder: SDGMNet, patches: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "one"
    save_encoder(encoder, run / "best.safetensors", {"trained_on": ["liberty", "demo-train"]})
    labels = {f"{run / 'best.safetensors'}": "best", f"{run}": "one", f"m=0.5={run}": "m=0.5", f"{run}/": "one"}
    for text, label in labels.items():
        descriptor = load_descriptor(text)
        assert (descriptor.label, descriptor.trained_on) == (label, ("liberty", "demo-train"))
        assert np.array_equal(descriptor.describe(patches), describe_patches(encoder, patches))
    save_encoder(encoder, run / "bare.safetensors", {})
    assert load_descriptor(str(run / "bare.safetensors")).trained_on == ()
    monkeypatch.chdir(run)
    assert (load_descriptor("mine=.").label, load_descriptor(".").label) == ("mine", "one")
    assert load_descriptor(encoder).label == "encoder"


@pytest.mark.parametrize("kind", [L2Net, TFeat])
def test_weights_of_other_encoders(kind: type[Encoder], tmp_path: Path, patches: np.ndarray) -> None:
    """Preprocessing belongs to the encoder: all get the same patches."""
    other = kind(0.0).eval()
    save_encoder(other, tmp_path / "other.safetensors", {})
    described = load_descriptor(str(tmp_path / "other.safetensors")).describe(patches)
    with torch.no_grad():
        expected = other(halve(torch.from_numpy(patches).float() / 255)[:, None]).numpy()
    assert np.abs(described - expected).max() < 1e-5
    assert np.abs(np.linalg.norm(described, axis=1) - 1).max() < 1e-5 or kind is TFeat


@pytest.mark.parametrize("name", ["HardNet", "HyNet", "SOSNet", "TFeat"])
def test_kornia_modules_with_a_file(name: str, tmp_path: Path, patches: np.ndarray) -> None:
    torch.manual_seed(0)
    module = getattr(kornia.feature, name)(pretrained=False).eval()
    torch.save({"state_dict": module.state_dict()}, tmp_path / "weights.pth")
    spec = f"kornia:{name}:{tmp_path / 'weights.pth'}"
    descriptor = load_descriptor(f"theirs={spec}")
    assert descriptor.label == "theirs" and load_descriptor(spec).label == f"kornia {name}"
    with torch.no_grad():
        expected = module(prepare(torch.from_numpy(patches), 32)).numpy()
    np.testing.assert_array_equal(descriptor.describe(patches), expected)
    assert descriptor.fingerprint == descriptor_fingerprint(spec)


@pytest.mark.parametrize("text", ["surf", "SIFT", "mine=surf", "weights.pth", "no/such/folder", "sift=mine"])
def test_an_unknown_descriptor_is_refused_with_all_forms(text: str) -> None:
    with pytest.raises(InputError) as caught:
        load_descriptor(text)
    assert text in str(caught.value) and accepted_forms() in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ("mine={tmp}/gone.safetensors", "gone.safetensors"),
        ("{tmp}", "best.safetensors"),
        ("{tmp}/gone.onnx", "gone.onnx"),
        ("{tmp}/bad.onnx", "bad.onnx"),
        ("kornia:SURF", "kornia:SURF"),
        ("kornia:HardNet:{tmp}/gone.pth", "gone.pth"),
        ("kornia:HardNet:{tmp}/bad.pth", "bad.pth"),
        ("tfeat:{tmp}/gone.params", "gone.params"),
    ],
)
def test_missing_and_broken_files_are_named(spec: str, named: str, tmp_path: Path) -> None:
    for name in ("bad.onnx", "bad.pth"):
        (tmp_path / name).write_bytes(b"nothing")
    with pytest.raises(InputError, match=named):
        load_descriptor(spec.format(tmp=tmp_path))


def test_a_fingerprint_is_of_the_weights_and_not_of_their_place(tmp_path: Path) -> None:
    for folder, seed in (("one", 0), ("two", 0), ("three", 1)):
        torch.manual_seed(seed)
        save_encoder(SDGMNet(), tmp_path / folder / "run" / "best.safetensors", {})
    one, two, three = (descriptor_fingerprint(str(tmp_path / folder / "run")) for folder in ("one", "two", "three"))
    assert one == two == descriptor_fingerprint(f"mine={tmp_path / 'one' / 'run'}") != three
    (tmp_path / "x.params").write_bytes(b"weights")
    specs = [f"{prefix}{tmp_path / 'x.params'}" for prefix in ("tfeat:", "kornia:TFeat:", "kornia:HardNet:")]
    assert len({descriptor_fingerprint(spec) for spec in specs}) == 3


def test_a_new_descriptor_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(DESCRIPTORS, "pixels:SIDE", lambda side: Descriptor("pixels", lambda p: p[:, : int(side), 0]))
    descriptor = load_descriptor("mine=pixels:8")
    assert (descriptor.label, descriptor.fingerprint) == ("mine", "pixels:8")
    assert "pixels:SIDE" in accepted_forms()
    path = write_image(tmp_path / "a.png", noise_image())
    assert main(["describe", str(path), "-o", str(tmp_path / "a.h5"), "--descriptor", "pixels:8"]) == 0
    assert read_features(tmp_path / "a.h5", "a.png").descriptors.shape[1] == 8

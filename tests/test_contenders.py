"""The grammar `[label=]spec`."""

from pathlib import Path

import numpy as np
import pytest
import torch

from sdgmnet.descriptors import descriptor_fingerprint, load_descriptor
from sdgmnet.encoders import Encoder, L2Net, SDGMNet, TFeat, save_encoder
from sdgmnet.engine import describe_patches, halve
from sdgmnet.errors import InputError
from sdgmnet.features.sift import rootsift, sift


@pytest.fixture(scope="module")
def encoder() -> SDGMNet:
    torch.manual_seed(0)
    return SDGMNet().eval()


@pytest.fixture
def run(tmp_path: Path, encoder: SDGMNet) -> Path:
    save_encoder(encoder, tmp_path / "one" / "best.safetensors", {"trained_on": ["liberty", "demo-train"]})
    return tmp_path / "one"


@pytest.fixture(scope="module")
def patches() -> np.ndarray:
    return np.random.default_rng(0).integers(256, size=(4, 64, 64), dtype=np.uint8)


@pytest.mark.parametrize(
    ("text", "label", "expected"),
    [
        ("sift", "sift", sift),
        ("rootsift", "rootsift", rootsift),
        ("mine=sift", "mine", sift),
        ("two words=rootsift", "two words", rootsift),
        ("m=0.5=sift", "m=0.5", sift),
        ("sift=rootsift", "sift", rootsift),
        ("=sift", "sift", sift),
    ],
)
def test_hand_made_contenders(text: str, label: str, expected: object, patches: np.ndarray) -> None:
    contender = load_descriptor(text)
    assert contender.label == label
    assert contender.describe is expected
    assert contender.trained_on == ()


def test_weights_by_file_and_by_folder(run: Path, encoder: SDGMNet, patches: np.ndarray) -> None:
    by_file, by_folder = load_descriptor(str(run / "best.safetensors")), load_descriptor(str(run))
    assert (by_file.label, by_folder.label) == ("best", "one")
    for contender in (by_file, by_folder):
        assert contender.trained_on == ("liberty", "demo-train")
        assert np.array_equal(contender.describe(patches), describe_patches(encoder, patches))


def test_weights_with_a_label(run: Path) -> None:
    assert load_descriptor(f"mine={run}").label == "mine"
    assert load_descriptor(f"m=0.5={run / 'best.safetensors'}").label == "m=0.5"
    assert load_descriptor(f"{run}/").label == "one"


def test_the_folder_one_stands_in_has_a_label(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run)
    assert load_descriptor("mine=.").label == "mine"
    assert load_descriptor(".").label.strip()


def test_weights_that_do_not_say_what_they_were_trained_on(tmp_path: Path, encoder: SDGMNet) -> None:
    save_encoder(encoder, tmp_path / "bare.safetensors", {})
    assert load_descriptor(str(tmp_path / "bare.safetensors")).trained_on == ()


@pytest.mark.parametrize("text", ["surf", "SIFT", "mine=surf", "weights.pth", "no/such/folder", "sift=mine"])
def test_what_is_no_contender_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(InputError) as caught:
        load_descriptor(text)
    message = str(caught.value)
    assert repr(text) in message
    assert all(word in message for word in ("sift", "rootsift", ".safetensors", "mine=runs/one"))


def test_missing_weights_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="gone.safetensors does not exist"):
        load_descriptor(f"mine={tmp_path / 'gone.safetensors'}")
    with pytest.raises(InputError, match="best.safetensors does not exist"):
        load_descriptor(str(tmp_path))


def test_identity_is_of_the_weights_and_not_of_their_place(tmp_path: Path) -> None:
    for folder, seed in (("one", 0), ("two", 0), ("three", 1)):
        torch.manual_seed(seed)
        save_encoder(SDGMNet(), tmp_path / folder / "run" / "best.safetensors", {})
    one, two, three = (descriptor_fingerprint(str(tmp_path / folder / "run")) for folder in ("one", "two", "three"))
    assert one == two != three
    assert descriptor_fingerprint(f"mine={tmp_path / 'one' / 'run'}") == one
    assert descriptor_fingerprint("x=sift") == descriptor_fingerprint("sift") == "sift"


@pytest.mark.parametrize("kind", [L2Net, TFeat])
def test_weights_of_other_encoders(kind: type[Encoder], tmp_path: Path, patches: np.ndarray) -> None:
    """Preprocessing belongs to the encoder: patches go in as they are for all."""
    other = kind(0.0).eval()
    save_encoder(other, tmp_path / "other.safetensors", {"trained_on": ["liberty"]})
    contender = load_descriptor(str(tmp_path / "other.safetensors"))
    described = contender.describe(patches)
    with torch.no_grad():
        expected = other(halve(torch.from_numpy(patches).float() / 255)[:, None]).numpy()
    assert np.abs(described - expected).max() < 1e-5
    assert np.abs(np.linalg.norm(described, axis=1) - 1).max() < 1e-5 or kind is TFeat


def test_one_file_for_two_programs_is_two_contenders(tmp_path: Path) -> None:
    (tmp_path / "x.params").write_bytes(b"weights")
    specs = [f"{prefix}{tmp_path / 'x.params'}" for prefix in ("tfeat:", "kornia:TFeat:", "kornia:HardNet:")]
    assert len({descriptor_fingerprint(spec) for spec in specs}) == 3

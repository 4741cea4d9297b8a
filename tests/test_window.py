"""The side of patches in sigmas belongs to weights and PatchSets: every way to describe obeys it (ONNX: test_export.py)."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import sdgmnet
from sdgmnet.cli import main
from sdgmnet.data.augmentation import augment
from sdgmnet.data.patchset import PatchSet
from sdgmnet.data.sampler import PairSampler
from sdgmnet.data.synthetic.sets import PHOTO_VIEWING, ViewOptions, make_view_sets
from sdgmnet.data.window import centre, training_window
from sdgmnet.descriptors import descriptor_fingerprint, load_descriptor, with_window
from sdgmnet.encoders import SDGMNet, load_encoder, save_encoder
from sdgmnet.engine import describe_patches, resample_matrix
from sdgmnet.errors import InputError
from sdgmnet.features.h5 import read_features
from sdgmnet.features.keypoints import Keypoints, detect, from_opencv, to_opencv
from sdgmnet.features.kornia import from_lafs, laf_descriptor, to_lafs
from sdgmnet.features.opencv import OpenCVFeatures
from sdgmnet.features.patches import cut_patches, inside
from sdgmnet.pretrained import write_weights
from sdgmnet.registry import Augmentation
from sdgmnet.sfm.feature_sources import descriptor_source
from tests.features.samples import noise_image, write_image

WINDOWS = (12.0, 20.0)
IMAGE = noise_image(320, 300)


@pytest.fixture(scope="module", params=WINDOWS)
def encoder(request: pytest.FixtureRequest) -> SDGMNet:
    torch.manual_seed(0)
    encoder = SDGMNet().eval()
    encoder.window = request.param
    return encoder


@pytest.fixture
def weights(encoder: SDGMNet, tmp_path: Path) -> Path:
    path = tmp_path / "own.safetensors"
    save_encoder(encoder, path, {})
    return path


@pytest.fixture(scope="module")
def keypoints() -> Keypoints:
    found = detect(IMAGE)
    return found.select(np.flatnonzero(inside(found, 320, 300))[::10])


@pytest.fixture
def expected(encoder: SDGMNet, keypoints: Keypoints) -> np.ndarray:
    return describe_patches(encoder, cut_patches(IMAGE, keypoints, window=encoder.window))


def test_a_patch_spans_its_window() -> None:
    """An image whose gray level is x: the outermost cells are half a cell inside the border of the window."""
    ramp = np.tile(np.arange(200, dtype=np.uint8), (200, 1))
    one = Keypoints(np.array([[100.0, 100.0]]), np.array([4.0]), np.array([0.0]), np.array([1.0]))
    for window in (12.0, 20.0, 24.0):
        row = cut_patches(ramp, one, window=window)[0, 32].astype(float)
        assert row[-1] - row[0] == pytest.approx(4 * window * 63 / 64, abs=1.5)
        assert row.mean() == pytest.approx(100, abs=0.5)


def test_files_keep_it(encoder: SDGMNet, weights: Path) -> None:
    loaded, card = load_encoder(weights)
    assert loaded.window == card["window"] == encoder.window
    assert SDGMNet.from_pretrained(weights).window == encoder.window


def test_python_and_opencv_obey_it(encoder: SDGMNet, weights: Path, keypoints: Keypoints, expected: np.ndarray) -> None:
    for descriptor in (encoder, str(weights)):
        np.testing.assert_array_equal(sdgmnet.describe(IMAGE, keypoints, descriptor=descriptor).descriptors, expected)
    given = to_opencv(keypoints)  # in single precision
    _, found = OpenCVFeatures(encoder).compute(IMAGE, given)
    again = describe_patches(encoder, cut_patches(IMAGE, from_opencv(given), window=encoder.window))
    np.testing.assert_array_equal(found, again)


def test_kornia_obeys_it(encoder: SDGMNet, keypoints: Keypoints) -> None:
    tensor = torch.from_numpy(IMAGE.astype(np.float32) / 255)[None, None]
    far = keypoints.select((keypoints.xy.min(axis=1) > 60) & (keypoints.xy.max(axis=1) < 240) & (keypoints.sigma < 5))
    lafs = to_lafs(far, encoder.window)
    with torch.inference_mode():
        layer = laf_descriptor(encoder)
        theirs, wider = (layer(tensor, one)[0].numpy() for one in (lafs, to_lafs(far, 1.3 * encoder.window)))
    ours = sdgmnet.describe(IMAGE, far, descriptor=encoder).descriptors
    assert len(ours) > 10 and np.median((ours * theirs).sum(axis=1)) > 0.99
    assert np.median((ours * wider).sum(axis=1)) < 0.9
    np.testing.assert_allclose(from_lafs(lafs, window=encoder.window).sigma, far.sigma, rtol=1e-6)


def test_hlocs_files_and_colmaps_features_obey_it(encoder: SDGMNet, weights: Path, tmp_path: Path) -> None:
    image = tmp_path / "photos/a.png"
    write_image(image, IMAGE)
    wanted = sdgmnet.describe(image, descriptor=encoder, limit=50).descriptors
    words = ["describe", str(image), "--descriptor", str(weights), "--keypoints", "50", "-o", str(tmp_path / "f.h5")]
    assert main(words) == 0
    np.testing.assert_allclose(read_features(tmp_path / "f.h5", "a.png").descriptors, wanted, atol=1e-3)
    source = descriptor_source(str(weights), 50, contrast=0.04, size=3200)
    found = source.prepare("a.png", image)()
    again = describe_patches(encoder, cut_patches(IMAGE, found.keypoints, window=encoder.window))
    np.testing.assert_allclose(found.descriptors, again, atol=1e-6)


def test_a_window_can_be_asked_for(weights: Path, keypoints: Keypoints, tmp_path: Path) -> None:
    """--window 16 and @16 are the same, and cannot be mixed in a file with another."""
    encoder = SDGMNet.from_pretrained(weights)
    expected = describe_patches(encoder, cut_patches(IMAGE, keypoints, window=16))
    wide = load_descriptor(f"mine={weights}@16")
    assert (wide.label, wide.window) == ("mine", 16)
    np.testing.assert_array_equal(sdgmnet.describe(IMAGE, keypoints, descriptor=wide).descriptors, expected)
    assert load_descriptor(f"{weights}@16").label == "own@16"
    assert descriptor_fingerprint(f"{weights}@16") != descriptor_fingerprint(str(weights))
    write_image(tmp_path / "a.png", IMAGE)
    words = ["describe", str(tmp_path / "a.png"), "--keypoints", "50", "-o", str(tmp_path / "f.h5")]
    assert main([*words, "--descriptor", str(weights), "--window", "16"]) == 0
    assert main([*words, "--descriptor", f"{weights}@16"]) == 0
    assert main([*words, "--descriptor", str(weights)]) == 2


def test_patches_of_a_set_are_described_at_the_window(sets: dict[float, PatchSet], tmp_path: Path) -> None:
    encoder = SDGMNet().eval()
    save_encoder(encoder, tmp_path / "own.safetensors", {})
    sets[24.0].save(tmp_path / "set")
    words = ["describe", str(tmp_path / "set"), "--descriptor", str(tmp_path / "own.safetensors")]
    assert main([*words, "-o", str(tmp_path / "narrow.npy")]) == 0
    assert main([*words, "--window", "24", "-o", str(tmp_path / "wide.npy")]) == 0
    narrow = describe_patches(encoder, centre(sets[24.0].patches, 0.5))
    np.testing.assert_allclose(np.load(tmp_path / "narrow.npy"), narrow, atol=1e-5)
    np.testing.assert_allclose(np.load(tmp_path / "wide.npy"), describe_patches(encoder, sets[24.0].patches), atol=1e-5)


def test_a_window_is_given_once(encoder: SDGMNet, tmp_path: Path) -> None:
    """And never taken for the name of other weights."""
    assert main(["match", "a.png", "b.png", "--descriptor", "sdgmnet@20", "--window", "16"]) == 2
    for name in ("one", "one@16"):
        save_encoder(encoder, tmp_path / name / "best.safetensors", {})
    with pytest.raises(InputError, match="rename it"):
        with_window(str(tmp_path / "one"), 16)


def test_a_path_with_an_at_sign_is_a_path(encoder: SDGMNet, tmp_path: Path) -> None:
    save_encoder(encoder, tmp_path / "run@16/best.safetensors", {})
    assert load_descriptor(str(tmp_path / "run@16")).window == encoder.window
    assert load_descriptor(f"{tmp_path / 'run@16'}@18").window == 18


@pytest.mark.parametrize("text", ["sift@20", "sdgmnet@0", "sdgmnet@1000"])
def test_windows_that_cannot_be(text: str) -> None:
    with pytest.raises(InputError, match="window"):
        load_descriptor(text)


def test_cards_with_a_wrong_window_are_refused(weights: Path, tmp_path: Path) -> None:
    write_weights(SDGMNet().state_dict(), tmp_path / "bad.safetensors", {"encoder": "sdgmnet", "window": "wide"})
    with pytest.raises(InputError, match=r"bad\.safetensors.*window"):
        load_encoder(tmp_path / "bad.safetensors")


# PatchSets and training


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[float, PatchSet]:
    folder = tmp_path_factory.mktemp("sets")
    write_image(folder / "photos/a.png", noise_image(500, 400))
    viewing = replace(PHOTO_VIEWING, views=3)
    options = {window: ViewOptions(viewing, photos=1, window=window) for window in (12.0, 24.0)}
    return {w: make_view_sets(folder / "photos", folder / f"{w:g}", one).sets[0] for w, one in options.items()}


def test_a_wide_set_holds_the_narrow_one(sets: dict[float, PatchSet]) -> None:
    narrow, wide = sets[12.0], sets[24.0]
    assert (narrow.window, wide.window) == (12, 24) and (narrow.point_id == wide.point_id).all()
    found = centre(wide.patches, 0.5).astype(float)
    assert found.shape == narrow.patches.shape
    small = narrow.patches.reshape(-1, 32, 2, 32, 2).mean(axis=(2, 4))
    error = np.abs(found.reshape(-1, 32, 2, 32, 2).mean(axis=(2, 4)) - small)
    shifted = np.abs(wide.patches.reshape(-1, 32, 2, 32, 2).mean(axis=(2, 4)) - small)
    assert error.mean() < 2 < shifted.mean() / 5


@pytest.mark.parametrize("kind", ["none", "paper", "strong", "detector", "turned", "hynet"])
def test_training_at_a_window_uses_the_centre(kind: Augmentation, sets: dict[float, PatchSet]) -> None:
    narrow, wide = (PairSampler([sets[window]], 0, window=12) for window in (12.0, 24.0))
    assert narrow.window == wide.window == 12
    one, two = (sampler.batch(3, 16, augmentation=kind) for sampler in (narrow, wide))
    assert (one - two).abs().mean() < 0.03
    assert (one - PairSampler([sets[24.0]], 0).batch(3, 16, augmentation=kind)).abs().mean() > 0.05


def test_a_random_window_per_pair(sets: dict[float, PatchSet]) -> None:
    """Between half of it and all, the same for both patches of a pair, other pairs and steps have others; ranks agree."""
    plain, random = (PairSampler([sets[24.0]], 0, window=20, window_jitter=jitter) for jitter in (0.0, 0.5))
    whole = random.batch(3, 16, augmentation="none")
    assert torch.equal(random.batch(3, 16, augmentation="none", rows=slice(4, 9)), whole[:, 4:9])
    differences = (plain.batch(3, 16, augmentation="none") - whole).abs().mean(dim=(0, 2, 3, 4))
    assert (differences > 0).all() and differences.max() > 2 * differences.min()
    found = list[float]()
    patches, factors = sets[24.0].patches[random.indices(3, 16)[:, 5]], np.linspace(0.5, 1, 401)
    for patch, made in zip(patches, whole[:, 5, 0], strict=True):
        errors = [(centre_floats(patch, factor * 20 / 24) - made).abs().mean().item() for factor in factors]
        found.append(factors[np.argmin(errors)])
    assert found[0] == pytest.approx(found[1], abs=0.01)


def centre_floats(patch: np.ndarray, share: float) -> torch.Tensor:
    length = torch.tensor([64 * float(share)])
    matrix = resample_matrix((64 - length) / 2, length, 64, 32)[0]
    return matrix @ torch.from_numpy(patch.copy()).float() @ matrix.T / 255


def test_sets_of_several_windows_together(sets: dict[float, PatchSet]) -> None:
    both = [sets[12.0], sets[24.0]]
    assert training_window(both, None) == 12
    with pytest.raises(InputError, match="--window 20"):
        training_window(both, 20)
    sampler = PairSampler(both, 0)
    rows = np.array([0, len(sets[12.0])])
    assert sampler.shares_of(rows).tolist() == [1, 0.5]
    patches = sampler.patches(rows)[:, None]
    share = np.array([[1.0], [0.5]])
    small = augment(patches, "none", np.random.default_rng(0), 1, slice(None), "cpu", share)
    assert (small[0] - small[1]).abs().mean() < 0.03


def test_a_run_remembers_its_window(
    sets: dict[float, PatchSet], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for window, name in ((24.0, "set"), (12.0, "other")):
        replace(sets[window], name=name, origin={**sets[window].origin, "scene": name}).save(tmp_path / name)
    data = ["--data", str(tmp_path / "set"), str(tmp_path / "other"), "--holdout", "other"]
    words = ["train", *data, "--iterations", "2", "--batch-size", "8", "--evaluations", "1"]
    words += ["--window", "20", "-o", str(tmp_path / "run")]
    assert main([*words, "--window", "30"]) == 2
    assert main(words) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "patches, 20 sigma)" in said and re.search(r"Held out: other, \d+ pairs, of 12 sigma only", said)
    assert json.loads((tmp_path / "run/last.json").read_text())["window"] == 20
    assert load_descriptor(str(tmp_path / "run/last.safetensors")).window == 20

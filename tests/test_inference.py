"""Patches -> descriptors, whatever their container, size and number."""

import warnings
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from torch import Tensor

from sdgmnet.encoders import SDGMNet
from sdgmnet.engine import describe_patches, halve, prepare
from sdgmnet.errors import InputError


@pytest.fixture(scope="module")
def encoder() -> SDGMNet:
    torch.manual_seed(0)
    return SDGMNet().eval()


@pytest.fixture(scope="module")
def patches() -> np.ndarray:
    return np.random.default_rng(0).integers(256, size=(70, 64, 64), dtype=np.uint8)


@pytest.fixture(scope="module")
def expected(encoder: SDGMNet, patches: np.ndarray) -> np.ndarray:
    """All patches in one batch, straight through the encoder."""
    small = halve(torch.from_numpy(patches).double() / 255).float()[:, None]
    with torch.no_grad():
        return encoder(small).numpy()


@pytest.fixture
def every_warning() -> Iterator[None]:
    """torch gives some warnings once a process only; here they count each time."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)


def close(left: np.ndarray, right: np.ndarray) -> bool:
    return left.shape == right.shape and bool(np.abs(left - right).max() < 1e-5)


@pytest.mark.parametrize("batch_size", [None, 1, 7, 64, 70, 1000])
def test_chunks_give_what_one_batch_gives_in_order(
    batch_size: int | None, encoder: SDGMNet, patches: np.ndarray, expected: np.ndarray
) -> None:
    count = 12 if batch_size == 1 else 70
    descriptors = describe_patches(encoder, patches[:count], batch_size=batch_size)
    assert descriptors.dtype == np.float32
    assert close(descriptors, expected[:count])
    order = np.random.default_rng(1).permutation(count)
    assert close(describe_patches(encoder, patches[order], batch_size=batch_size), expected[order])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_are_a_255th_of_bytes(dtype: type, encoder: SDGMNet, patches: np.ndarray, expected: np.ndarray) -> None:
    tolerance = 3e-3 if dtype is np.float16 else 1e-5
    assert np.abs(describe_patches(encoder, (patches[:5] / 255).astype(dtype)) - expected[:5]).max() < tolerance


def test_patches_of_the_encoders_own_size_are_taken_as_they_are(
    encoder: SDGMNet, patches: np.ndarray, expected: np.ndarray
) -> None:
    small = halve(torch.from_numpy(patches[:5]).float() / 255)
    assert close(describe_patches(encoder, small), expected[:5])
    prepared = prepare(torch.from_numpy(patches[:5]), 32)
    assert prepared.shape == (5, 1, 32, 32) and prepared.dtype == torch.float32
    assert torch.allclose(prepared[:, 0], small, atol=1e-6)
    own = patches[:3, :32, :32]
    assert torch.equal(prepare(torch.from_numpy(own.copy()), 32)[:, 0], torch.from_numpy(own / np.float32(255)))


def test_a_channel_of_one_is_accepted(encoder: SDGMNet, patches: np.ndarray, expected: np.ndarray) -> None:
    assert close(describe_patches(encoder, patches[:5, None]), expected[:5])


@pytest.mark.parametrize("kind", [torch.uint8, torch.float32])
def test_tensors_are_accepted(kind: torch.dtype, encoder: SDGMNet, patches: np.ndarray, expected: np.ndarray) -> None:
    tensor: Tensor = torch.from_numpy(patches[:5])
    tensor = tensor if kind == torch.uint8 else (tensor / 255).requires_grad_()
    before = tensor.detach().clone()
    assert close(describe_patches(encoder, tensor), expected[:5])
    assert torch.equal(tensor.detach(), before)


def test_strided_arrays(encoder: SDGMNet, patches: np.ndarray, expected: np.ndarray) -> None:
    assert close(describe_patches(encoder, patches[::3]), expected[::3])
    wide = np.zeros((4, 64, 200), dtype=np.uint8)
    wide[:, :, 50:114] = patches[:4]
    assert close(describe_patches(encoder, wide[:, :, 50:114]), expected[:4])
    assert close(describe_patches(encoder, patches[:4].transpose(0, 2, 1).copy().transpose(0, 2, 1)), expected[:4])


def test_reversed_and_mirrored_views(encoder: SDGMNet, patches: np.ndarray, expected: np.ndarray) -> None:
    """numpy makes them without a copy, with steps below zero."""
    assert close(describe_patches(encoder, patches[:4][::-1]), expected[:4][::-1])
    mirrored = np.ascontiguousarray(patches[:4, :, ::-1])
    assert close(describe_patches(encoder, patches[:4, :, ::-1]), describe_patches(encoder, mirrored))


def test_read_only_memory_maps_without_a_warning(
    tmp_path: Path, encoder: SDGMNet, patches: np.ndarray, expected: np.ndarray, every_warning: None
) -> None:
    """They are what PatchSet.patches is, and nothing writes to them."""
    np.save(tmp_path / "patches.npy", patches)
    mapped = np.load(tmp_path / "patches.npy", mmap_mode="r")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert close(describe_patches(encoder, mapped), expected)


def test_writable_memory_maps(tmp_path: Path, encoder: SDGMNet, patches: np.ndarray, expected: np.ndarray) -> None:
    np.save(tmp_path / "patches.npy", patches)
    assert close(describe_patches(encoder, np.load(tmp_path / "patches.npy", mmap_mode="r+")), expected)
    assert np.array_equal(np.load(tmp_path / "patches.npy"), patches)


@pytest.mark.parametrize("shape", [(0, 64, 64), (0, 32, 32), (0, 1, 32, 32)])
def test_no_patches(shape: tuple[int, ...], encoder: SDGMNet) -> None:
    descriptors = describe_patches(encoder, np.empty(shape, dtype=np.uint8))
    assert descriptors.shape == (0, 128) and descriptors.dtype == np.float32


@pytest.mark.parametrize("shape", [(2, 48, 48), (2, 64, 32), (64, 64), (2, 3, 64, 64), (2, 66, 66), (0,)])
def test_other_sizes_are_refused(shape: tuple[int, ...], encoder: SDGMNet) -> None:
    with pytest.raises(InputError) as caught:
        describe_patches(encoder, np.zeros(shape, dtype=np.uint8))
    assert "32 x 32, 64 x 64 or 65 x 65" in str(caught.value) and str(shape) in str(caught.value)


@pytest.mark.parametrize("training", [True, False])
def test_the_encoder_stays_in_its_mode(training: bool, patches: np.ndarray) -> None:
    encoder = SDGMNet().train(training)
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    first = describe_patches(encoder, patches[:3])
    assert encoder.training is training and encoder.norm.training is training
    assert np.array_equal(first, describe_patches(encoder, patches[:3]))  # no dropout, whatever the mode
    assert all(torch.equal(before[name], value) for name, value in encoder.state_dict().items())


def test_the_mode_comes_back_after_an_error(patches: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = SDGMNet().train()

    def fail(_: Tensor) -> Tensor:
        raise RuntimeError("no memory")

    monkeypatch.setattr(encoder, "normalise_batch", fail)
    with pytest.raises(RuntimeError, match="no memory"):
        describe_patches(encoder, patches[:3])
    assert encoder.training


def test_engines_that_cannot_be_had_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    patches = np.zeros((2, 32, 32), dtype=np.uint8)
    monkeypatch.setattr("sdgmnet.native.trunk.library", lambda: None)
    assert describe_patches(SDGMNet(), patches, engine="auto").shape == (2, 128)
    with pytest.raises(InputError, match="eager"):
        describe_patches(SDGMNet(), patches, engine="native")
    with pytest.raises(InputError, match="one of auto, eager, native"):
        describe_patches(SDGMNet(), patches, engine="magic")  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [0, -1])
def test_a_batch_has_a_size(size: int) -> None:
    with pytest.raises(InputError, match="batch_size must be at least 1"):
        describe_patches(SDGMNet(), np.zeros((2, 32, 32), dtype=np.uint8), batch_size=size)


@pytest.mark.parametrize("dtype", [">f4", "f8", "f2", np.longdouble])
def test_floats_of_any_kind(dtype: str) -> None:
    patches = np.random.default_rng(0).random((3, 32, 32)).astype(np.float32)
    expected = describe_patches(SDGMNet().eval(), patches[:0].astype(dtype))
    assert expected.shape == (0, 128)
    encoder = SDGMNet().eval()
    np.testing.assert_allclose(
        describe_patches(encoder, patches.astype(dtype)), describe_patches(encoder, patches), atol=1e-2
    )


def test_hpatches_65_pixels_are_read_by_opencvs_bilinear_filter(encoder: SDGMNet) -> None:
    patches = np.random.default_rng(0).integers(256, size=(3, 65, 65), dtype=np.uint8)
    resized = np.stack([cv2.resize(patch.astype(np.float32), (32, 32)) for patch in patches]) / np.float32(255)
    np.testing.assert_allclose(prepare(torch.from_numpy(patches), 32)[:, 0].numpy(), resized, atol=1e-5)
    np.testing.assert_allclose(describe_patches(encoder, patches), describe_patches(encoder, resized), atol=1e-4)

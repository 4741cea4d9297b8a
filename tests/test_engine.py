"""One choice of engine and chunk size; patches -> descriptors, whatever their container, size and number; the one filter."""

import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from sdgmnet.encoders import L2Net, SDGMNet, TFeat
from sdgmnet.engine import (
    INFERENCE,
    TRAINING,
    choose_chunk,
    choose_engine,
    describe_patches,
    feature_lengths,
    halve,
    prepare,
    resample_matrix,
)
from sdgmnet.errors import InputError

CROPS = [(0, 0, 64, 64), (1, 2, 61, 60), (0, 3, 62, 61), (4, 0, 59, 63), (3, 3, 60, 60), (5, 6, 32, 32), (2, 9, 40, 20)]


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


# Engine and chunk size


def test_the_engine_depends_on_what_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sdgmnet.native.trunk.library", lambda: object())
    for encoder in (SDGMNet(), L2Net()):
        assert choose_engine("auto", encoder) == choose_engine("native", encoder) == "native"
    for encoder in (SDGMNet().double(), SDGMNet().to("meta"), TFeat()):
        assert choose_engine("auto", encoder) == choose_engine("eager", SDGMNet()) == "eager"
        with pytest.raises(InputError, match="engine native"):
            choose_engine("native", encoder)
    monkeypatch.setattr("sdgmnet.native.trunk.library", lambda: None)
    assert choose_engine("auto", SDGMNet()) == "eager"
    with pytest.raises(InputError, match="engine native"):
        describe_patches(SDGMNet(), np.zeros((2, 32, 32), dtype=np.uint8), engine="native")
    with pytest.raises(InputError, match="auto, eager, native"):
        choose_engine("magic", SDGMNet())  # type: ignore[arg-type]


def test_chunk_sizes() -> None:
    """Saved configurations and the bits of evaluations depend on them."""
    sizes = [choose_chunk(engine, SDGMNet(), use) for use in (TRAINING, INFERENCE) for engine in ("eager", "native")]  # type: ignore[arg-type]
    assert sizes == [64, 1024, 64, 512]
    assert choose_chunk("native", L2Net(), INFERENCE) == 128
    assert [choose_chunk("eager", SDGMNet().to("meta"), use) for use in (TRAINING, INFERENCE)] == [None, 4096]


# Inference


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


@pytest.mark.parametrize("dtype", ["f2", "f4", ">f4", "f8", np.longdouble])
def test_floats_are_a_255th_of_bytes(dtype: str, encoder: SDGMNet, patches: np.ndarray, expected: np.ndarray) -> None:
    tolerance = 3e-3 if dtype == "f2" else 1e-5
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


@pytest.mark.parametrize("kind", [torch.uint8, torch.float32])
def test_tensors_are_accepted(kind: torch.dtype, encoder: SDGMNet, patches: np.ndarray, expected: np.ndarray) -> None:
    tensor: Tensor = torch.from_numpy(patches[:5])
    tensor = tensor if kind == torch.uint8 else (tensor / 255).requires_grad_()
    before = tensor.detach().clone()
    assert close(describe_patches(encoder, tensor), expected[:5])
    assert torch.equal(tensor.detach(), before)


def test_strided_and_reversed_views(encoder: SDGMNet, patches: np.ndarray, expected: np.ndarray) -> None:
    assert close(describe_patches(encoder, patches[::3]), expected[::3])
    assert close(describe_patches(encoder, patches[:5, None]), expected[:5])  # with a channel
    wide = np.zeros((4, 64, 200), dtype=np.uint8)
    wide[:, :, 50:114] = patches[:4]
    assert close(describe_patches(encoder, wide[:, :, 50:114]), expected[:4])
    assert close(describe_patches(encoder, patches[:4].transpose(0, 2, 1).copy().transpose(0, 2, 1)), expected[:4])
    assert close(describe_patches(encoder, patches[:4][::-1]), expected[:4][::-1])
    mirrored = np.ascontiguousarray(patches[:4, :, ::-1])
    assert close(describe_patches(encoder, patches[:4, :, ::-1]), describe_patches(encoder, mirrored))


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_memory_maps_without_a_warning(
    mode: str, tmp_path: Path, encoder: SDGMNet, patches: np.ndarray, expected: np.ndarray, every_warning: None
) -> None:
    """PatchSet.patches is one, and nothing writes to it."""
    np.save(tmp_path / "patches.npy", patches)
    mapped = np.load(tmp_path / "patches.npy", mmap_mode=mode)  # type: ignore[call-overload]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert close(describe_patches(encoder, mapped), expected)
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


@pytest.mark.parametrize(
    ("value", "named"),
    [(math.nan, "NaN"), (math.inf, "infinite"), (255.0, "from 0.* to 255"), (-0.5, "from -0.5"), (1.01, "to 1.01")],
)
@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_floats_beyond_their_range_are_refused(
    value: float, named: str, kind: Callable[..., Any], encoder: SDGMNet
) -> None:
    pixels = np.full((70, 32, 32), 0.5, dtype=np.float32)
    pixels[66, 3, 4] = value
    pixels[66, 0, 0] = min(0.0, value)
    with pytest.raises(InputError, match=f"patch 66 .*{named}") as caught:
        describe_patches(encoder, kind(pixels), batch_size=64)
    assert ("divide them by 255" in str(caught.value)) == math.isfinite(value)
    with pytest.raises(InputError, match=f"patch 66 .*{named}"):
        feature_lengths(encoder, kind(pixels))
    rounded = np.where(pixels > 0.4, 1 + 1e-4, -1e-4)  # a resampling filter's rounding
    assert np.isfinite(describe_patches(encoder, kind(rounded))).all()


def test_swapped_arguments_are_refused(encoder: SDGMNet) -> None:
    with pytest.raises(InputError, match=r"not a ndarray: describe_patches\(encoder, patches\)"):
        describe_patches(np.zeros((2, 32, 32), dtype=np.uint8), encoder)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="patches"):
        describe_patches(encoder, encoder)  # type: ignore[arg-type]


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


@pytest.mark.parametrize("size", [0, -1])
def test_a_batch_has_a_size(size: int) -> None:
    with pytest.raises(InputError, match="batch_size must be at least 1"):
        describe_patches(SDGMNet(), np.zeros((2, 32, 32), dtype=np.uint8), batch_size=size)


def test_hpatches_65_pixels_are_read_by_opencvs_bilinear_filter(encoder: SDGMNet) -> None:
    patches = np.random.default_rng(0).integers(256, size=(3, 65, 65), dtype=np.uint8)
    resized = np.stack([cv2.resize(patch.astype(np.float32), (32, 32)) for patch in patches]) / np.float32(255)
    np.testing.assert_allclose(prepare(torch.from_numpy(patches), 32)[:, 0].numpy(), resized, atol=1e-5)
    np.testing.assert_allclose(describe_patches(encoder, patches), describe_patches(encoder, resized), atol=1e-4)


def test_feature_lengths(encoder: SDGMNet, patches: np.ndarray) -> None:
    with torch.no_grad():
        raw = encoder.encode(prepare(torch.from_numpy(patches), 32)).raw
    lengths = feature_lengths(encoder, patches)
    assert lengths.dtype == np.float64
    np.testing.assert_allclose(lengths, raw.double().norm(dim=1).numpy(), rtol=1e-4)


# Resampling: against loops and against PIL


def noise(count: int, side: int = 64, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(256, size=(count, side, side), dtype=np.uint8)


def halved_by_loop(line: np.ndarray) -> np.ndarray:
    """[1, 3, 3, 1] / 8 over a line; at the ends over the three pixels that exist, [3, 3, 1] / 7."""
    out = np.empty(len(line) // 2)
    for target in range(len(out)):
        total, weights = 0.0, 0
        for tap, weight in enumerate((1, 3, 3, 1)):
            source = 2 * target - 1 + tap
            if 0 <= source < len(line):
                total, weights = total + weight * float(line[source]), weights + weight
        out[target] = total / weights
    return out


@pytest.mark.parametrize("side", [4, 16, 64])
def test_halving_is_the_separable_filter(side: int) -> None:
    pixels = noise(2, side)
    rows = np.stack([[halved_by_loop(line) for line in patch] for patch in pixels])
    expected = np.stack([[halved_by_loop(line) for line in patch.T] for patch in rows]).transpose(0, 2, 1)
    result = halve(torch.from_numpy(pixels).double())
    assert result.shape == (2, side // 2, side // 2)
    assert np.allclose(result.numpy(), expected, atol=1e-9)
    assert torch.allclose(halve(torch.from_numpy(pixels).float()).double(), result, atol=1e-3)


def test_rows_of_the_matrix_are_averages_of_the_range_alone() -> None:
    start, length = torch.tensor([0.0, 7.0, 20.0]), torch.tensor([64.0, 50.0, 33.0])
    matrix = resample_matrix(start, length, 64, 32)
    assert matrix.shape == (3, 32, 64)
    assert torch.allclose(matrix.sum(dim=2), torch.ones(3, 32), atol=1e-5)
    assert float(matrix.min()) >= 0
    for row, (first, count) in enumerate([(0, 64), (7, 50), (20, 33)]):
        outside = [column for column in range(64) if not first <= column < first + count]
        assert float(matrix[row][:, outside].abs().sum()) == 0


@pytest.mark.parametrize("crop", CROPS)
def test_resampling_a_crop_is_what_pil_does(crop: tuple[int, int, int, int]) -> None:
    """PIL rounds to whole grey levels after each of its two passes."""
    top, left, height, width = crop
    down = resample_matrix(torch.tensor([float(top)]), torch.tensor([float(height)]), 64, 32)
    across = resample_matrix(torch.tensor([float(left)]), torch.tensor([float(width)]), 64, 32)
    for patch in noise(3, seed=1):
        box = (left, top, left + width, top + height)
        expected = np.asarray(Image.fromarray(patch).crop(box).resize((32, 32), Image.Resampling.BILINEAR), dtype=float)
        result = (down @ torch.from_numpy(patch).float() @ across.transpose(1, 2))[0].numpy()
        assert np.abs(result - expected).max() <= 1.0
        assert abs((result - expected).mean()) < 0.3  # PIL rounds halves up

"""Descriptors of OpenCV's contrib modules, where they are installed; what is said where they are not."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from sdgmnet.cli import main
from sdgmnet.descriptors import load_descriptor
from sdgmnet.errors import InputError
from sdgmnet.features.describe import describe_keypoints
from sdgmnet.features.keypoints import Keypoints, detect
from sdgmnet.features.opencv_contrib import MAKERS
from tests.features.samples import noise_image

HAS_CONTRIB = hasattr(cv2, "xfeatures2d")
BITS = {"BoostDesc": 256, "BEBLID": 512, "TEBLID": 256}
WIDTHS = {"VGG": 120, "DAISY": 200, **BITS}


class Extractor:
    """Describes keypoints by their number, and drops every third, as OpenCV does at the border."""

    def __init__(self, binary: bool) -> None:
        self.binary = binary

    def descriptorSize(self) -> int:
        return 2

    def descriptorType(self) -> int:
        return int(cv2.CV_8U if self.binary else cv2.CV_32F)

    def compute(self, image: np.ndarray, given: list[cv2.KeyPoint]) -> tuple[tuple[cv2.KeyPoint, ...], np.ndarray]:
        kept = tuple(one for one in given if one.class_id % 3)
        rows = np.array([[one.class_id, 255] for one in kept])
        return kept, rows.astype(np.uint8 if self.binary else np.float32)


@pytest.mark.parametrize("binary", [False, True])
def test_rows_are_in_the_order_of_the_keypoints(binary: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cv2, "xfeatures2d", object(), raising=False)
    monkeypatch.setitem(MAKERS, "VGG", lambda module: Extractor(binary))
    image = noise_image(200, 160)
    keypoints = detect(image, 7)
    found = describe_keypoints(image, keypoints, load_descriptor("opencv:VGG")).descriptors
    assert found.shape == (7, 16 if binary else 2) and found.dtype == np.float32
    assert (np.diff(found[::3, 0]) > 1000).all() and (found[::3, 0] > 1000).all()  # far from all, and from each other
    expected = np.unpackbits(np.uint8([[4, 255]])) if binary else [4, 255]
    assert found[4].tolist() == list(expected)


@pytest.mark.skipif(HAS_CONTRIB, reason="opencv-contrib-python is installed")
def test_without_the_modules() -> None:
    with pytest.raises(InputError, match="opencv-contrib-python"):
        load_descriptor("opencv:VGG")


@pytest.mark.skipif(not HAS_CONTRIB, reason="needs opencv-contrib-python")
@pytest.mark.parametrize("name", MAKERS)
def test_theirs_turn_with_the_image(name: str) -> None:
    image = noise_image(240, 240)
    keypoints = detect(image, 60)
    turned = Keypoints(
        np.column_stack([239 - keypoints.xy[:, 1], keypoints.xy[:, 0]]), keypoints.sigma,
        (keypoints.angle + np.pi / 2) % (2 * np.pi), keypoints.response,
    )  # fmt: skip
    descriptor = load_descriptor(f"opencv:{name}")
    one = describe_keypoints(image, keypoints, descriptor).descriptors
    two = describe_keypoints(np.ascontiguousarray(np.rot90(image, -1)), turned, descriptor).descriptors
    assert one.shape == (60, WIDTHS[name]) and np.isfinite(one).all()
    if name in BITS:
        assert set(np.unique(one)) == {0.0, 1.0}
    nearest = np.linalg.norm(one[:, None] - two[None], axis=2).argmin(axis=1)
    assert (nearest == np.arange(60)).mean() > 0.9


def test_a_name_that_does_not_exist() -> None:
    with pytest.raises(InputError, match="did you mean opencv:VGG"):
        load_descriptor("opencv:VGS")


@pytest.mark.parametrize("benchmark", ["phototour", "hpatches"])
def test_patch_benchmarks_refuse_it_at_once(benchmark: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = ["--root", str(tmp_path)] if benchmark == "hpatches" else []
    assert main(["evaluate", benchmark, "sift", "vgg=opencv:VGG", *root]) == 2
    assert "vgg=opencv:VGG" in capsys.readouterr().err

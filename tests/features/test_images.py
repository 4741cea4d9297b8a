from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from sdgmnet.descriptors import describe
from sdgmnet.errors import InputError
from sdgmnet.features.images import is_truncated, read_gray
from tests.features.samples import noise_image, write_image
from tests.sfm.planes import with_orientation


@pytest.mark.parametrize("name", ["plain.png", "with space.png", "größe.png"])
def test_reads_gray(tmp_path: Path, name: str) -> None:
    image = np.arange(12, dtype=np.uint8).reshape(3, 4)
    np.testing.assert_array_equal(read_gray(write_image(tmp_path / name, image)), image)


@pytest.mark.parametrize("content", [None, b"", b"not an image", b"\x89PNG\r\n\x1a\n" + b"IHDR"])
def test_missing_and_invalid_images_are_named(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "bad.png").write_bytes(content)
    reasons = "(does not exist: give an image file|is (empty|truncated|not a supported))"
    with pytest.raises(InputError, match=rf"bad\.png {reasons}"):
        read_gray(tmp_path / "bad.png")


def test_truncation_is_seen_although_a_thumbnail_is_complete() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (48, 64), dtype=np.uint8)
    coded = cv2.imencode(".jpg", noise)[1].tobytes()
    thumbnail = b"\xff\xe1" + (6 + len(coded)).to_bytes(2, "big") + b"Exif" + coded
    whole = coded[:2] + thumbnail + coded[2:]
    filled, passed_over = (coded[:2] + between + coded[2:] for between in (b"\xff\xff", b"\x00"))
    for content in (whole, whole + b"appended by the camera", filled, passed_over):
        assert not is_truncated(content)
    assert is_truncated(whole[:-40])


@pytest.mark.parametrize("suffix", [".ppm", ".pgm"])
@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
def test_truncation_is_seen_in_plain_pixels(suffix: str, kind: type) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (7, 9, 3), dtype=kind) * (257 if kind is np.uint16 else 1)
    content = cv2.imencode(suffix, noise if suffix == ".ppm" else noise[:, :, 0])[1].tobytes()
    for whole in (content, content.replace(b"\n", b"\n# a note\n", 1)):
        assert not is_truncated(whole) and not is_truncated(whole + b"\n") and is_truncated(whole[:-1])


@pytest.mark.parametrize("shift", [0, 2, 4, 8])
def test_sixteen_bits_are_read_by_those_in_use(tmp_path: Path, shift: int) -> None:
    gray = np.arange(256, dtype=np.uint8).reshape(16, 16)
    np.testing.assert_array_equal(read_gray(write_image(tmp_path / "deep.png", gray.astype(np.uint16) << shift)), gray)


# Pixels in the file, which EXIF orientation 1, 2 ... turns upright.
STORED: list[Callable[[np.ndarray], np.ndarray]] = [
    lambda upright: upright,
    lambda upright: upright[:, ::-1],
    lambda upright: upright[::-1, ::-1],
    lambda upright: upright[::-1],
    lambda upright: upright.T,
    lambda upright: np.rot90(upright),
    lambda upright: upright[::-1, ::-1].T,
    lambda upright: np.rot90(upright, -1),
]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied_once(tmp_path: Path, orientation: int) -> None:
    image = noise_image()
    stored = np.ascontiguousarray(STORED[orientation - 1](image))
    jpeg = cv2.imencode(".jpg", stored, [cv2.IMWRITE_JPEG_QUALITY, 100])[1].tobytes()
    path = tmp_path / "turned.jpg"
    path.write_bytes(with_orientation(jpeg, orientation))
    assert np.abs(read_gray(path).astype(int) - image).max() <= 3
    assert np.abs(read_gray(path, exif_orientation=False).astype(int) - stored).max() <= 3
    described, wanted = (describe(one, descriptor="rootsift", limit=n) for one, n in ((path, 20), (image, 200)))
    assert described.size == (400, 360)
    nearest = np.linalg.norm(described.keypoints.xy[:, None] - wanted.keypoints.xy[None], axis=2).min(axis=1)
    assert np.median(nearest) < 0.1

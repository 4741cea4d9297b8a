from pathlib import Path

import cv2
import numpy as np
import pytest

from sdgmnet.errors import InputError
from sdgmnet.features.images import is_truncated, read_gray


@pytest.mark.parametrize("name", ["plain.png", "with space.png", "größe.png"])
def test_reads_gray(tmp_path: Path, name: str) -> None:
    image = np.arange(12, dtype=np.uint8).reshape(3, 4)
    (tmp_path / name).write_bytes(cv2.imencode(".png", image)[1].tobytes())
    np.testing.assert_array_equal(read_gray(tmp_path / name), image)


@pytest.mark.parametrize(
    "content", [b"", b"not an image", cv2.imencode(".png", np.zeros((9, 9), np.uint8))[1].tobytes()[:20]]
)
def test_invalid_images_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.png").write_bytes(content)
    with pytest.raises(InputError, match=r"bad.png is (empty|truncated|not a supported)"):
        read_gray(tmp_path / "bad.png")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="none.png"):
        read_gray(tmp_path / "none.png")


def test_truncation_is_seen_although_a_thumbnail_is_complete() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (48, 64), dtype=np.uint8)
    coded = cv2.imencode(".jpg", noise)[1].tobytes()
    thumbnail = b"\xff\xe1" + (6 + len(coded)).to_bytes(2, "big") + b"Exif" + coded
    whole = coded[:2] + thumbnail + coded[2:]
    assert not is_truncated(whole)
    assert is_truncated(whole[:-40])
    assert not is_truncated(whole + b"appended by the camera")
    assert not is_truncated(coded[:2] + b"\xff\xff" + coded[2:])  # bytes that fill are allowed before a mark
    assert not is_truncated(coded[:2] + b"\x00" + coded[2:])  # bytes between segments are passed over


@pytest.mark.parametrize("suffix", [".ppm", ".pgm"])
@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
def test_truncation_is_seen_in_plain_pixels(suffix: str, kind: type) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (7, 9, 3), dtype=kind) * (257 if kind is np.uint16 else 1)
    content = cv2.imencode(suffix, noise if suffix == ".ppm" else noise[:, :, 0])[1].tobytes()
    assert not is_truncated(content) and not is_truncated(content + b"\n") and is_truncated(content[:-1])
    note = content.replace(b"\n", b"\n# a note\n", 1)
    assert not is_truncated(note) and is_truncated(note[:-1])


@pytest.mark.parametrize("shift", [0, 2, 4, 8])
def test_sixteen_bits_are_read_by_those_in_use(tmp_path: Path, shift: int) -> None:
    gray = np.arange(256, dtype=np.uint8).reshape(16, 16)
    cv2.imwrite(str(tmp_path / "deep.png"), gray.astype(np.uint16) << shift)
    np.testing.assert_array_equal(read_gray(tmp_path / "deep.png"), gray)

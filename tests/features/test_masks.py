"""--masks of describe, match and reconstruct: COLMAP's convention."""

from pathlib import Path

import numpy as np
import pytest

from sdgmnet.cli import main
from sdgmnet.errors import InputError
from sdgmnet.features.describe import find_keypoints
from sdgmnet.features.h5 import names_in, read_features, read_matches
from sdgmnet.features.images import read_gray
from sdgmnet.features.masks import read_mask
from sdgmnet.sfm.feature_sources import descriptor_source
from tests.features.samples import noise_image, write_image

Capture = pytest.CaptureFixture[str]
SIZE = 200, 150  # width, height
WORDS = ["--descriptor", "rootsift"]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three photos; the first two have masks that leave the right half."""
    mask = np.zeros((SIZE[1], SIZE[0]), np.uint8)
    mask[:, 100:] = 255
    for number, name in enumerate(("a.png", "sub/b.png", "c.png")):
        write_image(tmp_path / "photos" / name, noise_image(*SIZE, number))
        if name != "c.png":
            write_image(tmp_path / "masks" / f"{name}.png", mask)
    return tmp_path / "photos"


def test_no_keypoints_where_the_mask_is_zero(photos: Path, tmp_path: Path, capsys: Capture) -> None:
    out, masks = tmp_path / "features.h5", tmp_path / "masks"
    words = ["describe", str(photos), "-o", str(out), *WORDS]
    assert main([*words, "--masks", str(masks)]) == 0
    for name in ("a.png", "sub/b.png"):
        assert read_features(out, name).keypoints.xy[:, 0].min() >= 99.5
    whole = find_keypoints(read_gray(photos / "c.png"))
    assert len(read_features(out, "c.png").keypoints.xy) == len(whole.xy)
    assert main(words) == 2
    assert "masks masks (now none)" in capsys.readouterr().err


def test_the_strongest_of_those_on_the_mask_are_taken(photos: Path, tmp_path: Path) -> None:
    gray, mask = read_gray(photos / "a.png"), read_mask(tmp_path / "masks", "a.png", SIZE)
    every, ten = find_keypoints(gray), find_keypoints(gray, 10, mask=mask)
    right = every.select(np.floor(every.xy[:, 0] + 0.5) >= 100)
    np.testing.assert_array_equal(ten.xy, right.xy[:10])
    small = find_keypoints(gray, mask=mask, size=100)  # detected in a smaller image
    assert len(small.xy) and small.xy[:, 0].min() >= 98


def test_match_two_and_a_folder(photos: Path, tmp_path: Path, capsys: Capture) -> None:
    masks = ["--masks", str(tmp_path / "masks")]
    out = tmp_path / "out/matches.h5"
    words = ["match", str(photos), "-o", str(out), *WORDS, "--ratio", "none"]
    assert main([*words, *masks]) == 0
    features = out.with_name("features.h5")
    assert set(names_in(features)) == {"a.png", "sub/b.png", "c.png"}
    matched = read_features(features, "a.png").keypoints.xy[read_matches(out, "a.png", "c.png")[0][:, 0]]
    assert len(matched) and matched[:, 0].min() >= 99.5
    write_image(photos / "d.png", noise_image(*SIZE, 9))
    capsys.readouterr()
    # Other options, and masks that are not given: the new photo cannot be described as the others.
    assert main(words[:-2]) == 2
    assert "lacks d.png" in capsys.readouterr().err
    two = ["match", str(photos / "a.png"), str(photos / "c.png"), *WORDS, "--json"]
    assert main([*two, *masks]) == 0
    masked = capsys.readouterr().out
    assert main(two) == 0 and capsys.readouterr().out != masked


def test_reconstruct_describes_with_masks_and_records_them(photos: Path, tmp_path: Path) -> None:
    source = descriptor_source("rootsift", 500, contrast=0.04, size=3200, masks=tmp_path / "masks")
    features = source.prepare("sub/b.png", photos / "sub/b.png")()
    assert len(features.keypoints.xy) and features.keypoints.xy[:, 0].min() >= 99.5
    assert [name for name, _ in source.described["masks"]] == ["a.png.png", "sub/b.png.png"]
    write_image(tmp_path / "masks/a.png.png", np.full((SIZE[1], SIZE[0]), 255, np.uint8))
    other = descriptor_source("rootsift", 500, contrast=0.04, size=3200, masks=tmp_path / "masks")
    assert other.described != source.described
    assert "masks" not in descriptor_source("rootsift", 500, contrast=0.04, size=3200).described


def test_masks_inside_the_folder_are_not_photos(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "masks").rename(photos / "masks")
    out = tmp_path / "features.h5"
    assert main(["describe", str(photos), "-o", str(out), *WORDS, "--masks", str(photos / "masks")]) == 0
    assert set(names_in(out)) == {"a.png", "sub/b.png", "c.png"}


def test_bad_masks(photos: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "empty").mkdir()
    for command, masks, shown in (
        ("describe", "none", "none does not exist"),
        ("match", "empty", "the mask of a.png is called a.png.png"),
        ("reconstruct", "empty", "the mask of a.png is called a.png.png"),
    ):
        out = tmp_path / "out" / ("x.h5" if command != "reconstruct" else "model")
        assert main([command, str(photos), "-o", str(out), *WORDS, "--masks", str(tmp_path / masks)]) == 2
        assert shown in capsys.readouterr().err and not (tmp_path / "out").exists()
    given = ["--masks", str(tmp_path / "masks"), "--keypoints-from", str(photos / "a.png")]
    assert main(["describe", str(photos / "a.png"), "-o", str(tmp_path / "x.h5"), *WORDS, *given]) == 2
    assert "--masks" in capsys.readouterr().err
    write_image(tmp_path / "masks/a.png.png", np.zeros((9, 9), np.uint8))
    with pytest.raises(InputError, match=r"a\.png\.png has 9 x 9 pixels"):
        read_mask(tmp_path / "masks", "a.png", SIZE)

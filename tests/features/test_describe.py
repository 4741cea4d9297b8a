"""Describing one image, and a collection from Python."""

import threading
from pathlib import Path

import numpy as np
import pytest

from sdgmnet.descriptors import describe, load_descriptor
from sdgmnet.errors import InputError
from sdgmnet.features.collection import DescribeOptions, MatchOptions, describe_images, match_pairs
from sdgmnet.features.describe import StageTimer, describe_located, locate, overlapped, rescale
from sdgmnet.features.h5 import read_features, read_matches
from sdgmnet.features.images import find_images
from sdgmnet.features.match import match
from tests.features.samples import blob_image, keypoints_at, noise_image, write_image


def test_keypoints_of_a_resized_image_are_in_pixels_of_the_original() -> None:
    """The image's corners stay its corners, with pixel centres at integers; a blob is where it was."""
    moved = rescale(keypoints_at([[-0.5, -0.5], [299.5, 199.5]]), (300, 200), (150, 100))
    np.testing.assert_allclose(moved.xy, [[-0.5, -0.5], [149.5, 99.5]])
    np.testing.assert_allclose(moved.sigma, 0.5)
    centre = np.array([100.25, 90.75])
    for size in (180, 90):
        found = describe(blob_image(centre, 12, 255, 0), descriptor="rootsift", size=size, limit=1).keypoints
        np.testing.assert_allclose(found.xy[0], centre, atol=0.15)
        np.testing.assert_allclose(found.sigma[0], 12, rtol=0.15)


@pytest.mark.parametrize(("spec", "stages"), [("sdgmnet", {"cutting patches", "describing"}), ("sift", {"describing"})])
def test_a_timer_gets_every_stage_and_changes_nothing(spec: str, stages: set[str]) -> None:
    timer, image, descriptor = StageTimer(), noise_image(200, 180), load_descriptor(spec)
    timed = [describe_located(locate(image, limit=20, timer=timer), descriptor, timer) for _ in range(2)]
    assert set(timer.seconds) == {"reading", "finding keypoints"} | stages and min(timer.seconds.values()) >= 0
    np.testing.assert_array_equal(timed[1].descriptors, describe(image, descriptor=spec, limit=20).descriptors)


def test_images_are_described_while_the_next_is_read() -> None:
    """In order, at most one ahead, each half in its own thread; errors belong to their image."""
    prepared: list[int] = []
    here = threading.get_ident()

    def prepare(number: int) -> int:
        assert threading.get_ident() == here
        prepared.append(number)
        return 10 // (number - 1)

    def finish(value: int) -> float:
        assert threading.get_ident() != here
        return 10 / (value - 5)

    outcomes = []
    for number, future in overlapped(range(5), prepare, finish):
        assert prepared == list(range(min(number + 2, 5)))
        try:
            outcomes.append(future.result())
        except ZeroDivisionError as error:
            outcomes.append(str(error))
    assert outcomes == [10 / -15, "integer division or modulo by zero", 2.0, "division by zero", 10 / -2]


@pytest.mark.parametrize(("wrong", "said"), [({"limit": 0}, "limit must be at least 1"), ({"size": 0}, "size must be")])
def test_no_keypoints_cannot_be_asked_for(wrong: dict[str, int], said: str) -> None:
    with pytest.raises(InputError, match=said):
        describe(noise_image(200, 180), descriptor="rootsift", **wrong)


def test_a_file_that_does_not_exist_is_not_to_be_replaced(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothere\.jpg does not exist: give an image file\.$"):
        describe(tmp_path / "nothere.jpg", descriptor="rootsift")
    with pytest.raises(InputError, match="is a folder: give an image file"):
        describe(tmp_path, descriptor="rootsift")


def test_a_collection_from_python(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(2):
        write_image(tmp_path / f"{number}.png", noise_image()[:, 40 * number : 40 * number + 300])
    (tmp_path / "broken.png").write_text("text")
    features, matches, skipped = tmp_path / "f.h5", tmp_path / "m.h5", []
    images, descriptor = find_images([tmp_path]), load_descriptor("rootsift")
    outcome = describe_images(features, images, descriptor, DescribeOptions(limit=50), on_skipped=skipped.append)
    assert outcome.names == {"0.png", "1.png"} and len(skipped) == 1 and "broken.png" in skipped[0]
    match_pairs(matches, features, [("0.png", "1.png")], MatchOptions(ratio=0.9))
    wanted = match(read_features(features, "0.png"), read_features(features, "1.png"), ratio=0.9)
    np.testing.assert_array_equal(read_matches(matches, "0.png", "1.png")[0], wanted.pairs)
    assert len(wanted.pairs) > 10
    assert capsys.readouterr() == ("", "")  # a library prints nothing
    with pytest.raises(InputError, match="limit"):
        DescribeOptions(limit=0)

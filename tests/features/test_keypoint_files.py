from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sdgmnet.errors import InputError
from sdgmnet.features.h5_store import open_store
from sdgmnet.features.keypoint_files import read_keypoints, require_inside


def test_text_npz_and_h5_give_the_same(tmp_path: Path) -> None:
    (tmp_path / "points.txt").write_text("# x y sigma angle\n1 2.5 3 90\n\n4, 5, 6, -45  # the second\n")
    arrays = {"keypoints": np.array([[1, 2.5], [4, 5]]), "scales": np.array([3, 6]), "oris": np.array([90, -45])}
    np.savez(tmp_path / "points.npz", **arrays)
    with open_store(tmp_path / "points.h5", "features") as store:
        store.add("dir/a.jpg", arrays)
    for name in ("points.txt", "points.npz", "points.h5"):
        found = read_keypoints(tmp_path / name, "dir/a.jpg")
        np.testing.assert_array_equal(found.xy, [[1, 2.5], [4, 5]])
        np.testing.assert_array_equal(found.sigma, [3, 6])
        np.testing.assert_allclose(found.angle, [np.pi / 2, -np.pi / 4])
        np.testing.assert_array_equal(found.response, 1)
    with pytest.raises(InputError, match="points.h5 has no keypoints of b.jpg"):
        read_keypoints(tmp_path / "points.h5", "b.jpg")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1 2\n", "line 1: 2 columns"),
        ("1 2 3 4 5 6\n", "line 1: 6 columns"),
        ("# x y sigma\n1 2 3\n\n1 2\n", "line 4: 2 columns, but line 2 has 3"),
        ("1 2 3\none two three\n", "line 2: not numbers"),
        ("1 2 3\n\n1 2 0\n", "line 3: sigma must be positive, not 0"),
        ("1 2 3\n1 nan 3\n", "line 2: NaN"),
        ("1 2 inf\n", "line 1: .*infinite"),
        ("# x y sigma\n\n", "holds no keypoints"),
    ],
)
def test_bad_tables_are_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "points.txt").write_text(text)
    with pytest.raises(InputError, match=f"points.txt.*{said}"):
        read_keypoints(tmp_path / "points.txt", "a.jpg")


@pytest.mark.parametrize(("suffix", "place"), [(".txt", "line 3"), (".npz", "keypoint 1"), (".h5", "keypoint 1")])
def test_keypoints_outside_of_the_image_are_refused(suffix: str, place: str, tmp_path: Path) -> None:
    path, arrays = tmp_path / f"points{suffix}", {"keypoints": np.array([[1, 2], [8, 5]]), "scales": np.ones(2)}
    if suffix == ".h5":
        with open_store(path, "features") as store:
            store.add("a.jpg", arrays)
    elif suffix == ".npz":
        np.savez(path, **arrays)
    else:
        path.write_text("1 2 1\n\n8 5 1\n")
    keypoints = read_keypoints(path, "a.jpg")
    require_inside(keypoints, path, Path("a.jpg"), (8, 6))
    with pytest.raises(InputError, match=rf"points{suffix}, {place}: .*\(8, 5\) .* a.jpg.* 7 x 6 pixels"):
        require_inside(keypoints, path, Path("a.jpg"), (7, 6))


@pytest.mark.parametrize(
    "content",
    [None, b"not an archive", {"keypoints": np.zeros((3, 2))}, {"keypoints": np.zeros((3, 2)), "scales": np.ones(2)}],
    ids=["missing", "bytes", "no scales", "uneven"],
)
def test_bad_npz_files_are_named(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "bad.npz"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content:
        np.savez(path, **content)
    with pytest.raises(InputError, match="bad.npz"):
        read_keypoints(path, "")

"""`sdgmnet match`."""

import json
import os
from itertools import combinations
from pathlib import Path

import cv2
import h5py
import numpy as np
import pytest

from sdgmnet.cli import main
from sdgmnet.descriptors import describe
from sdgmnet.features.h5 import names_in, read_features, read_matches
from sdgmnet.features.match import match
from tests.features.samples import noise_image, write_image

ROOTSIFT = ["--descriptor", "rootsift"]
NAMES = [f"sub/{number}.png" for number in range(4)]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def turned(tmp_path: Path) -> list[Path]:
    """An image and the same turned by a quarter, which is a homography."""
    first = noise_image(400, 300, 1)
    turned = cv2.rotate(first, cv2.ROTATE_90_CLOCKWISE)
    return [write_image(tmp_path / name, image) for name, image in (("a.png", first), ("b.png", turned))]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, name in enumerate(NAMES):
        write_image(tmp_path / "photos" / name, noise_image(260, 200, 1)[:, 20 * number : 20 * number + 180])
    return tmp_path / "photos"


def run(command: str, *words: str | Path) -> int:
    return main([command, *map(str, words)])


def test_two_images_give_counts_times_and_a_drawing(turned: list[Path], tmp_path: Path, capsys: Capture) -> None:
    words = ["match", *turned, "-o", tmp_path / "m.png", "--verify", "homography", *ROOTSIFT]
    assert run(*words) == 0
    shown = capsys.readouterr().out
    assert "inliers of the homography" in shown and "matching" in shown and "drawing" in shown
    assert "keypoints in the second image" in shown
    drawn = cv2.imread(str(tmp_path / "m.png"))
    assert drawn.shape[0] > 300 and (np.ptp(drawn.astype(int), axis=2) > 40).mean() > 0.005  # coloured lines
    assert run(*words, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["counts"]["inliers"] > 0.9 * result["counts"]["matches"] > 20
    assert set(result["counts"]) == {"keypoints_first", "keypoints_second", "matches", "inliers"}
    matrix = np.array(result["matrix"])
    np.testing.assert_allclose(matrix / matrix[2, 2], [[0, -1, 299], [1, 0, 0], [0, 0, 1]], atol=0.1)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--no-mutual"],
        ["--ratio", "0.8"],
        ["--ratio", "none"],
        ["--no-mutual", "--ratio", "none"],
        ["--matcher", "fginn"],
        ["--matcher", "adalam", "--no-mutual", "--ratio", "none"],
    ],
)
def test_matches_are_those_of_python(turned: list[Path], words: list[str], capsys: Capture) -> None:
    first, second = (describe(path, descriptor="rootsift", limit=400) for path in turned)
    ratio = {"ratio": {"none": None, "0.8": 0.8}[words[-1]]} if "--ratio" in words else {}
    matcher = words[1] if "--matcher" in words else "nearest"
    wanted = match(first, second, mutual="--no-mutual" not in words, matcher=matcher, **ratio)
    assert run("match", *turned, *words, *ROOTSIFT, "--keypoints", "400", "--json") == 0  # AdaLAM of all takes 5 GB
    result = json.loads(capsys.readouterr().out)
    assert result["counts"]["matches"] == len(wanted.pairs)
    assert result["counts"]["inliers"] is None and "verifying" not in result["seconds"]


@pytest.mark.parametrize("name", ["flat.png", "a_$_b$.png", "10$%.png", os.fsdecode(b"caf\xe9.png")])
def test_flat_images_and_odd_names_are_drawn(name: str, tmp_path: Path, capsys: Capture) -> None:
    pixels = np.full((50, 70), 99, np.uint8) if name == "flat.png" else noise_image(160, 120)
    path = write_image(tmp_path / name, pixels)
    assert run("match", path, path, "-o", tmp_path / "m.jpg", "--verify", "fundamental", *ROOTSIFT) == 0
    assert (tmp_path / "m.jpg").exists()
    assert ("flat.png has no keypoints" in capsys.readouterr().err) == (name == "flat.png")


def test_a_folder_gives_hlocs_two_files(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out/matches.h5"
    words = ["match", folder, "-o", out, "--ratio", "0.9", *ROOTSIFT]
    assert run(*words) == 0
    assert sorted(one.name for one in out.parent.iterdir()) == ["features.h5", "matches.h5", "matches_pairs.txt"]
    listed = [tuple(line.split()) for line in (out.parent / "matches_pairs.txt").read_text().splitlines()]
    assert listed == list(combinations(NAMES, 2))
    assert sorted(names_in(out, "matches")) == [f"sub-{i}.png/sub-{j}.png" for i, j in combinations(range(4), 2)]
    first, second = (read_features(out.with_name("features.h5"), name) for name in NAMES[1:3])
    pairs, _ = read_matches(out, NAMES[1], NAMES[2])
    np.testing.assert_array_equal(pairs, match(first, second, ratio=0.9).pairs)
    moved = first.keypoints.xy[pairs[:, 0]] - second.keypoints.xy[pairs[:, 1]]
    np.testing.assert_allclose(np.median(moved, axis=0), [20, 0], atol=0.2)
    stamp = out.stat().st_mtime_ns
    assert run(*words) == 0 and out.stat().st_mtime_ns == stamp
    assert "0 pairs matched" in capsys.readouterr().out
    assert run(*words, "--verify", "homography") == 2
    assert "matches.h5 was made with verify none (now homography): choose another -o" in capsys.readouterr().err
    assert run(*words, "--verify", "homography", "--overwrite") == 0
    assert 10 < len(read_matches(out, NAMES[1], NAMES[2])[0]) <= len(pairs)


def test_a_folder_by_another_matcher(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    """The default is not recorded: files of versions without matchers are continued."""
    out = tmp_path / "matches.h5"
    words = ["match", folder, "-o", out, *ROOTSIFT]
    assert run(*words) == 0
    with h5py.File(out) as file:
        assert "matcher" not in " ".join(map(str, file.attrs.values()))
    assert run(*words, "--matcher", "adalam") == 2
    assert "matches.h5 was made with matcher none (now adalam)" in capsys.readouterr().err
    assert run(*words, "--matcher", "adalam", "--overwrite") == 0
    first, second = (read_features(tmp_path / "features.h5", name) for name in NAMES[:2])
    wanted = match(first, second, matcher="adalam").pairs
    np.testing.assert_array_equal(read_matches(out, NAMES[0], NAMES[1])[0], wanted)
    assert len(wanted) and run(*words, "--matcher", "adalam") == 0


def test_a_list_of_pairs(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    listed, out = tmp_path / "pairs.txt", tmp_path / "matches.h5"
    listed.write_text("sub/0.png sub/2.png\nsub/2.png sub/0.png\n\nsub/3.png sub/1.png\n")
    words = ["match", folder, "-o", out, "--pairs", listed, "--features", tmp_path / "mine.h5", *ROOTSIFT]
    assert run(*words) == 0
    assert sorted(names_in(out, "matches")) == ["sub-0.png/sub-2.png", "sub-3.png/sub-1.png"]
    assert len(names_in(tmp_path / "mine.h5")) == 4
    for content, said in (
        (b"sub/0.png\n", "line 1"),
        (b"sub/0.png sub/0.png\n", "line 1"),
        (b"sub/0.png x.png\n", "x.png"),
        (b"", "pairs.txt"),
        (b"\xff\x00\x89PNG", "pairs.txt"),
    ):
        listed.write_bytes(content)
        assert run(*words) == 2
        assert said in capsys.readouterr().err


def test_pairs_by_retrieval_and_in_sequence(folder: Path, tmp_path: Path) -> None:
    """With a stranger, an image without keypoints, a copy, and one that cannot be read."""
    pytest.importorskip("faiss")
    write_image(folder / "z/flat.png", np.full((60, 60), 9, np.uint8))
    write_image(folder / "z/alone.png", noise_image(200, 150, 5))
    (folder / "z/copy.png").write_bytes((folder / NAMES[0]).read_bytes())
    (folder / "z/broken.jpg").write_text("text")
    words = ["match", folder, "--features", tmp_path / "features.h5", *ROOTSIFT, "-o"]
    assert run(*words, tmp_path / "r.h5", "--pairs", "retrieval", "--neighbours", "2") == 0
    pairs = {tuple(line.split()) for line in (tmp_path / "r_pairs.txt").read_text().splitlines()}
    assert {("sub/0.png", "sub/1.png"), ("sub/2.png", "sub/3.png"), ("sub/0.png", "z/copy.png")} <= pairs
    assert len(names_in(tmp_path / "r.h5", "matches")) == len(pairs) < 15
    assert not any("flat" in name or "broken" in name for pair in pairs for name in pair)
    assert run(*words, tmp_path / "s.h5", "--pairs", "sequential", "--neighbours", "1") == 0
    assert ("sub/0.png", "sub/1.png") in {
        tuple(line.split()) for line in (tmp_path / "s_pairs.txt").read_text().splitlines()
    }


def is_upright(features: Path) -> bool:
    with h5py.File(features) as file:
        return bool(json.loads(file.attrs["sdgmnet"])["upright"])


def test_upright_by_measurement(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    words = ["match", folder, "--auto-upright", *ROOTSIFT, "-o"]
    assert run(*words, tmp_path / "a/matches.h5") == 0
    assert "pairs have" in capsys.readouterr().err
    image = cv2.imread(str(folder / NAMES[1]), cv2.IMREAD_GRAYSCALE)
    (folder / NAMES[1]).write_bytes(cv2.imencode(".png", cv2.rotate(image, cv2.ROTATE_180))[1].tobytes())
    assert run(*words, tmp_path / "b/matches.h5") == 0
    assert [is_upright(tmp_path / name / "features.h5") for name in "ab"] == [True, False]
    capsys.readouterr()
    assert run(*words, tmp_path / "a/matches.h5", "--overwrite") == 0  # the features that are there are followed
    assert "pairs have" not in capsys.readouterr().err


def test_existing_features_are_taken_as_they_are(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    features = tmp_path / "features.h5"
    assert run("describe", folder, "-o", features, "--keypoints", "9", *ROOTSIFT) == 0
    assert run("match", folder, "-o", tmp_path / "matches.h5") == 0  # no word of how they were made
    assert len(read_matches(tmp_path / "matches.h5", NAMES[0], NAMES[1])[0]) <= 9
    write_image(folder / "new.png", noise_image(120, 100, 1))
    for words, said in (
        (["--descriptor", "sift"], "descriptor rootsift (now sift)"),
        (["--keypoints", "8"], "keypoints 9 (now 8)"),
        (["--upright"], "upright no (now yes)"),
        (["--size", "100"], "size 2400 (now 100)"),
        (["--as-stored"], "as stored no (now yes)"),
    ):
        assert run("match", folder, "-o", tmp_path / "other.h5", *words) == 2
        assert f"features.h5 was made with {said}: give the same options" in capsys.readouterr().err
    assert run("match", folder, "-o", tmp_path / "matches.h5", *ROOTSIFT) == 0
    assert len(names_in(tmp_path / "matches.h5", "matches")) == 10
    assert len(read_features(features, "new.png").keypoints.xy) <= 9  # described as the others were


def test_broken_images_and_names_with_spaces(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    (folder / "broken.jpg").write_text("text")
    (folder / NAMES[0]).rename(folder / "sub/0 0.png")
    features = tmp_path / "f.h5"
    assert run("describe", folder, "-o", features, "--as-stored", "--keypoints", "50", *ROOTSIFT) == 0
    assert run("match", folder, "-o", tmp_path / "m.h5", "--features", features, *ROOTSIFT) == 0
    assert len(names_in(tmp_path / "m.h5", "matches")) == 6
    assert "sub/0 0.png" in capsys.readouterr().out and not (tmp_path / "m_pairs.txt").exists()
    assert run("match", folder, "-o", tmp_path / "n.h5", "--features", features) == 0
    assert "lacks broken.jpg" in capsys.readouterr().err  # made by a descriptor that is not given


def test_features_of_other_programs_are_read_and_never_added_to(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    features, rng = tmp_path / "disk.h5", np.random.default_rng(0)
    with h5py.File(features, "w") as file:
        for name in NAMES[:3]:
            group = file.create_group(name)
            group["keypoints"], group["image_size"] = rng.uniform(0, 99, (20, 2)), np.array([180, 200])
            group["descriptors"] = rng.normal(size=(128, 20)).astype(np.float32)
    before = features.read_bytes()
    words = ["match", folder, "-o", tmp_path / "m.h5", "--features", features]
    assert run(*words) == 0
    assert "lacks sub/3.png" in capsys.readouterr().err
    assert len(names_in(tmp_path / "m.h5", "matches")) == 3
    assert run(*words, *ROOTSIFT) == 2
    assert "--descriptor" in capsys.readouterr().err
    assert run("describe", folder, "-o", features, *ROOTSIFT, "--overwrite") == 2
    assert "disk.h5 was not written by sdgmnet" in capsys.readouterr().err
    assert features.read_bytes() == before
    with h5py.File(features, "a") as file:
        file[f"{NAMES[0]}/keypoints"][...] = 1
    assert run(*words) == 2
    assert "m.h5 was made from features that changed since" in capsys.readouterr().err


def test_outdated_matches_are_refused_and_features_never_replaced(
    folder: Path, tmp_path: Path, capsys: Capture
) -> None:
    features = tmp_path / "features.h5"
    words = ["match", folder, "-o", tmp_path / "m.h5", *ROOTSIFT]
    assert run(*words) == 0
    write_image(folder / NAMES[0], noise_image(60, 60, 7))
    assert run("describe", folder, "-o", features, *ROOTSIFT, "--overwrite") == 0
    assert run(*words) == 2
    assert "m.h5 was made from features that changed since" in capsys.readouterr().err
    assert run(*words, "--overwrite") == 0
    count = len(read_features(features, NAMES[0]).keypoints.xy)
    assert read_matches(tmp_path / "m.h5", NAMES[0], NAMES[1])[0][:, 0].max(initial=0) < count
    assert run("match", folder, "-o", features, "--features", tmp_path / "g.h5", *ROOTSIFT, "--overwrite") == 2
    assert "features.h5 holds features" in capsys.readouterr().err
    assert len(names_in(features)) == 4

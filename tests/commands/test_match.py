"""`sdgmnet match`."""

import json
import os
from pathlib import Path

import cv2
import h5py
import numpy as np
import pytest

from sdgmnet.cli import main
from sdgmnet.descriptors import describe
from sdgmnet.features.h5 import names_in, read_features, read_matches
from sdgmnet.features.match import match
from tests.commands.test_describe import image, write

ROOTSIFT = ["--descriptor", "rootsift"]


@pytest.fixture
def turned(tmp_path: Path) -> list[str]:
    """An image and the same turned by a quarter, which is a homography."""
    first = image(1, (300, 400))
    paths = write(tmp_path / "a.png", first), write(tmp_path / "b.png", cv2.rotate(first, cv2.ROTATE_90_CLOCKWISE))
    return [str(path) for path in paths]


def test_two_images_give_counts_times_and_a_image(
    turned: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["match", *turned, "-o", str(tmp_path / "m.png"), "--verify", "homography", *ROOTSIFT]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "one homography explains" in shown and "matching" in shown and "drawing" in shown
    drawn = cv2.imread(str(tmp_path / "m.png"))
    assert drawn is not None and drawn.shape[0] > 300
    assert (np.ptp(drawn.astype(int), axis=2) > 40).mean() > 0.005  # coloured lines on grey images
    assert main([*words, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    found = result["counts"]["of these, one homography explains"]
    assert found > 0.9 * result["counts"]["matches"] > 20
    matrix = np.array(result["matrix"])
    np.testing.assert_allclose(matrix / matrix[2, 2], [[0, -1, 299], [1, 0, 0], [0, 0, 1]], atol=0.1)


@pytest.mark.parametrize("words", [[], ["--no-mutual"], ["--ratio", "0.8"], ["--no-mutual", "--ratio", "0.8"]])
def test_the_ways_of_matching_are_pythons(
    turned: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (describe(path, descriptor="rootsift") for path in turned)
    wanted = match(first, second, mutual="--no-mutual" not in words, ratio=0.8 if "--ratio" in words else None)
    assert main(["match", *turned, *words, *ROOTSIFT, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["counts"]["matches"] == len(wanted.pairs)


def test_nothing_to_match_is_a_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flat = write(tmp_path / "flat.png", np.full((50, 70), 99, np.uint8))
    words = ["match", str(flat), str(flat), "-o", str(tmp_path / "m.png"), "--verify", "fundamental", *ROOTSIFT]
    assert main(words) == 0
    assert (tmp_path / "m.png").exists()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(4):
        write(tmp_path / f"photos/sub/{number}.png", image(1, (200, 260))[:, 20 * number : 20 * number + 180])
    return tmp_path / "photos"


def test_a_folder_gives_hlocs_two_files(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out/matches.h5"
    words = ["match", str(folder), "-o", str(out), "--ratio", "0.9", *ROOTSIFT]
    assert main(words) == 0
    assert sorted(one.name for one in out.parent.iterdir()) == ["features.h5", "matches.h5", "matches_pairs.txt"]
    listed = (out.parent / "matches_pairs.txt").read_text().splitlines()
    assert len(listed) == 6 and listed[0] == "sub/0.png sub/1.png"
    names = [f"sub/{number}.png" for number in range(4)]
    assert sorted(names_in(out, "matches")) == [f"sub-{i}.png/sub-{j}.png" for i in range(4) for j in range(i + 1, 4)]
    first, second = (read_features(out.with_name("features.h5"), name) for name in names[1:3])
    pairs, _ = read_matches(out, names[1], names[2])
    np.testing.assert_array_equal(pairs, match(first, second, ratio=0.9).pairs)
    moved = first.keypoints.xy[pairs[:, 0]] - second.keypoints.xy[pairs[:, 1]]
    np.testing.assert_allclose(np.median(moved, axis=0), [20, 0], atol=0.2)
    capsys.readouterr()
    stamp = out.stat().st_mtime_ns
    assert main(words) == 0
    assert "0 pairs matched" in capsys.readouterr().out
    assert out.stat().st_mtime_ns == stamp
    assert main([*words, "--verify", "homography"]) == 2
    assert "matches.h5 was made with other options" in capsys.readouterr().err
    assert main([*words, "--verify", "homography", "--overwrite"]) == 0
    verified, _ = read_matches(out, names[1], names[2])
    assert 10 < len(verified) <= len(pairs)


def test_a_list_of_pairs(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pairs.txt").write_text("sub/0.png sub/2.png\nsub/2.png sub/0.png\n\nsub/3.png sub/1.png\n")
    out = tmp_path / "matches.h5"
    words = ["match", str(folder), "-o", str(out), "--pairs", str(tmp_path / "pairs.txt"), *ROOTSIFT]
    assert main([*words, "--features", str(tmp_path / "mine.h5")]) == 0
    assert sorted(names_in(out, "matches")) == ["sub-0.png/sub-2.png", "sub-3.png/sub-1.png"]
    assert len(names_in(tmp_path / "mine.h5")) == 4
    for text, said in (("sub/0.png\n", "line 1"), ("sub/0.png x.png\n", "named x.png"), ("", "no pairs")):
        (tmp_path / "pairs.txt").write_text(text)
        assert main(words) == 2
        assert said in capsys.readouterr().err


def test_features_that_are_there_are_taken_as_they_are(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    features = tmp_path / "features.h5"
    assert main(["describe", str(folder), "-o", str(features), "--limit", "9", *ROOTSIFT]) == 0
    assert main(["match", str(folder), "-o", str(tmp_path / "matches.h5")]) == 0  # no word of how they were made
    assert len(read_matches(tmp_path / "matches.h5", "sub/0.png", "sub/1.png")[0]) <= 9
    write(folder / "new.png", image(1, (100, 120)))
    for words in (["--descriptor", "sift"], ["--limit", "8"], ["--upright"], ["--size", "100"], ["--as-stored"]):
        assert main(["match", str(folder), "-o", str(tmp_path / "other.h5"), *words]) == 2
        assert "features.h5 was made with other options" in capsys.readouterr().err
    assert main(["match", str(folder), "-o", str(tmp_path / "matches.h5"), *ROOTSIFT]) == 0
    assert len(names_in(tmp_path / "matches.h5", "matches")) == 10
    assert len(read_features(features, "new.png").keypoints.xy) <= 9  # described as the others were


def test_a_broken_image_does_not_stop_the_two_steps(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "broken.jpg").write_text("text")
    features = str(tmp_path / "f.h5")
    assert main(["describe", str(folder), "-o", features, "--as-stored", "--limit", "50", *ROOTSIFT]) == 0
    assert main(["match", str(folder), "-o", str(tmp_path / "m.h5"), "--features", features, *ROOTSIFT]) == 0
    assert len(names_in(tmp_path / "m.h5", "matches")) == 6
    capsys.readouterr()
    assert main(["match", str(folder), "-o", str(tmp_path / "n.h5"), "--features", features]) == 0
    assert "lacks broken.jpg" in capsys.readouterr().err  # by a descriptor that is not at hand


def test_names_with_spaces_have_no_list(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "sub/0.png").rename(folder / "sub/0 0.png")
    assert main(["match", str(folder), "-o", str(tmp_path / "m.h5"), *ROOTSIFT]) == 0
    assert "sub/0 0.png" in capsys.readouterr().out
    assert not (tmp_path / "m_pairs.txt").exists()


def test_somebody_elses_features_are_read_and_never_added_to(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    features, rng = tmp_path / "disk.h5", np.random.default_rng(0)
    with h5py.File(features, "w") as file:
        for number in range(3):  # and none of the fourth image
            group = file.create_group(f"sub/{number}.png")
            group["keypoints"], group["image_size"] = rng.uniform(0, 99, (20, 2)), np.array([180, 200])
            group["descriptors"] = rng.normal(size=(128, 20)).astype(np.float32)
    before = features.read_bytes()
    words = ["match", str(folder), "-o", str(tmp_path / "m.h5"), "--features", str(features)]
    assert main(words) == 0
    assert "lacks sub/3.png" in capsys.readouterr().err
    assert len(names_in(tmp_path / "m.h5", "matches")) == 3
    assert main([*words, *ROOTSIFT]) == 2
    assert "--descriptor" in capsys.readouterr().err
    assert main(["describe", str(folder), "-o", str(features), *ROOTSIFT, "--overwrite"]) == 2
    assert "disk.h5 was not written by sdgmnet" in capsys.readouterr().err
    assert features.read_bytes() == before
    with h5py.File(features, "a") as file:
        file["sub/0.png/keypoints"][...] = 1
    assert main(words) == 2  # those matches are of other features
    assert "m.h5 was made from features that changed since" in capsys.readouterr().err


def test_matches_of_features_that_are_gone_are_not_kept(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["match", str(folder), "-o", str(tmp_path / "m.h5"), *ROOTSIFT]
    assert main(words) == 0
    write(folder / "sub/0.png", image(7, (60, 60)))
    assert main(["describe", str(folder), "-o", str(tmp_path / "features.h5"), *ROOTSIFT, "--overwrite"]) == 0
    assert main(words) == 2
    assert "m.h5 was made from features that changed since" in capsys.readouterr().err
    assert main([*words, "--overwrite"]) == 0
    count = len(read_features(tmp_path / "features.h5", "sub/0.png").keypoints.xy)
    assert read_matches(tmp_path / "m.h5", "sub/0.png", "sub/1.png")[0][:, 0].max(initial=0) < count


def test_a_file_of_features_does_not_become_one_of_matches(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "f.h5")
    assert main(["describe", str(folder), "-o", out, *ROOTSIFT]) == 0
    words = ["match", str(folder), "-o", out, "--features", str(tmp_path / "g.h5"), *ROOTSIFT, "--overwrite"]
    assert main(words) == 2
    assert "holds features, not matches" in capsys.readouterr().err
    assert len(names_in(tmp_path / "f.h5")) == 4


@pytest.mark.parametrize("name", ["a_$_b$.png", "10$%.png", os.fsdecode(b"caf\xe9.png")])
def test_odd_names_are_drawn(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(cv2.imencode(".png", image(1))[1].tobytes())
    assert main(["match", str(path), str(path), "-o", str(tmp_path / "m.png"), *ROOTSIFT]) == 0
    assert (tmp_path / "m.png").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["{tmp}/a.png"], "give two images, or one folder"),
        (["{tmp}/a.png", "{tmp}/none.png"], "none.png does not exist"),
        (["{tmp}/a.png", "{tmp}/b.png", "-o", "{tmp}/m.jpg"], "ends in .png"),
        (["{tmp}/a.png", "{tmp}/text.jpg"], "text.jpg is not a supported image"),
        (["{tmp}/a.png", "{tmp}/b.png", "--ratio", "2"], "ratio must be in"),
        (["{tmp}/a.png", "{tmp}/b.png", "--tolerance", "0", "--verify", "homography"], "tolerance must be"),
        (["{tmp}/a.png", "{tmp}/b.png", "--tolerance", "2"], "tolerance needs"),
        (["{tmp}/a.png", "{tmp}/b.png", "--size", "0"], "size must be at least 16"),
        (["{tmp}", "-o", "{tmp}/m.h5", "--json"], "--json"),
        (["{tmp}/a.png", "{tmp}/b.png", "--pairs", "{tmp}/p.txt"], "--pairs"),
        (["{tmp}", "-o", "{tmp}/m.png"], "-o matches.h5"),
        (["{tmp}", "-o", "{tmp}/m.h5", "--features", "{tmp}/m.h5"], "cannot hold both"),
    ],
)
def test_bad_words_are_one_sentence(
    turned: list[str], words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.jpg").write_text("text")
    assert main(["match", *(word.replace("{tmp}", str(tmp_path)) for word in words), *ROOTSIFT]) == 2
    assert said in capsys.readouterr().err

"""`sdgmnet describe`."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import cv2
import h5py
import numpy as np
import pytest
import torch

from sdgmnet.cli import main
from sdgmnet.descriptors import describe
from sdgmnet.encoders import SDGMNet, save_encoder
from sdgmnet.features.h5 import names_in, read_features
from sdgmnet.features.h5_store import parts_folder


def image(seed: int = 0, size: tuple[int, int] = (120, 160)) -> np.ndarray:
    noise = np.random.default_rng(seed).uniform(0, 255, size).astype(np.float32)
    return cv2.normalize(cv2.GaussianBlur(noise, None, 2.5), None, 0, 255, cv2.NORM_MINMAX).astype(np.uint8)


def write(path: Path, pixels: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(cv2.imencode(path.suffix, pixels)[1].tobytes())
    return path


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for number, name in enumerate(("a.png", "sub/b.png", "sub/größe c.png")):
        write(tmp_path / "photos" / name, image(number))
    return tmp_path / "photos"


def run(*words: str | Path) -> int:
    return main(["describe", *map(str, words), "--descriptor", "rootsift"])


def test_a_folder_becomes_a_file_of_features(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out/features.h5"
    assert run(photos, "-o", out) == 0
    assert sorted(names_in(out)) == ["a.png", "sub/b.png", "sub/größe c.png"]
    wanted = describe(photos / "sub/b.png", descriptor="rootsift")
    found = read_features(out, "sub/b.png")
    assert len(found.keypoints.xy) > 20
    np.testing.assert_allclose(found.keypoints.xy, wanted.keypoints.xy, atol=1e-4)
    np.testing.assert_array_equal(found.descriptors, wanted.descriptors)
    assert found.size == (160, 120)
    assert "3 images described" in capsys.readouterr().out
    assert [one.name for one in out.parent.iterdir()] == ["features.h5"]


def test_what_is_finished_is_not_done_again(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "features.h5"
    assert run(photos / "a.png", "-o", out) == 0
    before = read_features(out, "a.png")
    write(photos / "a.png", image(9))
    assert run(photos, "-o", out) == 0
    assert "2 images described" in capsys.readouterr().out
    np.testing.assert_array_equal(read_features(out, "a.png").descriptors, before.descriptors)
    stamp = out.stat().st_mtime_ns
    assert run(photos, "-o", out) == 0
    assert out.stat().st_mtime_ns == stamp
    assert run(photos, "-o", out, "--overwrite") == 0
    assert len(read_features(out, "a.png").descriptors) != len(before.descriptors)
    assert run(photos, "-o", out, "--limit", "5") == 2
    assert "features.h5 was made with other options" in capsys.readouterr().err
    kept = out.read_bytes()
    words = ["describe", str(photos), "-o", str(out), "--overwrite", "--descriptor"]
    assert main([*words, str(tmp_path / "typo")]) == 2  # and nothing is lost by it
    assert out.read_bytes() == kept
    assert run(photos, "-o", out, "--limit", "5", "--overwrite") == 0
    assert all(len(read_features(out, name).keypoints.xy) == 5 for name in names_in(out))


def test_options_reach_the_features(photos: Path, tmp_path: Path) -> None:
    assert run(photos / "a.png", "-o", tmp_path / "u.h5", "--upright", "--limit", "7") == 0
    found = read_features(tmp_path / "u.h5", "a.png")
    np.testing.assert_array_equal(found.keypoints.angle, 0)
    assert len(np.unique(found.keypoints.xy, axis=0)) == 7
    all_of_it = describe(photos / "a.png", descriptor="rootsift")
    places, first = np.unique(all_of_it.keypoints.xy, axis=0, return_index=True)
    assert len(places) < len(all_of_it.keypoints.xy)  # some have several orientations, of which one is left
    np.testing.assert_allclose(found.keypoints.xy, all_of_it.keypoints.xy[np.sort(first)[:7]], rtol=1e-6)
    assert run(photos / "a.png", "-o", tmp_path / "s.h5", "--size", "80") == 0
    small = read_features(tmp_path / "s.h5", "a.png")
    assert small.size == (160, 120)
    assert 0 < len(small.keypoints.xy) < len(all_of_it.keypoints.xy)
    assert small.keypoints.xy.max() > 100


def test_own_keypoints_and_own_weights(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_encoder(SDGMNet().eval(), tmp_path / "mine.safetensors", {})
    (tmp_path / "points.txt").write_text("80 60 4 30\n40 50 3 0\n")
    words = ["describe", str(photos / "a.png"), "--keypoints", str(tmp_path / "points.txt")]
    words += ["--descriptor", str(tmp_path / "mine.safetensors")]
    assert main([*words, "-o", str(tmp_path / "own.h5")]) == 0
    found = read_features(tmp_path / "own.h5", "a.png")
    np.testing.assert_allclose(found.keypoints.xy, [[80, 60], [40, 50]])
    np.testing.assert_allclose(np.rad2deg(found.keypoints.angle), [30, 0], atol=1e-4)
    assert found.descriptors.shape == (2, 128)
    assert main([*words, "-o", str(tmp_path / "own.h5"), "--limit", "1"]) == 2
    assert "--limit" in capsys.readouterr().err
    torch.manual_seed(1)
    save_encoder(SDGMNet().eval(), tmp_path / "mine.safetensors", {})
    assert main([*words, "-o", str(tmp_path / "own.h5")]) == 2  # other weights by the same name
    assert "own.h5" in capsys.readouterr().err
    (tmp_path / "huge.txt").write_text("80 60 1000\n")
    assert run(photos / "a.png", "--keypoints", tmp_path / "huge.txt", "-o", tmp_path / "huge.h5") == 0
    assert run(photos, "--keypoints", tmp_path / "points.txt", "-o", tmp_path / "x.h5") == 2
    assert "points.txt" in capsys.readouterr().err
    assert run(photos / "a.png", "--keypoints", tmp_path / "own.h5", "-o", tmp_path / "own.h5", "--overwrite") == 2
    assert "own.h5" in capsys.readouterr().err
    assert run(photos / "a.png", "--keypoints", tmp_path / "own.h5", "-o", tmp_path / "again.h5") == 0
    np.testing.assert_allclose(read_features(tmp_path / "again.h5", "a.png").keypoints.xy, [[80, 60], [40, 50]])


def cmyk_jpeg() -> bytes:
    pillow = pytest.importorskip("PIL.Image")
    import io

    inks = np.stack([image(1), image(2), image(3), image(4) // 3], axis=2)
    coded = io.BytesIO()
    pillow.fromarray(inks, mode="CMYK").save(coded, format="JPEG", quality=95)
    return coded.getvalue()


def test_odd_images_are_results(tmp_path: Path) -> None:
    folder = tmp_path / "odd"
    write(folder / "flat.png", np.full((100, 100), 128, np.uint8))
    write(folder / "dot.png", np.full((1, 1), 200, np.uint8))
    write(folder / "row.png", image(5, (1, 300)))
    write(folder / "deep.png", image(6).astype(np.uint16) * 257)
    write(folder / "twelve.png", image(6).astype(np.uint16) * 16)
    write(folder / "shallow.png", image(6))
    (folder / "inks.jpg").write_bytes(cmyk_jpeg())
    assert run(folder, "-o", tmp_path / "odd.h5") == 0
    counts = {
        name: len(read_features(tmp_path / "odd.h5", name).keypoints.xy) for name in names_in(tmp_path / "odd.h5")
    }
    assert set(counts) == {"flat.png", "dot.png", "row.png", "deep.png", "twelve.png", "shallow.png", "inks.jpg"}
    assert counts["flat.png"] == counts["dot.png"] == 0
    assert counts["deep.png"] == counts["twelve.png"] == counts["shallow.png"] > 20
    assert counts["inks.jpg"] > 20
    with h5py.File(tmp_path / "odd.h5") as file:
        assert file["flat.png/descriptors"].shape == (128, 0)


def test_broken_images_are_told_and_the_others_described(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (photos / "text.jpg").write_text("not an image at all")
    (photos / "zero.png").write_bytes(b"")
    assert run(photos, "-o", tmp_path / "f.h5") == 0
    shown = capsys.readouterr()
    assert "text.jpg is not a supported image" in shown.err
    assert "zero.png is empty" in shown.err
    assert "Traceback" not in shown.err
    assert "3 images described" in shown.out and "2 skipped" in shown.out
    assert len(names_in(tmp_path / "f.h5")) == 3
    assert run(photos / "text.jpg", photos / "zero.png", "-o", tmp_path / "none.h5") == 2
    assert "no image could be described" in capsys.readouterr().err
    assert not (tmp_path / "none.h5").exists() and not parts_folder(tmp_path / "none.h5").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["{tmp}/empty"], "holds no images"),
        (["{tmp}/nowhere"], "does not exist"),
        (["{tmp}/photos/a.png", "{tmp}/other/a.png"], "both named a.png"),
        (["{tmp}/photos", "--limit", "0"], "limit must be at least 1"),
        (["{tmp}/photos", "--size", "3"], "size must be at least 16"),
        ([], "give images"),
    ],
)
def test_bad_words_are_one_sentence(
    words: list[str], said: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    write(tmp_path / "other/a.png", image(4))
    assert run(*(word.replace("{tmp}", str(tmp_path)) for word in words), "-o", tmp_path / "f.h5") == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "f.h5").exists()


def test_killed_it_goes_on_where_it_was(tmp_path: Path) -> None:
    for number in range(12):
        write(tmp_path / f"photos/{number}.png", image(number, (240, 320)))
    out = tmp_path / "features.h5"
    command = [sys.executable, "-m", "sdgmnet", "describe", str(tmp_path / "photos"), "-o", str(out)]
    command += ["--descriptor", "rootsift"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        while len(list(parts_folder(out).glob("*.h5"))) < 3 and process.poll() is None:
            time.sleep(0.002)
        os.kill(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    kept = {path: path.read_bytes() for path in parts_folder(out).glob("*.h5")}
    finished = {*names_in(out), *(name for path in kept for name in names_in(path))}
    assert 3 <= len(finished) < 12
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"{12 - len(finished)} image" in done.stdout
    assert f"{len(finished)} in the file already" in done.stdout
    assert len(names_in(out)) == 12

"""`sdgmnet describe`."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch

from sdgmnet.cli import main
from sdgmnet.descriptors import describe
from sdgmnet.encoders import SDGMNet, save_encoder
from sdgmnet.features.h5 import names_in, read_features
from sdgmnet.features.h5_store import parts_folder
from tests.features.samples import noise_image, write_image

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for number, name in enumerate(("a.png", "sub/b.png", "sub/größe c.png")):
        write_image(tmp_path / "photos" / name, noise_image(160, 120, number))
    return tmp_path / "photos"


def run(*words: str | Path, descriptor: str | Path = "rootsift") -> int:
    return main(["describe", *map(str, words), "--descriptor", str(descriptor)])


def test_a_folder_becomes_a_file_of_features(photos: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out/features.h5"
    assert run(photos, "-o", out) == 0
    assert sorted(names_in(out)) == ["a.png", "sub/b.png", "sub/größe c.png"]
    wanted, found = describe(photos / "sub/b.png", descriptor="rootsift"), read_features(out, "sub/b.png")
    assert len(found.keypoints.xy) > 20 and found.size == (160, 120)
    np.testing.assert_allclose(found.keypoints.xy, wanted.keypoints.xy, atol=1e-4)
    np.testing.assert_array_equal(found.descriptors, wanted.descriptors)
    assert "3 images described" in capsys.readouterr().out
    assert [one.name for one in out.parent.iterdir()] == ["features.h5"]


def test_what_is_finished_is_not_done_again(photos: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "features.h5"
    assert run(photos / "a.png", "-o", out) == 0
    before = read_features(out, "a.png")
    write_image(photos / "a.png", noise_image(160, 120, 9))
    assert run(photos, "-o", out) == 0
    assert "2 images described" in capsys.readouterr().out
    np.testing.assert_array_equal(read_features(out, "a.png").descriptors, before.descriptors)
    stamp = out.stat().st_mtime_ns
    assert run(photos, "-o", out) == 0 and out.stat().st_mtime_ns == stamp
    assert run(photos, "-o", out, "--overwrite") == 0
    assert len(read_features(out, "a.png").descriptors) != len(before.descriptors)
    kept = out.read_bytes()
    assert run(photos, "-o", out, "--keypoints", "5") == 2
    assert "features.h5 was made with keypoints all (now 5)" in capsys.readouterr().err
    assert run(photos, "-o", out, "--overwrite", descriptor=tmp_path / "typo") == 2
    assert out.read_bytes() == kept
    assert run(photos, "-o", out, "--keypoints", "5", "--overwrite") == 0
    assert all(len(read_features(out, name).keypoints.xy) == 5 for name in names_in(out))


def test_options_reach_the_features(photos: Path, tmp_path: Path) -> None:
    assert run(photos / "a.png", "-o", tmp_path / "u.h5", "--upright", "--keypoints", "7") == 0
    found, everything = read_features(tmp_path / "u.h5", "a.png"), describe(photos / "a.png", descriptor="rootsift")
    places, first = np.unique(everything.keypoints.xy, axis=0, return_index=True)
    assert len(places) < len(everything.keypoints.xy)  # some have several orientations, of which one is left
    np.testing.assert_array_equal(found.keypoints.angle, 0)
    np.testing.assert_allclose(found.keypoints.xy, everything.keypoints.xy[np.sort(first)[:7]], rtol=1e-6)
    assert run(photos / "a.png", "-o", tmp_path / "s.h5", "--size", "80") == 0
    small = read_features(tmp_path / "s.h5", "a.png")
    assert small.size == (160, 120) and small.keypoints.xy.max() > 100
    assert 0 < len(small.keypoints.xy) < len(everything.keypoints.xy)


def test_own_keypoints_and_own_weights(photos: Path, tmp_path: Path, capsys: Capture) -> None:
    points, own, weights = (tmp_path / name for name in ("points.txt", "own.h5", "mine.safetensors"))
    one = [photos / "a.png", "--keypoints-from"]
    save_encoder(SDGMNet().eval(), weights, {})
    points.write_text("80 60 4 30\n40 50 3 0\n")
    outside = tmp_path / "outside.txt"
    outside.write_text("80 60 4\n160.5 9 3\n")
    assert run(*one, points, "-o", own, descriptor=weights) == 0
    found = read_features(own, "a.png")
    np.testing.assert_allclose(found.keypoints.xy, [[80, 60], [40, 50]])
    np.testing.assert_allclose(np.rad2deg(found.keypoints.angle), [30, 0], atol=1e-4)
    assert found.descriptors.shape == (2, 128)
    assert run(*one, own, "-o", tmp_path / "again.h5") == 0
    np.testing.assert_allclose(read_features(tmp_path / "again.h5", "a.png").keypoints.xy, [[80, 60], [40, 50]])
    (tmp_path / "huge.txt").write_text("80 60 1000\n")
    assert run(*one, tmp_path / "huge.txt", "-o", tmp_path / "huge.h5") == 0
    torch.manual_seed(1)
    save_encoder(SDGMNet().eval(), weights, {})
    for words, descriptor, said in (
        ([*one, points, "-o", own], weights, "own.h5"),  # other weights by the same name
        ([*one, points, "-o", own, "--keypoints", "1"], weights, "--keypoints"),
        ([photos, "--keypoints-from", points, "-o", tmp_path / "x.h5"], "rootsift", "points.txt"),
        ([*one, own, "-o", own, "--overwrite"], "rootsift", "own.h5"),
        (
            [*one, outside, "-o", tmp_path / "x.h5"],
            "rootsift",
            "outside.txt, line 2: the keypoint (160.5, 9) is outside",
        ),
        ([*one, tmp_path / "none.txt", "-o", tmp_path / "x.h5"], "rootsift", "--keypoints-from"),
    ):
        assert run(*words, descriptor=descriptor) == 2
        assert said in capsys.readouterr().err


def test_odd_images_are_described(tmp_path: Path, capsys: Capture) -> None:
    shallow = noise_image(160, 120, 6)
    odd = {"flat.png": np.full((100, 100), 128, np.uint8), "dot.png": np.full((1, 1), 200, np.uint8)}
    odd |= {"row.png": shallow[:1], "shallow.png": shallow}
    odd |= {"deep.png": shallow.astype(np.uint16) * 257, "twelve.png": shallow.astype(np.uint16) * 16}
    for name, pixels in odd.items():
        write_image(tmp_path / "odd" / name, pixels)
    pillow, coded = pytest.importorskip("PIL.Image"), io.BytesIO()
    pillow.fromarray(np.dstack([shallow] * 4), mode="CMYK").save(coded, format="JPEG", quality=95)
    (tmp_path / "odd/inks.jpg").write_bytes(coded.getvalue())
    out = tmp_path / "odd.h5"
    assert run(tmp_path / "odd", "-o", out) == 0
    counts = {name: len(read_features(out, name).keypoints.xy) for name in names_in(out)}
    assert set(counts) == {*odd, "inks.jpg"}
    assert counts["flat.png"] == counts["dot.png"] == 0 and counts["inks.jpg"] > 20
    assert counts["deep.png"] == counts["twelve.png"] == counts["shallow.png"] > 20
    assert read_features(out, "flat.png").descriptors.shape == (0, 128)
    remarks = capsys.readouterr().err
    assert "flat.png has no keypoints" in remarks and "deep.png" not in remarks


def test_broken_images_are_reported_and_the_others_described(photos: Path, tmp_path: Path, capsys: Capture) -> None:
    (photos / "text.jpg").write_text("not an image at all")
    (photos / "zero.png").write_bytes(b"")
    assert run(photos, "-o", tmp_path / "f.h5") == 0
    shown = capsys.readouterr()
    assert "text.jpg" in shown.err and "zero.png" in shown.err and "Traceback" not in shown.err
    assert "3 images described" in shown.out and "2 skipped" in shown.out
    assert len(names_in(tmp_path / "f.h5")) == 3
    assert run(photos / "text.jpg", photos / "zero.png", "-o", tmp_path / "none.h5") == 2
    remark = capsys.readouterr().err
    assert "none of the 2 files can be read" in remark and "zero.png is empty" in remark
    assert not (tmp_path / "none.h5").exists() and not parts_folder(tmp_path / "none.h5").exists()

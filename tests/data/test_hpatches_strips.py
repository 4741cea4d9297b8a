"""Sequences -> strips: that all sixteen show the same place, what is kept, and what is refused."""

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from sdgmnet.cli import main
from sdgmnet.data.hpatches import regions as strip_regions
from sdgmnet.data.hpatches import strips
from sdgmnet.data.hpatches.files import TYPES
from sdgmnet.data.hpatches.strips import StripOptions, make_strips
from sdgmnet.errors import InputError
from sdgmnet.plots.patches import draw_strips
from tests.data.samples import contents, names
from tests.features.samples import noise_image

HOMOGRAPHIES = (
    np.array([[0.95, 0.1, 8], [-0.08, 0.97, 14], [1e-4, 5e-5, 1.0]]),
    np.array([[0.8, -0.25, 60], [0.22, 0.85, -5], [-2e-4, 1e-4, 1.0]]),
    -np.array([[1.1, 0.0, -20], [0.05, 1.05, -18], [2e-4, -1e-4, 1.0]]),  # the same without the sign
    np.array([[0.6, 0.1, 30], [-0.1, 0.65, 40], [0, 0, 1.0]]),
    np.array([[0.7, 0.3, 10], [-0.2, 1.0, 30], [3e-4, 0, 1.0]]),
)
WIDTH, HEIGHT = 340, 300
FEW = StripOptions(patches=60)
AWAY = "1 0 9000\n0 1 0\n0 0 1\n"  # a homography that leads out of the image


def write_sequence(folder: Path, seed: int = 0, others: int = 5) -> Path:
    """A noisy plane seen in other ways, computed four times as fine and averaged."""
    folder.mkdir(parents=True)
    plane = noise_image(WIDTH, HEIGHT, seed)
    cv2.imwrite(str(folder / "1.png"), plane)
    finer = np.array([[4, 0, 1.5], [0, 4, 1.5], [0, 0, 1.0]])  # pixel centres are at integers before and after
    for number, homography in enumerate(HOMOGRAPHIES[:others], 2):
        size = (WIDTH * 4, HEIGHT * 4)
        view = cv2.warpPerspective(plane, finer @ homography, size, flags=cv2.INTER_CUBIC)
        cv2.imwrite(str(folder / f"{number}.png"), cv2.resize(view, (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA))
        np.savetxt(folder / f"H_1_{number}", homography)
    return folder


@pytest.fixture(scope="module")
def sequences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sequences")
    write_sequence(root / "v_noise", 0)
    write_sequence(root / "v_other", 1)
    return root


@pytest.fixture(scope="module")
def made(sequences: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("strips") / "out"
    make_strips(sequences, out, FEW)
    return out


def patches(out: Path, sequence: str, name: str) -> np.ndarray:
    strip = cv2.imread(str(out / sequence / f"{name}.png"), cv2.IMREAD_UNCHANGED)
    assert strip is not None and strip.dtype == np.uint8 and strip.ndim == 2 and strip.shape[1] == 65
    return strip.reshape(-1, 65, 65)


def correlation(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    flat = [images.reshape(len(images), -1).astype(np.float64) for images in (left, right)]
    flat = [rows - rows.mean(axis=1, keepdims=True) for rows in flat]
    return (flat[0] * flat[1]).sum(axis=1) / np.linalg.norm(flat[0], axis=1) / np.linalg.norm(flat[1], axis=1)


def test_undisturbed_patches_show_the_same_place(
    sequences: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    still = {noise: strip_regions.Jitter(0, 0, 0, 0) for noise in "eht"}
    monkeypatch.setattr(strip_regions, "JITTERS", still)
    monkeypatch.setattr(strips, "JITTERS", still)
    rows, _ = make_strips(sequences, tmp_path / "out", FEW, only=["v_noise"])
    assert rows[0]["median_overlap"] == pytest.approx({"e": 1, "h": 1, "t": 1}, abs=1e-3)
    reference = patches(tmp_path / "out", "v_noise", "ref")
    for name in TYPES[1:]:
        alike = correlation(reference, patches(tmp_path / "out", "v_noise", name))
        assert np.median(alike) >= 0.95, name
        assert alike.min() > 0.6, name
    assert np.median(correlation(reference, np.roll(reference, 1, axis=0))) < 0.3


def test_the_layout_is_the_official_one(made: Path) -> None:
    for sequence in ("v_noise", "v_other"):
        assert names(made / sequence) == sorted([*(f"{name}.png" for name in TYPES), "strips.json"])
        assert {len(patches(made, sequence, name)) for name in TYPES} == {60}
    assert {path.name for path in made.iterdir()} == {"v_noise", "v_other", "set.json"}


def test_disturbance_grows(made: Path) -> None:
    reference = patches(made, "v_noise", "ref")
    alike = {
        noise: np.median([correlation(reference, patches(made, "v_noise", f"{noise}{k}")) for k in range(1, 6)])
        for noise in "eht"
    }
    assert 0.98 > alike["e"] > alike["h"] + 0.05 and alike["h"] > alike["t"] + 0.05 and alike["t"] > 0.2
    summary = json.loads((made / "set.json").read_text())
    assert summary["median_overlap"] == pytest.approx({"e": 0.85, "h": 0.72, "t": 0.6}, abs=0.03)
    assert summary["settings"]["seed"] == 0 and summary["patches"] == 120
    assert set(summary["sequences"]["v_noise"]["sources"]) == {f"{k}.png" for k in range(1, 7)} | {
        f"H_1_{k}" for k in range(2, 7)
    }


def test_the_sheet_shows_strips(made: Path) -> None:
    draw_strips(made, ["v_noise", "v_other"])
    sheet = cv2.imread(str(made / "sheet.png"), cv2.IMREAD_UNCHANGED)
    (made / "sheet.png").unlink()
    assert sheet is not None and sheet.shape == (2 * (18 + 6 * 67), 16 * 67)
    first, last = patches(made, "v_noise", "ref")[0], patches(made, "v_other", "t5")[-1]
    assert np.array_equal(sheet[18 : 18 + 65, :65], first)
    assert np.array_equal(sheet[-67:-2, 15 * 67 : 15 * 67 + 65], last)


def test_the_same_bytes_twice_and_others_by_another_seed(sequences: Path, made: Path, tmp_path: Path) -> None:
    make_strips(sequences, tmp_path / "again", FEW)
    assert contents(tmp_path / "again") == contents(made)
    make_strips(sequences, tmp_path / "alone", FEW, only=["v_other"])
    assert (tmp_path / "alone/v_other/h3.png").read_bytes() == (made / "v_other/h3.png").read_bytes()
    make_strips(sequences, tmp_path / "seed", StripOptions(60, 1), only=["v_other"])
    assert (tmp_path / "seed/v_other/h3.png").read_bytes() != (made / "v_other/h3.png").read_bytes()


def test_finished_sequences_are_kept_and_missing_ones_made(
    sequences: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, options = tmp_path / "out", StripOptions(patches=12)
    write = strips.write_strip
    calls: list[Path] = []

    def failing(path: Path, content: np.ndarray) -> None:
        calls.append(path)
        if len(calls) == 20:
            raise KeyboardInterrupt
        write(path, content)

    monkeypatch.setattr(strips, "write_strip", failing)
    with pytest.raises(KeyboardInterrupt):
        make_strips(sequences, out, options)
    assert [path.name for path in out.iterdir()] == ["v_noise"]  # nothing half-written
    before = (out / "v_noise/ref.png").stat().st_mtime_ns
    heard: list[tuple[str, int, int]] = []
    rows, skipped = make_strips(sequences, out, options, on_progress=lambda *what: heard.append(what))
    assert [row["sequence"] for row in rows] == ["v_noise", "v_other"] and not skipped
    assert (out / "v_noise/ref.png").stat().st_mtime_ns == before
    assert len(calls) == 20 + 16
    assert heard[-1] == ("v_other", 16, 16)
    make_strips(sequences, out, options, force=["v_noise"])
    assert len(calls) == 20 + 32 and (out / "v_noise/ref.png").stat().st_mtime_ns != before


def test_other_settings_are_refused_unless_forced(made: Path, sequences: Path) -> None:
    before = contents(made)
    with pytest.raises(InputError, match="v_noise.*patches 60"):
        make_strips(sequences, made, StripOptions(patches=30))
    with pytest.raises(InputError, match="v_other.*seed 0"):
        make_strips(sequences, made, StripOptions(60, 5), force=["v_noise"])
    assert contents(made) == before


def test_other_images_and_missing_strips_are_noticed(
    sequences: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(sequences / "v_noise", tmp_path / "in" / "wall"))
    out, options = tmp_path / "out", StripOptions(patches=5)
    monkeypatch.chdir(folder)
    make_strips(".", out, options)
    before = contents(out)
    (out / "wall/t4.png").unlink()
    make_strips(folder, out, options)
    assert contents(out) == before  # what lacks a strip is made anew
    (folder / "3.png").write_bytes((folder / "4.png").read_bytes())
    rows, skipped = make_strips(tmp_path / "in", out, options)
    assert len(rows) == 1 and "wall" in skipped[0].reason
    rows, skipped = make_strips(tmp_path / "in", out, options, force=["wall"])
    assert len(rows) == 1 and not skipped
    assert (out / "wall/e2.png").read_bytes() != before["wall/e2.png"]
    (folder / "H_1_3").write_text(AWAY)
    now = contents(out / "wall")
    _, skipped = make_strips(tmp_path / "in", out, options, force=["wall"])
    assert "no region" in skipped[0].reason and contents(out / "wall") == now  # not lost for nothing
    (out / "wall/strips.json").write_text("[]")
    with pytest.raises(InputError, match=r"strips\.json"):
        make_strips(folder, out, options)


FLAT = cv2.imencode(".png", np.full((HEIGHT, WIDTH), 9, np.uint8))[1].tobytes()
TINY = cv2.imencode(".png", np.full((1, 1), 9, np.uint8))[1].tobytes()
UNUSABLE: dict[str, tuple[str, bytes, str]] = {  # file, its content, and why the sequence is skipped
    "crooked": ("H_1_3", b"1 2\n", "H_1_3"),
    "cut": ("5.png", b"", "5.png"),
    "flat": ("1.png", FLAT, "no region"),
    "tiny": ("1.png", TINY, "no region"),
    "away": ("H_1_2", AWAY.encode(), "no region"),
    "mirrored": ("H_1_2", b"-1 0 300\n0 1 0\n0 0 1\n", "no region"),
}


def test_what_cannot_be_used_is_named_and_the_rest_is_made(
    sequences: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, reasons = tmp_path / "in", {"four": "4 images", "taken": "already exists"}
    for name in ("good", "four", "taken", *UNUSABLE):
        shutil.copytree(sequences / "v_noise", root / name)
    for name in ("5.png", "6.png", "H_1_5", "H_1_6"):
        (root / "four" / name).unlink()
    for name, (file, content, reason) in UNUSABLE.items():
        (root / name / file).write_bytes(content)
        reasons[name] = reason
    (tmp_path / "out" / "taken").mkdir(parents=True)
    (tmp_path / "out" / "taken" / "mine.txt").write_text("keep me")
    (root / "empty").mkdir()
    assert main(["data", "hpatches", str(root), "-o", str(tmp_path / "out"), "--patches", "7"]) == 0
    said = capsys.readouterr()
    for name, why in reasons.items():
        assert why in next(line for line in said.err.splitlines() if line.startswith(f"{name} skipped: "))
    assert "good" in said.out and "0.8" in said.out and "Traceback" not in said.err
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"good", "taken", "set.json", "sheet.png"}
    assert names(tmp_path / "out" / "taken") == ["mine.txt"]
    before = contents(root / "good")
    rows, skipped = make_strips(root / "good", root, StripOptions(patches=3))  # strips may not go into the sequences
    assert not rows and "already exists" in skipped[0].reason and contents(root / "good") == before
    assert set(json.loads((tmp_path / "out/set.json").read_text())["skipped"]) == set(reasons)


def test_a_full_disk_ends_the_work(sequences: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(strips, "write_strip", full)
    with pytest.raises(InputError, match="disk is full"):
        make_strips(sequences, tmp_path / "out", StripOptions(patches=3))
    assert not (tmp_path / "out").exists()

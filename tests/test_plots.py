"""Colours and sizes are consistent; figures show what they should."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from sdgmnet.benchmarks.matching_measures import Draw
from sdgmnet.data.patchset import PatchSet
from sdgmnet.errors import InputError
from sdgmnet.plots.benchmarks import ImagePair, aspect, draw_fig5, draw_mma, reconstruction_bars, shortened
from sdgmnet.plots.patches import draw_easy_and_hard, draw_patches, similarity
from sdgmnet.plots.style import (
    ALIASES,
    COLOURS,
    DPI,
    FURTHER_COLOURS,
    METHODS,
    PAGE,
    colour_of,
    marker_of,
    method_of,
    new_figure,
    save_print,
)  # fmt: skip
from sdgmnet.plots.training import draw_fig2, draw_training
from sdgmnet.training.angles import Angles
from sdgmnet.training.log import RunLog


def shows_something(path: Path) -> bool:
    return len(np.unique(read(path))) > 20


def read(path: Path) -> np.ndarray:
    """(H, W, 3) RGB."""
    image = cv2.imread(str(path))
    assert image is not None
    return image[:, :, ::-1].astype(int)


def test_labels_give_their_method() -> None:
    assert method_of("HardNet+FRN") == "hardnet+frn"
    assert method_of("HardNet") == method_of("hardnet-original") == method_of("paper, HardNet") == "hardnet"
    assert method_of("sdgm") == method_of("SDGMNet, 2 seeds") == "sdgmnet"
    assert method_of("RootSIFT") == "rootsift" and method_of("mine") is None
    assert colour_of("cdf") == COLOURS["cdfdesc"] and colour_of("mine", 1) == FURTHER_COLOURS[1]


def test_methods_differ_in_colour_and_marker() -> None:
    assert set(METHODS) >= set(ALIASES.values())
    assert len({*COLOURS.values(), *FURTHER_COLOURS}) == len(COLOURS) + len(FURTHER_COLOURS)
    markers = [marker_of(name) for name in METHODS] + [marker_of("mine", position) for position in range(7)]
    assert len(set(markers)) == len(markers)


def test_the_same_figure_gives_the_same_bytes(tmp_path: Path) -> None:
    written = []
    for name in ("one", "two"):
        figure, axes = new_figure(1, 1, 2, 2)
        axes[0, 0].plot([0, 1])
        written.append([path.read_bytes() for path in save_print(figure, tmp_path / name)])
    assert written[0] == written[1]
    assert written[0][0][:4] == b"\x89PNG" and written[0][1][:5] == b"%PDF-"


def test_fig2(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    moments = np.array([[0.83, 0.2], [1.17, 0.08], [-0.34, 0.22]])
    Angles(rng.normal(0.83, 0.2, 500), rng.normal(1.17, 0.08, 500), moments).save(tmp_path / "angles.npz")
    draw_fig2(tmp_path / "angles.npz", tmp_path / "fig2.png")
    assert shows_something(tmp_path / "fig2.png")
    (tmp_path / "angles.npz").write_bytes(b"")
    with pytest.raises(InputError, match=r"angles\.npz"):
        draw_fig2(tmp_path / "angles.npz", tmp_path / "fig2.png")


@pytest.mark.parametrize("evaluated", [True, False])
def test_training_curves(tmp_path: Path, evaluated: bool) -> None:
    log = RunLog(tmp_path / "log.jsonl")
    names = ["theta_pos_mean", "theta_pos_std", "theta_neg_mean", "theta_neg_std", "power_pos", "power_neg"]
    for step in (1, 2, 3):
        log.write("epoch", step, **dict.fromkeys(names, 0.5), **{f"running_{name}": 0.6 for name in names})
        if evaluated:
            log.write("evaluation", step, fpr95={"nd": 0.1 / step, "mean": 0.1 / step})
    draw_training(log.path, tmp_path / "training.png", {"SIFT": 0.2})
    assert shows_something(tmp_path / "training.png")


def test_contact_sheets(tmp_path: Path, blobs: PatchSet) -> None:
    for draw in (draw_patches, draw_easy_and_hard):
        draw(blobs, tmp_path / "sheet.png")
        assert shows_something(tmp_path / "sheet.png")
    same = np.repeat(np.random.default_rng(0).integers(0, 255, (1, 64, 64)), 3, axis=0)
    assert similarity(same) == pytest.approx(1)
    assert similarity(np.stack([same[0], 255 - same[0]])) == pytest.approx(-1)


def test_fig5_draws_crosses_and_lines_at_their_locations(tmp_path: Path) -> None:
    images = np.full((300, 400), 60, dtype=np.uint8), np.full((450, 300), 60, dtype=np.uint8)
    keypoints = np.array([[100.0, 60], [300, 240]])
    drawn = Draw(keypoints, np.array([[150.0, 90], [20, 20]]), np.array([True, False]))
    none = drawn._replace(correct=np.zeros(2, bool))
    rows = [ImagePair("v_wall 1-6", images, [drawn, none])] * 2
    draw_fig5(["SIFT", "a $ long label"], rows, tmp_path / "fig5.png")
    figure = read(tmp_path / "fig5.png")
    assert figure.shape[1] == pytest.approx(PAGE * DPI, abs=2)
    red, green, blue = (figure[:, :, channel] for channel in range(3))
    is_green, is_red = (green > red + 60) & (green > blue + 60), (red > green + 60) & (red > blue + 60)
    middle, half = figure.shape[0] // 2, figure.shape[1] // 2
    assert is_green[:, :half].sum() > 100 and not is_green[:, half:].any()
    # The green line leads from a fifth of the height in the one image to a fifth in the other.
    bare = figure[:, :half].sum(2) == 180
    top, left = (int(np.argmax(bare.mean(axis=axis) > 0.3)) for axis in (1, 0))
    ys, xs = np.nonzero(is_green[:middle, :half])
    height = (PAGE - 0.16 - 2 * 0.06) / 2 / aspect(images) * DPI
    assert ys.mean() - top == pytest.approx(height * 60.5 / 300, abs=3)
    assert xs.min() - left == pytest.approx(height * 100.5 / 300, abs=3)
    assert xs.max() - left == pytest.approx(height * (400 / 300 + 0.03 + 150.5 / 450), abs=3)
    # A red cross on every keypoint of the reference, correct or not.
    ys, xs = np.nonzero(is_red[:middle, half:])
    assert np.ptp(ys) == pytest.approx(height * 180 / 300, abs=14)
    assert np.ptp(xs) == pytest.approx(height * 200 / 300, abs=14)


def test_labels_are_shortened_to_their_width() -> None:
    assert shortened("SIFT", 2.0) == "SIFT"
    assert shortened("a" * 100, 1.0).endswith("…") and len(shortened("a" * 100, 1.0)) < 20
    assert len(shortened("a" * 100, 0.1, 50)) == 2


@pytest.mark.parametrize("descriptors", [1, 9])
@pytest.mark.parametrize("kinds", [["unlabelled"], ["illumination", "viewpoint", "all"]])
def test_mma_has_a_colour_per_descriptor(tmp_path: Path, descriptors: int, kinds: list[str]) -> None:
    curves = {
        f"number {k}": {kind: list(np.linspace(0.1, 0.9, 10) - 0.05 * k) for kind in kinds} for k in range(descriptors)
    }
    draw_mma(curves, tmp_path / "mma.png")
    pixels = read(tmp_path / "mma.png").reshape(-1, 3)
    first, second = (abs(pixels - color).sum(1).min() for color in ((136, 34, 85), (68, 170, 153)))
    assert first < 6 and (second < 6) == (descriptors > 1)


def test_published_rows_follow_measured_ones() -> None:
    row = {"set": "Fountain", "label": "SDGMNet", "photos": 11, "points": 9, "track_length": 4, "reprojection_error": 1}
    bars = reconstruction_bars("Fountain", [row])
    assert [bars[0][key] for key in ("label", "colour", "points")] == ["SDGMNet", COLOURS["sdgmnet"], 9]
    hardnet = next(bar for bar in bars[1:] if bar["label"] == "paper, HardNet")
    assert hardnet["points"] == 16300 and hardnet["track_length"] == 4.91
    assert len(reconstruction_bars("Fountain", [{**row, "photos": 12}])) == 1

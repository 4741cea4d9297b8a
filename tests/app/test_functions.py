"""What the page shows, without gradio."""

import contextlib
import io
import json
import os
import shlex
import time
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from sdgmnet.app import matching, reconstructing, uploads, watching
from sdgmnet.app.html import png
from sdgmnet.app.jobs import Jobs
from sdgmnet.app.understanding import (
    PRESETS,
    Modulation,
    measured_gradients,
    panels,
    powers,
    sdgm_gradients,
    summary,
)
from sdgmnet.cli import main
from sdgmnet.data.synthetic.demo import image_path
from sdgmnet.errors import InputError, Stopped
from sdgmnet.features.draw import TITLE, layout
from sdgmnet.features.images import read_color, read_gray
from sdgmnet.loss.weights import SELF_WEIGHTS
from sdgmnet.registry import LOSSES
from sdgmnet.sfm.process import StepFailed
from sdgmnet.sfm.summary import Table
from tests.app.samples import write_log, write_triplets

PATHS = tuple(image_path(f"motorcycle_{side}.png") for side in ("left", "right"))
OPTIONS = matching.MatchOptions(("sift", "sdgmnet"), keypoints=400, verify="fundamental")


@pytest.fixture(scope="module")
def comparison() -> matching.Comparison:
    first, second = (read_gray(path) for path in PATHS)
    return matching.compare((first, second), OPTIONS)


def test_the_command_line_gives_the_same_counts(
    comparison: matching.Comparison, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for line, result in zip(matching.command_lines(OPTIONS).splitlines(), comparison.results, strict=True):
        words = [{"a.jpg": str(PATHS[0]), "b.jpg": str(PATHS[1])}.get(word, word) for word in shlex.split(line)[1:]]
        assert main([*words[:-1], str(tmp_path / words[-1]), "--json"]) == 0
        counts = json.loads(capsys.readouterr().out)["counts"]
        assert (counts["matches"], counts["inliers"]) == (len(result.inlier), int(result.inlier.sum()))
        assert f"| {result.label} | {counts['matches']} | {counts['inliers']} |" in matching.counts_table(comparison)


def test_the_python_code_gives_the_same_matches(comparison: matching.Comparison) -> None:
    code = matching.python_code(OPTIONS).replace("'a.jpg'", repr(str(PATHS[0]))).replace("'b.jpg'", repr(str(PATHS[1])))
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, {})
    assert int(printed.getvalue()) == len(comparison.results[0].matches.pairs)


@pytest.mark.parametrize("side", [0, 1])
def test_a_click_finds_the_keypoint_its_match_and_runners_up(comparison: matching.Comparison, side: int) -> None:
    result = comparison.results[1]
    pair = result.matches.pairs[7]
    drawn = layout([(len(gray), gray.shape[1]) for gray in comparison.grays])
    x, y = drawn.place(result.features[side].keypoints.xy[pair[side]], side) + np.array([0, TITLE])
    found = matching.neighbourhood(comparison, result, x, y)
    # Keypoints with several orientations share a location.
    xy = result.features[side].keypoints.xy
    assert found.side == side and np.array_equal(xy[found.keypoint], xy[pair[side]])
    degrees = [one.angle for one in found.neighbours]
    assert len(degrees) == matching.NEIGHBOURS and degrees == sorted(degrees)
    blank = np.zeros((drawn.height + TITLE, drawn.width, 3), np.uint8)
    marked = matching.mark_neighbourhood(blank, comparison, result, found)
    ring = marked[round(float(y)), round(float(x)) - matching.LARGE]
    assert ring.min() > 200 and not blank.any()  # about the keypoint, in a copy
    shown = matching.neighbourhood_html(found, result, verified=True)
    assert shown.count("<img") == 1 + matching.NEIGHBOURS
    if found.match is not None:
        assert found.neighbours[0].keypoint == found.match and ", match" in shown


def test_the_drawing_has_the_size_of_its_layout(comparison: matching.Comparison) -> None:
    images = read_color(PATHS[0]), read_color(PATHS[1])
    drawn = layout([(len(one), one.shape[1]) for one in images])
    image = matching.draw_result(images, comparison.results[0], OPTIONS)
    assert image.shape == (drawn.height + TITLE, drawn.width, 3)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"descriptors": ()}, "one to 3 descriptors"),
        ({"descriptors": ("sift", "rootsift", "sdgmnet", "kornia:MKD")}, "one to 3 descriptors"),
        ({"descriptors": ("sift", "sift")}, "twice"),
        ({"descriptors": ("sfit",)}, "sift"),
        ({"keypoints": 0}, "keypoints"),
        ({"ratio": 0.0}, "ratio"),
        ({"verify": "affine"}, "affine"),
    ],
)
def test_invalid_options(chosen: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        matching.MatchOptions(**chosen)  # type: ignore[arg-type]


def test_an_image_without_keypoints() -> None:
    flat = np.zeros((64, 64), np.uint8)
    with pytest.raises(InputError, match="first image has no keypoints"):
        matching.compare((flat, flat), matching.MatchOptions(("sift",)))


def test_uploads_are_checked(tmp_path: Path) -> None:
    folder = tmp_path / "uploads"
    text, large, outside = folder / "text.jpg", folder / "large.png", tmp_path / "outside.png"
    folder.mkdir()
    text.write_text("not an image")
    cv2.imwrite(str(large), np.zeros((5000, 8000), np.uint8))
    cv2.imwrite(str(outside), np.zeros((8, 8), np.uint8))
    for path, message in ((text, "text.jpg"), (large, "40.0 megapixels"), (outside, "no longer on the server")):
        with pytest.raises(InputError, match=message) as caught:
            uploads.read_upload({"path": str(path), "orig_name": path.name}, folder, "the first image")
        assert str(tmp_path) not in str(caught.value)
    with pytest.raises(InputError, match="the first image is missing"):
        uploads.read_upload(None, folder, "the first image")


def test_examples_can_be_matched(tmp_path: Path) -> None:
    pairs = uploads.write_examples(tmp_path)
    assert len(pairs) == 3
    a, b = (uploads.read_upload({"path": str(path)}, tmp_path, "image") for path in pairs[-1])
    result = matching.compare((a.gray, b.gray), matching.MatchOptions(("sift",), keypoints=500)).results[0]
    assert result.inlier.sum() > 20  # the second image is the first one, rotated


def test_an_implausible_model_and_missing_photos_are_reported() -> None:
    summary = {
        "broken": [("a<b>.jpg", "is truncated")],
        "unregistered": ["c.jpg"],
        "implausible": ["12 points of d<b>.jpg"],
    }
    text = reconstructing.remarks_text(summary)
    assert "implausible" in text and "12 points" in text and "c.jpg" in text
    assert "a&lt;b&gt;.jpg is truncated" in text
    assert "d&lt;b&gt;.jpg" in text and "<b>" not in text


def test_reasons_in_tables_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconstructing, "tables", lambda summary: [Table(["why"], [["camera of d<b>.jpg"]])])
    assert "| camera of d&lt;b&gt;.jpg |" in reconstructing.tables_text({})


def test_missing_pycolmap_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sdgmnet.sfm.colmap.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"sdgmnet\[sfm\]"):
        reconstructing.reconstruct_photos([], reconstructing.PhotoOptions(), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("changed", [{"descriptor": "sfit"}, {"keypoints": 0}, {"size": 100_000}])
def test_invalid_options_of_a_reconstruction(changed: dict[str, object]) -> None:
    with pytest.raises(InputError):
        reconstructing.PhotoOptions(**changed)  # type: ignore[arg-type]


def test_photos_are_bounded_in_size_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconstructing, "MAX_TOTAL_MEGABYTES", 0.001)
    path = tmp_path / "photo.png"
    cv2.imwrite(str(path), np.random.default_rng(0).integers(0, 255, (40, 40), np.uint8))
    with pytest.raises(InputError, match="MB"):
        reconstructing.require_photos([{"path": str(path)}] * 3, tmp_path)


def test_names_of_users_stay_in_the_folder(tmp_path: Path) -> None:
    path = tmp_path / "photo.png"
    cv2.imwrite(str(path), np.zeros((8, 8), np.uint8))
    sent = [{"path": str(path), "orig_name": name} for name in ("../../up.png", "one.png", "one.png")]
    given = reconstructing.collect(reconstructing.require_photos(sent, tmp_path), tmp_path / "photos", 800)
    assert given.names == ("one.png", "one_2.png", "up.png")
    assert {one.name for one in (tmp_path / "photos").iterdir()} == set(given.names)


@pytest.mark.parametrize("name", ["/", " ", ".", "a\0b.png", "a" * 300 + ".png", "é" * 120, "\ud800", None])
def test_names_that_no_file_can_have(tmp_path: Path, name: str | None) -> None:
    path = tmp_path / "photo.png"
    cv2.imwrite(str(path), np.zeros((8, 8), np.uint8))
    sent = [{"path": str(path), "orig_name": name}] * 3
    given = reconstructing.collect(reconstructing.require_photos(sent, tmp_path), tmp_path / "photos", 800)
    assert len(given.names) == 3
    assert given.names[0] == ("?.jpg" if name == "\ud800" else "photo.png")


@pytest.mark.parametrize("error", [InputError, StepFailed])
def test_errors_do_not_name_folders_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def fail(workspace: reconstructing.Workspace, photos: reconstructing.Photos, *_: object) -> None:
        raise error(f"{workspace.folder}: {photos.folder} and {tmp_path / 'a.png'}; the end of {workspace.log}:")

    monkeypatch.setattr(reconstructing, "require_pycolmap", lambda: None)
    monkeypatch.setattr(reconstructing, "make_models", fail)
    with pytest.raises((InputError, Stopped)) as caught:
        reconstructing.reconstruct_photos([], reconstructing.PhotoOptions(), tmp_path)
    assert str(caught.value) == "photos and a.png; the end of log.txt:"
    assert isinstance(caught.value, InputError) == (error is InputError)


def test_results_are_removed_after_an_hour_and_if_they_are_incomplete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = tmp_path / "model-old", tmp_path / "model-new"
    for folder, age in ((old, uploads.HOUR + 60), (new, uploads.HOUR - 60)):
        folder.mkdir()
        (folder / "model.zip").write_text("photos")
        os.utime(folder, (time.time() - age,) * 2)

    def draw(workspace: reconstructing.Workspace, *_: object) -> None:
        workspace.folder.mkdir()
        (workspace.folder / "cloud.html").write_text("a page")  # but no points.ply: the downloads fail

    monkeypatch.setattr(reconstructing, "require_pycolmap", lambda: None)
    monkeypatch.setattr(reconstructing, "make_models", lambda *_: {})
    monkeypatch.setattr(reconstructing, "draw_models", draw)
    with pytest.raises(FileNotFoundError):
        reconstructing.reconstruct_photos([], reconstructing.PhotoOptions(), tmp_path)
    assert list(tmp_path.iterdir()) == [new]


@pytest.mark.parametrize("sent", [None, "", float("nan"), float("inf")])
def test_an_emptied_field_is_reported(sent: object) -> None:
    assert uploads.read_number(0.9, "ratio test") == 0.9
    with pytest.raises(InputError, match="ratio test"):
        uploads.read_number(sent, "ratio test")


def test_the_end_of_the_app_tells_whether_jobs_still_run() -> None:
    jobs = Jobs()
    with jobs.started("one") as stop:
        assert not jobs.stop_all(0) and stop.is_set()
    assert jobs.stop_all(0)


@pytest.mark.parametrize("preset", PRESETS)
def test_powers_are_near_those_of_the_authors_logs(preset: str) -> None:
    """Normal angles have more hard triplets than the skewed ones of a training: about a tenth too much for both powers."""
    logged = PRESETS[preset]
    modulation = Modulation(*logged[:6])
    found = powers(modulation)
    assert found.positive == pytest.approx(logged.power_pos, rel=0.12)
    assert found.negative == pytest.approx(logged.power_neg, rel=0.12)
    assert found.positive / found.negative == pytest.approx(logged.power_pos / logged.power_neg, abs=0.02)
    assert found.active_share == pytest.approx(1 - modulation.margin, abs=0.01)
    assert not modulation.contradictions
    assert str(logged.power_pos) in summary(modulation, preset)


@pytest.mark.parametrize(
    "changed", [{"rel_std": 0.02, "neg_std": 0.02}, {"pos_mean": 1.5}, {"rel_std": 0.6, "pos_std": 0.1}], ids=str
)
def test_statistics_that_no_angles_have_are_reported(changed: dict[str, float]) -> None:
    assert "No angles have these statistics" in summary(Modulation(**changed), None)  # type: ignore[arg-type]


def test_powers_of_the_step_weight() -> None:
    """Without self weight, a triplet counts 1 if it is active."""
    found = powers(Modulation(self_weight="angle", coupled_weight="step", margin=0.75))
    assert found.positive == found.negative == pytest.approx(256, abs=4)


@pytest.mark.parametrize("self_weight", SELF_WEIGHTS)
def test_every_panel_is_drawn(self_weight: str) -> None:
    found = panels(Modulation(self_weight=self_weight, margin=0.99, coupled_weight="step"))
    assert len(found) == 6 and all(png(figure).startswith(b"\x89PNG") for figure in found.values())


@pytest.mark.parametrize("name", LOSSES)
def test_the_gradient_of_every_loss_is_drawn(name: str) -> None:
    assert f"gradient of {name}" in panels(Modulation(), name)


def test_the_measured_gradient_of_sdgm_is_that_of_the_equation() -> None:
    theta = torch.linspace(0.65, 1.5, 7, dtype=torch.float64)  # negatives below 0.6 rad are ignored
    measured, equation = measured_gradients(Modulation(), "sdgm", theta), sdgm_gradients(Modulation(), theta)
    for one, other in zip(measured, equation, strict=True):
        assert one == pytest.approx(other, rel=1e-3, abs=1e-7) and one.max() > 0


@pytest.mark.parametrize("changed", [{"pos_std": 0.0}, {"margin": 1.0}, {"alpha": float("nan")}, {"self_weight": "l3"}])
def test_invalid_statistics(changed: dict[str, object]) -> None:
    with pytest.raises(InputError):
        Modulation(**changed)  # type: ignore[arg-type]


def test_a_run_is_listed_drawn_and_summed_up(tmp_path: Path) -> None:
    write_log(tmp_path / "one")
    write_log(tmp_path / "more" / "two")
    assert set(watching.find_runs(tmp_path)) == {"one", "more/two"}
    log = watching.run_log(tmp_path, "more/two")
    summary = watching.run_summary(log)
    assert "| FPR@95 of church (%) | 0.50 |" in summary and "| P⁺ | 320 | 320 |" in summary
    assert watching.run_progress(log).startswith("Iteration 20. FPR@95 at iteration 20: 0.50 %")
    log.with_name("config.json").write_text('{"iterations": 40}')
    assert watching.run_progress(log).startswith("Iteration 20 of 40.")
    assert list(watching.run_curves(log)) == ["FPR@95 on held-out pairs", "angles", "powers"]
    assert watching.hardest_html(log) == ""
    write_triplets(log.parent, step=10)
    shown = watching.hardest_html(log)
    assert "iteration 10" in shown and shown.count("<img") == 2 * 3 and "θ⁺ = 1.20" in shown
    for name, message in (("../one", "not a run"), (None, "no run yet")):
        with pytest.raises(InputError, match=message):
            watching.run_log(tmp_path, name)

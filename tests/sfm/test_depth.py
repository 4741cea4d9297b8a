"""Depth of a rendered scene whose true depth is known; and when COLMAP's stereo is used instead, which needs a GPU: it is
simulated."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from sdgmnet.errors import InputError
from sdgmnet.sfm import depth
from sdgmnet.sfm.depth import (
    DenseOptions,
    choose_neighbours,
    colmap_has_cuda,
    estimate_depths,
    estimate_depths_with_colmap,
    make_depths,
)
from sdgmnet.sfm.process import Step
from sdgmnet.sfm.scene import SparseScene, save_scene, unproject
from sdgmnet.sfm.workspace import map_path, read_map, read_map_options
from tests.sfm.rendered import HEIGHT, OPTIONS, WIDTH, Rendered, pixel_centres, visible, write_workspace

QUICK = DenseOptions(size=60, coarsest=60, rounds=(1,))


def seen_twice(rendered: Rendered, index: int) -> np.ndarray:
    """Pixels whose surface at least two of the other photos see."""
    views = rendered.scene.views
    points = unproject(views[index], pixel_centres(WIDTH, HEIGHT), rendered.depths[index].ravel())
    counts = sum(visible(view, points).astype(int) for other, view in enumerate(views) if other != index)
    return np.reshape(counts >= 2, (HEIGHT, WIDTH))


@pytest.mark.parametrize("stage", ["photometric", "geometric"])
def test_depth_is_within_one_percent(rendered: Rendered, workspace: Path, stage: str) -> None:
    shares, right = [], []
    for index, view in enumerate(rendered.scene.views):
        depths, known = read_map(map_path(workspace, "depth", view.name, stage)), seen_twice(rendered, index)
        close = np.abs(depths / rendered.depths[index] - 1) < 0.01
        shares.append(close[known].mean())
        right.append(close[depths > 0].mean())
    assert min(shares) > 0.8
    # The outer views have pixels that no other sees.
    assert np.mean(right) > {"photometric": 0.85, "geometric": 0.95}[stage]


def test_normals_are_those_of_the_surfaces(rendered: Rendered, workspace: Path) -> None:
    for index, view in enumerate(rendered.scene.views):
        normals = read_map(map_path(workspace, "normal", view.name, "geometric"))
        known = read_map(map_path(workspace, "depth", view.name, "geometric")) > 0
        cosines = (normals * rendered.normals[index]).sum(-1)[known]
        assert np.degrees(np.median(np.arccos(np.clip(cosines, -1, 1)))) < 15
        np.testing.assert_allclose(np.linalg.norm(normals[known], axis=1), 1, atol=1e-5)
        assert not normals[~known].any()


def test_started_again_it_repeats_nothing_and_ends_the_same(
    rendered: Rendered, workspace: Path, tmp_path: Path
) -> None:
    again = tmp_path / "again"
    shutil.copytree(workspace, again)
    files = sorted((again / "stereo").rglob("*.bin"))
    assert len(files) == 4 * len(rendered.scene.views)
    lost = {map_path(again, "depth", "1.png", "photometric"), map_path(again, "depth", "3.png", "geometric")}
    for path in lost:
        path.unlink()
    before = {path: path.stat().st_mtime_ns for path in files if path.exists()}
    steps: list[tuple[str, int, int]] = []
    estimate_depths(again, OPTIONS, on_progress=lambda *step: steps.append(step))
    assert steps == [("depth", number, 10) for number in range(1, 11)]
    for path in files:
        assert path.read_bytes() == (workspace / path.relative_to(again)).read_bytes()
    touched = {path for path in before if path.stat().st_mtime_ns != before[path]}
    assert {path.name.split(".")[0] for path in touched} == {"1", "3"}


def test_missing_photo_is_skipped_and_a_lonely_one_too(rendered: Rendered, tmp_path: Path) -> None:
    """View 0 loses its file, view 1 its sparse points; the other three are done."""
    folder, scene = tmp_path / "some", rendered.scene
    rows = scene.observations[scene.observations[:, 0] != 1]
    write_workspace(rendered._replace(scene=SparseScene(scene.views, scene.points, rows)), folder)
    (folder / "images" / "0.png").unlink()
    report = estimate_depths(folder, QUICK)
    assert report.made == ("2.png", "3.png", "4.png")
    assert "0.png" in report.skipped["0.png"] and "0 sparse points" in report.skipped["1.png"]


def test_truncated_map(rendered: Rendered, tmp_path: Path) -> None:
    folder = tmp_path / "cut"
    write_workspace(rendered, folder)
    estimate_depths(folder, QUICK)
    path = map_path(folder, "depth", "2.png", "photometric")
    path.write_bytes(path.read_bytes()[:-4])
    map_path(folder, "depth", "2.png", "geometric").unlink()
    with pytest.raises(InputError, match=r"2\.png\.photometric\.bin"):
        estimate_depths(folder, QUICK)


def test_too_few_photos(rendered: Rendered, tmp_path: Path) -> None:
    seen = rendered.scene.observations
    alone = rendered.scene._replace(views=rendered.scene.views[:1], observations=seen[seen[:, 0] == 0])
    save_scene(alone, tmp_path / "scene.npz")
    with pytest.raises(InputError, match="1 photo"):
        estimate_depths(tmp_path)
    save_scene(rendered.scene, tmp_path / "scene.npz")
    with pytest.raises(InputError, match=r"0\.png"):
        estimate_depths(tmp_path)


def test_neighbours_are_near_but_not_too_near(rendered: Rendered) -> None:
    """7 degrees a step: the views beside come first, the farthest last; a view at the same place is worth nothing."""
    assert set(choose_neighbours(rendered.scene, 2, 2)) <= {0, 1, 3, 4}
    assert choose_neighbours(rendered.scene, 0, 9)[-1] == 4
    scene = rendered.scene
    twin = scene.views[0]._replace(name="twin.png")
    rows = scene.observations[scene.observations[:, 0] == 0].copy()
    rows[:, 0] = len(scene.views)
    more = SparseScene((*scene.views, twin), scene.points, np.concatenate([scene.observations, rows]))
    assert len(scene.views) not in choose_neighbours(more, 0, 9)


def test_neighbours_are_chosen_by_shared_points_one_by_one(rendered: Rendered) -> None:
    """A loop over points, whatever the order of the observations; memory does not grow with views times points."""
    scene, index = rendered.scene, 1
    order = np.random.default_rng(0).permutation(len(scene.observations))
    scene = scene._replace(observations=scene.observations[np.concatenate([order, order[:9]])])
    seen = [{int(point) for view, point in scene.observations if view == number} for number in range(len(scene.views))]
    worth = {}
    for other, view in enumerate(scene.views):
        total = 0.0
        for point in sorted(seen[index] & seen[other]) if other != index else ():
            one, two = (scene.points[point] - eye.centre() for eye in (scene.views[index], view))
            near, far = np.linalg.norm(one), np.linalg.norm(two)
            angle = np.degrees(np.arccos(one @ two / near / far))
            good = min(angle / 5, 1) ** 1.5 * np.exp(-(max(angle - 20, 0) ** 2) / 200)
            total += good * min(near / far, far / near)
        worth[other] = total
    expected = sorted((other for other in worth if worth[other] > 0), key=lambda other: -worth[other])
    assert choose_neighbours(scene, index, 9) == expected


def test_photos_of_other_sizes_fit_together(rendered: Rendered, tmp_path: Path) -> None:
    """One photo twice as large as the others and one in another format of colour: depths stay right."""
    folder, scene = tmp_path / "mixed", rendered.scene
    write_workspace(rendered, folder)
    large = scene.views[1].resized(2 * WIDTH, 2 * HEIGHT)
    image = cv2.resize(rendered.images[1], (2 * WIDTH, 2 * HEIGHT), interpolation=cv2.INTER_LINEAR)
    cv2.imwrite(str(folder / "images" / "1.png"), cv2.cvtColor(image, cv2.COLOR_GRAY2BGR))
    save_scene(scene._replace(views=(scene.views[0], large, *scene.views[2:])), folder / "scene.npz")
    estimate_depths(folder, DenseOptions(size=150, coarsest=75))
    depths = read_map(map_path(folder, "depth", "1.png", "geometric"))
    true = cv2.resize(rendered.depths[1], depths.shape[::-1], interpolation=cv2.INTER_NEAREST)
    assert (np.abs(depths / true - 1)[depths > 0] < 0.02).mean() > 0.9
    assert (depths > 0).mean() > 0.6


def simulate(monkeypatch: pytest.MonkeyPatch, *, built: bool, gpu: bool) -> list[str]:
    """A pycolmap and a machine with CUDA or without; returns the names of the steps that are run from now on."""
    steps: list[str] = []

    def run_in_process(function: Callable[..., Any], log: Path, **arguments: Any) -> Step:
        steps.append(function.__name__)
        return Step(built, 0)

    monkeypatch.setattr(depth, "run_in_process", run_in_process)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    return steps


def test_colmap_without_cuda(tmp_path: Path) -> None:
    pytest.importorskip("pycolmap", reason="pycolmap is not installed: pip install 'sdgmnet[sfm]'")
    if colmap_has_cuda(tmp_path):
        pytest.skip("this pycolmap has CUDA")
    with pytest.raises(InputError, match="CUDA"):
        estimate_depths_with_colmap(tmp_path)


@pytest.mark.parametrize(("built", "gpu"), [(True, True), (True, False), (False, True), (False, False)])
def test_colmap_is_used_with_cuda_and_a_gpu(
    monkeypatch: pytest.MonkeyPatch, rendered: Rendered, tmp_path: Path, built: bool, gpu: bool
) -> None:
    write_workspace(rendered, tmp_path / "space")
    steps, ours = simulate(monkeypatch, built=built, gpu=gpu), []
    monkeypatch.setattr(depth, "estimate_depths", lambda *_, remake, **__: ours.append(remake))
    maker = make_depths(tmp_path / "space", QUICK, remake=True)
    assert maker == ("colmap" if built and gpu else "sdgmnet")
    assert ours == ([] if maker == "colmap" else [True])
    if maker == "colmap":
        assert steps[-1] == "patch_match"
        made_with = read_map_options(tmp_path / "space")
        assert made_with is not None and (made_with["maker"], made_with["size"]) == ("colmap", 60)
    else:
        assert steps == (["has_cuda"] if gpu else [])  # no process is started without a GPU


def test_maps_of_the_two_makers_never_mix(
    monkeypatch: pytest.MonkeyPatch, rendered: Rendered, workspace: Path, tmp_path: Path
) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    shutil.copytree(workspace, ours)
    write_workspace(rendered, theirs)
    simulate(monkeypatch, built=True, gpu=True)
    with pytest.raises(InputError, match="maker .*now"):
        estimate_depths_with_colmap(ours, OPTIONS)
    assert map_path(ours, "depth", "0.png", "geometric").exists()
    estimate_depths_with_colmap(ours, OPTIONS, remake=True)
    assert not list((ours / "stereo").rglob("*.bin"))
    estimate_depths_with_colmap(theirs, QUICK)
    with pytest.raises(InputError, match="maker .*now"):
        estimate_depths(theirs, QUICK)

"""Depth of a rendered scene whose true depth is known."""

import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest

from sdgmnet.errors import InputError
from sdgmnet.sfm.depth import DenseOptions, choose_neighbours, estimate_depths
from sdgmnet.sfm.scene import SparseScene, save_scene, unproject
from sdgmnet.sfm.workspace import map_path, read_map
from tests.sfm.rendered import HEIGHT, OPTIONS, WIDTH, Rendered, pixel_centres, visible, write_workspace


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
    assert (
        np.mean(right) > {"photometric": 0.85, "geometric": 0.95}[stage]
    )  # the outer views have pixels none else sees


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
    told: list[tuple[int, int, str]] = []
    estimate_depths(again, OPTIONS, progress=lambda *step: told.append(step))
    assert [step[0] for step in told] == list(range(1, 11))
    assert sum("there" in step[2] for step in told) == 8
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
    told: list[str] = []
    quick = DenseOptions(size=60, coarsest=60, rounds=(1,))
    report = estimate_depths(folder, quick, progress=lambda done, total, message: told.append(message))
    assert report.made == ("2.png", "3.png", "4.png")
    assert "0.png cannot be read" in report.skipped["0.png"]
    assert report.skipped["1.png"] == "it sees only 0 sparse points"
    assert "1.png skipped: it sees only 0 sparse points" in told


def test_cut_off_map_is_said(rendered: Rendered, tmp_path: Path) -> None:
    folder, quick = tmp_path / "cut", DenseOptions(size=60, coarsest=60, rounds=(1,))
    write_workspace(rendered, folder)
    estimate_depths(folder, quick)
    path = map_path(folder, "depth", "2.png", "photometric")
    path.write_bytes(path.read_bytes()[:-4])
    map_path(folder, "depth", "2.png", "geometric").unlink()
    with pytest.raises(InputError, match="2.png.photometric.bin .* cut off or damaged"):
        estimate_depths(folder, quick)


def test_too_little_is_said(rendered: Rendered, tmp_path: Path) -> None:
    seen = rendered.scene.observations
    alone = rendered.scene._replace(views=rendered.scene.views[:1], observations=seen[seen[:, 0] == 0])
    save_scene(alone, tmp_path / "scene.npz")
    with pytest.raises(InputError, match="holds 1 photo: depth needs at least two"):
        estimate_depths(tmp_path)
    save_scene(rendered.scene, tmp_path / "scene.npz")
    with pytest.raises(InputError, match=r"No photo of .* got a depth map; the first: .*0.png cannot .* remove it\.$"):
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

"""Depth and normal maps of every photo of a workspace, believed where photos agree: our own stereo, or COLMAP's on a GPU."""

import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from sdgmnet.errors import InputError
from sdgmnet.sfm.process import run_alone
from sdgmnet.sfm.scene import SparseScene, View, load_scene, project
from sdgmnet.sfm.stereo import DenseOptions, Picture, Surface, confirmations, level_sizes, reconstruct_surface
from sdgmnet.sfm.workspace import Maker, is_finished, map_path, read_map, same_options_or_error, write_maps

# ---- reconstruction.patch_match


def colmap_can_run(workspace: Path | str) -> bool:
    """Whether `estimate_depths_with_colmap` can run here: a build with CUDA alone finds no GPU on a machine without."""
    return torch.cuda.is_available() and colmap_has_cuda(workspace)


def colmap_has_cuda(workspace: Path | str) -> bool:
    """Whether pycolmap is built with CUDA; asked in a process of its own."""
    return bool(run_alone(f"{__name__}:_has_cuda", Path(workspace) / "dense.log"))


def _has_cuda() -> bool:
    import pycolmap

    return bool(pycolmap.has_cuda)


def estimate_depths_with_colmap(
    workspace: Path | str, options: DenseOptions | None = None, *, remake: bool = False, confirm: bool = True
) -> None:
    """COLMAP's PatchMatch instead of ours; of the options it knows the size only. `remake` as in `estimate_depths`.

    confirm: also geometric maps, of what other photos confirm; without, photometric ones alone, as the ETH benchmark has it.
    """
    workspace, options = Path(workspace), options or DenseOptions()
    if not colmap_has_cuda(workspace):
        raise InputError("This pycolmap is built without CUDA: use estimate_depths.")
    same_options_or_error(workspace, options, "colmap", remake=remake)
    run_alone(
        f"{__name__}:_patch_match",
        workspace / "dense.log",
        workspace=str(workspace),
        size=options.size,
        confirm=confirm,
    )


def _patch_match(workspace: str, size: int, confirm: bool) -> None:
    import pycolmap

    options = pycolmap.PatchMatchOptions()
    options.max_image_size, options.geom_consistency, options.filter = size, confirm, True
    pycolmap.patch_match_stereo(workspace, options=options)


# ---- reconstruction.dense


FEWEST_POINTS = 10  # sparse points that a photo must see before its depth range means anything
FEWEST_SHARED = 5  # sparse points that two photos must share to be compared
SMALLEST_ANGLE = 0.5  # degrees between their rays to a point: from nearly the same place nothing can be triangulated

MOST_WORKERS = 4  # photos at once, each with some 0.4 GB at 800 pixels

Progress = Callable[[int, int, str], None]  # steps done, steps in all, what was just done


class DenseReport(NamedTuple):
    made: tuple[str, ...]  # photos that have maps
    skipped: dict[str, str]  # photos that have none, and why


def choose_neighbours(scene: SparseScene, index: int, count: int) -> list[int]:
    """Views to compare a view with, best first: many shared points, seen about 5 to 25 degrees apart, at similar scale."""
    seen = np.zeros(len(scene.points), dtype=bool)
    seen[scene.observations[scene.observations[:, 0] == index, 1]] = True
    rows = np.unique(scene.observations[seen[scene.observations[:, 1]]], axis=0)  # by view, then by point
    centre, worth = scene.views[index].centre(), np.zeros(len(scene.views))
    for other, view in enumerate(scene.views):
        shared = scene.points[rows[slice(*np.searchsorted(rows[:, 0], [other, other + 1])), 1]]
        if other == index or len(shared) < FEWEST_SHARED:
            continue
        one, two = shared - centre, shared - view.centre()
        lengths = np.linalg.norm(one, axis=1), np.linalg.norm(two, axis=1)
        angles = np.degrees(np.arccos(np.clip((one * two).sum(1) / (lengths[0] * lengths[1]), -1, 1)))
        if np.median(angles) < SMALLEST_ANGLE:
            continue
        # A small angle says little about depth; at a wide one windows look different.
        good = np.clip(angles / 5, 0, 1) ** 1.5 * np.exp(-(np.clip(angles - 20, 0, None) ** 2) / (2 * 10**2))
        ratio = lengths[0] / lengths[1]
        worth[other] = (good * np.minimum(ratio, 1 / ratio)).sum()
    order = np.argsort(-worth, kind="stable")[:count]
    return [int(other) for other in order if worth[other] > 0]


def inverse_depth_range(scene: SparseScene, index: int) -> tuple[float, float]:
    """Smallest and largest 1 / z to search: what the sparse points say, without outliers and a little widened."""
    points = scene.observations[scene.observations[:, 0] == index, 1]
    _, depths = project(scene.views[index], scene.points[points])
    depths = depths[depths > 0]
    if len(depths) < FEWEST_POINTS:
        raise InputError(f"it sees only {len(depths)} sparse points")
    near, far = np.percentile(depths, [1, 99])
    return 0.7 / float(far), 2.0 / float(near)  # the ground before the feet has few sparse points


def small_view(view: View, size: int) -> View:
    """The view with its longest side at most `size` pixels."""
    scale = min(1.0, size / max(view.width, view.height))
    return view.resized(round(view.width * scale), round(view.height * scale))


def read_grey(workspace: Path, view: View) -> np.ndarray:
    """The photo in grey, (H, W) float32 in -0.5..0.5, resampled to the size of the view."""
    import cv2

    from sdgmnet.features.images import read_gray

    grey = read_gray(workspace / "images" / view.name, exif_orientation=False)
    return cv2.resize(grey.astype(np.float32) / 255 - 0.5, (view.width, view.height), interpolation=cv2.INTER_AREA)


def read_pyramid(
    workspace: Path, view: View, options: DenseOptions, levels: int, device: torch.device
) -> list[Picture]:
    """The photo at `levels` sizes, coarsest first."""
    import cv2

    finest = small_view(view, options.size)
    grey = read_grey(workspace, finest)
    pictures = []
    for power in reversed(range(levels)):
        size = max(8, round(finest.width / 2**power)), max(8, round(finest.height / 2**power))
        small = cv2.resize(grey, size, interpolation=cv2.INTER_AREA)
        pictures.append(Picture(torch.from_numpy(small).to(device), finest.resized(*size)))
    return pictures


def estimate_one(
    workspace: Path, scene: SparseScene, index: int, options: DenseOptions, device: torch.device
) -> tuple[np.ndarray, np.ndarray]:
    """Depths (H, W) and normals (H, W, 3) of one view; both are 0 where the photos do not say."""
    view = scene.views[index]
    nearest = small_view(view, options.size)
    levels = len(level_sizes(nearest.width, nearest.height, options))
    inverse_range = inverse_depth_range(scene, index)
    reference = read_pyramid(workspace, view, options, levels, device)
    sources = []
    for other in choose_neighbours(scene, index, options.sources + 2):  # two more, should some be unreadable
        try:
            sources.append(read_pyramid(workspace, scene.views[other], options, levels, device))
        except InputError:
            continue  # told when its own turn comes
        if len(sources) == options.sources:
            break
    if not sources:
        raise InputError("no other photo shares enough sparse points with it")
    seed = options.seed + zlib.crc32(view.name.encode())
    surface, rival = reconstruct_surface([reference, *sources], inverse_range, options, seed)
    believed = surface.score > options.smallest_correlation
    believed &= surface.score - rival > options.smallest_lead
    low, high = inverse_range
    believed &= (surface.planes[0] > low) & (surface.planes[0] < high)
    depths = torch.where(believed, 1 / surface.planes[0], 0).cpu().numpy()
    return depths, np.where(depths[..., None] > 0, normals_of(surface, reference[-1].view), 0).astype(np.float32)


def normals_of(surface: Surface, view: View) -> np.ndarray:
    """Unit normals (H, W, 3) float32 in camera coordinates, towards the camera.

    A plane has 1 / z = a . p over homogeneous pixels p, and p z = K X, so that a . K X = 1: its normal is along K^T a.
    """
    inverse, across, down = surface.planes.cpu().double().numpy()
    height, width = inverse.shape
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    plane = np.stack([across, down, inverse - across * x - down * y], -1)
    normal = -plane @ view.intrinsics  # a . K X = 1 > 0 in front of the camera: minus turns it to the camera
    return (normal / np.linalg.norm(normal, axis=-1, keepdims=True)).astype(np.float32)


def estimate_depths(
    workspace: Path | str,
    options: DenseOptions | None = None,
    *,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
    remake: bool = False,
) -> DenseReport:
    """Make photometric maps of each view and then geometric ones, those that other views confirm.

    A view that cannot be done is skipped and told. What is finished stays: started again, only the missing maps are made.
    Maps of other options, of another scene or by COLMAP are never mixed with new ones: they are refused, or with `remake`
    removed first.
    """
    workspace, options, device = Path(workspace), options or DenseOptions(), torch.device(device)
    scene = load_scene(workspace / "scene.npz")
    if len(scene.views) < 2:
        raise InputError(f"{workspace} holds {len(scene.views)} photo: depth needs at least two that overlap.")
    same_options_or_error(workspace, options, "sdgmnet", remake=remake)
    skipped: dict[str, str] = {}
    told = Teller(progress, 2 * len(scene.views))

    def match(index: int) -> str:
        name = scene.views[index].name
        if is_finished(workspace, name, "photometric"):
            return f"{name}: depth was there"
        try:
            depths, normals = estimate_one(workspace, scene, index, options, device)
        except InputError as error:
            skipped[name] = str(error)
            return f"{name} skipped: {error}"
        write_maps(workspace, name, "photometric", depths, normals)
        return f"{name}: depth of {np.mean(depths > 0):.0%} of the pixels"

    def confirm(index: int) -> str:
        name = scene.views[index].name
        if name in skipped:
            return f"{name}: no depth to confirm"
        if is_finished(workspace, name, "geometric"):
            return f"{name}: confirmed depth was there"
        depths, normals = confirmed(workspace, scene, index, options, skipped, device)
        write_maps(workspace, name, "geometric", depths, normals)
        return f"{name}: {np.mean(depths > 0):.0%} of the pixels confirmed"

    workers = 1 if device.type != "cpu" else min(MOST_WORKERS, torch.get_num_threads())
    for step in (match, confirm):
        side_by_side(step, len(scene.views), workers, told)
    made = tuple(view.name for view in scene.views if view.name not in skipped)
    if not made:
        first = next(iter(skipped.values())).rstrip(".")
        raise InputError(f"No photo of {workspace} got a depth map; the first: {first}.")
    return DenseReport(made, skipped)


class Teller:
    """Counts steps for a progress function."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.progress, self.total, self.done = progress, total, 0

    def __call__(self, message: str) -> None:
        self.done += 1
        if self.progress is not None:
            self.progress(self.done, self.total, message)


def side_by_side(step: Callable[[int], str], count: int, workers: int, told: Callable[[str], None]) -> None:
    """Call step(0), ..., step(count - 1) in `workers` threads, each with a core of its own; tell their answers in order.

    Threads inside every small operation wait for each other instead: on a busy machine that is many times slower.
    """
    before = torch.get_num_threads()
    pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))
    try:
        for message in pool.map(step, range(count)):
            told(message)
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(before)


def confirmed(
    workspace: Path,
    scene: SparseScene,
    index: int,
    options: DenseOptions,
    skipped: dict[str, str],
    device: torch.device,
) -> tuple[np.ndarray, np.ndarray]:
    """The photometric maps of a view with everything removed that too few other views confirm."""
    view = scene.views[index]
    depths = read_map(map_path(workspace, "depth", view.name, "photometric"))
    normals = read_map(map_path(workspace, "normal", view.name, "photometric"))
    names = [scene.views[other] for other in choose_neighbours(scene, index, options.neighbours)]
    others = []
    for other in names:
        if other.name not in skipped:
            there = read_map(map_path(workspace, "depth", other.name, "photometric"))
            others.append((other.resized(there.shape[1], there.shape[0]), there))
    here = view.resized(depths.shape[1], depths.shape[0])
    counts = confirmations(here, depths, others, options.reprojection, options.depth_difference, device)
    keep = counts >= (options.confirmations if len(others) > 2 else 1)
    return np.where(keep, depths, 0), np.where(keep[..., None], normals, 0)


def make_depths(
    workspace: Path | str,
    options: DenseOptions | None = None,
    progress: Progress | None = None,
    *,
    remake: bool = False,
    confirm: bool = True,
) -> Maker:
    """Depth maps by COLMAP where it can use a GPU, by our own stereo elsewhere; returns whose they are.

    confirm: whether COLMAP also makes geometric maps; ours always are.
    """
    if colmap_can_run(workspace):
        estimate_depths_with_colmap(workspace, options, remake=remake, confirm=confirm)
        return "colmap"
    estimate_depths(workspace, options, progress=progress, remake=remake)
    return "sdgmnet"

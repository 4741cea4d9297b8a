"""Depth and normal maps of every photo of a workspace: by our own stereo on any machine, or by COLMAP's on a GPU."""

import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import torch

from sdgmnet.errors import InputError
from sdgmnet.features.images import read_gray
from sdgmnet.report import OnProgress, no_progress
from sdgmnet.sfm import colmap_steps
from sdgmnet.sfm.process import run_in_process
from sdgmnet.sfm.scene import SparseScene, View, load_scene, project
from sdgmnet.sfm.stereo import DenseOptions, PosedImage, Surface, count_consistent, level_sizes, reconstruct_surface
from sdgmnet.sfm.workspace import Maker, is_finished, map_path, read_map, require_same_map_options, write_maps

MIN_POINTS = 10  # sparse points that a photo must see to give it a depth range
MIN_SHARED = 5  # sparse points that two photos must share to be compared
MIN_ANGLE = 0.5  # degrees between their rays to a point: a smaller baseline cannot triangulate it
MAX_WORKERS = 4  # photos at once, each with some 0.4 GB at 800 pixels


class DenseReport(NamedTuple):
    made: tuple[str, ...]  # photos that have maps
    skipped: dict[str, str]  # photos without maps, and the reason


def choose_neighbours(scene: SparseScene, index: int, count: int) -> list[int]:
    """Indices of the views to compare a view with, best first: many shared points, 5 to 25 degrees apart, similar scale."""
    seen = np.zeros(len(scene.points), dtype=bool)
    seen[scene.observations[scene.observations[:, 0] == index, 1]] = True
    rows = np.unique(scene.observations[seen[scene.observations[:, 1]]], axis=0)  # by view, then by point
    centre, scores = scene.views[index].centre(), np.zeros(len(scene.views))
    for other, view in enumerate(scene.views):
        shared = scene.points[rows[slice(*np.searchsorted(rows[:, 0], [other, other + 1])), 1]]
        if other == index or len(shared) < MIN_SHARED:
            continue
        one, two = shared - centre, shared - view.centre()
        lengths = np.linalg.norm(one, axis=1), np.linalg.norm(two, axis=1)
        angles = np.degrees(np.arccos(np.clip((one * two).sum(1) / (lengths[0] * lengths[1]), -1, 1)))
        if np.median(angles) < MIN_ANGLE:
            continue
        # A small angle hardly determines the depth; at a wide angle the windows look different.
        good = np.clip(angles / 5, 0, 1) ** 1.5 * np.exp(-(np.clip(angles - 20, 0, None) ** 2) / (2 * 10**2))
        ratio = lengths[0] / lengths[1]
        scores[other] = (good * np.minimum(ratio, 1 / ratio)).sum()
    order = np.argsort(-scores, kind="stable")[:count]
    return [int(other) for other in order if scores[other] > 0]


def inverse_depth_range(scene: SparseScene, index: int) -> tuple[float, float]:
    """Smallest and largest 1 / z to search: the range of the sparse points without outliers, widened."""
    points = scene.observations[scene.observations[:, 0] == index, 1]
    _, depths = project(scene.views[index], scene.points[points])
    depths = depths[depths > 0]
    if len(depths) < MIN_POINTS:
        raise InputError(f"it sees only {len(depths)} sparse points")
    near, far = np.percentile(depths, [1, 99])
    return 0.7 / float(far), 2.0 / float(near)  # the ground in front of the camera has few sparse points


def small_view(view: View, size: int) -> View:
    """The view with its longest side at most `size` pixels."""
    scale = min(1.0, size / max(view.width, view.height))
    return view.resized(round(view.width * scale), round(view.height * scale))


def read_pyramid(
    workspace: Path, view: View, options: DenseOptions, levels: int, device: torch.device
) -> list[PosedImage]:
    """The photo at `levels` sizes, coarsest first."""
    finest = small_view(view, options.size)
    photo = read_gray(workspace / "images" / view.name, exif_orientation=False).astype(np.float32) / 255 - 0.5
    gray = cv2.resize(photo, (finest.width, finest.height), interpolation=cv2.INTER_AREA)
    images = []
    for power in reversed(range(levels)):
        size = max(8, round(finest.width / 2**power)), max(8, round(finest.height / 2**power))
        small = cv2.resize(gray, size, interpolation=cv2.INTER_AREA)
        images.append(PosedImage(torch.from_numpy(small).to(device), finest.resized(*size)))
    return images


def estimate_one(
    workspace: Path, scene: SparseScene, index: int, options: DenseOptions, device: torch.device
) -> tuple[np.ndarray, np.ndarray]:
    """Depths (H, W) and normals (H, W, 3) of one view; both are 0 where the depth is unknown."""
    view = scene.views[index]
    nearest = small_view(view, options.size)
    levels = len(level_sizes(nearest.width, nearest.height, options))
    inverse_range = inverse_depth_range(scene, index)
    reference = read_pyramid(workspace, view, options, levels, device)
    sources = []
    for other in choose_neighbours(scene, index, options.sources + 2):  # two more, if some are unreadable
        try:
            sources.append(read_pyramid(workspace, scene.views[other], options, levels, device))
        except InputError:
            continue  # reported with its own depth map
        if len(sources) == options.sources:
            break
    if not sources:
        raise InputError("no other photo shares enough sparse points with it")
    seed = options.seed + zlib.crc32(view.name.encode())
    surface, rival = reconstruct_surface([reference, *sources], inverse_range, options, seed)
    known = surface.score > options.smallest_correlation
    known &= surface.score - rival > options.smallest_lead
    low, high = inverse_range
    known &= (surface.planes[0] > low) & (surface.planes[0] < high)
    depths = torch.where(known, 1 / surface.planes[0], 0).cpu().numpy()
    return depths, np.where(depths[..., None] > 0, normals_of(surface, reference[-1].view), 0).astype(np.float32)


def normals_of(surface: Surface, view: View) -> np.ndarray:
    """Unit normals (H, W, 3) float32 in camera coordinates, towards the camera.

    A plane has 1 / z = a . p over homogeneous pixels p, and p z = K X, so that a . K X = 1: its normal is along K^T a.
    """
    inverse, across, down = surface.planes.cpu().double().numpy()
    height, width = inverse.shape
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    plane = np.stack([across, down, inverse - across * x - down * y], -1)
    normal = -plane @ view.intrinsics  # a . K X = 1 > 0 in front of the camera: minus points it to the camera
    return (normal / np.linalg.norm(normal, axis=-1, keepdims=True)).astype(np.float32)


def estimate_depths(
    workspace: Path | str,
    options: DenseOptions | None = None,
    *,
    device: torch.device | str = "cpu",
    on_progress: OnProgress = no_progress,
    remake: bool = False,
) -> DenseReport:
    """Make photometric maps of each view and then geometric ones, with the depths that other views confirm.

    A view without a result is skipped and reported. Maps that are finished are kept. Maps of other options, of another
    scene or by COLMAP are refused, or with `remake` removed.
    """
    workspace, options, device = Path(workspace), options or DenseOptions(), torch.device(device)
    scene = load_scene(workspace / "scene.npz")
    if len(scene.views) < 2:
        raise InputError(f"{workspace} holds {len(scene.views)} photo: depth needs at least two that overlap.")
    require_same_map_options(workspace, asdict(options), "sdgmnet", remake=remake)
    skipped: dict[str, str] = {}

    def match(index: int) -> None:
        name = scene.views[index].name
        if not is_finished(workspace, name, "photometric"):
            try:
                maps = estimate_one(workspace, scene, index, options, device)
            except InputError as error:
                skipped[name] = str(error)
            else:
                write_maps(workspace, name, "photometric", *maps)

    def confirm(index: int) -> None:
        name = scene.views[index].name
        if name not in skipped and not is_finished(workspace, name, "geometric"):
            maps = remove_inconsistent(workspace, scene, index, options, skipped, device)
            write_maps(workspace, name, "geometric", *maps)

    count, done = len(scene.views), 0
    workers = 1 if device.type != "cpu" else min(MAX_WORKERS, torch.get_num_threads())
    for step in (match, confirm):
        for _ in run_in_threads(step, count, workers):
            done += 1
            on_progress("depth", done, 2 * count)
    made = tuple(view.name for view in scene.views if view.name not in skipped)
    if not made:
        first = next(iter(skipped.values())).rstrip(".")
        raise InputError(f"No photo of {workspace} got a depth map; the first: {first}.")
    return DenseReport(made, skipped)


def run_in_threads(step: Callable[[int], None], count: int, workers: int) -> Iterator[None]:
    """Call step(0), ..., step(count - 1) in `workers` threads, each with one torch thread; yields after each, in order.

    Several torch threads per operation would wait for each other: on a busy machine that is many times slower.
    """
    before = torch.get_num_threads()
    pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))
    try:
        yield from pool.map(step, range(count))
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(before)


def remove_inconsistent(
    workspace: Path,
    scene: SparseScene,
    index: int,
    options: DenseOptions,
    skipped: dict[str, str],
    device: torch.device,
) -> tuple[np.ndarray, np.ndarray]:
    """The photometric maps of a view, without the pixels that too few other views confirm."""
    view = scene.views[index]
    depths = read_map(map_path(workspace, "depth", view.name, "photometric"))
    normals = read_map(map_path(workspace, "normal", view.name, "photometric"))
    others = []
    for other in (scene.views[number] for number in choose_neighbours(scene, index, options.neighbours)):
        if other.name not in skipped:
            there = read_map(map_path(workspace, "depth", other.name, "photometric"))
            others.append((other.resized(there.shape[1], there.shape[0]), there))
    here = view.resized(depths.shape[1], depths.shape[0])
    counts = count_consistent(here, depths, others, options.reprojection, options.depth_difference, device)
    keep = counts >= (options.confirmations if len(others) > 2 else 1)
    return np.where(keep, depths, 0), np.where(keep[..., None], normals, 0)


def colmap_has_cuda(workspace: Path | str) -> bool:
    """Whether pycolmap is built with CUDA."""
    return bool(run_in_process(colmap_steps.has_cuda, Path(workspace) / "dense.log").result)


def estimate_depths_with_colmap(
    workspace: Path | str, options: DenseOptions | None = None, *, remake: bool = False, geometric: bool = True
) -> None:
    """COLMAP's PatchMatch instead of ours; of the options it uses the size. `remake` as in `estimate_depths`.

    geometric: also geometric maps; the ETH benchmark fuses photometric ones.
    """
    workspace, options = Path(workspace), options or DenseOptions()
    if not colmap_has_cuda(workspace):
        raise InputError("This pycolmap is built without CUDA: use estimate_depths.")
    require_same_map_options(workspace, asdict(options), "colmap", remake=remake)
    run_in_process(
        colmap_steps.patch_match,
        workspace / "dense.log",
        workspace=workspace,
        size=options.size,
        geometric=geometric,
    )


def make_depths(
    workspace: Path | str,
    options: DenseOptions | None = None,
    *,
    remake: bool = False,
    geometric: bool = True,
    on_progress: OnProgress = no_progress,
) -> Maker:
    """Depth maps by COLMAP if it can use a GPU, otherwise by our own stereo; returns which of the two.

    geometric: whether COLMAP also makes geometric maps; ours always has them.
    """
    if torch.cuda.is_available() and colmap_has_cuda(workspace):
        estimate_depths_with_colmap(workspace, options, remake=remake, geometric=geometric)
        return "colmap"
    estimate_depths(workspace, options, on_progress=on_progress, remake=remake)
    return "sdgmnet"

"""A dense workspace: depth and normal maps of every photo, believed where photos agree, fused into a point cloud.

The folder is the one that COLMAP's undistorter writes (`images/`, `sparse/`, `stereo/`), with our `scene.npz` beside. Where
pycolmap has CUDA its own PatchMatch can make the same maps (`estimate_depths_with_colmap`; not run on a GPU).
"""

import dataclasses
import hashlib
import shutil
import tempfile
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from sdgmnet.errors import InputError
from sdgmnet.files import new_file, read_json, write_json
from sdgmnet.reconstruction.consistency import confirmations
from sdgmnet.reconstruction.maps import read_map, write_map
from sdgmnet.reconstruction.process import run_alone
from sdgmnet.reconstruction.stereo import DenseOptions, Picture, Surface, level_sizes, reconstruct_surface
from sdgmnet.reconstruction.views import SparseScene, View, load_scene, project

__all__ = [
    "DenseOptions",
    "DenseReport",
    "choose_neighbours",
    "colmap_has_cuda",
    "estimate_depths",
    "estimate_depths_with_colmap",
    "fuse",
]

METHOD = 1  # raised when the same options would give other maps
FEWEST_POINTS = 10  # sparse points that a photo must see before its depth range means anything
FEWEST_SHARED = 5  # sparse points that two photos must share to be compared
SMALLEST_ANGLE = 0.5  # degrees between their rays to a point: from nearly the same place nothing can be triangulated

MOST_WORKERS = 4  # photos at once, each with some 0.4 GB at 800 pixels

Progress = Callable[[int, int, str], None]  # steps done, steps in all, what was just done


class DenseReport(NamedTuple):
    made: tuple[str, ...]  # photos that have maps
    skipped: dict[str, str]  # photos that have none, and why


def map_path(workspace: Path, kind: str, name: str, stage: str) -> Path:
    """kind: depth or normal; stage: photometric (as matched) or geometric (confirmed by other photos)."""
    return workspace / "stereo" / f"{kind}_maps" / f"{name}.{stage}.bin"


def choose_neighbours(scene: SparseScene, index: int, count: int) -> list[int]:
    """Views to compare a view with, best first: many shared points, seen about 5 to 25 degrees apart, at similar scale."""
    sees = np.zeros((len(scene.views), len(scene.points)), dtype=bool)
    sees[scene.observations[:, 0], scene.observations[:, 1]] = True
    here = scene.points - scene.views[index].centre()
    worth = np.zeros(len(scene.views))
    for other, view in enumerate(scene.views):
        shared = sees[index] & sees[other]
        if other == index or shared.sum() < FEWEST_SHARED:
            continue
        one, two = here[shared], scene.points[shared] - view.centre()
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

    grey = read_gray(workspace / "images" / view.name, upright=False)
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
) -> DenseReport:
    """Make photometric maps of each view and then geometric ones, those that other views confirm.

    A view that cannot be done is skipped and told. What is finished stays: started again, only the missing maps are made.
    Maps of other options or of another scene are never mixed with new ones.
    """
    workspace, options, device = Path(workspace), options or DenseOptions(), torch.device(device)
    scene = load_scene(workspace / "scene.npz")
    if len(scene.views) < 2:
        raise InputError(f"{workspace} holds {len(scene.views)} photo: depth needs at least two that overlap.")
    same_options_or_error(workspace, options)
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
        raise InputError(f"No photo of {workspace} got a depth map; the first: {next(iter(skipped.values()))}.")
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


def write_maps(workspace: Path, name: str, stage: str, depths: np.ndarray, normals: np.ndarray) -> None:
    """The depth map comes last: it says that both are there."""
    write_map(map_path(workspace, "normal", name, stage), normals)
    write_map(map_path(workspace, "depth", name, stage), depths)


def is_finished(workspace: Path, name: str, stage: str) -> bool:
    return map_path(workspace, "depth", name, stage).is_file()


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


def same_options_or_error(workspace: Path, options: DenseOptions) -> None:
    """Note what the maps are made with; refuse when maps made otherwise are there."""
    note = workspace / "stereo" / "options.json"
    scene = hashlib.sha256((workspace / "scene.npz").read_bytes()).hexdigest()
    now: dict[str, Any] = {"method": METHOD, "scene": scene, **dataclasses.asdict(options)}
    now = {key: list(value) if isinstance(value, tuple) else value for key, value in now.items()}
    if note.is_file():
        before = read_json(note)
        changed = [key for key in now if before.get(key) != now[key]]
        if changed:
            raise InputError(
                f"{note.parent} holds depth maps made with another {', '.join(changed)}: "
                "use the same, or remove depth_maps, normal_maps and options.json there."
            )
    elif any(note.parent.glob("depth_maps/**/*.bin")):
        raise InputError(f"{note.parent} holds depth maps of unknown origin: remove depth_maps and normal_maps there.")
    else:
        write_json(note, now)


def colmap_has_cuda(workspace: Path | str) -> bool:
    """Whether `estimate_depths_with_colmap` can run here; asked in a process of its own."""
    return bool(run_alone(f"{__name__}:_has_cuda", Path(workspace) / "dense.log"))


def _has_cuda() -> bool:
    import pycolmap

    return bool(pycolmap.has_cuda)


def estimate_depths_with_colmap(workspace: Path | str, options: DenseOptions | None = None) -> None:
    """COLMAP's PatchMatch instead of ours, for a pycolmap with CUDA (`has_cuda`). Not run on a GPU."""
    size = (options or DenseOptions()).size
    run_alone(f"{__name__}:_patch_match", Path(workspace) / "dense.log", workspace=str(workspace), size=size)


def _patch_match(workspace: str, size: int) -> None:
    import pycolmap

    if not pycolmap.has_cuda:
        raise InputError("This pycolmap is built without CUDA: use estimate_depths.")
    options = pycolmap.PatchMatchOptions()
    options.max_image_size, options.geom_consistency, options.filter = size, True, True
    pycolmap.patch_match_stereo(workspace, options=options)


def make_depths(
    workspace: Path | str, options: DenseOptions | None = None, progress: Progress | None = None
) -> Literal["colmap", "sdgmnet"]:
    """Depth maps by COLMAP where it has CUDA, by our own stereo elsewhere; returns whose they are."""
    if colmap_has_cuda(workspace):
        estimate_depths_with_colmap(workspace, options)
        return "colmap"
    estimate_depths(workspace, options, progress=progress)
    return "sdgmnet"


def fuse(
    workspace: Path | str,
    out: Path | str,
    *,
    fewest_pixels: int = 3,
    largest_normal_error: float = 20.0,
    threads: int = -1,
) -> int:
    """Fuse the geometric maps into a coloured PLY with COLMAP's stereo_fusion; returns the number of points.

    A point needs `fewest_pixels` pixels of all photos whose depths agree and whose normals differ by at most
    `largest_normal_error` degrees. `threads` -1 means all.
    """
    workspace, out = Path(workspace), Path(out)
    scene = load_scene(workspace / "scene.npz")
    shapes = {
        view.name: read_map(map_path(workspace, "depth", view.name, "geometric")).shape
        for view in scene.views
        if is_finished(workspace, view.name, "geometric")
    }
    if len(shapes) < 2:
        raise InputError(f"{workspace} holds {len(shapes)} geometric depth maps: estimate the depths first.")
    with tempfile.TemporaryDirectory(dir=workspace, prefix=".fusion-") as folder, new_file(out) as part:
        beside = Path(folder)
        made = beside / "fused.ply"
        answer = run_alone(
            f"{__name__}:_fuse",
            workspace / "dense.log",
            workspace=str(workspace.resolve()),
            beside=folder,
            out=str(made),
            shapes=shapes,
            fewest_pixels=fewest_pixels,
            largest_normal_error=largest_normal_error,
            threads=threads,
        )
        shutil.copyfile(made, part)
    return int(answer)


def _fuse(
    workspace: str,
    beside: str,
    out: str,
    shapes: dict[str, list[int]],
    fewest_pixels: int,
    largest_normal_error: float,
    threads: int,
) -> int:
    """Fuse through a workspace beside, whose cameras see COLMAP's fusion right: see `centre_on_integers`."""
    import pycolmap

    folder, model = Path(beside), pycolmap.Reconstruction(str(Path(workspace) / "sparse"))
    centre_on_integers(model, shapes)
    (folder / "sparse").mkdir()
    (folder / "stereo").mkdir()
    model.write(str(folder / "sparse"))
    (folder / "images").symlink_to(Path(workspace) / "images")
    for kind in ("depth_maps", "normal_maps"):
        (folder / "stereo" / kind).symlink_to(Path(workspace) / "stereo" / kind)
    names = sorted(shapes)
    (folder / "stereo" / "fusion.cfg").write_text("".join(f"{name}\n" for name in names))
    (folder / "stereo" / "patch-match.cfg").write_text("".join(f"{name}\n__auto__, 20\n" for name in names))
    options = pycolmap.StereoFusionOptions()
    options.min_num_pixels, options.max_normal_error = fewest_pixels, largest_normal_error
    options.num_threads = threads
    fused = pycolmap.stereo_fusion(out, folder, input_type="geometric", options=options, output_type="PLY")
    return int(fused.num_points3D())


def centre_on_integers(model: Any, shapes: dict[str, list[int]]) -> None:
    """Move the principal points of a pycolmap model so that COLMAP's fusion takes integers as pixel centres.

    COLMAP's cameras have pixel centres at halves, but its fusion lets pixel (column, row) of a depth map look along the ray
    through (column, row), after scaling the camera to the size of the map.
    """
    for camera_id in {image.camera_id for image in model.images.values()}:
        names = [image.name for image in model.images.values() if image.camera_id == camera_id]
        shape = next((shapes[name] for name in names if name in shapes), None)
        if shape is not None:
            camera = model.cameras[camera_id]
            camera.principal_point_x -= 0.5 * camera.width / shape[1]
            camera.principal_point_y -= 0.5 * camera.height / shape[0]

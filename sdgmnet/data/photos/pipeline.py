"""Own photos -> PatchSets: reconstruct each scene, decide by geometry which keypoints show the same point, cut their patches.

The work on a scene has a folder of its own, in which each finished step has its final name. Started again, finished steps are
not repeated, and the set has the same bits.
"""

import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sdgmnet.data.patchset import PatchSet, PatchTable, is_patchset, write_patchset
from sdgmnet.data.photos.correspondences import PointOptions
from sdgmnet.data.photos.tracks import Points, points_by_geometry, points_of_tracks
from sdgmnet.data.scenes import Failure, Scene, digest_of, find_scenes
from sdgmnet.errors import InputError, Stopped
from sdgmnet.features.images import read_gray
from sdgmnet.features.patches import cut_patches
from sdgmnet.registry import WINDOW
from sdgmnet.report import OnProgress, no_progress
from sdgmnet.sfm.depth import make_depths
from sdgmnet.sfm.scene import load_scene
from sdgmnet.sfm.stage_timer import PersistentStageTimer
from sdgmnet.sfm.stereo import DenseOptions
from sdgmnet.sfm.undistorted import SparseOptions, reconstruct_undistorted
from sdgmnet.sfm.workspace import Workspace, require_apart, require_own_folder
from sdgmnet.storage import is_disk_full, only_worker, read_record, remove_unfinished, write_json

METHOD = 2  # raised when the same photos and options would give other patches
NO_POINTS = "no point was seen in two photos: more overlap or more texture is needed."
PATCHES_AT_ONCE = 1024
STAGES = ("sparse", "dense", "correspondence", "patches")


@dataclass(frozen=True)
class PhotoOptions:
    """Everything that the patches depend on."""

    sparse: SparseOptions = field(default_factory=SparseOptions)
    dense: DenseOptions = field(default_factory=DenseOptions)
    points: PointOptions = field(default_factory=PointOptions)
    source: Literal["geometry", "tracks"] = "geometry"
    """tracks: the matches of SIFT in the sparse reconstruction, for comparison."""
    window: float = WINDOW
    """Side of the patches in sigmas."""

    def described(self) -> dict[str, Any]:
        """As kept in set.json, where reprojected locations are called "carried"."""
        sparse = {name: value for name, value in asdict(self.sparse).items() if name != "threads"}
        described: dict[str, Any] = {"source": self.source, "sparse": sparse}
        if self.source == "geometry":
            points = asdict(self.points)
            described |= {
                "dense": asdict(self.dense),
                "rule": {**points["rule"], **points["visibility"]},
                "keypoints": self.points.keypoints,
                "smallest_scale": self.points.smallest_scale,
                "carried": self.points.reprojected,
            }
        return json.loads(json.dumps(described))  # as it will be read back


def make_patchsets(
    folder: Path | str,
    out: Path | str,
    options: PhotoOptions | None = None,
    *,
    work: Path | str | None = None,
    discard_work: bool = False,
    on_progress: OnProgress = no_progress,
) -> tuple[list[dict[str, Any]], list[Failure]]:
    """A PatchSet in out/<scene> for each scene of the folder; rows of the summary, and the scenes that failed.

    work: folder for intermediate results that a later run can use again, out/.work by default.
    """
    options, out = options or PhotoOptions(), Path(out)
    work = out / ".work" if work is None else Path(work)
    rows, failures = [], []
    for scene in find_scenes(folder, without=(out, work)):
        try:
            rows.append(make_scene(scene, out, work, options, on_progress))
        except (InputError, Stopped, OSError) as error:
            if is_disk_full(error):
                raise  # every other scene would fail as well
            failures.append(Failure(scene.name, str(error)))
            continue
        if discard_work and (work / scene.name).is_dir():
            with suppress(InputError), only_worker(work / scene.name):  # unless another process uses it
                shutil.rmtree(work / scene.name, ignore_errors=True)
    return rows, failures


def make_scene(
    scene: Scene, out: Path, work: Path, options: PhotoOptions, on_progress: OnProgress = no_progress
) -> dict[str, Any]:
    """The PatchSet of a scene in out/<name>, with intermediate results in work/<name>; returns the row of the summary."""
    target, place, record = out / scene.name, work / scene.name, work / f"{scene.name}.{options.source}.json"
    for folder in (target, place):
        require_apart(folder, scene.folder, outside=True, options="-o or --work")
    if target.exists() and not is_patchset(target):
        raise InputError(f"{target} exists and is not a PatchSet: choose another -o, or remove it.")
    photos = digest_of(scene.digests())
    made = {"source": "photos", "method": METHOD, "options": options.described(), "photos": photos}
    origin = {**made, "window": options.window}
    if is_patchset(target):
        opened = PatchSet.open(target)
        require_same_origin(target, opened.origin, origin)
        for written in (record, seconds_of(place, options)):
            remove_unfinished(written)  # of a run that was killed after the set
        known = read_record(record, dict) if record.exists() else {}
        # The record may be that of another set, made from the same work with other options.
        same = known.pop("options", origin["options"]) == origin["options"] and known.get("patches") == len(opened)
        return known if same else {"scene": scene.name, "patches": len(opened)}
    require_own_folder(place, options="--work")
    with only_worker(place, "choose another --work"):
        row = work_on(scene, target, place, origin, options, on_progress)
        write_json(record, {**row, "options": origin["options"]})
    return row


def require_same_origin(target: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """InputError where a set was made from other photos, with other options or by another version of the method."""
    before = {"method": now["method"], "window": WINDOW} | before
    reasons = {"options": "with other options", "photos": "from other photos", "method": "differently"}
    for key, reason in {**reasons, "window": "with another --window"}.items():
        if before.get(key) != now[key]:
            raise InputError(f"{target} was made {reason}: choose another -o, or remove it.")


def seconds_of(place: Path, options: PhotoOptions) -> Path:
    """The record of the stages' durations."""
    return place / f"seconds.{options.source}.json"


def work_on(
    scene: Scene, target: Path, place: Path, origin: dict[str, Any], options: PhotoOptions, on_progress: OnProgress
) -> dict[str, Any]:
    """All stages of a scene. A model that fails is skipped and reported, as long as another one gives patches."""
    timer = PersistentStageTimer(seconds_of(place, options))

    def on_sparse(stage: str, done: int, total: int) -> None:
        on_progress(f"{scene.name}: sparse reconstruction, {stage}", done, total)

    with timer.stage("sparse"):
        found = reconstruct_undistorted(Workspace(place), scene.folder, scene.photos, options.sparse, on_sparse)
    timer.add_peak(found.peak_bytes)
    models = found.models
    points: dict[Path, Points] = {}
    engines: set[str] = set()
    left_out = [[name, reason] for name, reason in found.implausible.items()]
    for model in models:
        label = scene.name if len(models) == 1 else f"{scene.name}, model {model.name}"
        try:
            points[model], engine = model_points(model, options, timer, label, on_progress)
        except (InputError, Stopped) as error:
            if is_disk_full(error):
                raise
            left_out.append([model.name, str(error)])
            continue
        engines.add(engine)
        if not len(points[model].view):
            left_out.append([model.name, NO_POINTS])
    if not any(len(one.view) for one in points.values()):
        reasons = {reason for _, reason in left_out}
        each = "; ".join(f"{model}: {reason.rstrip('.')}" for model, reason in left_out)
        raise InputError(reasons.pop() if len(reasons) == 1 else f"no model gave patches: {each}.")
    with timer.stage("patches"):
        on_progress(f"{scene.name}: patches", 0, 1)
        write_scene(target, scene.name, origin, points, found.sources)
        on_progress(f"{scene.name}: patches", 1, 1)
    patchset = PatchSet.open(target)
    count = len(np.unique(patchset.point_id))
    return {
        "scene": scene.name,
        "photos": len(scene.photos),
        "registered": len({view.name for model in models for view in load_scene(model / "scene.npz").views}),
        "models": len(models),
        "left_out": left_out,
        "pairs": found.pairs,
        "broken": found.broken,
        "points": count,
        "patches": len(patchset),
        "patches_per_point": len(patchset) / count,
        "conflicts": 0 if patchset.conflicts is None else len(patchset.conflicts),
        "dense_engine": "+".join(sorted(engines)),
        **timer.read(),
    }


def model_points(
    model: Path, options: PhotoOptions, timer: PersistentStageTimer, label: str, on_progress: OnProgress
) -> tuple[Points, str]:
    """A model's points, and the engine that made its depth maps."""
    if options.source == "tracks":
        return points_of_tracks(model), ""

    def on_depth(_: str, done: int, total: int) -> None:
        on_progress(f"{label}: depth maps", done, total)

    with timer.stage("dense"):
        # The workspace is our own: maps of other options are made again.
        engine = make_depths(model, options.dense, remake=True, on_progress=on_depth)
    with timer.stage("correspondence"):
        return points_by_geometry(model, options.points, on_progress, f"{label}: correspondences"), engine


def photos_table(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a table with a row per scene."""
    counts = ("photos", "registered", "points", "patches")
    header = ["scene", *counts, "patches per point", *(f"{stage} s" for stage in STAGES), "peak MB"]
    table = []
    for row in rows:
        seconds = row.get("seconds", {})
        per_point = f"{row['patches_per_point']:.2f}" if "patches_per_point" in row else ""
        times = (f"{seconds[stage]:.0f}" if stage in seconds else "" for stage in STAGES)
        peak = f"{row['peak_bytes'] / 1e6:.0f}" if "peak_bytes" in row else ""
        table.append([row["scene"], *(f"{row.get(name, '')}" for name in counts), per_point, *times, peak])
    return header, table


def write_scene(
    target: Path, name: str, origin: dict[str, Any], points: Mapping[Path, Points], sources: Mapping[str, str]
) -> None:
    """One PatchSet of all models of a scene; their points and images are numbered one after the other.

    sources: name of a view's image -> name of its photo, where the copy that COLMAP reads has another name.
    """
    scenes = {model: load_scene(model / "scene.npz") for model in points}
    images = [(model.name, view.name) for model, scene in scenes.items() for view in scene.views]
    origin = {
        **origin,
        "images": [f"{model}/{view}" for model, view in images],
        "sources": [sources.get(view, view) for _, view in images],
    }
    shown: set[str] = set()  # COLMAP may put a photo into two models, which know nothing of each other's points
    table, image = PatchTable(), 0
    with write_patchset(target, name, origin) as writer:
        for model, here in points.items():
            for number, view in enumerate(scenes[model].views):
                rows = np.flatnonzero((here.view == number) & (view.name not in shown))
                if len(rows):
                    shown.add(view.name)
                    gray = read_gray(model / "images" / view.name, exif_orientation=False)
                for start in range(0, len(rows), PATCHES_AT_ONCE):
                    part = here.keypoints.select(rows[start : start + PATCHES_AT_ONCE])
                    writer.append(cut_patches(gray, part, window=origin.get("window", WINDOW)))
                columns = {"distance": here.distance[rows], "detected": here.detected[rows]}
                table.add(here.point[rows], here.keypoints.select(rows), image=image, **columns)
                image += 1
            table.end_piece(int(here.point.max(initial=-1)) + 1, here.conflicts)
        writer.finish(**table.arrays())

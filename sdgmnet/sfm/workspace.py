"""Folders of a reconstruction: the workspace of a model, and in it the depth and normal maps of dense stereo.

Both are laid out as COLMAP does it, so that its GUI, hloc and splatting tools open them.
"""

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sdgmnet.errors import InputError
from sdgmnet.sfm.process import run_in_process
from sdgmnet.sfm.stage_timer import PersistentStageTimer
from sdgmnet.storage import LOCK, changes_in_words, new_file, read_bytes, read_record, write_json

RECORDS, INPUTS, SECONDS = ".work", "inputs.json", "seconds.json"
MIN_PHOTOS = 3  # of a model; smaller ones are dropped
DENSE_SIZE = 1200  # longest side of depth maps in pixels
MAX_HEADER = 64  # bytes; three numbers and their separators are shorter

Maker = Literal["sdgmnet", "colmap"]
METHODS: dict[Maker, int] = {"sdgmnet": 1, "colmap": 1}  # increased when the same options would give other maps


class Workspace:
    """Paths of a reconstruction."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.images = folder / "images"
        self.features = folder / "features.h5"
        self.database = folder / "database.db"
        self.sparse = folder / "sparse"
        self.dense = folder / "dense"
        self.log = folder / "log.txt"
        self.records = folder / RECORDS  # what finished stages wrote down for the next start
        self.imported = self.records / "photos.json"
        self.scene = self.records / "scene.npz"  # cameras and points of the largest model, without lens distortion
        self.timer = PersistentStageTimer(self.records / SECONDS)

    def remove_import(self) -> None:
        """Undo the import of too few photos: the same folder may be used again, with more of them."""
        if not self.database.exists():
            shutil.rmtree(self.images, ignore_errors=True)
            for path in (self.imported, self.records / INPUTS, self.log):
                path.unlink(missing_ok=True)

    def run(
        self, stage: str, function: Callable[..., Any], *, watch: Callable[[], None] | None = None, **arguments: Any
    ) -> Any:
        """The result of `process.run_in_process`, with time and memory recorded for the stage."""
        with self.timer.stage(stage):
            step = run_in_process(function, self.log, watch=watch, **arguments)
        self.timer.add_peak(step.peak_bytes, stage)
        return step.result


def require_apart(folder: Path, photos: Path, *, outside: bool = False, options: str = "-o") -> None:
    """Nothing is written among the photos: `folder` is not theirs nor above it, and if `outside`, not below it either.

    options: those that choose the folder.
    """
    ours, theirs = folder.resolve(), photos.resolve()
    if ours == theirs or ours in theirs.parents or (outside and theirs in ours.parents):
        raise InputError(f"{folder} would mix with the photos in {photos}: choose another {options}.")


def require_own_folder(folder: Path, options: str = "-o") -> None:
    """The folder is new or empty, or a workspace of a former run. options: those that choose it."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: give the name of a folder.")
    content = {path.name for path in folder.iterdir()} - {LOCK, RECORDS} if folder.is_dir() else set()
    if content and not any((folder / RECORDS / name).exists() for name in (INPUTS, SECONDS)):
        raise InputError(f"{folder} holds other files and is left as it is: give {options} the name of a new folder.")


# ---- depth and normal maps


def read_map(path: Path | str) -> np.ndarray:
    """Depths (H, W) or normals (H, W, 3), float32."""
    content = read_bytes(path, "estimate the depths first")
    parts = content[:MAX_HEADER].split(b"&", 3)
    if len(parts) != 4 or not all(part.isdigit() for part in parts[:3]):
        raise InputError(f"{path} is not a COLMAP map: it does not begin with width&height&channels&.")
    width, height, channels = (int(part) for part in parts[:3])
    start = sum(len(part) + 1 for part in parts[:3])
    if len(content) - start != 4 * width * height * channels:
        raise InputError(
            f"{path} holds {len(content) - start} bytes of values instead of {4 * width * height * channels}: "
            "it is truncated or damaged; remove it and estimate the depths again."
        )
    values = np.frombuffer(content, "<f4", offset=start).reshape(channels, height, width)
    return np.ascontiguousarray(values[0] if channels == 1 else values.transpose(1, 2, 0), dtype=np.float32)


def write_map(path: Path | str, values: np.ndarray) -> None:
    """Write depths (H, W) or normals (H, W, 3)."""
    layers = values[..., None] if values.ndim == 2 else values
    height, width, channels = layers.shape
    with new_file(path) as part, part.open("wb") as file:
        file.write(f"{width}&{height}&{channels}&".encode())
        file.write(np.ascontiguousarray(layers.transpose(2, 0, 1), dtype="<f4").tobytes())


def map_path(workspace: Path, kind: str, name: str, stage: str) -> Path:
    """kind: depth or normal; stage: photometric (as matched) or geometric (consistent with other photos)."""
    return workspace / "stereo" / f"{kind}_maps" / f"{name}.{stage}.bin"


def write_maps(workspace: Path, name: str, stage: str, depths: np.ndarray, normals: np.ndarray) -> None:
    """The depth map is written last: `is_finished` looks for it."""
    write_map(map_path(workspace, "normal", name, stage), normals)
    write_map(map_path(workspace, "depth", name, stage), depths)


def is_finished(workspace: Path, name: str, stage: str) -> bool:
    return map_path(workspace, "depth", name, stage).is_file()


def map_options_path(workspace: Path) -> Path:
    return workspace / "stereo" / "options.json"


def read_map_options(workspace: Path) -> dict[str, Any] | None:
    """What the maps of a workspace were made with, and by which program; None if that is not recorded."""
    path = map_options_path(workspace)
    return {"maker": "sdgmnet", **read_record(path, dict)} if path.is_file() else None


def require_same_map_options(workspace: Path, options: dict[str, Any], maker: Maker, *, remake: bool = False) -> None:
    """Record what the maps are made with. Maps made otherwise are refused, or with `remake` removed."""
    scene = hashlib.sha256((workspace / "scene.npz").read_bytes()).hexdigest()
    now = {"maker": maker, "method": METHODS[maker], "scene": scene, **options}
    now = {key: list(value) if isinstance(value, tuple) else value for key, value in now.items()}
    folder, before = workspace / "stereo", read_map_options(workspace)
    problem = ""
    if before is None and any(folder.glob("depth_maps/**/*.bin")):
        problem = f"{folder} holds depth maps of unknown origin: remove depth_maps and normal_maps there."
    elif before is not None and (changes := changes_in_words(before, now)):
        problem = (
            f"{folder} holds depth maps made with {changes}: use the same, or remove depth_maps, normal_maps and options.json "
            "there."
        )
    if problem and not remake:
        raise InputError(problem)
    if problem:
        remove_maps(workspace)
    if problem or before is None:
        write_json(map_options_path(workspace), now)  # after the removal: a stop in between is repeated


def remove_maps(workspace: Path) -> None:
    """Depth maps first, since `is_finished` looks for them. The folders stay: COLMAP needs them."""
    for kind in ("depth_maps", "normal_maps", "consistency_graphs"):
        for path in (workspace / "stereo" / kind).rglob("*.bin"):
            path.unlink()

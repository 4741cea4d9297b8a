"""A workspace's dense maps: where they lie, when one is finished, and a note of what they were made with.

The folder is the one that COLMAP's undistorter writes (`images/`, `sparse/`, `stereo/`), with our `scene.npz` beside.
"""

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from sdgmnet.errors import InputError
from sdgmnet.files import read_json, write_json
from sdgmnet.reconstruction.maps import write_map
from sdgmnet.reconstruction.stereo import DenseOptions

METHOD = 1  # raised when the same options would give other maps


def map_path(workspace: Path, kind: str, name: str, stage: str) -> Path:
    """kind: depth or normal; stage: photometric (as matched) or geometric (confirmed by other photos)."""
    return workspace / "stereo" / f"{kind}_maps" / f"{name}.{stage}.bin"


def write_maps(workspace: Path, name: str, stage: str, depths: np.ndarray, normals: np.ndarray) -> None:
    """The depth map comes last: it says that both are there."""
    write_map(map_path(workspace, "normal", name, stage), normals)
    write_map(map_path(workspace, "depth", name, stage), depths)


def is_finished(workspace: Path, name: str, stage: str) -> bool:
    return map_path(workspace, "depth", name, stage).is_file()


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

"""A workspace's dense maps: where they lie, when one is finished, and a note of what they were made with.

The folder is the one that COLMAP's undistorter writes (`images/`, `sparse/`, `stereo/`), with our `scene.npz` beside.
"""

import dataclasses
import hashlib
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sdgmnet.errors import InputError
from sdgmnet.sfm.stereo import DenseOptions
from sdgmnet.storage import new_file, read_bytes, read_record, write_json

# ---- reconstruction.maps


LONGEST_HEADER = 64  # three numbers and their separators are shorter


def read_map(path: Path | str) -> np.ndarray:
    """Depths (H, W) or normals (H, W, 3), float32."""
    path = Path(path)
    try:
        content = read_bytes(path)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: estimate the depths first.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}).") from error
    parts = content[:LONGEST_HEADER].split(b"&", 3)
    if len(parts) != 4 or not all(part.isdigit() for part in parts[:3]):
        raise InputError(f"{path} is not a COLMAP map: it does not begin with width&height&channels&.")
    width, height, channels = (int(part) for part in parts[:3])
    start = sum(len(part) + 1 for part in parts[:3])
    if len(content) - start != 4 * width * height * channels:
        raise InputError(
            f"{path} holds {len(content) - start} bytes of values instead of {4 * width * height * channels}: "
            "it is cut off or damaged; remove it and estimate the depths again."
        )
    values = np.frombuffer(content, "<f4", offset=start).reshape(channels, height, width)
    return np.ascontiguousarray(values[0] if channels == 1 else values.transpose(1, 2, 0), dtype=np.float32)


def write_map(path: Path | str, values: np.ndarray) -> None:
    """Write depths (H, W) or normals (H, W, 3); the file appears whole or not at all."""
    if values.ndim not in (2, 3):
        raise InputError(f"A map has two or three dimensions, this one for {path} has {values.ndim}.")
    layers = values[..., None] if values.ndim == 2 else values
    height, width, channels = layers.shape
    with new_file(path) as part, part.open("wb") as file:
        file.write(f"{width}&{height}&{channels}&".encode())
        file.write(np.ascontiguousarray(layers.transpose(2, 0, 1), dtype="<f4").tobytes())


# ---- reconstruction.workspace


Maker = Literal["sdgmnet", "colmap"]
METHODS: dict[Maker, int] = {"sdgmnet": 1, "colmap": 1}  # raised when the same options would give other maps


def map_path(workspace: Path, kind: str, name: str, stage: str) -> Path:
    """kind: depth or normal; stage: photometric (as matched) or geometric (confirmed by other photos)."""
    return workspace / "stereo" / f"{kind}_maps" / f"{name}.{stage}.bin"


def write_maps(workspace: Path, name: str, stage: str, depths: np.ndarray, normals: np.ndarray) -> None:
    """The depth map comes last: it says that both are there."""
    write_map(map_path(workspace, "normal", name, stage), normals)
    write_map(map_path(workspace, "depth", name, stage), depths)


def is_finished(workspace: Path, name: str, stage: str) -> bool:
    return map_path(workspace, "depth", name, stage).is_file()


def noted_options(workspace: Path) -> dict[str, Any] | None:
    """What the maps of a workspace are made with, and by whom; None where nobody noted it."""
    note = note_path(workspace)
    return (
        {"maker": "sdgmnet", **read_record(note, dict)} if note.is_file() else None
    )  # notes without a maker are of our stereo


def note_path(workspace: Path) -> Path:
    return workspace / "stereo" / "options.json"


def same_options_or_error(workspace: Path, options: DenseOptions, maker: Maker, *, remake: bool = False) -> None:
    """Note what the maps are made with. Where maps made otherwise are there, refuse, or with `remake` remove them."""
    scene = hashlib.sha256((workspace / "scene.npz").read_bytes()).hexdigest()
    now: dict[str, Any] = {"maker": maker, "method": METHODS[maker], "scene": scene, **dataclasses.asdict(options)}
    now = {key: list(value) if isinstance(value, tuple) else value for key, value in now.items()}
    trouble = foreign_maps(workspace, now)
    if trouble and not remake:
        raise InputError(trouble)
    if trouble:
        remove_maps(workspace)
    if trouble or not note_path(workspace).is_file():
        write_json(note_path(workspace), now)  # after the removal: stopped in between, the next start removes the rest


def foreign_maps(workspace: Path, now: dict[str, Any]) -> str:
    """A sentence about maps that are there and not made with `now`; empty where there are none."""
    place, before = workspace / "stereo", noted_options(workspace)
    if before is None:
        unknown = any(place.glob("depth_maps/**/*.bin"))
        told = f"{place} holds depth maps of unknown origin: remove depth_maps and normal_maps there."
        return told if unknown else ""
    changed = [key for key in now if before.get(key) != now[key]]
    told = (
        f"{place} holds depth maps made with another {', '.join(changed)}: "
        "use the same, or remove depth_maps, normal_maps and options.json there."
    )
    return told if changed else ""


def remove_maps(workspace: Path) -> None:
    """The maps only: COLMAP needs the folders. Depth maps go first, since they say that a photo is finished."""
    for kind in ("depth_maps", "normal_maps", "consistency_graphs"):
        for path in (workspace / "stereo" / kind).rglob("*.bin"):
            path.unlink()

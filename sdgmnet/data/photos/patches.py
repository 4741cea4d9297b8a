"""Points of a scene's models -> the PatchSet with their patches."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sdgmnet.data.patchset import PatchTable, write_patchset
from sdgmnet.data.photos.tracks import Points
from sdgmnet.features.images import read_gray
from sdgmnet.features.patches import cut_patches
from sdgmnet.registry import WINDOW
from sdgmnet.sfm.scene import load_scene

PATCHES_AT_ONCE = 1024


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

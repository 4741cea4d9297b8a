"""Points of a scene's models -> the PatchSet with their patches, each with a record of where it was cut."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sdgmnet.data.patchset import write_patchset
from sdgmnet.data.photos.tracks import Points
from sdgmnet.features.images import read_gray
from sdgmnet.features.patches import cut_patches
from sdgmnet.sfm.scene import load_scene

OBSERVATION = np.dtype(
    [
        ("image", "i4"),  # place in the origin's list of images
        ("x", "f4"),
        ("y", "f4"),
        ("scale", "f4"),  # sigma in pixels
        ("angle", "f4"),  # radians, clockwise on the image
        ("point", "i8"),
        ("distance", "f4"),  # pixels from where the point's strongest keypoint is carried to; NaN where it cannot be
        ("detected", "?"),  # a keypoint, or only the carried place
    ]
)
PATCHES_AT_ONCE = 1024


def write_scene(
    target: Path,
    name: str,
    origin: dict[str, Any],
    models: Sequence[Path],
    made: Sequence[Points],
    sources: Mapping[str, str] | None = None,
) -> None:
    """One PatchSet of all models, whose points and images are numbered one after the other.

    sources: what the photo behind a view's image was called, where its copy got another name.
    """
    images: list[str] = []
    rows, conflicts, next_point = [], [np.empty((0, 2), dtype=np.int64)], 0
    shown: set[str] = set()  # COLMAP may put a photo into two models, which know nothing of each other's points
    scenes = [load_scene(model / "scene.npz") for model in models]
    named = [(model.name, view.name) for model, scene in zip(models, scenes, strict=True) for view in scene.views]
    origin = {
        **origin,
        "images": [f"{model}/{view}" for model, view in named],
        "sources": [(sources or {}).get(view, view) for _, view in named],
    }
    with write_patchset(target, name, origin) as writer:
        for model, scene, points in zip(models, scenes, made, strict=True):
            for index, view in enumerate(scene.views):
                here = np.flatnonzero((points.view == index) & (view.name not in shown))
                keypoints = points.keypoints.select(here)
                picture = (
                    read_gray(model / "images" / view.name, exif_orientation=False)
                    if len(here)
                    else np.empty((0, 0), dtype=np.uint8)
                )
                for start in range(0, len(here), PATCHES_AT_ONCE):
                    writer.append(
                        cut_patches(
                            picture, keypoints.select(np.arange(start, min(start + PATCHES_AT_ONCE, len(here))))
                        )
                    )
                row = np.zeros(len(here), dtype=OBSERVATION)
                row["image"], row["x"], row["y"] = len(images), keypoints.xy[:, 0], keypoints.xy[:, 1]
                row["scale"], row["angle"] = keypoints.sigma, keypoints.angle
                row["point"] = points.point[here] + next_point
                row["distance"], row["detected"] = points.distance[here], points.detected[here]
                rows.append(row)
                images.append(view.name)
                if len(here):
                    shown.add(view.name)
            conflicts.append(points.conflicts + next_point)
            next_point += int(points.point.max(initial=-1)) + 1
        observations = np.concatenate(rows)
        writer.finish(observations["point"], conflicts=np.concatenate(conflicts), observations=observations)

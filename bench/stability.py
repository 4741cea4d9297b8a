"""How much a reconstruction changes with the JPEG quality of its photos, per descriptor and ratio test."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np

from bench.options import StabilityOptions
from bench.study import deliver_study, folder_or_temporary, source_of
from sdgmnet.engine import use_threads
from sdgmnet.errors import InputError
from sdgmnet.features.images import find_photos, read_color
from sdgmnet.report import Section, progress_bars
from sdgmnet.sfm.colmap import require_pycolmap
from sdgmnet.sfm.feature_sources import DescribedPhotos, ReconstructOptions
from sdgmnet.sfm.pairs import PairSelection
from sdgmnet.sfm.reconstruct import NoModel, Photos, reconstruct, summarise
from sdgmnet.sfm.workspace import Workspace

HEADER = ["photos", "descriptor", "ratio", "registered", "points", "spread", "track", "error px", "in tracks"]
HEADER += ["retried", "implausible"]
NO_RATIO = "none"


class Copy(NamedTuple):
    """Photos saved with one JPEG quality, and the folder of their workspaces."""

    name: str
    photos: Path
    folder: Path


def stability(options: StabilityOptions) -> None:
    require_pycolmap()
    ratios = [read_ratio(ratio) for ratio in options.ratios] or [ReconstructOptions().ratio]
    for folder in options.photos:
        if not folder.is_dir() or not find_photos(folder):
            raise InputError(f"{folder} is not a folder of photos.")
    use_threads(options.threads)
    sources = {name: source_of(name, options.keypoints) for name in options.descriptors}
    results: list[dict[str, Any]] = []
    with progress_bars() as on_progress, folder_or_temporary(options.out) as place:
        total = len(options.photos) * len(options.qualities) * len(sources) * len(ratios)
        for photos in options.photos:
            for quality in options.qualities:
                copy = save_copy(photos, place / photos.resolve().name / f"quality-{quality}", quality, options.first)
                for descriptor, source in sources.items():
                    for ratio in ratios:
                        on_progress("models", len(results), total)
                        figures = reconstruct_copy(copy, descriptor, source, ratio, options.threads)
                        setting = {"photos": copy.name, "quality": quality, "descriptor": descriptor, "ratio": ratio}
                        results.append({**setting, **figures})
        on_progress("models", total, total)
    section = Section(
        f"Stability over JPEG qualities {', '.join(map(str, options.qualities))}", "", HEADER, table(results)
    )
    deliver_study(options, {"models": results}, [section])


def read_ratio(text: str) -> float | None:
    if text == NO_RATIO:
        return None
    try:
        ratio = float(text)
    except ValueError:
        ratio = 0.0
    if not 0 < ratio <= 1:
        raise InputError(f"--ratios takes numbers in (0, 1] or {NO_RATIO}, not {text}.")
    return ratio


def save_copy(photos: Path, folder: Path, quality: int, first: int | None) -> Copy:
    copies = folder / "photos"
    copies.mkdir(parents=True, exist_ok=True)
    for name in find_photos(photos)[:first]:
        target = copies / f"{Path(name).stem}.jpg"
        if not target.exists():
            image = cv2.cvtColor(read_color(photos / name), cv2.COLOR_RGB2BGR)
            target.write_bytes(cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])[1].tobytes())
    return Copy(photos.resolve().name, copies, folder)


def reconstruct_copy(
    copy: Copy, descriptor: str, source: DescribedPhotos, ratio: float | None, threads: int
) -> dict[str, Any]:
    """Figures of the largest model; zeros if there is none. Features are shared by the ratio tests."""
    label = descriptor.replace("/", "_")
    workspace = Workspace(copy.folder / label / f"ratio-{NO_RATIO if ratio is None else ratio}")
    workspace.records.mkdir(parents=True, exist_ok=True)
    features = copy.folder / label / "features.h5"
    if features.exists() and not workspace.features.exists():
        shutil.copyfile(features, workspace.features)
    photos = Photos(copy.photos, tuple(find_photos(copy.photos)))
    options = ReconstructOptions(ratio=ratio, threads=threads)
    try:
        summary = summarise(workspace, photos, source, reconstruct(workspace, photos, source, PairSelection(), options))
    except NoModel as error:
        none = {"registered": 0, "points": 0, "track_length": 0.0, "reprojection_error": 0.0, "in_tracks": 0.0}
        return {**none, "attempts": 1, "implausible": [str(error)]}
    if not features.exists():
        shutil.copyfile(workspace.features, features)
    chosen = next(one for one in summary["attempts"] if one["attempt"] == summary["attempt"])
    kept = ("registered", "points", "observations", "track_length", "reprojection_error", "inlier_matches", "attempt")
    return {
        **{key: summary[key] for key in kept},
        "in_tracks": chosen["matches_in_tracks"] / max(summary["inlier_matches"], 1),
        "attempts": len(summary["attempts"]),
        "implausible": summary["implausible"],
    }


def table(results: Sequence[dict[str, Any]]) -> list[list[str]]:
    rows = []
    for key in dict.fromkeys((one["photos"], one["descriptor"], one["ratio"]) for one in results):
        of_key = [one for one in results if (one["photos"], one["descriptor"], one["ratio"]) == key]
        points = np.array([one["points"] for one in of_key])
        spread = (points.max() - points.min()) / max(points.mean(), 1e-9)
        rows.append(
            [
                key[0],
                key[1],
                NO_RATIO if key[2] is None else f"{key[2]:g}",
                str(min(one["registered"] for one in of_key)),
                f"{points.mean():.0f}",
                f"{100 * spread:.1f} %",
                f"{np.mean([one['track_length'] for one in of_key]):.2f}",
                f"{np.mean([one['reprojection_error'] for one in of_key]):.3f}",
                f"{100 * min(one['in_tracks'] for one in of_key):.0f} %",
                str(sum(one["attempts"] > 1 for one in of_key)),
                str(sum(bool(one["implausible"]) for one in of_key)),
            ]
        )
    return rows

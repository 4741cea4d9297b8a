"""The tab Reconstruct: photos -> models, in a folder that is removed with all its files when the job ends, however it ends."""

import shutil
import time
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any, NamedTuple

from sdgmnet.app.uploads import HOUR, require_bounded, stored_path
from sdgmnet.descriptors import require_form
from sdgmnet.errors import InputError, Stopped
from sdgmnet.features.images import UnreadableImage
from sdgmnet.features.match import RATIO
from sdgmnet.report import OnProgress, markdown, no_progress
from sdgmnet.sfm.colmap import require_pycolmap
from sdgmnet.sfm.feature_sources import ReconstructOptions, descriptor_source
from sdgmnet.sfm.pairs import PairSelection
from sdgmnet.sfm.photo_import import copied_name
from sdgmnet.sfm.reconstruct import Photos, reconstruct, summarise
from sdgmnet.sfm.summary import remarks, tables
from sdgmnet.sfm.viewer import draw_models
from sdgmnet.sfm.workspace import MIN_PHOTOS, Workspace
from sdgmnet.storage import new_file, write_json

MAX_PHOTOS = 30
MAX_TOTAL_MEGABYTES = 300
MAX_KEYPOINTS = 12_000
MAX_NAME_BYTES = 200  # of a photo; file systems allow 255, and endings are added
SIZES = (800, 1200, 1600, 2400)  # longest side in pixels
CONTRAST = 0.02  # of a keypoint, as `sdgmnet reconstruct`
DOWNLOADS = ("cloud.html", "points.ply", "model.zip")
ARCHIVED = ("images", "sparse", "cloud.html", "cloud.png", "summary.json")  # of the workspace


@dataclass(frozen=True)
class PhotoOptions:
    """What a user chooses."""

    descriptor: str = "sdgmnet-fast"  # the page should answer within minutes
    keypoints: int = 4000  # per photo, strongest first
    size: int = 1200  # longest side of the photos in pixels; larger ones are resized

    def __post_init__(self) -> None:
        require_form(self.descriptor)
        if not 1 <= self.keypoints <= MAX_KEYPOINTS:
            raise InputError(f"the number of keypoints must be from 1 to {MAX_KEYPOINTS}, not {self.keypoints}.")
        if self.size not in SIZES:
            raise InputError(f"the longest side must be one of {', '.join(map(str, SIZES))}, not {self.size}.")


class Reconstruction(NamedTuple):
    summary: dict[str, Any]
    page: str  # HTML in which the models can be turned
    files: list[Path]  # DOWNLOADS


def require_photos(sent: Sequence[Any] | None, folder: Path) -> list[tuple[Path, str]]:
    """Path and name of each photo that gradio has stored below `folder`; bounded in count and size."""
    photos = list(sent or [])
    if not MIN_PHOTOS <= len(photos) <= MAX_PHOTOS:
        raise InputError(f"a model needs {MIN_PHOTOS} to {MAX_PHOTOS} photos of the same scene, not {len(photos)}.")
    found, total = [], 0
    for number, one in enumerate(photos, start=1):
        path = stored_path(one, folder, f"photo {number}")
        name = name_of(one, path)
        total += path.stat().st_size
        with suppress(UnreadableImage):  # the photos that cannot be read are skipped, and named in the summary
            require_bounded(path, name)
        found.append((path, name))
    if total > MAX_TOTAL_MEGABYTES * 1e6:
        raise InputError(
            f"the photos have {total / 1e6:.0f} MB, more than the limit of {MAX_TOTAL_MEGABYTES}: give fewer, or smaller ones."
        )
    return found


def name_of(sent: dict[str, Any], path: Path) -> str:
    """The user's name of a photo if a file can have it, else the name by which gradio has stored it."""
    name = Path(str(sent.get("orig_name") or "")).name.encode(errors="replace").decode()
    is_usable = name.strip() and "\0" not in name and len(name.encode()) < MAX_NAME_BYTES
    return name if is_usable else path.name


def reconstruct_photos(
    photos: Sequence[tuple[Path, str]], options: PhotoOptions, below: Path, on_progress: OnProgress = no_progress
) -> Reconstruction:
    """The models of photos, given by path and name. What can be downloaded is kept in a new folder below `below`."""
    require_pycolmap()
    remove_old_results(below)
    with TemporaryDirectory(dir=below, prefix="job-") as folder:
        workspace = Workspace(Path(folder) / "model")
        given = collect(photos, Path(folder) / "photos", options.size)
        try:
            summary = make_models(workspace, given, options, on_progress)
        except (InputError, Stopped) as error:
            kind = InputError if isinstance(error, InputError) else Stopped
            raise kind(without_folders(str(error), workspace.folder, given.folder, below)) from error
        draw_models(workspace, summary, "model")
        write_json(workspace.folder / "summary.json", summary)
        on_progress("packing", 0, 0)
        page = (workspace.folder / "cloud.html").read_text(encoding="utf-8")
        return Reconstruction(summary, page, keep_downloads(workspace.folder, below))


def remove_old_results(below: Path) -> None:
    """gradio removes its copies of them, which it makes for the browser, but not the originals."""
    for results in below.glob("model-*"):
        with suppress(FileNotFoundError):  # another job has removed it
            if results.stat().st_mtime < time.time() - HOUR:
                shutil.rmtree(results, ignore_errors=True)


def without_folders(text: str, *folders: Path) -> str:
    """A message without paths on the server, which mean nothing to the user; inner folders come first."""
    for folder in folders:
        text = text.replace(f"{folder}: ", "").replace(f"{folder}/", "").replace(str(folder), folder.name)
    return text


def collect(photos: Sequence[tuple[Path, str]], folder: Path, size: int) -> Photos:
    """The photos in one folder, by the names that the user knows."""
    folder.mkdir()
    names: list[str] = []
    for path, name in photos:
        names.append(copied_name(name, set(names)))
        (folder / names[-1]).symlink_to(path)
    return Photos(folder, tuple(sorted(names)), size)


def make_models(workspace: Workspace, photos: Photos, options: PhotoOptions, on_progress: OnProgress) -> dict[str, Any]:
    """The summary of the models in the workspace."""
    on_progress("loading the descriptor", 0, 0)
    source = descriptor_source(options.descriptor, options.keypoints, contrast=CONTRAST, size=options.size)
    chosen = ReconstructOptions(ratio=RATIO)
    models = reconstruct(workspace, photos, source, PairSelection("exhaustive"), chosen, on_progress)
    return summarise(workspace, photos, source, models)


def keep_downloads(model: Path, below: Path) -> list[Path]:
    results = Path(mkdtemp(dir=below, prefix="model-"))
    try:
        return write_downloads(model, results)
    except BaseException:
        shutil.rmtree(results, ignore_errors=True)
        raise


def write_downloads(model: Path, results: Path) -> list[Path]:
    shutil.copyfile(model / "cloud.html", results / "cloud.html")
    shutil.copyfile(model / "sparse" / "points.ply", results / "points.ply")
    with (
        new_file(results / "model.zip") as part,
        zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as zipped,
    ):
        for name in ARCHIVED:
            place = model / name
            for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
                if path.is_file():
                    zipped.write(path, Path("model") / path.relative_to(model))
    return [results / name for name in DOWNLOADS]


def remarks_text(summary: dict[str, Any]) -> str:
    """Why the model is implausible, and which photos it lacks, in Markdown."""
    lines = [escape(one) for one in remarks(summary)]
    if summary["implausible"]:
        reasons = escape("; ".join(summary["implausible"]))
        lines.insert(0, f"**The model is implausible**: {reasons}. Use photos with more overlap, or other keypoints.")
    return "\n\n".join(lines)


def tables_text(summary: dict[str, Any]) -> str:
    """The figures of the models and the time of each stage, in Markdown."""
    return "\n\n".join(
        markdown(table.header, [[escape(cell) for cell in row] for row in table.rows]) for table in tables(summary)
    )


def embedded(page: str) -> str:
    """The page in a frame without access to this one: it needs nothing but its own scripts."""
    return f'<iframe title="the model in 3-D" sandbox="allow-scripts" srcdoc="{escape(page)}"></iframe>'

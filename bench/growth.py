"""Cost per photo as a collection grows: photos made from real ones by crops and warps, killed on the way and continued."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np

from bench.options import GrowthOptions
from bench.study import deliver_study, folder_or_temporary
from sdgmnet.errors import InputError
from sdgmnet.features.h5_store import parts_folder
from sdgmnet.features.images import find_photos, read_color
from sdgmnet.features.pairs import read_pairs
from sdgmnet.report import OnProgress, Section, no_progress, progress_bars, track

HEADER = ["photos", "pairs", "runs", "CPU seconds", "ms per photo", "against the fewest", "peak memory, MB", "repeated"]
CROP, CORNER = 0.7, 0.06  # shortest side of a crop, and the farthest a corner is moved, as shares of the sides
JPEG_QUALITY = 92


def growth(options: GrowthOptions) -> None:
    originals = [options.photos / name for name in find_photos(options.photos)]
    if not originals:
        raise InputError(f"{options.photos} contains no photos.")
    results: list[dict[str, Any]] = []
    with progress_bars() as on_progress, folder_or_temporary(options.out) as place:
        for count in sorted(options.counts):
            photos = place / f"{count}" / "photos"
            write_views(originals, photos, count, options.size, on_progress)
            on_progress(f"matching {count} photos", 0, 1)
            results.append({"photos": count, **match_photos(photos, options)})
            on_progress(f"matching {count} photos", 1, 1)
    note = "Describing, pairs by retrieval and matching, by sdgmnet match in a process of its own."
    section = Section("Cost per photo", note, HEADER, table(results))
    deliver_study(options, {"results": results}, [section])


def write_views(
    originals: Sequence[Path], folder: Path, count: int, size: int, on_progress: OnProgress = no_progress
) -> None:
    """`count` views of the photos, in turn: the first of each as it is, then crops and perspective warps of it."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in track(range(count), f"making {count} photos", on_progress):
        target = folder / f"{number:05d}.jpg"
        if target.exists():
            continue
        image = cv2.cvtColor(read_color(originals[number % len(originals)]), cv2.COLOR_RGB2BGR)
        view = image if number < len(originals) else warped(image, np.random.default_rng(number))
        scale = min(1.0, size / max(view.shape[:2]))
        view = cv2.resize(view, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
        part = target.with_suffix(".part")
        part.write_bytes(cv2.imencode(".jpg", view, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])[1].tobytes())
        part.rename(target)


def warped(image: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """A crop of at least 0.7 of each side, whose corners are moved by up to 6 %."""
    height, width = image.shape[:2]
    share = random.uniform(CROP, 1.0)
    sides = np.array([width, height]) * share
    start = random.uniform(0, 1, 2) * (np.array([width, height]) - sides)
    corners = start + sides * np.array([[0, 0], [1, 0], [1, 1], [0, 1]])
    moved = corners + random.uniform(-CORNER, CORNER, (4, 2)) * sides
    target = sides * np.array([[0, 0], [1, 0], [1, 1], [0, 1]])
    warp = cv2.getPerspectiveTransform(moved.astype(np.float32), target.astype(np.float32))
    size = round(sides[0]), round(sides[1])
    return cv2.warpPerspective(image, warp, size, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT)


def match_photos(photos: Path, options: GrowthOptions) -> dict[str, Any]:
    """CPU seconds, which other work on the machine does not change much, and peak memory of `sdgmnet match`, over all runs: it
    is killed `options.kills` times and continued."""
    out = photos.parent / "matches.h5"
    words = [sys.executable, "-m", "sdgmnet", "match", str(photos), "-o", str(out), "--pairs", "retrieval"]
    words += ["--descriptor", options.descriptor, "--keypoints", str(options.keypoints), "--size", str(options.size)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
    files = {"image": photos.parent / "features.h5", "pair": out}
    runs, seconds, peak, repeated = 0, 0.0, 0, 0
    while True:
        finished = {kind: len(groups(path)) for kind, path in files.items()}
        limit = options.kill_after if runs < options.kills else None
        began = cpu_seconds()
        code, used, printed = run_measured(words, environment, limit)
        seconds, peak, runs = seconds + cpu_seconds() - began, max(peak, used), runs + 1
        repeated += sum(max(0, finished[kind] - kept) for kind, kept in kept_in(printed).items())
        if code == 0:
            break
        if limit is None or code != -signal.SIGKILL:
            raise InputError(f"sdgmnet match failed with exit code {code}. Its command: {' '.join(words[1:])}")
    pairs = read_pairs(out.with_name("matches_pairs.txt"), {path.name for path in photos.iterdir()})
    return {"pairs": len(pairs), "runs": runs, "seconds": seconds, "peak_bytes": peak, "repeated": repeated}


def kept_in(printed: str) -> dict[str, int]:
    """Of the images and pairs that a run had to do with, how many it took from the files: by its own summary."""
    found = re.findall(r"\d+ (image|pair)s? (?:described|matched) \(.*?\)(?:, (\d+) in the file already)?", printed)
    return {kind: int(kept or 0) for kind, kept in found}


def run_measured(words: Sequence[str], environment: dict[str, str], kill_after: float | None) -> tuple[int, int, str]:
    """Exit code, peak memory in bytes and output of a process, killed after some seconds if it is still running."""
    with (
        tempfile.TemporaryFile("w+") as printed,
        subprocess.Popen(words, env=environment, stdout=printed, stderr=subprocess.DEVNULL) as process,
    ):
        peak, began, status = 0, time.perf_counter(), Path(f"/proc/{process.pid}/status")
        while process.poll() is None:
            peak = max([peak, *peak_in(status)])
            if kill_after is not None and time.perf_counter() - began > kill_after:
                process.send_signal(signal.SIGKILL)
            time.sleep(0.1)
        printed.seek(0)
        return process.returncode, peak, printed.read()


def cpu_seconds() -> float:
    """Of all processes that were started here and have ended."""
    times = os.times()
    return times.children_user + times.children_system


def peak_in(status: Path) -> Iterable[int]:
    try:
        lines = status.read_text().splitlines()
    except OSError:  # it has just ended
        return []
    return [1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")]


def groups(path: Path) -> set[str]:
    """Names of the images or pairs in an h5 file and in its parts, which a killed process leaves."""
    found: set[str] = set()
    for one in (path, *parts_folder(path).glob("[0-9]*.h5")):
        if one.exists():
            with h5py.File(one) as file:
                file.visititems(
                    lambda name, item: found.add(str(Path(name).parent)) if isinstance(item, h5py.Dataset) else None
                )
    return found


def table(results: Sequence[dict[str, Any]]) -> list[list[str]]:
    per_photo = [one["seconds"] / one["photos"] for one in results]
    return [
        [
            str(one["photos"]),
            str(one["pairs"]),
            str(one["runs"]),
            f"{one['seconds']:.0f}",
            f"{1000 * each:.0f}",
            f"{each / per_photo[0]:.2f} x",
            f"{one['peak_bytes'] / 1e6:.0f}",
            str(one["repeated"]),
        ]
        for one, each in zip(results, per_photo, strict=True)
    ]

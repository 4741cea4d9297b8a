"""Image sequences -> HPatches strips: a folder per sequence with ref, e1 ... e5, h1 ... h5, t1 ... t5 .png, and its record.

A strip is gray, 65 pixels wide, and holds one patch below the other; patch k shows the same region in all sixteen. A finished
folder is kept: started again, only the missing sequences are made.
"""

import json
import os
import shutil
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from sdgmnet.data.hpatches.files import OTHERS, SIDE, TYPES
from sdgmnet.data.hpatches.regions import (
    DETECTORS,
    JITTERS,
    LARGEST_OVERLAP,
    MAGNIFICATION,
    SMALLEST_SCALE,
    Regions,
    choose_regions,
)
from sdgmnet.data.scenes import Failure
from sdgmnet.data.sequences import ImageSequence, read_sequence, sequence_folders
from sdgmnet.errors import InputError
from sdgmnet.features.images import read_gray
from sdgmnet.features.patches import cut_frames
from sdgmnet.report import OnProgress, no_progress, track
from sdgmnet.storage import digest, is_disk_full, new_folder, read_record, write_json

RECORD = "strips.json"
RECORDED = {
    "sequence": str, "settings": dict, "patches": int, "detected_by": object, "sources": dict,
    "median_overlap": dict.fromkeys(JITTERS, int | float),
}  # fmt: skip
IN_SUMMARY = ("patches", "detected_by", "median_overlap", "sources")
METHOD = 1  # raised when the same images and options would give other strips


@dataclass(frozen=True)
class StripOptions:
    patches: int = 1350
    """Per sequence, at most; the official set has 1353 on average."""
    seed: int = 0
    """Of the jitter and of the choice among overlapping regions."""

    def described(self) -> dict[str, Any]:
        """Everything that the strips depend on, as kept in strips.json."""
        described = {
            **asdict(self),
            "method": METHOD,
            "side": SIDE,
            "magnification": MAGNIFICATION,
            "smallest_scale": SMALLEST_SCALE,
            "largest_overlap": LARGEST_OVERLAP,
            "detectors": list(DETECTORS),
            "jitter": {noise: jitter._asdict() for noise, jitter in JITTERS.items()},
        }
        return json.loads(json.dumps(described))  # as it will be read back


def make_strips(
    root: Path | str,
    out: Path | str,
    options: StripOptions | None = None,
    *,
    only: Sequence[str] = (),
    force: Sequence[str] = (),
    on_progress: OnProgress = no_progress,
) -> tuple[list[dict[str, Any]], list[Failure]]:
    """The strips of each sequence below `root` in out/<name>, and set.json.

    only: names of the sequences to use, all by default; force: names of those to make again. Returns the records of all
    sequences in `out`, by name, and the sequences that failed.
    """
    options, out = options or StripOptions(), Path(out)
    folders = {Path(os.path.abspath(folder)).name: folder for folder in sequence_folders(root)}  # "." has a name too
    unknown = sorted({*only, *force} - set(folders))
    if unknown:
        raise InputError(f"there is no sequence {unknown[0]}; there are: {', '.join(folders)}.")
    settings = options.described()
    for record in records(out):
        former = record["settings"]
        if former != settings and record["sequence"] not in force:
            keys = [key for key in sorted({*former, *settings}) if former.get(key) != settings.get(key)]
            raise InputError(
                f"{out / record['sequence']} was made with other settings: choose another -o, remove it, or give "
                f"the former options ({', '.join(f'{key} {former.get(key)}' for key in keys)})."
            )
    skipped = []
    for name in [name for name in folders if not only or name in only]:
        try:
            make_sequence(folders[name], out / name, options, name in force, on_progress)
        except InputError as error:
            if is_disk_full(error):
                raise  # every other sequence would fail as well
            skipped.append(Failure(name, str(error)))
    made = records(out)
    if made:
        write_json(out / "set.json", summary(made, skipped, settings))
    return made, skipped


def records(out: Path) -> list[dict[str, Any]]:
    """The records of the finished sequences in a folder, by name."""
    paths = sorted(out.glob(f"*/{RECORD}")) if out.is_dir() else []
    return [read_record(path, RECORDED) | {"sequence": path.parent.name} for path in paths]


def make_sequence(folder: Path, target: Path, options: StripOptions, force: bool, on_progress: OnProgress) -> None:
    """The strips of one sequence; with `force` in place of those that are there."""
    sequence = read_sequence(folder)._replace(name=target.name)
    if len(sequence.others) != OTHERS:
        count = len(sequence.others) + 1
        raise InputError(f"{folder} has {count} images: strips need {OTHERS + 1}, a reference and {OTHERS} others.")
    sources = {path.name: digest(path) for path in (sequence.reference, *sequence.others)}
    sources |= {f"H_1_{number}": digest(folder / f"H_1_{number}") for number in range(2, OTHERS + 2)}
    exists = (target / RECORD).is_file()
    if exists and not force and all((target / f"{name}.png").is_file() for name in TYPES):
        if read_record(target / RECORD, RECORDED)["sources"] != sources:
            raise InputError(f"{target} was made from other images or homographies: remove it, or --force it.")
        return
    images, regions = read_and_choose(sequence, options)
    if exists:
        shutil.rmtree(target)  # as late as possible: if the sequence cannot be made again, the old strips stay
    with new_folder(target) as part:
        for name, patches in track(cut_strips(sequence, images, regions), sequence.name, on_progress, len(TYPES)):
            write_strip(part / f"{name}.png", patches)
        record = {"sequence": target.name, "settings": options.described(), "sources": sources}
        write_json(part / RECORD, record | described(regions))


def read_and_choose(sequence: ImageSequence, options: StripOptions) -> tuple[list[np.ndarray], Regions]:
    """All images of a sequence, the reference first, and the regions to cut."""
    images = [read_gray(path) for path in (sequence.reference, *sequence.others)]
    rng = np.random.default_rng([options.seed, zlib.crc32(sequence.name.encode())])
    sizes = tuple((image.shape[1], image.shape[0]) for image in images[1:])
    regions = choose_regions(images[0], sequence.homographies, sizes, options.patches, rng)
    if not len(regions.frames):
        raise InputError(
            f"no region of {sequence.reference} lies inside all images of its sequence: the images overlap too "
            "little, have no texture, or a homography is wrong."
        )
    return images, regions


def cut_strips(sequence: ImageSequence, images: list[np.ndarray], regions: Regions) -> Iterator[tuple[str, np.ndarray]]:
    """All sixteen: name and patches (N, 65, 65) uint8."""
    yield TYPES[0], cut_frames(images[0], regions.frames, SIDE)
    for noise, frames in regions.jittered.items():
        for number, homography in enumerate(sequence.homographies):
            yield f"{noise}{number + 1}", cut_frames(images[number + 1], frames[number], SIDE, homography)


def write_strip(path: Path, patches: np.ndarray) -> None:
    """Patches (N, 65, 65) uint8, one below the other."""
    path.write_bytes(cv2.imencode(".png", patches.reshape(-1, patches.shape[2]))[1].tobytes())


def described(regions: Regions) -> dict[str, Any]:
    """The number of patches, the number per detector, and the median overlap per noise."""
    counts = np.bincount(regions.detector, minlength=len(DETECTORS))
    return {
        "patches": len(regions.frames),
        "detected_by": dict(zip(DETECTORS, counts.tolist(), strict=True)),
        "median_overlap": {noise: float(np.median(overlap)) for noise, overlap in regions.overlap.items()},
    }


def summary(made: list[dict[str, Any]], skipped: list[Failure], settings: dict[str, Any]) -> dict[str, Any]:
    return {
        "source": "sequences",
        "settings": settings,
        "patches": sum(one["patches"] for one in made),
        # The median over sequences of their medians.
        "median_overlap": {
            noise: float(np.median([one["median_overlap"][noise] for one in made])) for noise in JITTERS
        },
        "sequences": {one["sequence"]: {key: one[key] for key in IN_SUMMARY} for one in made},
        "skipped": dict(skipped),
    }


def strips_table(made: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a table with a row per sequence."""
    header = ["sequence", "patches", *DETECTORS, *(f"overlap {noise}" for noise in JITTERS)]
    return header, [
        [
            row["sequence"],
            f"{row['patches']}",
            *(f"{row['detected_by'][name]}" for name in DETECTORS),
            *(f"{row['median_overlap'][noise]:.3f}" for noise in JITTERS),
        ]
        for row in made
    ]

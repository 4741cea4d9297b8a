"""Image sequences -> HPatches' strips: a folder a sequence with ref, e1 ... e5, h1 ... h5, t1 ... t5 .png, and their record.

A strip is gray, 65 pixels wide, and holds one patch below the other; patch k shows the same place in all sixteen. A finished
folder is kept: started again, the work goes on with the sequences that are missing.
"""

import json
import os
import shutil
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

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
from sdgmnet.data.sequences import ImageSequence, read_sequence, sequence_folders
from sdgmnet.errors import InputError
from sdgmnet.features.images import read_gray
from sdgmnet.features.patches import cut_frames
from sdgmnet.storage import digest, is_disk_full, new_file, new_folder, read_record, write_json

# ---- data.strip_sheet


PATCHES, SEQUENCES = 6, 12  # at most
GAP, TITLE = 2, 18  # pixels


def draw_sheet(root: Path, sequences: Sequence[str], names: Sequence[str], side: int) -> None:
    """root/sheet.png: evenly spread sequences, and patches from the strongest to the weakest; a column a strip."""
    chosen = [sequences[number] for number in _spread(len(sequences), SEQUENCES)]
    bands = [band([read_gray(root / one / f"{name}.png") for name in names], one, names, side) for one in chosen]
    with new_file(root / "sheet.png") as part:
        part.write_bytes(cv2.imencode(".png", np.concatenate(bands))[1].tobytes())


def band(strips: Sequence[np.ndarray], sequence: str, names: Sequence[str], side: int) -> np.ndarray:
    """Patches of one sequence, a row each, below the names of the strips; the first column is named by the sequence."""
    rows = _spread(len(strips[0]) // side, PATCHES)
    picture = np.full((TITLE + len(rows) * (side + GAP), len(strips) * (side + GAP)), 255, dtype=np.uint8)
    for column, (name, strip) in enumerate(zip(names, strips, strict=True)):
        left = column * (side + GAP)
        title = sequence if column == 0 else name
        picture[:TITLE, left : left + side + GAP] = _title(title, side + GAP)
        for number, row in enumerate(rows):
            top = TITLE + number * (side + GAP)
            picture[top : top + side, left : left + side] = strip[row * side : (row + 1) * side]
    return picture


def _title(text: str, width: int) -> np.ndarray:
    box = np.full((TITLE, width), 255, dtype=np.uint8)
    plain = text.encode("ascii", "replace").decode()
    size = min(0.4, 0.4 * width / max(1, cv2.getTextSize(plain, cv2.FONT_HERSHEY_SIMPLEX, 0.4, 1)[0][0]))
    cv2.putText(box, plain, (1, TITLE - 6), cv2.FONT_HERSHEY_SIMPLEX, size, 0, 1, cv2.LINE_AA)
    return box


def _spread(count: int, most: int) -> list[int]:
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int)).tolist()


# ---- data.strips


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
    """Of a sequence, at most; the official set has 1353 on average."""
    seed: int = 0
    """Of the disturbances and of the choice among regions that overlap."""

    def described(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "method": METHOD,
            "side": SIDE,
            "magnification": MAGNIFICATION,
            "smallest_scale": SMALLEST_SCALE,
            "largest_overlap": LARGEST_OVERLAP,
            "detectors": list(DETECTORS),
            "jitter": {noise: jitter._asdict() for noise, jitter in JITTERS.items()},
        }


class Skipped(NamedTuple):
    sequence: str
    reason: str


def make_strips(
    root: Path | str,
    out: Path | str,
    options: StripOptions | None = None,
    *,
    only: Sequence[str] = (),
    force: Sequence[str] = (),
    tell: Callable[[int, int, str], None] | None = None,
) -> tuple[list[dict[str, Any]], list[Skipped]]:
    """The strips of each sequence below `root` in out/<name>, with set.json and sheet.png beside them.

    only: names of the sequences to take, all by default; force: names of those to make anew though they are there.
    Returns the records of all that lie in `out`, by name, and the sequences that gave nothing.
    """
    options, out = options or StripOptions(), Path(out)
    folders = {Path(os.path.abspath(folder)).name: folder for folder in sequence_folders(root)}  # "." has a name too
    unknown = sorted({*only, *force} - set(folders))
    if unknown:
        raise InputError(f"there is no sequence {unknown[0]}; there are: {', '.join(folders)}.")
    settings = json.loads(json.dumps(options.described()))  # as it will be read back
    for record in records(out):
        if record["settings"] != settings and record["sequence"] not in force:
            raise InputError(
                f"{out / record['sequence']} was made with other settings: choose another -o, remove it, or give "
                f"the former options ({_differences(record['settings'], settings)})."
            )
    names, skipped = [name for name in folders if not only or name in only], []
    for number, name in enumerate(names):

        def told(done: int, what: str, number: int = number) -> None:
            if tell is not None:
                tell(number * len(TYPES) + done, len(names) * len(TYPES), what)

        told(0, name)
        try:
            _make(folders[name], out / name, options, settings, name in force, told)
        except InputError as error:
            if is_disk_full(error):
                raise  # no other sequence would fare better
            skipped.append(Skipped(name, str(error)))
        told(len(TYPES), name)
    made = records(out)
    if made:
        _summarise(made, skipped, settings, out)
    return made, skipped


def records(out: Path) -> list[dict[str, Any]]:
    """What is known of the finished sequences in a folder, by name."""
    found = []
    for path in sorted(out.glob(f"*/{RECORD}")) if out.is_dir() else []:
        record = read_record(path, RECORDED)
        found.append(record | {"sequence": path.parent.name})
    return found


def _differences(before: dict[str, Any], now: dict[str, Any]) -> str:
    return ", ".join(f"{key} {before.get(key)}" for key in sorted({*before, *now}) if before.get(key) != now.get(key))


def _make(
    folder: Path,
    target: Path,
    options: StripOptions,
    settings: dict[str, Any],
    anew: bool,
    told: Callable[[int, str], None],
) -> None:
    sequence = read_sequence(folder)._replace(name=target.name)
    if len(sequence.others) != OTHERS:
        raise InputError(
            f"{folder} holds {len(sequence.others) + 1} images: strips are made of {OTHERS + 1}, a reference and "
            f"{OTHERS} others."
        )
    sources = {path.name: digest(path) for path in (sequence.reference, *sequence.others)}
    sources |= {f"H_1_{number}": digest(folder / f"H_1_{number}") for number in range(2, OTHERS + 2)}
    there = (target / RECORD).is_file()
    if there and not anew and all((target / f"{name}.png").is_file() for name in TYPES):
        if read_record(target / RECORD, RECORDED)["sources"] != sources:
            raise InputError(f"{target} was made of other images or homographies: remove it, or --force it.")
        return
    pictures, regions = read_and_choose(sequence, options)
    if there:
        shutil.rmtree(target)  # as late as can be: what cannot be made anew stays
    with new_folder(target) as part:
        record = {"sequence": target.name, "settings": settings, "sources": sources}
        write_strips(sequence, pictures, regions, part, told)
        write_json(part / RECORD, record | described(regions))


def read_and_choose(sequence: ImageSequence, options: StripOptions) -> tuple[list[np.ndarray], Regions]:
    """All images of a sequence, the reference first, and the regions to cut."""
    pictures = [read_gray(path) for path in (sequence.reference, *sequence.others)]
    rng = np.random.default_rng([options.seed, zlib.crc32(sequence.name.encode())])
    sizes = tuple((picture.shape[1], picture.shape[0]) for picture in pictures[1:])
    regions = choose_regions(pictures[0], sequence.homographies, sizes, options.patches, rng)
    if not len(regions.frames):
        raise InputError(
            f"no region of {sequence.reference} lies inside of all images of its sequence: the images share too "
            "little, have no texture, or a homography is wrong."
        )
    return pictures, regions


def write_strips(
    sequence: ImageSequence,
    pictures: list[np.ndarray],
    regions: Regions,
    folder: Path,
    told: Callable[[int, str], None],
) -> None:
    """All sixteen; `told` hears how many are done and which one is next."""
    write_strip(folder / "ref.png", cut_frames(pictures[0], regions.frames, SIDE))
    looks = [(noise, number) for noise in regions.disturbed for number in range(OTHERS)]
    for done, (noise, number) in enumerate(looks, 1):
        told(done, f"{sequence.name}: {noise}{number + 1}")
        frames, homography = regions.disturbed[noise][number], sequence.homographies[number]
        write_strip(folder / f"{noise}{number + 1}.png", cut_frames(pictures[number + 1], frames, SIDE, homography))


def described(regions: Regions) -> dict[str, Any]:
    """The number of patches, of those of each detector, and the median overlap of each noise."""
    counts = np.bincount(regions.detector, minlength=len(DETECTORS))
    return {
        "patches": len(regions.frames),
        "detected_by": dict(zip(DETECTORS, counts.tolist(), strict=True)),
        "median_overlap": {noise: float(np.median(overlap)) for noise, overlap in regions.overlap.items()},
    }


def write_strip(path: Path, patches: np.ndarray) -> None:
    """Patches (N, 65, 65) uint8, one below the other."""
    path.write_bytes(cv2.imencode(".png", patches.reshape(-1, patches.shape[2]))[1].tobytes())


def _summarise(made: list[dict[str, Any]], skipped: list[Skipped], settings: dict[str, Any], out: Path) -> None:
    medians = {noise: float(np.median([one["median_overlap"][noise] for one in made])) for noise in JITTERS}
    summary = {
        "source": "sequences",
        "settings": settings,
        "patches": sum(one["patches"] for one in made),
        "median_overlap": medians,  # the median over sequences of their medians
        "sequences": {one["sequence"]: {key: one[key] for key in IN_SUMMARY} for one in made},
        "skipped": {one.sequence: one.reason for one in skipped},
    }
    write_json(out / "set.json", summary)
    draw_sheet(out, [one["sequence"] for one in made], TYPES, SIDE)

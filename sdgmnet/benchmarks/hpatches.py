"""HPatches: patch verification, image matching, patch retrieval (Section IV-B, Figs. 4 and 7)."""

import contextlib
import hashlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np

from sdgmnet import storage as arrays
from sdgmnet.benchmarks import hpatches_tasks as patch_tasks
from sdgmnet.benchmarks.hpatches_tasks import POOLS, Descriptors
from sdgmnet.data.hpatches.files import (
    NOISES,
    TYPES,
    Choice,
    choose_sequences,
    digest_of_sequence,
    kind_of,
    read_descriptors,
    read_patches,
    read_strip,
    write_descriptors,
)
from sdgmnet.data.hpatches.tasks import (
    PAIRS,
    Retrieval,
    Verification,
    draw_retrieval,
    draw_verification,
    read_retrieval,
    read_verification,
)
from sdgmnet.descriptors import Descriptor
from sdgmnet.errors import InputError
from sdgmnet.storage import digest, is_disk_full, new_file
from sdgmnet.version import __version__

DescribeFn = Callable[[np.ndarray], np.ndarray]
TASKS = ("verification", "matching", "retrieval")
VERSION = 1  # of what is kept: descriptors and tasks of another are made anew
PATCHES = 4096  # described at once

# Called with what is done now and how often, it wraps the iterable that does it.
Track = Callable[[Iterable[Any], str, int], Iterable[Any]]


class Row(NamedTuple):
    task: str  # verification, matching or retrieval
    noise: str  # easy, hard or tough
    subset: str  # inter, intra | illum, view, unlabelled, all | size of the pool
    metric: str  # ap, or auc (balanced verification), or success (matching)
    value: float


class Report(NamedTuple):
    choice: Choice
    missing: list[str]  # sequences of the split that are not there
    complaints: list[str]  # why a sequence was left out
    patches: int  # in a type, over all sequences
    origin: dict[str, str]  # of the tasks: official files, or drawn here
    pool: int  # distractors of retrieval
    queries: int
    lines: list[tuple[str, list[Row]]]  # label, rows


def run(
    describe_fn: DescribeFn,
    root: Path | str,
    *,
    split: str = "a",
    tasks: Path | str | None = None,
    cache: Path | str | None = None,
    pairs: int = PAIRS,
) -> list[Row]:
    """All rows of one function from patches (N, 65, 65) uint8 to descriptors (N, D)."""
    contender = Descriptor("descriptor", describe_fn, ())
    return compare([contender], [""], root, split=split, tasks=tasks, cache=cache, pairs=pairs).lines[0][1]


def silent(iterable: Iterable[Any], doing: str, total: int) -> Iterable[Any]:
    return iterable


def compare(
    contenders: Sequence[Descriptor],
    identities: Sequence[str],
    root: Path | str,
    *,
    split: str = "a",
    tasks: Path | str | None = None,
    cache: Path | str | None = None,
    pairs: int = PAIRS,
    csv: Path | str | None = None,
    track: Track = silent,
) -> Report:
    """Every descriptor on the same sequences and tasks. A sequence that cannot be used is left out for all of them.

    identities: what tells descriptors apart in the cache; an empty one is not kept. cache: a folder in which descriptors and
    drawn tasks stay for next time. csv: a folder to write all descriptors to, as the official files.
    """
    choice, missing = choose_sequences(root, split)
    targets = csv_targets(contenders, csv)
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sdgmnet-hpatches-")))
        kept = scratch if cache is None else Path(cache)
        places = [
            kept / folder_name(identity) if identity else scratch / f"descriptor-{number}"
            for number, (one, identity) in enumerate(zip(contenders, identities, strict=True))
        ]
        described, complaints = describe_all(contenders, places, Path(root), choice.names, track)
        choice = choice.without(name for name in choice.names if name not in described)
        if not choice.names:
            raise InputError(f"no sequence of {root} can be used: {complaints[0]}")
        if csv is not None:
            write_all(contenders, described, targets, track)
        counts = [np.load(described[name][0], mmap_mode="r").shape[1] for name in choice.names]
        first, first_origin = verification_task(choice, counts, tasks, kept, pairs, track)
        second, second_origin = retrieval_task(choice, counts, tasks, Path(root), kept)
        lines = []
        for number, one in enumerate(contenders):
            files = ((name, np.load(described[name][number], mmap_mode="r")) for name in choice.names)
            descriptors = Descriptors.gather(files, counts)
            lines.append((one.label, list(rows_of(descriptors, first, second, one.label, track))))
            del descriptors  # before the next descriptor's are read
    return Report(
        choice,
        missing,
        complaints,
        sum(counts),
        {"verification": first_origin, "retrieval": second_origin},
        len(second.distractors),
        len(second.queries),
        lines,
    )


def folder_name(identity: str) -> str:
    """Of a descriptor's descriptors: readable, and its own."""
    made_by = f"{identity} {VERSION} {__version__} {cv2.__version__}"  # SIFT is OpenCV's
    return f"{safe(Path(identity).name)[:40]}-{hashlib.sha256(made_by.encode()).hexdigest()[:12]}"


def safe(name: str) -> str:
    """As the name of a folder."""
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name).strip(".") or "unnamed"


def describe_all(
    contenders: Sequence[Descriptor], places: Sequence[Path], root: Path, names: Sequence[str], track: Track
) -> tuple[dict[str, list[Path]], list[str]]:
    """Files of descriptors (16, N, D) float32 by sequence and descriptor, and why sequences are left out."""
    described: dict[str, list[Path]] = {}
    complaints, widths = [], None
    for name in track(names, "describing", len(names)):
        try:
            files = describe_sequence(contenders, places, root / name)
            shapes = [np.load(file, mmap_mode="r").shape for file in files]
            require_fitting(shapes, widths, contenders, root / name)
            described[name], widths = files, [shape[2] for shape in shapes]
        except InputError as error:
            if is_disk_full(error):
                raise  # no other sequence would fare better
            complaints.append(str(error))
    return described, complaints


def require_fitting(
    shapes: Sequence[tuple[int, ...]], widths: Sequence[int] | None, contenders: Sequence[Descriptor], folder: Path
) -> None:
    """A sequence needs two patches, and descriptors as long as those of the sequences before."""
    if shapes[0][1] < 2:
        raise InputError(f"{folder / 'ref.png'} holds one patch only: pairs of patches need two.")
    for one, shape, width in zip(contenders, shapes, widths or [shape[2] for shape in shapes], strict=True):
        if shape[2] != width:
            raise InputError(
                f"the descriptors of {one.label} have {shape[2]} numbers in {folder.name}, but {width} in others."
            )


def describe_sequence(contenders: Sequence[Descriptor], places: Sequence[Path], folder: Path) -> list[Path]:
    content, patches, files = digest_of_sequence(folder, ".png"), None, []
    for one, place in zip(contenders, places, strict=True):
        source = None if one.csv_folder is None else one.csv_folder / folder.name
        key = content if source is None else f"{content}-{digest_of_sequence(source, '.csv')}"
        file = place / f"{folder.name}-{key}.npy"
        if not is_whole(file):
            if patches is None:
                patches = read_patches(folder)
            save_array(file, read_checked(source, patches) if source else describe(one, patches, folder))
        files.append(file)
    return files


def describe(contender: Descriptor, patches: np.ndarray, folder: Path) -> np.ndarray:
    """(16, N, 65, 65) -> (16, N, D)."""
    flat = patches.reshape(-1, *patches.shape[2:])
    parts = [
        np.asarray(contender.describe(flat[start : start + PATCHES]), dtype=np.float32)
        for start in range(0, len(flat), PATCHES)
    ]
    descriptors = np.concatenate(parts)
    if len(descriptors) != len(flat) or descriptors.ndim != 2:
        raise InputError(
            f"{contender.label} gives {descriptors.shape} for {len(flat)} patches: one row each is needed."
        )
    if not np.isfinite(descriptors).all():
        raise InputError(f"{contender.label} gives NaN or infinite descriptors for patches of {folder}.")
    return descriptors.reshape(*patches.shape[:2], -1)


def read_checked(source: Path, patches: np.ndarray) -> np.ndarray:
    descriptors = read_descriptors(source)
    if descriptors.shape[1] != patches.shape[1]:
        raise InputError(
            f"{source / 'ref.csv'} holds {descriptors.shape[1]} rows, but the strips {patches.shape[1]} patches."
        )
    return descriptors


def write_all(
    contenders: Sequence[Descriptor], described: dict[str, list[Path]], targets: Sequence[Path], track: Track
) -> None:
    """The official files of every descriptor: target / sequence / ref.csv ..."""
    for number, (one, target) in enumerate(zip(contenders, targets, strict=True)):
        named = ((name, np.load(files[number], mmap_mode="r")) for name, files in described.items())
        write_descriptors(target, track(named, f"{one.label}, writing", len(described)))


def is_whole(path: Path) -> bool:
    """Whether kept descriptors are there and can be read."""
    try:
        return np.load(path, mmap_mode="r").ndim == 3
    except Exception:  # a damaged header fails in whatever way its bytes lead to
        return False


def csv_targets(contenders: Sequence[Descriptor], folder: Path | str | None) -> list[Path]:
    """Where descriptors are to be written, checked before any work is done."""
    targets = [] if folder is None else [Path(folder) / safe(one.label) for one in contenders]
    for target in targets:
        if targets.count(target) > 1:
            raise InputError(f"two descriptors would both be written to {target}: give them other labels.")
        if target.is_file() or (target.is_dir() and any(target.iterdir())):
            raise InputError(f"{target} already exists and is not empty: choose another folder for --csv.")
    return targets


def save_array(path: Path, array: np.ndarray) -> None:
    with new_file(path) as part, open(part, "wb") as file:
        np.save(file, array)


def verification_task(
    choice: Choice, counts: Sequence[int], tasks: Path | str | None, kept: Path, pairs: int, track: Track
) -> tuple[Verification, str]:
    """From the official files where they are given, else drawn, or from where drawn pairs were kept."""
    if tasks is not None and (read := read_verification(tasks, choice.split, choice.names, counts)) is not None:
        if not all(len(rows) for rows in read):
            raise InputError(f"the verification files in {tasks} name none of the sequences that are there.")
        return read, f"official files, {len(read.positive)} pairs of these sequences"
    facts = repr((VERSION, np.__version__.split(".")[0], choice.names, tuple(counts), pairs))
    file = kept / f"verification-{hashlib.sha256(facts.encode()).hexdigest()[:12]}.npz"
    if (arrays := read_arrays(file, Verification._fields)) is not None:
        return Verification(**arrays), f"drawn here, {pairs} pairs"
    drawn = draw_verification(counts, pairs, lambda rows: track(rows, "drawing pairs", pairs))
    save_arrays(file, drawn._asdict())
    return drawn, f"drawn here, {pairs} pairs"


def retrieval_task(
    choice: Choice, counts: Sequence[int], tasks: Path | str | None, root: Path, kept: Path
) -> tuple[Retrieval, str]:
    if tasks is not None and (read := read_retrieval(tasks, choice.split, choice.names, counts)) is not None:
        if not all(len(rows) for rows in read):
            raise InputError(f"the retrieval files in {tasks} name none of the sequences that are there.")
        return read, "official files"
    strips = {name: root / name / f"{TYPES[0]}.png" for name in choice.names}
    facts = repr((VERSION, np.__version__.split(".")[0], [(name, digest(path)) for name, path in strips.items()]))
    file = kept / f"retrieval-{hashlib.sha256(facts.encode()).hexdigest()[:12]}.npz"
    if (arrays := read_arrays(file, Retrieval._fields)) is not None:
        return Retrieval(**arrays), "drawn here"
    drawn = draw_retrieval([contrast(read_strip(path)) for path in strips.values()])
    save_arrays(file, drawn._asdict())
    return drawn, "drawn here"


def read_arrays(path: Path, names: Sequence[str]) -> dict[str, np.ndarray] | None:
    """What was kept; None where it is not there or damaged."""
    try:
        return arrays.read_arrays(path, names)
    except InputError:
        return None


def save_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    with new_file(path) as part, open(part, "wb") as stream:
        np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]


def contrast(patches: np.ndarray) -> np.ndarray:
    """Standard deviation (N,) of the patches in grey levels."""
    return np.array([patch.std() for patch in patches])


def rows_of(
    descriptors: Descriptors, first: Verification, second: Retrieval, label: str, track: Track
) -> Iterator[Row]:
    cells = track(patch_tasks.verification(descriptors, first), f"{label}, verification", 2 * len(NOISES))
    for verified in cells:
        yield Row("verification", verified.noise, verified.negatives, "ap", verified.ap)
        yield Row("verification", verified.noise, verified.negatives, "auc", verified.auc)
    count = len(descriptors.names)
    matched = list(patch_tasks.matching(descriptors, lambda them: track(them, f"{label}, matching", count)))
    kinds = {name: kind_of(name) for name in descriptors.names}
    for noise in NOISES:
        for subset in (*dict.fromkeys(sorted(kinds.values())), "all"):
            cell = [one for one in matched if one.noise == noise and subset in (kinds[one.sequence], "all")]
            yield Row("matching", noise, subset, "ap", float(np.mean([one.ap for one in cell])))
            yield Row("matching", noise, subset, "success", float(np.mean([one.success for one in cell])))
    if not can_retrieve(second, count):
        return
    found = patch_tasks.retrieval(descriptors, second, lambda them: track(them, f"{label}, retrieval", count))
    for retrieved in found:
        yield Row("retrieval", retrieved.noise, str(retrieved.pool), "ap", retrieved.ap)


def can_retrieve(task: Retrieval, sequences: int) -> bool:
    """Whether queries have distractors: those of their own sequence do not count."""
    return len(task.queries) > 0 and len(task.distractors) > 0 and sequences > 1


def mean_of(
    rows: Sequence[Row], task: str, *, noise: str | None = None, subset: str | None = None, metric: str = "ap"
) -> float | None:
    """Mean of the rows of a task that fit; None where there are none."""
    values = [
        row.value
        for row in rows
        if row.task == task
        and row.metric == metric
        and (noise is None or row.noise == noise)
        and (subset is None or row.subset == subset)
    ]
    return float(np.mean(values)) if values else None


def headline(rows: Sequence[Row], task: str, noise: str | None = None) -> float | None:
    """The mAP of a task: verification over inter and intra, matching over all sequences, retrieval in the full pool.

    None where there is none: retrieval needs patches with contrast in two sequences.
    """
    subset = {"verification": None, "matching": "all", "retrieval": str(POOLS[-1])}[task]
    return mean_of(rows, task, noise=noise, subset=subset)


def gap(rows: Sequence[Row], task: str) -> float | None:
    """Delta mAP of Fig. 7: easy less tough."""
    easy, tough = headline(rows, task, "easy"), headline(rows, task, "tough")
    return None if easy is None or tough is None else easy - tough

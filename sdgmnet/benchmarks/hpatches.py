"""HPatches: patch verification, image matching, patch retrieval (Section IV-B, Figs. 4 and 7)."""

import contextlib
import hashlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from sdgmnet.benchmarks import hpatches_tasks
from sdgmnet.benchmarks.hpatches_describe import CACHE_VERSION, cache_name, csv_folders, describe_all, write_csv
from sdgmnet.benchmarks.hpatches_tasks import POOLS, Descriptors
from sdgmnet.benchmarks.hpatches_tasks import Row as Row
from sdgmnet.data.hpatches.files import NOISES, TYPES, Choice, choose_sequences, kind_of, read_strip
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
from sdgmnet.features.sift import SIFT_VARIANT
from sdgmnet.report import OnProgress, Section, no_progress, percent, track
from sdgmnet.storage import digest, new_file, read_arrays

TASKS = ("verification", "matching", "retrieval")
NEGATIVES = ("inter", "intra")

Task = TypeVar("Task", Verification, Retrieval)


class Report(NamedTuple):
    choice: Choice
    missing: list[str]  # sequences of the split that do not exist
    left_out: list[str]  # an error message per sequence that cannot be used
    patches: int  # per type, over all sequences
    origin: dict[str, str]  # of the tasks: official files, or drawn here
    pool: int  # distractors of retrieval
    queries: int
    lines: list[tuple[str, list[Row]]]  # label, rows


def run(
    describe_fn: Callable[[np.ndarray], np.ndarray],
    root: Path | str,
    *,
    split: str = "a",
    tasks: Path | str | None = None,
    cache: Path | str | None = None,
    pairs: int = PAIRS,
) -> list[Row]:
    """All rows of one function from patches (N, 65, 65) uint8 to descriptors (N, D)."""
    descriptor = Descriptor("descriptor", describe_fn)
    return compare([descriptor], root, split=split, tasks=tasks, cache=cache, pairs=pairs).lines[0][1]


def compare(
    descriptors: Sequence[Descriptor],
    root: Path | str,
    *,
    split: str = "a",
    tasks: Path | str | None = None,
    cache: Path | str | None = None,
    pairs: int = PAIRS,
    csv: Path | str | None = None,
    on_progress: OnProgress = no_progress,
) -> Report:
    """Evaluate every descriptor on the same sequences and tasks. A sequence that one of them cannot use is left out for all.

    tasks: folder of official task files; missing ones are drawn. cache: folder that keeps drawn tasks, and descriptors by their
    fingerprint; those without one are not kept. csv: folder for all descriptors as official files.
    """
    if pairs < 5:
        raise InputError(f"pairs must be at least 5, not {pairs}: a fifth of them are positives.")
    if tasks is not None and not Path(tasks).is_dir():
        raise InputError(f"{tasks} is not a folder: give the folder with the official task files.")
    root = Path(root)
    choice, missing = choose_sequences(root, split)
    targets = [] if csv is None else csv_folders(descriptors, csv)
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sdgmnet-hpatches-")))
        kept = scratch if cache is None else Path(cache)
        folders = [
            kept / cache_name(one.fingerprint) if one.fingerprint else scratch / f"descriptor-{number}"
            for number, one in enumerate(descriptors)
        ]
        described, left_out = describe_all(descriptors, folders, root, choice.names, on_progress)
        choice = choice.without(name for name in choice.names if name not in described)
        if not choice.names:
            raise InputError(f"no sequence of {root} can be used: {left_out[0]}")
        if csv is not None:
            write_csv(descriptors, described, targets, on_progress)
        counts = [np.load(described[name][0], mmap_mode="r").shape[1] for name in choice.names]
        verification, first_origin = verification_task(choice, counts, tasks, kept, pairs, on_progress)
        retrieval, second_origin = retrieval_task(choice, counts, tasks, root, kept)
        lines = []
        for number, one in enumerate(descriptors):
            files = ((name, np.load(described[name][number], mmap_mode="r")) for name in choice.names)
            gathered = Descriptors.gather(files, counts)
            lines.append((one.label, list(evaluate(gathered, verification, retrieval, one.label, on_progress))))
            del gathered  # frees the memory before the next descriptor is read
    return Report(
        choice,
        missing,
        left_out,
        sum(counts),
        {"verification": first_origin, "retrieval": second_origin},
        len(retrieval.distractors),
        len(retrieval.queries),
        lines,
    )


def verification_task(
    choice: Choice, counts: Sequence[int], tasks: Path | str | None, cache: Path, pairs: int, on_progress: OnProgress
) -> tuple[Verification, str]:
    """The task and its origin: official files if given, otherwise drawn, or drawn before and cached."""
    if tasks is not None and (official := read_verification(tasks, choice.split, choice.names, counts)) is not None:
        require_rows(official, tasks, "verification")
        return official, f"official files, {len(official.positive)} pairs of these sequences"
    facts = (choice.names, tuple(counts), pairs)

    def draw() -> Verification:
        return draw_verification(counts, pairs, lambda rows: track(rows, "drawing pairs", on_progress, pairs))

    return cached_task(Verification, cache, facts, draw), f"drawn here, {pairs} pairs"


def retrieval_task(
    choice: Choice, counts: Sequence[int], tasks: Path | str | None, root: Path, cache: Path
) -> tuple[Retrieval, str]:
    if tasks is not None and (official := read_retrieval(tasks, choice.split, choice.names, counts)) is not None:
        require_rows(official, tasks, "retrieval")
        return official, "official files"
    strips = {name: root / name / f"{TYPES[0]}.png" for name in choice.names}
    facts = ([(name, digest(path)) for name, path in strips.items()],)

    def draw() -> Retrieval:
        """By the contrast of the patches: their standard deviation in grey levels."""
        return draw_retrieval([np.array([patch.std() for patch in read_strip(path)]) for path in strips.values()])

    return cached_task(Retrieval, cache, facts, draw), "drawn here"


def require_rows(task: Verification | Retrieval, folder: Path | str, name: str) -> None:
    if not all(len(rows) for rows in task):
        raise InputError(f"the {name} files in {folder} name none of the sequences that exist.")


def cached_task(kind: type[Task], cache: Path, facts: tuple[Any, ...], draw: Callable[[], Task]) -> Task:
    """The task drawn earlier from the same facts, or drawn now and written to the cache."""
    key = repr((CACHE_VERSION, np.__version__.split(".")[0], *facts))
    file = cache / f"{kind.__name__.lower()}-{hashlib.sha256(key.encode()).hexdigest()[:12]}.npz"
    with contextlib.suppress(InputError):  # missing or damaged
        return kind(**read_arrays(file, kind._fields))
    drawn = draw()
    with new_file(file) as part, open(part, "wb") as stream:
        np.savez_compressed(stream, **drawn._asdict())
    return drawn


def evaluate(
    descriptors: Descriptors, verification: Verification, retrieval: Retrieval, label: str, on_progress: OnProgress
) -> Iterator[Row]:
    """Rows of the three tasks for one descriptor; retrieval only if queries have distractors in other sequences."""
    rows = hpatches_tasks.verification(descriptors, verification)
    yield from track(rows, f"{label}, verification", on_progress, 2 * len(NEGATIVES) * len(NOISES))
    sequences = range(len(descriptors.names))
    matched = list(hpatches_tasks.matching(descriptors, track(sequences, f"{label}, matching", on_progress)))
    kinds = {name: kind_of(name) for name in descriptors.names}
    for noise in NOISES:
        for subset in (*dict.fromkeys(sorted(kinds.values())), "all"):
            cell = [one for one in matched if one.noise == noise and subset in (kinds[one.sequence], "all")]
            yield Row("matching", noise, subset, "ap", float(np.mean([one.ap for one in cell])))
            yield Row("matching", noise, subset, "success", float(np.mean([one.success for one in cell])))
    if not len(retrieval.queries) or not len(retrieval.distractors) or len(sequences) < 2:
        return
    tracked = track(sequences, f"{label}, retrieval", on_progress)
    yield from hpatches_tasks.retrieval(descriptors, retrieval, tracked)


def mean_of(
    rows: Sequence[Row], task: str, *, noise: str | None = None, subset: str | None = None, metric: str = "ap"
) -> float | None:
    """Mean over the rows that agree with what is given; None if there are none."""
    of_task = [row for row in rows if row.task == task and row.metric == metric]
    values = [row.value for row in of_task if noise in (None, row.noise) and subset in (None, row.subset)]
    return float(np.mean(values)) if values else None


def headline(rows: Sequence[Row], task: str, noise: str | None = None) -> float | None:
    """mAP of a task: verification over inter and intra, matching over all sequences, retrieval in the full pool.

    None if the task was not possible: retrieval needs patches with contrast in two sequences.
    """
    subset = {"verification": None, "matching": "all", "retrieval": str(POOLS[-1])}[task]
    return mean_of(rows, task, noise=noise, subset=subset)


def gap(rows: Sequence[Row], task: str) -> float | None:
    """Delta mAP of Fig. 7: easy minus tough."""
    easy, tough = headline(rows, task, "easy"), headline(rows, task, "tough")
    return None if easy is None or tough is None else easy - tough


def remarks(report: Report) -> list[str]:
    """Sentences on sequences that are missing or left out."""
    sentences = [f"left out: {error}" for error in report.left_out]
    if report.missing:
        few = ", ".join(report.missing[:5]) + (" ..." if len(report.missing) > 5 else "")
        sentences.append(f"{len(report.missing)} sequences of split {report.choice.split} are missing ({few}).")
    return sentences


def note(report: Report) -> str:
    """Data and tasks in one line."""
    return (
        f"{report.choice.label}, {report.patches} patches per type; verification: {report.origin['verification']}; "
        f"retrieval: {report.origin['retrieval']}, {report.queries} queries, {report.pool} distractors"
    )


def content(report: Report) -> dict[str, Any]:
    """What results.json holds."""
    return {
        "split": report.choice.split,
        "sequences": list(report.choice.names),
        "of": report.choice.of,
        "missing": report.missing,
        "left_out": report.left_out,
        "patches": report.patches,
        "tasks": report.origin,
        "queries": report.queries,
        "distractors": report.pool,
        "sift": SIFT_VARIANT.replace("64", "65"),
        "lines": [
            {
                "label": label,
                "map": {task: headline(rows, task) for task in TASKS},
                "delta_map": {task: gap(rows, task) for task in TASKS},
                "rows": [row._asdict() for row in rows],
            }
            for label, rows in report.lines
        ],
    }


def sections(report: Report) -> list[Section]:
    """A summary, and a table per task."""
    first_rows = report.lines[0][1]
    subsets = list(dict.fromkeys(row.subset for row in first_rows if row.task == "matching"))

    def summary(rows: Sequence[Row]) -> list[str]:
        return [percent(headline(rows, task)) for task in TASKS] + [percent(gap(rows, task)) for task in TASKS]

    def verification(rows: Sequence[Row]) -> list[str]:
        cells = [
            [mean_of(rows, "verification", noise=noise, subset=subset, metric=metric) for metric in ("ap", "auc")]
            for noise in NOISES
            for subset in NEGATIVES
        ]
        return [f"{percent(ap)} ({percent(auc)})" for ap, auc in cells]

    def matching(rows: Sequence[Row]) -> list[str]:
        return [percent(mean_of(rows, "matching", noise=n, subset=s)) for s in subsets for n in NOISES]

    def retrieval(rows: Sequence[Row]) -> list[str]:
        pools = [percent(mean_of(rows, "retrieval", subset=str(pool))) for pool in POOLS]
        return [*pools, percent(mean_of(rows, "retrieval"))]

    def table(columns: Sequence[str], cells: Callable[[Sequence[Row]], list[str]]) -> tuple[list[str], list[list[str]]]:
        return ["descriptor", *columns], [[label, *cells(rows)] for label, rows in report.lines]

    described = note(report)
    return [
        Section(
            f"HPatches, mAP in % ({report.choice.label})",
            described[:1].upper() + described[1:] + ".",
            *table([*TASKS, *(f"{task}: easy - tough" for task in TASKS)], summary),
        ),
        Section(
            "Verification: AP in % (balanced ROC AUC in %)",
            "AP: all negatives and a fifth of the positives. AUC: as many of each.",
            *table([f"{noise} {subset}" for noise in NOISES for subset in NEGATIVES], verification),
        ),
        Section(
            "Matching: mAP in %",
            "Each patch of the reference and its nearest neighbour in the other image.",
            *table([f"{noise} {subset}" for subset in subsets for noise in NOISES], matching),
        ),
        Section(
            f"Retrieval: mAP in % by the length of the list ({report.pool} distractors in all)",
            "Mean of easy, hard and tough. The five positives are part of the list. Distractors of the query's own sequence "
            "are left out, so the longest lists hold all others that exist.",
            *table([*(str(pool) for pool in POOLS), "mean"], retrieval),
        ),
    ]

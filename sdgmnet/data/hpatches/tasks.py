"""HPatches' tasks, read from the official files or drawn by the official rule: which patches to compare.

Sequences are numbered as in a list of names, patches as in a strip. The official generator uses numpy's legacy generator with
seed 42, so the same patch counts give the same tasks.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sdgmnet.errors import InputError
from sdgmnet.storage import reading

SEED = 42
PAIRS = 1_000_000
QUERIES, DISTRACTORS = 10_000, 20_000
DRAWN_FOR_QUERIES, DRAWN_FOR_DISTRACTORS = 4, 10  # times as many are drawn, since flat and repeated patches are dropped
IMAGES = 5  # the reference and 1 to 4: the official generator never draws the fifth
CONTRAST = 10.0  # least standard deviation of a query's reference patch, in grey levels

Track = Callable[[Iterable[int]], Iterable[int]]


class Verification(NamedTuple):
    """Pairs (P, 6) int32 each: sequence, image, patch, and again. Image 0 is the reference."""

    positive: np.ndarray
    intra: np.ndarray  # negatives of the same sequence
    inter: np.ndarray  # negatives of any


class Retrieval(NamedTuple):
    """Sequence and patch (Q, 2) int32; all in the reference strips."""

    queries: np.ndarray
    distractors: np.ndarray


def draw_verification(counts: Sequence[int], pairs: int = PAIRS, track: Track = iter) -> Verification:
    """As the official generator draws, for sequences of so many patches. A million pairs take about a minute.

    track: wraps the iterable of all rows to report progress.
    """
    few = [number for number, count in enumerate(counts) if count < 2]
    if few:
        raise InputError(f"sequence {few[0]} of the list has {counts[few[0]]} patches: pairs need at least two.")
    random = np.random.RandomState(SEED)
    sequence = random.choice(len(counts), pairs)
    patch = np.empty((pairs, 2), dtype=np.int32)
    for row in track(range(pairs)):
        patch[row] = random.choice(counts[sequence[row]], 2, replace=False)
    image = np.array([random.choice(IMAGES, 2, replace=False) for _ in range(pairs)], dtype=np.int32)
    other = random.choice(len(counts), pairs)
    other_patch = np.array([random.randint(counts[number]) for number in other], dtype=np.int32)
    first = (sequence, image[:, 0], patch[:, 0])
    return Verification(
        positive=_columns(*first, sequence, image[:, 1], patch[:, 0]),
        intra=_columns(*first, sequence, image[:, 1], patch[:, 1]),
        inter=_columns(*first, other, image[:, 1], other_patch),
    )


def draw_retrieval(
    contrasts: Sequence[np.ndarray], queries: int | None = None, distractors: int | None = None
) -> Retrieval:
    """As the official generator draws, for sequences with the contrast (N,) of their reference patches.

    With too few patches for 10 000 queries and 20 000 distractors, a third of those with contrast become queries and the rest
    distractors: the official rule would make all of them queries.
    """
    usable = int(sum((np.asarray(contrast) > CONTRAST).sum() for contrast in contrasts))
    queries = min(QUERIES, usable // 3) if queries is None else queries
    distractors = min(DISTRACTORS, usable) if distractors is None else distractors
    random = np.random.RandomState(SEED)
    asked = _with_contrast(random, contrasts, int(queries * DRAWN_FOR_QUERIES))
    pool = _with_contrast(random, contrasts, int(distractors * DRAWN_FOR_DISTRACTORS))
    asked = _without_repetitions(asked)[:queries]
    taken = {(sequence, patch) for sequence, patch in asked.tolist()}
    kept = [row for row in _without_repetitions(pool).tolist() if (row[0], row[1]) not in taken]
    return Retrieval(asked, np.array(kept[:distractors], dtype=np.int32).reshape(-1, 2))


def _with_contrast(random: np.random.RandomState, contrasts: Sequence[np.ndarray], draws: int) -> np.ndarray:
    sequence = random.choice(len(contrasts), draws)
    patch = np.array([random.randint(len(contrasts[number])) for number in sequence], dtype=np.int64)
    kept = [contrasts[s][p] > CONTRAST for s, p in zip(sequence, patch, strict=True)]
    return np.column_stack([sequence, patch]).astype(np.int32)[np.array(kept, dtype=bool)]


def _without_repetitions(rows: np.ndarray) -> np.ndarray:
    """The first of each, in their order."""
    return rows[np.sort(np.unique(rows, axis=0, return_index=True)[1])]


def _columns(*columns: np.ndarray) -> np.ndarray:
    return np.column_stack(columns).astype(np.int32)


def read_verification(
    folder: Path | str, split: str, names: Sequence[str], counts: Sequence[int]
) -> Verification | None:
    """From the official files, None where there are none; pairs of sequences that are not in `names` are dropped.

    That leaves fewer pairs of two sequences: all three lists are cut to one length, as they have in the official files.
    """
    paths = [Path(folder) / f"verif_{kind}_split-{split}.csv" for kind in ("pos", "neg_intra", "neg_inter")]
    if not _all_or_none(paths):
        return None
    files = [_read_rows(path, "s1,t1,idx1,s2,t2,idx2", (0, 3), names) for path in paths]
    for path, rows in zip(paths, files, strict=True):
        images = rows[:, [1, 4]]
        if images.size and not (images.min() >= 0 and images.max() <= IMAGES):
            raise InputError(f"{path} names an image beyond 0 to {IMAGES}.")
        for first in (0, 3):
            _require_patches(path, rows[:, first], rows[:, first + 2], names, counts)
    shortest = min(len(rows) for rows in files)
    return Verification(*(rows[:shortest] for rows in files))


def read_retrieval(folder: Path | str, split: str, names: Sequence[str], counts: Sequence[int]) -> Retrieval | None:
    """From the official files, None where there are none; patches of sequences that are not in `names` are dropped."""
    paths = [Path(folder) / f"retr_{kind}_split-{split}.csv" for kind in ("queries", "distractors")]
    if not _all_or_none(paths):
        return None
    files = [_read_rows(path, "s,idx", (0,), names) for path in paths]
    for path, rows in zip(paths, files, strict=True):
        _require_patches(path, rows[:, 0], rows[:, 1], names, counts)
    return Retrieval(*files)


def _all_or_none(paths: Sequence[Path]) -> bool:
    there = [path.is_file() for path in paths]
    if any(there) and not all(there):
        missing, present = paths[there.index(False)], paths[there.index(True)]
        raise InputError(f"{missing} does not exist, but {present.name} does: both are needed.")
    return all(there)


def _read_rows(path: Path, header: str, named: Sequence[int], names: Sequence[str]) -> np.ndarray:
    """Rows (R, C) int32, with names replaced by their numbers."""
    number_of = {name: number for number, name in enumerate(names)}
    width = header.count(",") + 1
    rows: list[list[int]] = []
    try:
        with reading(path), open(path, encoding="ascii") as file:
            if (found := file.readline().strip()) != header:
                raise InputError(f"{path} begins with {found[:60]!r}: a task file of this kind begins with {header!r}.")
            for line in file:
                cells = line.rstrip("\r\n").split(",")
                if len(cells) != width:
                    raise ValueError(f"line {len(rows) + 2} has {len(cells)} columns, not {width}")
                rows.append([number_of.get(cell, -1) if k in named else int(cell) for k, cell in enumerate(cells)])
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{path} is not a task file ({error}).") from error
    if any(abs(number) >= 2**31 for row in rows for number in row):
        raise InputError(f"{path} contains numbers beyond any patch.")
    table = np.array(rows, dtype=np.int32).reshape(-1, width)
    return table[(table[:, list(named)] >= 0).all(axis=1)]


def _require_patches(
    path: Path, sequence: np.ndarray, patch: np.ndarray, names: Sequence[str], counts: Sequence[int]
) -> None:
    beyond = np.flatnonzero((patch < 0) | (patch >= np.asarray(counts)[sequence]))
    if len(beyond):
        s, p = sequence[beyond[0]], patch[beyond[0]]
        raise InputError(
            f"{path} names patch {p} of {names[s]}, whose strips have {counts[s]}: use files of one release."
        )

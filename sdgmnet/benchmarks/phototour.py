"""UBC PhotoTour: false positive rate at 95 % recall on labelled pairs of patches (Section IV-A, Table 1)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sdgmnet.data.patchset import PatchSet, scene_of
from sdgmnet.data.window import at_window
from sdgmnet.features.describe import DescribeFn, Descriptor
from sdgmnet.features.sift import SIFT_VARIANT
from sdgmnet.metrics import fpr_at_recall, pair_distances
from sdgmnet.registry import WINDOW
from sdgmnet.report import OnProgress, Section, no_progress, percent


class Row(NamedTuple):
    test: str
    pairs: int
    fpr95: float | None  # a fraction; None if the descriptor was trained on that set


class Line(NamedTuple):
    """One descriptor on all test sets."""

    label: str
    trained_on: tuple[str, ...]
    rows: list[Row]


def run(
    describe_fn: DescribeFn,
    patchsets: Sequence[PatchSet],
    *,
    skip: Sequence[str] = (),
    window: float = WINDOW,
    convention: str = "hardnet",
    label: str = "describing",
    on_progress: OnProgress = no_progress,
) -> list[Row]:
    """FPR@95 of one describing function on each set with test pairs, but not on sets or scenes named in `skip`.

    window: side in sigmas of the patches that the function takes.
    """
    rows = []
    for patchset in patchsets:
        pairs, score = np.asarray(patchset.test_pairs), None
        if not {patchset.name, scene_of(patchset)} & set(skip):
            stage, total = f"{label}, {patchset.name}", len(np.unique(pairs[:, :2]))
            describe = counted(describe_fn, stage, total, on_progress)
            distances, labels = pair_distances(at_window(describe, patchset, window), patchset.patches, pairs)
            score = fpr_at_recall(distances, labels, convention=convention)
        rows.append(Row(patchset.name, len(pairs), score))
    return rows


def counted(describe_fn: DescribeFn, stage: str, total: int, on_progress: OnProgress) -> DescribeFn:
    """The same function; each call reports how many patches have been described."""
    done = 0

    def describe(patches: np.ndarray) -> np.ndarray:
        nonlocal done
        descriptors = describe_fn(patches)
        done += len(patches)
        on_progress(stage, done, total)
        return descriptors

    on_progress(stage, 0, total)
    return describe


def compare(
    descriptors: Sequence[Descriptor],
    patchsets: Sequence[PatchSet],
    convention: str = "hardnet",
    on_progress: OnProgress = no_progress,
) -> list[Line]:
    """Every descriptor on every set that it was not trained on."""
    lines = []
    for one in descriptors:
        rows = run(
            one.describe,
            patchsets,
            skip=(*one.trained_on, *one.scenes),
            window=one.window,
            convention=convention,
            label=one.label,
            on_progress=on_progress,
        )
        lines.append(Line(one.label, one.trained_on, rows))
    return lines


def table(lines: Sequence[Line]) -> tuple[list[str], list[list[str]]]:
    """FPR@95 in per cent. A label that occurs several times, for several trainings, also gets its mean over all cells."""
    tests = [row.test for row in lines[0].rows] if lines else []
    body = [
        [line.label, _short(line.trained_on), *(percent(row.fpr95) for row in line.rows), _mean(line.rows)]
        for line in lines
    ]
    labels = [line.label for line in lines]
    for label in dict.fromkeys(labels):
        if labels.count(label) > 1:
            rows = [row for line in lines if line.label == label for row in line.rows]
            body.append([f"{label}, all", "", *("" for _ in tests), _mean(rows)])
    return ["descriptor", "trained on", *(f"{test} (%)" for test in tests), "mean (%)"], body


def _short(names: Sequence[str]) -> str:
    return "-" if not names else "+".join(names) if len(names) <= 3 else f"{len(names)} sets"


def _mean(rows: Sequence[Row]) -> str:
    scores = [row.fpr95 for row in rows if row.fpr95 is not None]
    return percent(float(np.mean(scores)) if scores else None)


def section(lines: Sequence[Line]) -> Section:
    pairs = ", ".join(f"{row.test}: {row.pairs} pairs" for row in lines[0].rows)
    return Section(f"FPR@95 ({pairs})", "", *table(lines))


def content(lines: Sequence[Line], convention: str) -> dict[str, Any]:
    """What results.json holds."""
    return {"convention": convention, "sift": SIFT_VARIANT, "lines": lines_content(lines)}


def lines_content(lines: Sequence[Line]) -> list[dict[str, Any]]:
    return [{**line._asdict(), "rows": [row._asdict() for row in line.rows]} for line in lines]

"""UBC PhotoTour: false positive rate at 95 % recall on labelled pairs of patches (Section IV-A, Table 1)."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from sdgmnet.data.patchset import PatchSet, scene_of
from sdgmnet.descriptors import Descriptor
from sdgmnet.metrics import fpr_at_recall, pair_distances


class Row(NamedTuple):
    test: str
    pairs: int
    fpr95: float | None  # a fraction; None where the descriptor was trained on that set


class Line(NamedTuple):
    """One descriptor on all sets."""

    label: str
    trained_on: tuple[str, ...]
    rows: list[Row]


def run(
    describe_fn: Callable[[np.ndarray], np.ndarray],
    patchsets: Sequence[PatchSet],
    *,
    skip: Sequence[str] = (),
    convention: str = "hardnet",
) -> list[Row]:
    """FPR@95 of one describing function on each set, which must come with test pairs; sets or scenes in `skip` are left out."""
    rows = []
    for patchset in patchsets:
        pairs, score = np.asarray(patchset.test_pairs), None
        if not {patchset.name, scene_of(patchset)} & set(skip):
            distances, labels = pair_distances(describe_fn, patchset.patches, pairs)
            score = fpr_at_recall(distances, labels, convention=convention)
        rows.append(Row(patchset.name, len(pairs), score))
    return rows


def compare(contenders: Sequence[Descriptor], patchsets: Sequence[PatchSet], convention: str = "hardnet") -> list[Line]:
    """Every descriptor on every set it was not trained on."""
    return [
        Line(
            one.label,
            one.trained_on,
            run(one.describe, patchsets, skip=(*one.trained_on, *one.scenes), convention=convention),
        )
        for one in contenders
    ]


def _short(names: Sequence[str]) -> str:
    return "-" if not names else "+".join(names) if len(names) <= 3 else f"{len(names)} sets"


def table(lines: Sequence[Line]) -> tuple[list[str], list[list[str]]]:
    """Header and lines in per cent; a label that was trained several times also gets its mean over all cells."""
    tests = [row.test for row in lines[0].rows] if lines else []
    body = [
        [line.label, _short(line.trained_on), *(_percent(row.fpr95) for row in line.rows), _mean(line.rows)]
        for line in lines
    ]
    labels = [line.label for line in lines]
    for label in dict.fromkeys(labels):
        if labels.count(label) > 1:
            everything = [row for line in lines if line.label == label for row in line.rows]
            body.append([f"{label}, all", "", *("" for _ in tests), _mean(everything)])
    return ["descriptor", "trained on", *(f"{test} (%)" for test in tests), "mean (%)"], body


def _percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{100 * fraction:.2f}"


def _mean(rows: Sequence[Row]) -> str:
    scores = [row.fpr95 for row in rows if row.fpr95 is not None]
    return _percent(float(np.mean(scores))) if scores else "-"

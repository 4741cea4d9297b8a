"""UBC PhotoTour: false positive rate at 95 % recall on labelled pairs of patches (Section IV-A, Table 1)."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sdgmnet.contenders import Contender
from sdgmnet.data.patchset import PatchSet
from sdgmnet.metrics import fpr_at_recall, pair_distances


class Cell(NamedTuple):
    """One train/test cell. `fpr95` is a fraction; None where the contender was trained on that set."""

    label: str
    trained_on: tuple[str, ...]
    test: str
    pairs: int
    fpr95: float | None


def run(contenders: Sequence[Contender], patchsets: Sequence[PatchSet], convention: str = "hardnet") -> list[Cell]:
    """Every contender on every set it was not trained on; the sets must come with test pairs."""
    cells = []
    for contender in contenders:
        for patchset in patchsets:
            seen = patchset.name in contender.trained_on
            pairs = np.asarray(patchset.test_pairs)
            score = None
            if not seen:
                score = fpr_at_recall(
                    *pair_distances(contender.describe, patchset.patches, pairs), convention=convention
                )
            cells.append(Cell(contender.label, contender.trained_on, patchset.name, len(pairs), score))
    return cells


def table(cells: Sequence[Cell]) -> tuple[list[str], list[list[str]]]:
    """Header and rows in per cent: one line a contender, and a mean over all cells where a label was trained several times."""
    tests = list(dict.fromkeys(cell.test for cell in cells))
    lines = dict.fromkeys((cell.label, cell.trained_on) for cell in cells)
    rows = []
    for label, trained_on in lines:
        mine = [cell for cell in cells if (cell.label, cell.trained_on) == (label, trained_on)]
        by_test = {cell.test: cell.fpr95 for cell in mine}
        rows.append([label, "+".join(trained_on) or "-", *(_percent(by_test[test]) for test in tests), _mean(mine)])
    for label in dict.fromkeys(label for label, _ in lines):
        if sum(one == label for one, _ in lines) > 1:
            everything = [cell for cell in cells if cell.label == label]
            rows.append([f"{label}, all", "", *("" for _ in tests), _mean(everything)])
    return ["descriptor", "trained on", *(f"{test} (%)" for test in tests), "mean (%)"], rows


def _percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{100 * fraction:.2f}"


def _mean(cells: Sequence[Cell]) -> str:
    scores = [cell.fpr95 for cell in cells if cell.fpr95 is not None]
    return _percent(float(np.mean(scores))) if scores else "-"

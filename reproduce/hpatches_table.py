"""Fig. 4 as a table: measured mAP beside what has been published (PROTOCOLS.md 5.7).

The paper's Fig. 4 prints no numbers; its text gives three differences on split a. The absolute values that are known are of the
full set, not of split a: those of the HPatches article, and those of HardNet's repository.
"""

from collections.abc import Sequence

from sdgmnet.benchmarks.hpatches import TASKS, Row, gap, headline
from sdgmnet.plots import method_of

ARTICLE = {  # HPatches article, full set: verification, matching, retrieval
    "sift": ("65.12", "25.47", "31.98"),
    "rootsift": ("58.53", "27.22", "33.56"),
    "tfeat": ("81.90", "32.64", "39.40"),
}
REPOSITORY = {  # HardNet's, full set: matching, retrieval; the augmented models of L2Net and HardNet
    "rootsift": ("27.22", "42.49"),
    "tfeat": ("32.64", "52.03"),
    "l2net": ("45.04", "63.37"),
    "hardnet": ("52.76", "69.66"),
}
# Stated in the paper's text for split a: task, better, worse, difference of mAP in points.
DIFFERENCES = (("matching", "sdgmnet", "hardnet+frn", 0.34), ("retrieval", "sdgmnet", "hynet", 0.6))
HEADER = (
    "descriptor",
    *TASKS,
    *(f"ΔmAP {task}" for task in TASKS),
    *(f"article, full set: {task}" for task in TASKS),
    *(f"HardNet's repository, full set: {task}" for task in TASKS[1:]),
)


def table(lines: Sequence[tuple[str, list[Row]]]) -> list[list[str]]:
    def percent(value: float | None) -> str:
        return "-" if value is None else f"{100 * value:.2f}"

    body = []
    for label, rows in lines:
        method = method_of(label) or ""
        ours = [percent(headline(rows, task)) for task in TASKS] + [percent(gap(rows, task)) for task in TASKS]
        body.append([label, *ours, *ARTICLE.get(method, ("",) * 3), *REPOSITORY.get(method, ("",) * 2)])
    return body


def differences(lines: Sequence[tuple[str, list[Row]]]) -> list[list[str]]:
    """What the paper's text says, and the same of the first descriptors of these methods, where both are there."""
    of_method = {method_of(label): rows for label, rows in reversed(lines)}
    body = []
    for task, better, worse, stated in DIFFERENCES:
        scores = [headline(of_method[name], task) if name in of_method else None for name in (better, worse)]
        ours = "-" if scores[0] is None or scores[1] is None else f"{100 * (scores[0] - scores[1]):+.2f}"
        body.append([f"{task}: {better} - {worse}", ours, f"{stated:+.2f}"])
    return body

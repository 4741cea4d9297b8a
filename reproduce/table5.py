"""Table 5: what COLMAP reconstructs, descriptors and the paper's methods side by side, each in columns of their own."""

from collections.abc import Sequence
from typing import Any

from sdgmnet.benchmarks.published import Published, published

PAPER = "paper, "
MEASURES = (
    ("registered", "registered photos"),
    ("points", "sparse points"),
    ("dense", "dense points"),
    ("track_length", "track length"),
    ("reprojection_error", "reprojection error, px"),
)


def table(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """A line a set and measure; what a set of this size has in the paper, where it is one of the benchmark's."""
    labels = list(dict.fromkeys(row["label"] for row in rows))
    names = list(dict.fromkeys(row["set"] for row in rows))
    photos = {row["set"]: row["photos"] for row in rows}
    known = {name: {one.label: one for one in published(name, photos[name])} for name in names}
    papers = list(dict.fromkeys(label for of_set in known.values() for label in of_set if label.startswith(PAPER)))
    of = {(row["set"], row["label"]): row for row in rows}
    body = []
    for name in names:
        for key, title in MEASURES:
            ours = [measured(of.get((name, label)), key) for label in labels]
            theirs = [stated(known[name].get(label), key) for label in papers]
            if key != "dense" or any(ours):
                body.append([f"{name} ({photos[name]} photos)", title, *ours, *theirs])
    return ["set", "measure", *labels, *papers], body


def measured(row: dict[str, Any] | None, key: str) -> str:
    if row is None:
        return "no model"
    if key == "dense":
        return str(row["dense"]["points"]) if "dense" in row else ""
    value = row[key]
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def stated(one: Published | None, key: str) -> str:
    if one is None:
        return ""
    value = getattr(one, key)
    return f"{value:.2f}" if isinstance(value, float) else str(value)

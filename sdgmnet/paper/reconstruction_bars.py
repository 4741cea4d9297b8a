"""Results of the reconstruction benchmark as bars, published ones beside them (Table 5)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sdgmnet.benchmarks.published import Published, published
from sdgmnet.paper.figures import new_figure, save_figure

MEASURED, KNOWN = "#2166ac", "#bdbdbd"
PANELS = (
    ("points", "sparse points"),
    ("track_length", "photos that see a point"),
    ("reprojection_error", "reprojection error in pixels"),
)


def draw_reconstruction(rows: Sequence[dict[str, Any]], path: Path | str) -> None:
    """A line of three panels for each set: one bar a contender in blue, published results in grey."""
    names = list(dict.fromkeys(row["set"] for row in rows))
    bars = {name: bars_of(name, [row for row in rows if row["set"] == name]) for name in names}
    height = sum(0.7 + 0.27 * len(of_set) for of_set in bars.values())
    figure, axes = new_figure(len(names), len(PANELS), 13, height)
    for line, name in enumerate(names):
        for column, (key, title) in enumerate(PANELS):
            axis = axes[line, column]
            values = [bar[key] for bar in bars[name]]
            axis.barh(range(len(values)), values, color=[bar["color"] for bar in bars[name]], height=0.75)
            axis.set_yticks(
                range(len(values)), [bar["label"] for bar in bars[name]] if column == 0 else [""] * len(values)
            )
            axis.invert_yaxis()
            axis.set_xlim(0, 1.16 * max(values))
            axis.set_title(f"{name}: {title}" if column == 0 else title, fontsize=10)
            axis.spines[["top", "right"]].set_visible(False)
            for place, value in enumerate(values):
                shown = f"{value:,.0f}".replace(",", " ") if key == "points" else f"{value:.2f}"
                axis.text(value, place, f" {shown}", va="center", fontsize=8)
    save_figure(figure, path)


def bars_of(name: str, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    measured = [{**{key: row[key] for key, _ in PANELS}, "label": row["label"], "color": MEASURED} for row in rows]
    return measured + [
        {
            "points": number(one),
            "track_length": one.track_length,
            "reprojection_error": one.reprojection_error,
            "label": one.label,
            "color": KNOWN,
        }
        for one in published(name, rows[0]["photos"])
    ]


def number(one: Published) -> float:
    """16.3K is 16 300."""
    return 1000 * float(one.points[:-1]) if one.points.endswith("K") else float(one.points)

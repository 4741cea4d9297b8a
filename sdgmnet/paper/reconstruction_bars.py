"""Results of the reconstruction benchmark as bars, published ones beside them (Table 5)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from sdgmnet.benchmarks.published import Published, published
from sdgmnet.paper.colours import colour_of
from sdgmnet.paper.figures import new_figure, save_figure
from sdgmnet.paper.printing import DPI, PAGE, SMALL, printed

KNOWN = "#bdbdbd"
PANELS = (
    ("points", "sparse points"),
    ("track_length", "photos that see a point"),
    ("reprojection_error", "reprojection error in pixels"),
)


def draw_reconstruction(rows: Sequence[dict[str, Any]], path: Path | str) -> None:
    """A line of three panels for each set: one bar a contender in its colour, published results in grey."""
    names = list(dict.fromkeys(row["set"] for row in rows))
    bars = {name: bars_of(name, [row for row in rows if row["set"] == name]) for name in names}
    with printed():
        height = sum(0.45 + 0.17 * len(of_set) for of_set in bars.values())
        figure, axes = new_figure(len(names), len(PANELS), PAGE, height)
        for line, name in enumerate(names):
            for column, (key, title) in enumerate(PANELS):
                _panel(axes[line, column], bars[name], key, column == 0)
                axes[line, column].set_title(f"{name}: {title}" if column == 0 else title, parse_math=False)
        save_figure(figure, path, dpi=DPI)


def _panel(axis: Axes, bars: Sequence[dict[str, Any]], key: str, is_first: bool) -> None:
    values = [bar[key] for bar in bars]
    axis.barh(range(len(values)), values, color=[bar["color"] for bar in bars], height=0.75)
    axis.set_yticks(range(len(values)), [bar["label"] if is_first else "" for bar in bars], parse_math=False)
    axis.invert_yaxis()
    axis.set_xlim(0, 1.2 * max(values))
    axis.spines[["top", "right"]].set_visible(False)
    for place, value in enumerate(values):
        shown = f"{value:,.0f}".replace(",", " ") if key == "points" else f"{value:.2f}"
        axis.text(value, place, f" {shown}", va="center", fontsize=SMALL)


def bars_of(name: str, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    measured = [
        {**{key: row[key] for key, _ in PANELS}, "label": row["label"], "color": colour_of(row["label"], place)}
        for place, row in enumerate(rows)
    ]
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

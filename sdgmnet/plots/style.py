"""Colours, sizes and files of all figures. A method has the same colour and marker in every figure."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from sdgmnet.storage import new_file

METHODS = {  # colour, marker
    "sift": ("#000000", "x"),
    "rootsift": ("#7f7f7f", "+"),
    "tfeat": ("#a6761d", "v"),
    "l2net": ("#b3a500", "<"),
    "hardnet": ("#56b4e9", "^"),
    "cdfdesc": ("#e69f00", ">"),
    "sosnet": ("#cc79a7", "D"),
    "hardnet+frn": ("#0072b2", "s"),
    "hynet": ("#009e73", "P"),
    "sdgmnet": ("#d55e00", "o"),
    "keller": ("#8da0cb", "h"),
    "exp-tl": ("#66a61e", "p"),
    "sface": ("#7570b3", "*"),
}
COLOURS = {name: colour for name, (colour, _) in METHODS.items()}
ALIASES = {"sdgm": "sdgmnet", "cdf": "cdfdesc", "hardnet-original": "hardnet", "hardnetfrn": "hardnet+frn"}
# For other labels, by their position in the figure.
FURTHER_COLOURS = ("#882255", "#44aa99", "#999933", "#332288", "#aa4466", "#117733", "#ddcc77")
FURTHER_MARKERS = ("d", "8", "X", "H", "1", "2", "3")
POSITIVE, NEGATIVE, RELATIVE = "#2166ac", "#b2182b", "#4d4d4d"  # θ⁺, θ⁻, θʳ

COLUMN, PAGE = 3.5, 7.16  # inches: widths of a column and of a page
DPI = 300
SMALL = 7  # points: the smallest font
SETTINGS: Any = {  # matplotlib types each key
    "font.size": SMALL + 1,
    "axes.titlesize": SMALL + 1,
    "axes.labelsize": SMALL + 1,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "grid.linewidth": 0.4,
    "patch.linewidth": 0.6,
    "pdf.fonttype": 42,  # TrueType outlines, which can be searched
}


def method_of(label: str) -> str | None:
    """The known method whose name the label starts with, such as "HardNet+FRN, 2 seeds": the longest one, or None."""
    plain = label.lower().replace(" ", "").removeprefix("paper,").removeprefix("kornia")
    longest = max((name for name in (*METHODS, *ALIASES) if plain.startswith(name)), key=len, default=None)
    return None if longest is None else ALIASES.get(longest, longest)


def colour_of(label: str, position: int = 0) -> str:
    """The method's colour, or a further one by the position if the label names no known method."""
    method = method_of(label)
    return FURTHER_COLOURS[position % len(FURTHER_COLOURS)] if method is None else METHODS[method][0]


def marker_of(label: str, position: int = 0) -> str:
    method = method_of(label)
    return FURTHER_MARKERS[position % len(FURTHER_MARKERS)] if method is None else METHODS[method][1]


def new_figure(rows: int, columns: int, width: float, height: float) -> tuple[Figure, Any]:
    """A figure and its axes (rows, columns), without pyplot: no display and no global state."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


@contextmanager
def printed() -> Iterator[None]:
    """Draw and save with the font and line sizes for print."""
    with matplotlib.rc_context(SETTINGS):
        yield


def save_figure(figure: Figure, path: Path | str, dpi: int = 150) -> None:
    """Write a PDF if the name ends in .pdf, otherwise a PNG; the same figure gives the same bytes."""
    is_pdf = Path(path).suffix == ".pdf"
    metadata = {"CreationDate": None} if is_pdf else None
    with new_file(path) as part:
        figure.savefig(part, format="pdf" if is_pdf else "png", dpi=dpi, metadata=metadata)


def save_print(figure: Figure, stem: Path | str) -> list[Path]:
    """Write STEM.png and STEM.pdf for print."""
    paths = [Path(f"{stem}.{kind}") for kind in ("png", "pdf")]
    with printed():
        for path in paths:
            save_figure(figure, path, DPI)
    return paths

"""Figures as a journal prints them: sized for a column or a page, small sans-serif type, PNG for screens and PDF for print."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from sdgmnet.files import new_file

COLUMN, PAGE = 3.5, 7.16  # inches: one column and the whole width of a page
DPI = 300
SMALL = 7  # points: the smallest type that is still read with ease
SETTINGS: Any = {  # matplotlib types its keys one by one
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
    "pdf.fonttype": 42,  # letters as outlines that printers and search find, not as bitmaps
}


@contextmanager
def printed() -> Iterator[None]:
    """Everything drawn and saved inside has the sizes above."""
    with matplotlib.rc_context(SETTINGS):
        yield


def save_print(figure: Figure, stem: Path | str) -> list[Path]:
    """Write STEM.png and STEM.pdf; the same figure gives the same bytes."""
    paths = [Path(f"{stem}.{kind}") for kind in ("png", "pdf")]
    with printed():
        for path in paths:
            save_as_named(figure, path, DPI)
    return paths


def save_as_named(figure: Figure, path: Path | str, dpi: int) -> None:
    """In the format of the name's ending: .pdf, otherwise PNG."""
    is_pdf = Path(path).suffix == ".pdf"
    metadata = {"CreationDate": None} if is_pdf else None  # no clock in the file
    with new_file(path) as part:
        figure.savefig(part, format="pdf" if is_pdf else "png", dpi=dpi, metadata=metadata)

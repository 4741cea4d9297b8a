"""How the figures of trained runs look: sizes of a journal's columns, letters that stay legible there, PNG and vector PDF."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from sdgmnet.files import new_file

COLUMN, PAGE = 3.5, 7.16  # inches
LETTERS: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.2,
    "pdf.fonttype": 42,  # letters stay letters
}


@contextmanager
def journal() -> Iterator[None]:
    with matplotlib.rc_context(LETTERS):
        yield


def save_both(figure: Figure, path: Path) -> list[Path]:
    """`path` has no suffix: PATH.png and PATH.pdf are written."""
    places = [path.with_name(f"{path.name}.{kind}") for kind in ("png", "pdf")]
    for place, options in zip(places, ({"dpi": 300}, {"metadata": {"CreationDate": None}}), strict=True):
        with new_file(place) as part:
            figure.savefig(part, format=place.suffix[1:], **options)  # type: ignore[arg-type]
    return places

"""A contact sheet of strips: some patches of some sequences, each in a row of its sixteen looks."""

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np

from sdgmnet.features.images import read_gray
from sdgmnet.files import new_file

PATCHES, SEQUENCES = 6, 12  # at most
GAP, TITLE = 2, 18  # pixels


def draw_sheet(root: Path, sequences: Sequence[str], names: Sequence[str], side: int) -> None:
    """root/sheet.png: evenly spread sequences, and patches from the strongest to the weakest; a column a strip."""
    chosen = [sequences[number] for number in _spread(len(sequences), SEQUENCES)]
    bands = [band([read_gray(root / one / f"{name}.png") for name in names], one, names, side) for one in chosen]
    with new_file(root / "sheet.png") as part:
        part.write_bytes(cv2.imencode(".png", np.concatenate(bands))[1].tobytes())


def band(strips: Sequence[np.ndarray], sequence: str, names: Sequence[str], side: int) -> np.ndarray:
    """Patches of one sequence, a row each, below the names of the strips; the first column is named by the sequence."""
    rows = _spread(len(strips[0]) // side, PATCHES)
    picture = np.full((TITLE + len(rows) * (side + GAP), len(strips) * (side + GAP)), 255, dtype=np.uint8)
    for column, (name, strip) in enumerate(zip(names, strips, strict=True)):
        left = column * (side + GAP)
        title = sequence if column == 0 else name
        picture[:TITLE, left : left + side + GAP] = _title(title, side + GAP)
        for number, row in enumerate(rows):
            top = TITLE + number * (side + GAP)
            picture[top : top + side, left : left + side] = strip[row * side : (row + 1) * side]
    return picture


def _title(text: str, width: int) -> np.ndarray:
    box = np.full((TITLE, width), 255, dtype=np.uint8)
    plain = text.encode("ascii", "replace").decode()
    size = min(0.4, 0.4 * width / max(1, cv2.getTextSize(plain, cv2.FONT_HERSHEY_SIMPLEX, 0.4, 1)[0][0]))
    cv2.putText(box, plain, (1, TITLE - 6), cv2.FONT_HERSHEY_SIMPLEX, size, 0, 1, cv2.LINE_AA)
    return box


def _spread(count: int, most: int) -> list[int]:
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int)).tolist()

"""Patches and figures as HTML that contains them: they wrap at phone width."""

import base64
import io
from collections.abc import Iterable
from html import escape

import cv2
import numpy as np
from matplotlib.figure import Figure

DPI = 120


def patch_html(patch: np.ndarray, caption: str, chosen: bool = False) -> str:
    """A patch (H, W) uint8 with its caption."""
    mark = ' class="chosen"' if chosen else ""
    image = f'<img src="{url_of(encoded(patch))}" alt="{escape(caption)}" width="112" height="112">'
    return f"<figure{mark}>{image}<figcaption>{escape(caption)}</figcaption></figure>"


def patches_html(figures: Iterable[str]) -> str:
    return f'<div class="patches">{"".join(figures)}</div>'


def panels_html(figures: dict[str, Figure]) -> str:
    """Descriptions and figures, side by side where there is room."""
    cells = (
        f'<figure><img src="{url_of(png(figure))}" alt="{escape(name)}"></figure>' for name, figure in figures.items()
    )
    return f'<div class="panels">{"".join(cells)}</div>'


def encoded(image: np.ndarray) -> bytes:
    return cv2.imencode(".png", image)[1].tobytes()


def png(figure: Figure) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=DPI)
    return stream.getvalue()


def url_of(content: bytes) -> str:
    """A PNG as a URL that contains it."""
    return f"data:image/png;base64,{base64.b64encode(content).decode('ascii')}"

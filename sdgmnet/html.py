"""A report as one HTML page that needs nothing else: pictures are inside it, no script, no network."""

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

from sdgmnet.errors import InputError
from sdgmnet.files import write_text
from sdgmnet.report import Section

KINDS = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".svg": "image/svg+xml"}
STYLE = """
body { margin: 2rem auto; max-width: 72rem; padding: 0 1rem; font: 16px/1.5 system-ui, sans-serif; color: #222; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
p { max-width: 48rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.25rem 0.75rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; }
th { border-bottom: 2px solid #888; }
img { max-width: 100%; height: auto; }
"""


def write_page(path: Path | str, title: str, sections: Sequence[Section]) -> None:
    """The sections below each other, each with its table or its picture (PNG, JPEG or SVG) or both."""
    # The empty icon keeps browsers from asking for one.
    write_text(
        path,
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n"
        + "".join(section_html(one) for one in sections)
        + "</body>\n</html>\n",
    )


def section_html(section: Section) -> str:
    parts = [f"<h2>{escape(section.heading)}</h2>"]
    if section.text:
        parts.append(f"<p>{escape(section.text)}</p>")
    if section.header:
        lines = [row_html("th", section.header), *(row_html("td", row) for row in section.body)]
        parts.append('<div class="wide"><table>\n' + "\n".join(lines) + "\n</table></div>")
    if section.picture is not None:
        parts.append(f'<img src="{as_data(section.picture)}" alt="{escape(section.heading)}">')
    return "<section>\n" + "\n".join(parts) + "\n</section>\n"


def row_html(cell: str, row: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{cell}>{escape(text)}</{cell}>" for text in row) + "</tr>"


def as_data(picture: Path) -> str:
    """The picture itself as an address."""
    kind = KINDS.get(picture.suffix.lower())
    if kind is None:
        raise InputError(f"{picture}: a page holds pictures that end in {', '.join(KINDS)}.")
    return f"data:{kind};base64,{base64.b64encode(picture.read_bytes()).decode('ascii')}"

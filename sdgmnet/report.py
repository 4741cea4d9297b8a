"""Results for people and for programs: a table on the terminal, table.md and results.json in a folder."""

import base64
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape as escape_html
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tyro
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from sdgmnet.errors import InputError
from sdgmnet.storage import write_json, write_text

# ---- report


Out = Annotated[Path, tyro.conf.arg(aliases=["-o"])]  # the folder that every command writes to


def print_aside(sentence: str) -> None:
    """Print to stderr, so that stdout holds only what a program may read."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(sentence, markup=False)


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> None:
    table = Table(title=None if title is None else escape(title), title_justify="left")
    for number, column in enumerate(header):
        table.add_column(escape(column), justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    # Piped output has no width of its own: do not fold columns there.
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def counting_bar(console: Console) -> Progress:
    """A bar that says what is being done, how much of how many is done, how long it took and will take."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
    )


def tracker(bars: Progress) -> Callable[[Iterable[Any], str, int], Iterator[Any]]:
    """For a loop inside a loop: passes an iterable on and shows a bar for it while it lasts."""

    def track(iterable: Iterable[Any], doing: str, total: int) -> Iterator[Any]:
        bar = bars.add_task(doing, total=total)
        for one in iterable:
            yield one
            bars.advance(bar)
        bars.remove_task(bar)

    return track


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


class Section(NamedTuple):
    """A part of a report: what it is about, in a sentence or two, and its table or its image."""

    heading: str
    text: str = ""
    header: Sequence[str] = ()
    body: Sequence[Sequence[str]] = ()
    picture: Path | None = None


def print_sections(sections: Sequence[Section]) -> None:
    """One below the other, each table with its heading and what is to be said of it."""
    for one in sections:
        print_table(one.header, one.body, one.heading)
        if one.text:
            print(one.text, end="\n\n")


def sections_markdown(sections: Sequence[Section]) -> str:
    return "\n".join(f"## {one.heading}\n\n{one.text}\n\n{markdown(one.header, one.body)}" for one in sections)


def deliver_sections(results: Any, sections: Sequence[Section], out: Path | None, as_json: bool) -> None:
    """As `deliver`, for several tables."""
    if as_json:
        print(json.dumps(results, indent=2))
    else:
        print_sections(sections)
    if out is not None:
        write_json(out / "results.json", results)
        write_text(out / "table.md", sections_markdown(sections))


def deliver(
    results: Any,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    out: Path | None,
    as_json: bool,
    title: str | None = None,
) -> None:
    """Print the table, or JSON; write both into `out` where given."""
    if as_json:
        print(json.dumps(results, indent=2))
    else:
        print_table(header, rows, title)
    if out is not None:
        write_json(out / "results.json", results)
        write_text(out / "table.md", markdown(header, rows))


# ---- html


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
    """The sections below each other, each with its table or its image (PNG, JPEG or SVG) or both."""
    # The empty icon keeps browsers from asking for one.
    write_text(
        path,
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
        f"<title>{escape_html(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{escape_html(title)}</h1>\n"
        + "".join(section_html(one) for one in sections)
        + "</body>\n</html>\n",
    )


def section_html(section: Section) -> str:
    parts = [f"<h2>{escape_html(section.heading)}</h2>"]
    if section.text:
        parts.append(f"<p>{escape_html(section.text)}</p>")
    if section.header:
        lines = [row_html("th", section.header), *(row_html("td", row) for row in section.body)]
        parts.append('<div class="wide"><table>\n' + "\n".join(lines) + "\n</table></div>")
    if section.picture is not None:
        parts.append(f'<img src="{as_data(section.picture)}" alt="{escape_html(section.heading)}">')
    return "<section>\n" + "\n".join(parts) + "\n</section>\n"


def row_html(cell: str, row: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{cell}>{escape_html(text)}</{cell}>" for text in row) + "</tr>"


def as_data(picture: Path) -> str:
    """The image itself as an address."""
    kind = KINDS.get(picture.suffix.lower())
    if kind is None:
        raise InputError(f"{picture}: a page holds images that end in {', '.join(KINDS)}.")
    return f"data:{kind};base64,{base64.b64encode(picture.read_bytes()).decode('ascii')}"

"""Results for people and for programs: tables, table.md, results.json, an HTML page; and progress on the terminal.

Tables and JSON go to stdout. Progress bars and remarks go to stderr, so that stdout can be piped.
"""

import base64
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from html import escape as escape_html
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, NamedTuple, TypeVar

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from sdgmnet.errors import InputError
from sdgmnet.storage import write_json, write_text

Item = TypeVar("Item")

# Library functions report progress by calling on_progress(stage, done, total).
OnProgress = Callable[[str, int, int], None]

STDERR = Console(stderr=True, highlight=False, soft_wrap=True)
FINISHED_BARS = 8  # of earlier stages that stay visible
FIRST_LINE, NEXT_LINES = 5.0, 10.0  # seconds until progress is printed, and between lines, where there is no terminal
NUMBERS = 46  # columns that a bar needs beside its description: ten of it, counts of six digits, two times
WIDE = 120  # columns; bars do not grow on wider terminals
MIME_TYPES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".svg": "image/svg+xml"}
STYLE = """
:root { color-scheme: light dark; }
body { margin: 2rem auto; max-width: 72rem; padding: 0 1rem; font: 16px/1.5 system-ui, sans-serif; color: #222; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
p { max-width: 48rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.25rem 0.75rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; }
th { border-bottom: 2px solid #888; }
img { max-width: 100%; height: auto; background: white; }
pre { overflow-x: auto; padding: 0.75rem; border-radius: 4px; background: #f2f3f5; font-size: 0.9rem; }
@media (prefers-color-scheme: dark) {
  body { background: #14161a; color: #e6e6e6; } th, td { border-color: #444; } pre { background: #24272d; }
}
"""


class Section(NamedTuple):
    """A part of a report: a heading, a few sentences, and a table, an image, lines of code, or several of these."""

    heading: str
    text: str = ""
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    image: Path | None = None
    code: str = ""


def print_aside(sentence: str) -> None:
    """Print a remark to stderr, above the progress bars where there are any."""
    STDERR.print(sentence, markup=False)


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> None:
    table = Table()
    for number, column in enumerate(header):
        table.add_column(escape(column), justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    # Piped output has no width of its own: do not fold columns there.
    console = Console(width=None if sys.stdout.isatty() else 160)
    if title is not None:  # above the table, not in it: a title in it folds to the width of the columns
        console.print(title, style="italic", markup=False, highlight=False)
    console.print(table)


def print_sections(sections: Sequence[Section]) -> None:
    for section in sections:
        print_table(section.header, section.rows, section.heading)
        if section.text:
            print(section.text, end="\n\n")


def percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{100 * fraction:.2f}"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def sections_markdown(sections: Sequence[Section]) -> str:
    return "\n".join(
        "\n\n".join([f"## {one.heading}", *([one.text] if one.text else []), markdown(one.header, one.rows)])
        for one in sections
    )


def deliver(results: Any, sections: Sequence[Section], out: Path | None, as_json: bool) -> None:
    """Print the tables, or the results as JSON; write results.json and table.md into `out` if it is given."""
    if as_json:
        print(json.dumps(results, indent=2))
    else:
        print_sections(sections)
    if out is not None:
        write_results(results, sections, out)


def write_results(results: Any, sections: Sequence[Section], out: Path) -> None:
    write_json(out / "results.json", results)
    write_text(out / "table.md", sections_markdown(sections))


class Description(ProgressColumn):
    """What is being done, shortened so that the numbers after it are never cut."""

    def render(self, task: Task) -> Text:
        text = Text(task.description, no_wrap=True)
        text.truncate(max(8, STDERR.width - NUMBERS - len(task.fields.get("news", ""))), overflow="ellipsis")
        return text


def counting_bar(console: Console = STDERR) -> Progress:
    """A bar with a description, done and total, what a task's field `news` says, elapsed and remaining time."""
    return Progress(
        Description(),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[news]}", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        expand=console.width < WIDE,
    )


@contextmanager
def progress_bars(quiet: bool = False) -> Iterator[OnProgress]:
    """Show progress on stderr while the block runs: a bar per stage on a terminal, else a line about every ten seconds."""
    if quiet or STDERR.quiet:
        yield no_progress
        return
    with show_bars() if STDERR.is_terminal else print_lines() as on_progress:
        yield on_progress


@contextmanager
def show_bars() -> Iterator[OnProgress]:
    with counting_bar() as bars:
        first = bars.add_task("working", total=None, news="")  # until the first stage is reported
        tasks: dict[str, TaskID] = {}

        def on_progress(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                for task in bars.tasks[:-FINISHED_BARS]:
                    if task.finished:
                        bars.remove_task(task.id)
                tasks[stage] = bars.add_task(stage, total=total or None, news="")
                if first in bars.task_ids:
                    bars.remove_task(first)
            if tasks[stage] in bars.task_ids:
                bars.update(tasks[stage], completed=done, total=total or None)

        try:
            yield on_progress
        finally:
            if first in bars.task_ids:
                bars.remove_task(first)


class ProgressLines:
    """The latest stage as a line, whenever one is due."""

    def __init__(self) -> None:
        self.began = self.due = time.monotonic()
        self.due += FIRST_LINE
        self.stage, self.done, self.total, self.news = "working", 0, 0, ""
        self.printed = False
        self.lock = Lock()

    def update(self, stage: str, done: int, total: int, news: str = "") -> None:
        with self.lock:
            if stage != self.stage:
                self.began, self.printed = time.monotonic(), False
            self.stage, self.done, self.total, self.news = stage, done, total, news
            finished = total and done >= total and self.printed
        if finished:
            self.print()
            self.printed = False
        self.print_if_due()

    def print_if_due(self) -> None:
        if time.monotonic() >= self.due:
            self.print()

    def print(self) -> None:
        with self.lock:
            self.due, self.printed = time.monotonic() + NEXT_LINES, True
            line = progress_line(self.stage, self.done, self.total, time.monotonic() - self.began, self.news)
        print_aside(line)


def progress_line(stage: str, done: int, total: int, seconds: float, news: str = "") -> str:
    """describing: 120 of 1000, 0:20 so far, about 2:27 left"""
    counts = [f"{done} of {total}"] if total else [str(done)] if done else []
    left = [f"about {clock(seconds * (total - done) / done)} left"] if 0 < done < total else []
    return f"{stage}: {', '.join([*counts, *([news] if news else []), f'{clock(seconds)} so far', *left])}"


def clock(seconds: float) -> str:
    """0:07, 12:34 or 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@contextmanager
def print_lines() -> Iterator[OnProgress]:
    lines, ended = ProgressLines(), Event()

    def watch() -> None:  # a stage may take long between two reports
        while not ended.wait(0.2):
            lines.print_if_due()

    watcher = Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield lines.update
    finally:
        ended.set()
        watcher.join()


def no_progress(stage: str, done: int, total: int) -> None:
    """Report nothing: the default of library functions."""


def track(
    items: Iterable[Item], stage: str, on_progress: OnProgress = no_progress, total: int | None = None
) -> Iterator[Item]:
    """Yield the items and report progress, at most ten times per second; `total` for items that have no length."""
    total = len(items) if isinstance(items, Sized) else total or 0
    on_progress(stage, 0, total)
    reported = time.monotonic()
    for done, item in enumerate(items, start=1):
        yield item
        if done == total or time.monotonic() - reported > 0.1:
            on_progress(stage, done, total)
            reported = time.monotonic()


def write_page(path: Path | str, title: str, sections: Sequence[Section]) -> None:
    """Write one self-contained HTML file; images (PNG, JPEG or SVG) are embedded."""
    # The empty icon keeps browsers from requesting one.
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
        lines = [row_html("th", section.header), *(row_html("td", row) for row in section.rows)]
        parts.append('<div class="wide"><table>\n' + "\n".join(lines) + "\n</table></div>")
    if section.image is not None:
        parts.append(f'<img src="{data_url(section.image)}" alt="{escape_html(section.heading)}">')
    if section.code:
        parts.append(f"<pre>{escape_html(section.code)}</pre>")
    return "<section>\n" + "\n".join(parts) + "\n</section>\n"


def row_html(cell: str, row: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{cell}>{escape_html(text)}</{cell}>" for text in row) + "</tr>"


def data_url(image: Path) -> str:
    mime_type = MIME_TYPES.get(image.suffix.lower())
    if mime_type is None:
        raise InputError(f"{image}: cannot be embedded in an HTML page; use {', '.join(MIME_TYPES)}.")
    return f"data:{mime_type};base64,{base64.b64encode(image.read_bytes()).decode('ascii')}"

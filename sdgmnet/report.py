"""Results for people and for programs: a table on the terminal, table.md and results.json in a folder."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from sdgmnet.files import write_json, write_text


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
    """A part of a report: what it is about, in a sentence or two, and its table or its picture."""

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

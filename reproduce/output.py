"""What every `sdgmnet paper` command does at its beginning and at its end."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sdgmnet.errors import InputError
from sdgmnet.report import Section, print_aside, print_sections, sections_markdown
from sdgmnet.storage import write_json, write_text

FILES = ("table.md", "results.json")  # by every command


def require_folder(out: Path) -> None:
    """Before anything is worked out that could then not be written."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file: give the name of a folder.")


def require_run(run: Path) -> None:
    if not run.is_dir():
        raise InputError(f"{run} is not a folder: give the folder of a run.")
    if not (run / "config.json").is_file():
        raise InputError(f"{run} is not the folder of a run: it holds no config.json.")


def print_written(out: Path, names: Sequence[str]) -> None:
    print_aside(f"Written to {out}: {', '.join(names)}.")


def deliver_paper(
    out: Path,
    name: str,
    results: dict[str, Any],
    sections: Sequence[Section],
    draw: Callable[[Path], Sequence[Path]],
    as_json: bool,
    notes: Sequence[str] = (),
) -> None:
    """Tables on the terminal, NAME.md and NAME.json in the folder, those of the last call also as table.md and results.json;
    then the image, which `draw` makes at OUT/NAME: what is in words is safe by then."""
    remarks = "\nTake care:\n\n" + "".join(f"- {note}\n" for note in notes) if notes else ""
    results = {**results, "concerns": list(notes)}
    if as_json:
        print(json.dumps(results, indent=2))
    else:
        print_sections(sections)
        print(remarks, end="")
    text = sections_markdown(sections) + remarks
    for stem, table in ((name, name), ("results", "table")):
        write_json(out / f"{stem}.json", results)
        write_text(out / f"{table}.md", text)
    pictures = [picture.name for picture in draw(out / name)]
    print_written(out, [f"{name}.md", f"{name}.json", *pictures, *FILES])

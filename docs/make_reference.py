"""A mkdocs hook: writes the command-line reference from the commands themselves, and lists the pages of docs/decisions.

`make docs` runs it. The page is made in memory, so that it can never be older than the code.
"""

import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

DOCS = Path(__file__).resolve().parent
PAGE = "reference/command-line.md"
PROGRAMS = {"sdgmnet": "sdgmnet.cli", "python -m reproduce": "reproduce.__main__", "python -m bench": "bench.__main__"}
INTRODUCTION = """# Command line

Generated from the commands. `COMMAND --help` prints the same text.
`reproduce` and `bench` are run from a clone of the repository; they are not in the wheel.
"""


class Option(NamedTuple):
    names: str  # "-o, --out", "--mutual, --no-mutual"; "" for a positional argument
    value: str  # "PATH", "{native,sdgm}"; "" for a flag
    help: str


def table(program: str) -> Mapping[str, Any]:
    """Name -> command of a program."""
    if str(DOCS.parent) not in sys.path:  # reproduce and bench are not installed
        sys.path.insert(0, str(DOCS.parent))
    commands: Mapping[str, Any] = import_module(PROGRAMS[program]).COMMANDS
    return commands


def commands() -> Iterator[tuple[str, str]]:
    """(program and command, summary) of every command."""
    for program in PROGRAMS:
        yield from ((f"{program} {name}", command.summary) for name, command in table(program).items())


def arguments_of(command: str) -> type:
    """The dataclass of a command's options."""
    program = next(one for one in PROGRAMS if command.startswith(f"{one} "))
    module, name = table(program)[command.removeprefix(f"{program} ")].options.split(":")
    kind: type = getattr(import_module(module), name)
    return kind


def options_of(command: str) -> list[Option]:
    from sdgmnet.options import parameters

    return [Option(", ".join(one.all_names), one.metavar, one.help) for one in parameters(arguments_of(command))]


def command_line() -> str:
    """The page, in Markdown."""
    parts, program = [INTRODUCTION], ""
    for command, summary in commands():
        if not command.startswith(f"{program} ") or not program:
            program = next(one for one in PROGRAMS if command.startswith(f"{one} "))
            parts.append(f"## {program}\n")
        text = inspect.cleandoc(arguments_of(command).__doc__ or summary)
        parts.append(f"### {command}\n\n{text}\n\n| option | meaning |\n|---|---|")
        parts.extend(f"| {shown(one)} | {cell(escape(one.help))} |" for one in options_of(command))
        parts.append("")
    return "\n".join(parts)


def shown(option: Option) -> str:
    """Name and value as code, with spaces at which a long list of choices may wrap."""
    names = ", ".join(f"`{name}`" for name in option.names.split(", ") if name)
    values = f"`{cell(option.value.replace('|', ' | '))}`" if option.value else ""
    return f"{names} {values}".strip()


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def escape(text: str) -> str:
    return re.sub(r"([<>*_\[\]])", r"\\\1", text)


def decisions() -> list[Path]:
    return sorted(path for path in (DOCS / "decisions").glob("*.md") if path.name != "index.md")


def title_of(page: Path) -> str:
    return page.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")


def on_config(config: Any) -> Any:
    pages = ["decisions/index.md", *({title_of(page): f"decisions/{page.name}"} for page in decisions())]
    config.nav.insert(-1, {"Decisions": pages})  # before the notebook
    return config


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    files.append(File.generated(config, PAGE, content=command_line()))
    return files


if __name__ == "__main__":
    print(command_line())

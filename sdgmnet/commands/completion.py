"""`sdgmnet completion`: the table of commands and their options as an argparse parser, from which shtab writes the script."""

import argparse
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sdgmnet.options import Parameter, Positional, Verbosity, parameters
from sdgmnet.registry import load


@dataclass(frozen=True)
class CompletionArguments:
    """Print a script that completes commands, options and their values in a shell.

    For example:

        sdgmnet completion bash > ~/.local/share/bash-completion/completions/sdgmnet
        sdgmnet completion zsh > ~/.zfunc/_sdgmnet
        sdgmnet completion fish > ~/.config/fish/completions/sdgmnet.fish

    For zsh, the folder must be in fpath before compinit. Start a new shell afterwards.
    """

    shell: Positional[Literal["bash", "zsh", "fish"]]
    """bash, zsh or fish."""


def main(arguments: CompletionArguments) -> None:
    import shtab

    from sdgmnet.cli import COMMANDS

    summaries = {name: command.summary for name, command in COMMANDS.items()}
    options = {name: load(command.options) for name, command in COMMANDS.items()}
    print(shtab.complete(make_parser("sdgmnet", summaries, options, shtab.FILE), arguments.shell))


def make_parser(
    program: str, summaries: Mapping[str, str], options: Mapping[str, type], complete_file: Mapping[str, Any]
) -> argparse.ArgumentParser:
    """A parser to generate completion from; it is not used to parse.

    summaries: by the name of the command, such as "match" or "export onnx". complete_file: shtab's mark of paths.
    """
    top = argparse.ArgumentParser(program)
    top.add_argument("--version", action="store_true", help="Show the version.")
    commands = top.add_subparsers()
    groups: dict[str, Any] = {}
    for name, summary in summaries.items():
        *group, word = name.split()
        if group and group[0] not in groups:
            members = [one.split()[1] for one in summaries if one.startswith(f"{group[0]} ")]
            groups[group[0]] = commands.add_parser(group[0], help=", ".join(members)).add_subparsers()
        parser = (groups[group[0]] if group else commands).add_parser(word, help=escape(summary))
        for one in [*parameters(options[name]), *parameters(Verbosity)]:
            add_argument(parser, one, complete_file)
    return top


def add_argument(parser: argparse.ArgumentParser, one: Parameter, complete_file: Mapping[str, Any]) -> None:
    settings: dict[str, Any] = {"help": escape(first_sentence(one.help))}
    dest = "_".join(one.path)
    if one.kind is bool:
        off = () if one.option.one_way else tuple(f"--no-{name[2:]}" for name in one.names if name.startswith("--"))
        parser.add_argument(*one.names, *off, dest=dest, action="store_true", **settings)
        return
    if one.choices:
        settings["choices"] = one.choices
    if one.many:
        settings["nargs"] = "*"
    if one.names:
        settings["dest"] = dest
    added = parser.add_argument(*(one.names or (dest,)), **settings)
    if one.kind is Path:
        added.complete = complete_file  # type: ignore[attr-defined]


def first_sentence(text: str) -> str:
    """Up to the first full stop, semicolon or line's end that is followed by a space."""
    return re.split(r"(?<=[^.][.;])\s", text, maxsplit=1)[0].rstrip(".;")


def escape(text: str) -> str:
    """argparse formats help texts with %."""
    return text.replace("%", "%%")

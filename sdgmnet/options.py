"""Command-line options from a dataclass: a field is an option, its type says what it takes, its docstring is its help.

    @dataclass(frozen=True)
    class Arguments:
        '''Match two images.'''

        images: Positional[tuple[Path, ...]]
        '''Two images.'''
        keypoints: int | None = None
        '''Maximum number of keypoints; default: no limit.'''

    arguments = parse(Arguments, words, "sdgmnet match")

Types are bool, int, float, str, Path, a Literal of strings, each of these `| None`, and tuples of any length. A field that is a
dataclass adds its fields. Nothing slow is imported here: help, and errors about options, do not wait for torch.
"""

import ast
import dataclasses
import inspect
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from sdgmnet.errors import InputError, suggestion
from sdgmnet.registry import is_window

Value = TypeVar("Value")
HELP = ("-h", "--help")
NO_VALUE = object()
METAVARS = {int: "N", float: "X", Path: "PATH"}  # of a string it is the name of the option
KINDS = {int: "a whole number", float: "a number"}
WIDEST, INDENT = 100, "      "


class Option(NamedTuple):
    """What a type cannot say: Annotated[str, Option(metavar="DESCRIPTOR")]. Several are merged, the last one wins."""

    help: str = ""
    metavar: str = ""
    aliases: tuple[str, ...] = ()
    name: str = ""  # of the option, if the field cannot have it
    positional: bool = False
    one_way: bool = False  # a flag without --no-FLAG
    former: tuple[str, ...] = ()  # earlier names, accepted with a remark and not in the help
    hint: str = ""  # what to do about an invalid value


Positional = Annotated[Value, Option(positional=True)]
Flag = Annotated[bool, Option(one_way=True)]
AsJson = Annotated[Flag, Option(help="Print JSON instead of tables.")]
Out = Annotated[Path, Option(aliases=("-o",))]
OptionalOut = Annotated[Path | None, Option(aliases=("-o",))]


@dataclasses.dataclass(frozen=True)
class Verbosity:
    """The options that every command has."""

    quiet: Annotated[Flag, Option(aliases=("-q",))] = False
    """Print only results and errors, without progress and remarks."""
    verbose: Annotated[Flag, Option(aliases=("-v",))] = False
    """Also print the engine that runs and the time, and the traceback of an error."""

    def __post_init__(self) -> None:
        if self.quiet and self.verbose:
            raise InputError("--quiet and --verbose exclude each other: leave one of them out.")


class Parameter(NamedTuple):
    """An option or a positional argument."""

    path: tuple[str, ...]  # of the attribute
    names: tuple[str, ...]  # such as -o and --out; none for a positional argument
    kind: type  # bool, int, float, str or Path
    choices: tuple[str, ...]
    optional: bool  # may be None
    many: bool
    default: Any  # NO_VALUE if it is required
    option: Option

    @property
    def name(self) -> str:
        return self.names[-1] if self.names else self.metavar

    @property
    def metavar(self) -> str:
        """What stands for the value in help; empty for flags."""
        if self.kind is bool:
            return ""
        own = (self.path[-1].removesuffix("s") if self.many else self.path[-1]).upper()
        word = "|".join(self.choices) or METAVARS.get(self.kind, own)
        word = self.option.metavar or (own if self.option.positional else word)
        return f"{word} ..." if self.many else word

    @property
    def all_names(self) -> tuple[str, ...]:
        """The names, and --no-FLAG."""
        if self.kind is not bool or self.option.one_way:
            return self.names
        return (*self.names, *(f"--no-{name[2:]}" for name in self.names if name.startswith("--")))

    @property
    def spelling(self) -> str:
        """With the value, for help and errors."""
        return ", ".join(f"{name} {self.metavar}".strip() for name in self.all_names or ("",))

    @property
    def help(self) -> str:
        """The help text, with the default unless the text itself has it."""
        text = self.option.help
        says_so = "default:" in text.lower() or text.endswith("(required)")
        if not self.required and self.default not in (None, False, ()) and not says_so:
            shown = " ".join(map(str, self.default)) if self.many else "yes" if self.default is True else self.default
            text = f"{text} (default: {shown})"
        return f"{text} (required)" if self.required and self.names else text

    @property
    def required(self) -> bool:
        return self.default is NO_VALUE


def parse(kind: type[Value], words: Sequence[str], program: str, *, description: str | None = None) -> Value:
    """The dataclass `kind`, filled from the words; --help prints the help and exits.

    A dataclass whose defaults depend on other options has a static method `made_from`, which gets the given values by name.
    """
    if any(word in HELP for word in words[: words.index("--") if "--" in words else None]):
        print(help_text(kind, program, description))
        raise SystemExit(0)
    known = parameters(kind)
    require_known_names(words, [*known, *parameters(Verbosity)], program)
    given = read_values(words, known, program)
    make = getattr(kind, "made_from", None)
    return build(kind, given) if make is None else make({path[-1]: value for path, value in given.items()})


def split_verbosity(words: Sequence[str]) -> tuple[Verbosity, list[str]]:
    """The options of `Verbosity`, and the other words. No option takes a value that starts with a dash."""
    end = words.index("--") if "--" in words else len(words)
    names = named(parameters(Verbosity))
    given = {names[word][0].path: True for word in words[:end] if word in names}
    return build(Verbosity, given), [*(word for word in words[:end] if word not in names), *words[end:]]


def parameters(kind: type, path: tuple[str, ...] = ()) -> list[Parameter]:
    """The options of a dataclass, in the order of its fields."""
    found = []
    texts = field_docstrings(kind)
    for name, hint in get_type_hints(kind, include_extras=True).items():
        field = kind.__dataclass_fields__[name]  # type: ignore[attr-defined]
        base, *extras = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        if dataclasses.is_dataclass(base) and isinstance(base, type):
            found += parameters(base, (*path, name))
            continue
        option = merge([Option(help=texts.get(name, "")), *map(as_option, extras)])
        default = NO_VALUE if field.default is dataclasses.MISSING else field.default
        if default is NO_VALUE and option.positional and get_origin(base) is tuple:
            default = ()  # the command says what it needs
        long_name = f"--{(option.name or name).replace('_', '-')}"
        names = () if option.positional else (*option.aliases, long_name)
        found.append(Parameter((*path, name), names, *taken(base), default, option))
    return found


def as_option(extra: Any) -> Option:
    """An Option, or the text of typing's Doc."""
    return extra if isinstance(extra, Option) else Option(help=getattr(extra, "documentation", ""))


def merge(options: Sequence[Option]) -> Option:
    empty = Option()
    changes = {name: value for one in options for name, value in one._asdict().items() if value != getattr(empty, name)}
    return empty._replace(**changes)


def taken(hint: Any) -> tuple[type, tuple[str, ...], bool, bool]:
    """What a type accepts: kind, choices, whether None, whether several."""
    if get_origin(hint) in (Union, UnionType):
        [inner] = [one for one in get_args(hint) if one is not type(None)]
        kind, choices, _, many = taken(inner)
        return kind, choices, True, many
    if get_origin(hint) is tuple:
        kind, choices, optional, _ = taken(get_args(hint)[0])
        return kind, choices, optional, True
    if get_origin(hint) is Literal:
        return str, get_args(hint), False, False
    return hint, (), False, False


def field_docstrings(kind: type) -> dict[str, str]:
    """The string below each field, in the source of the dataclass and those it inherits from."""
    texts: dict[str, str] = {}
    for one in reversed([base for base in kind.__mro__ if dataclasses.is_dataclass(base)]):
        [node] = ast.parse(textwrap.dedent(inspect.getsource(one))).body
        body = node.body if isinstance(node, ast.ClassDef) else []
        for statements in pairwise(body):
            match statements:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    texts[name] = " ".join(text.split())
    return texts


# Reading words


def is_option(word: str) -> bool:
    """Whether a word names an option: it starts with a dash, and is not a negative number."""
    return len(word) > 1 and word[0] == "-" and re.match(r"-\.?\d", word) is None


def split_word(word: str) -> tuple[str, str | None]:
    """--name=value -> --name and value; --batch_size is --batch-size."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-"), value if equals else None


def named(known: Sequence[Parameter]) -> dict[str, tuple[Parameter, bool]]:
    """Every accepted name -> its option, and False for --no-FLAG."""
    found = {name: (one, True) for one in known for name in (*one.names, *one.option.former)}
    for one in known:
        if one.kind is bool and not one.option.one_way:
            names = (*one.names, *one.option.former)
            found |= {f"--no-{name[2:]}": (one, False) for name in names if name.startswith("--")}
    return found


def require_known_names(words: Sequence[str], known: Sequence[Parameter], program: str) -> None:
    """InputError for an option that does not exist, with the one that is spelt nearly like it."""
    names = named(known)
    for word in words[: words.index("--") if "--" in words else None]:
        name, _ = split_word(word)
        if not is_option(word) or name in names:
            continue
        near = [one for one in names if one.startswith(name)] or get_close_matches(name, names, 1)
        advice = f"did you mean {' or '.join(near)}?" if near else f"{program} --help lists all options."
        raise InputError(f"{name} is not an option of {program}; {advice}")


def read_values(words: Sequence[str], known: Sequence[Parameter], program: str) -> dict[tuple[str, ...], Any]:
    """Values by the path of their attribute."""
    names, waiting = named(known), list(words)
    given: dict[tuple[str, ...], Any] = {}
    rest: list[str] = []
    while waiting:
        word = waiting.pop(0)
        if word == "--":
            rest += waiting
            break
        if not is_option(word):
            rest.append(word)
            continue
        name, attached = split_word(word)
        one, is_on = names[name]
        if not any(name in (present, f"--no-{present[2:]}") for present in one.names):
            print(f"sdgmnet: {name} is now called {one.name}.", file=sys.stderr)
        if one.kind is bool:
            if attached is not None:
                raise InputError(f"{name} takes no value: write {one.spelling.replace(', ', ' or ')}.")
            given[one.path] = is_on
        elif one.many:
            texts = [attached] if attached is not None else list(take_values(waiting))
            given[one.path] = tuple(convert(text, one) for text in texts)
        else:
            if attached is None and (not waiting or is_option(waiting[0]) or waiting[0] == "--"):
                raise InputError(f"{name} needs a value: {one.spelling}.")
            given[one.path] = convert(waiting.pop(0) if attached is None else attached, one)
    require_given(given, known, program)
    return given | read_positional(rest, known, program)


def take_values(waiting: list[str]) -> Iterator[str]:
    while waiting and not is_option(waiting[0]) and waiting[0] != "--":
        yield waiting.pop(0)


def read_positional(rest: list[str], known: Sequence[Parameter], program: str) -> dict[tuple[str, ...], Any]:
    given: dict[tuple[str, ...], Any] = {}
    for one in known:
        if not one.option.positional:
            continue
        if one.many:
            given[one.path] = tuple(convert(text, one) for text in rest)
            rest = []
        elif rest:
            given[one.path] = convert(rest.pop(0), one)
        elif one.required:
            raise InputError(f"{one.metavar} is missing ({one.help.rstrip('.')}): {usage(known, program)}")
    if rest:
        raise InputError(f"{rest[0]!r} is one argument too many: {usage(known, program)}")
    return given


def require_given(given: dict[tuple[str, ...], Any], known: Sequence[Parameter], program: str) -> None:
    """InputError for a required option that is missing."""
    for one in known:
        if one.required and one.names and one.path not in given:
            first = one.option.help.partition(". ")[0].rstrip(".")
            raise InputError(f"{one.names[0]} {one.metavar} is missing ({first}): {usage(known, program)}")


def convert(text: str, one: Parameter) -> Any:
    """The value of a word, or InputError."""
    if one.optional and text.lower() == "none":
        return None
    if one.choices and text not in one.choices:
        choices = ", ".join(one.choices)
        raise InputError(f"{one.name} must be one of {choices}, not {text!r}{suggestion(text, one.choices)}")
    if not text and one.kind is Path:
        raise InputError(f"{one.name} must not be empty: give a path.")
    try:
        return one.kind(text)
    except ValueError:
        hint = f" {one.option.hint}" if one.option.hint else ""
        either = " or none" if one.optional else ""
        raise InputError(f"{one.name} must be {KINDS[one.kind]}{either}, not {text!r}.{hint}") from None


def build(kind: type[Value], given: dict[tuple[str, ...], Any], path: tuple[str, ...] = ()) -> Value:
    """The dataclass with the given values and its defaults."""
    values = {}
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        own = (*path, field.name)
        if dataclasses.is_dataclass(hints[field.name]):
            values[field.name] = build(hints[field.name], given, own)
        elif own in given:
            values[field.name] = given[own]
    return kind(**values)


# Help


def usage(known: Sequence[Parameter], program: str) -> str:
    """program IMAGE ... -o PATH [OPTIONS]"""
    positional = [one.metavar for one in known if one.option.positional]
    required = [f"{one.names[0]} {one.metavar}" for one in known if one.names and one.required]
    optional = ["[OPTIONS]"] if any(one.names and not one.required for one in known) else []
    return " ".join([program, *positional, *required, *optional])


def help_text(kind: type, program: str, description: str | None = None) -> str:
    known = parameters(kind)
    width = min(shutil.get_terminal_size().columns, WIDEST)
    lines = [f"usage: {usage(known, program)}", "", filled(description or inspect.getdoc(kind) or "", width)]
    for heading, positional in (("arguments", True), ("options", False)):
        shown = [one for one in [*known, *parameters(Verbosity)] if one.option.positional == positional]
        if shown:
            lines += ["", f"{heading}:"]
        for one in shown:
            lines.append(f"  {one.metavar if positional else one.spelling}")
            lines.append(wrap_help(one.help, width))
    lines += ["  -h, --help", f"{INDENT}Show this help."]
    return "\n".join(lines)


def wrap_help(text: str, width: int) -> str:
    """Indented, without breaks in names such as opencv-contrib-python."""
    return textwrap.fill(text, width, initial_indent=INDENT, subsequent_indent=INDENT, break_on_hyphens=False)


def filled(text: str, width: int) -> str:
    """Paragraphs filled to the width; indented lines, such as commands, as they are."""
    paragraphs = re.split(r"\n\s*\n", text)
    return "\n\n".join(one if one.startswith(" ") else textwrap.fill(one, width) for one in paragraphs)


def pick(kind: type[Value], arguments: Any, **more: Any) -> Value:
    """A dataclass with the values of the arguments of the same names, and `more`; what neither has keeps its default."""
    same = {name: getattr(arguments, name) for name in kind.__dataclass_fields__ if hasattr(arguments, name)}  # type: ignore[attr-defined]
    return kind(**{**same, **more})


def require_options(arguments: Any, **minimum: int) -> None:
    """Check options that several commands share: those named here by their minimum; contrast, ratio and seed by their range."""
    for name, lowest in minimum.items():
        value = getattr(arguments, name)
        if value is not None and value < lowest:
            raise InputError(f"--{name.replace('_', '-')} must be at least {lowest}, not {value}.")
    for name, valid, interval in (
        ("contrast", lambda value: 0 <= value < 1, "[0, 1)"),
        ("ratio", lambda value: 0 < value <= 1, "(0, 1]"),
        ("window", is_window, "[1, 100]"),
        ("seed", lambda value: 0 <= value < 2**31, "[0, 2^31)"),
    ):
        value = getattr(arguments, name, None)
        if value is not None and not valid(value):
            raise InputError(f"--{name} must be in {interval}, not {value}.")

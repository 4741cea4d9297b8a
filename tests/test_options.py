"""Options from dataclasses: what is accepted, what is refused and how, and the help."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from sdgmnet.errors import InputError
from sdgmnet.options import Flag, Option, Out, Positional, help_text, parse, pick, require_options


@dataclass(frozen=True)
class Inner:
    data: tuple[str, ...] = ()
    """Names of sets."""
    learning_rate: float = 0.5
    """Step size."""


@dataclass(frozen=True)
class Example:
    """Do a thing with images.

    For example:

        program a.jpg    -o out
    """

    images: Positional[tuple[Path, ...]]
    """Image files."""
    out: Out
    """Folder to write. More about it."""
    keypoints: Annotated[int | None, Option(former=("--limit",), hint="A file is given by --keypoints-from.")] = None
    """Maximum number; default: no limit."""
    cameras: Literal["auto", "each"] = "auto"
    """Which photos share a camera."""
    mutual: bool = True
    """Keep mutual ones."""
    json: Flag = False
    """Print JSON."""
    inner: Inner = field(default_factory=Inner)


def read(*words: str) -> Example:
    return parse(Example, words, "program")


def test_defaults_and_every_kind_of_value() -> None:
    assert read("-o", "x") == Example((), Path("x"))
    given = read(
        "a", "--out=x", "b", "--keypoints", "7", "--cameras=each", "--no-mutual", "--json", "--learning_rate", "-2"
    )
    assert given == Example((Path("a"), Path("b")), Path("x"), 7, "each", False, True, Inner((), -2.0))
    assert read("-o", "x", "--keypoints", "none").keypoints is None
    assert read("-o", "x", "--data", "a", "b", "--json").inner.data == ("a", "b")
    assert read("-o", "x", "--data", "a", "b", "--data=c").inner.data == ("c",)  # the last one counts
    assert read("-o", "x", "--data", "a", "--", "-b").images == (Path("-b"),)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-o", "x", "--keypiont", "5"], "--keypiont is not an option of program; did you mean --keypoints?"),
        (["-o", "x", "--key", "5"], "did you mean --keypoints?"),
        (["-o", "x", "--zzz"], "--zzz is not an option of program; program --help lists all options."),
        (
            ["-o", "x", "--keypoints", "many"],
            "--keypoints must be a whole number or none, not 'many'. A file is given by",
        ),
        (["-o", "x", "--keypoints", "1.5"], "--keypoints must be a whole number"),
        (["-o", "x", "--learning-rate", "fast"], "--learning-rate must be a number, not 'fast'."),
        (["-o", "x", "--cameras", "eech"], "--cameras must be one of auto, each, not 'eech'; did you mean each?"),
        (["-o", "x", "--keypoints"], "--keypoints needs a value: --keypoints N."),
        (["-o", "--json"], "-o needs a value: -o PATH, --out PATH."),
        (["-o", ""], "--out must not be empty"),
        (["-o", "x", "--mutual=yes"], "--mutual takes no value: write --mutual or --no-mutual."),
        (["a"], "-o PATH is missing (Folder to write): program IMAGE ... -o PATH [OPTIONS]"),
    ],
)
def test_wrong_words_are_one_sentence(words: list[str], said: str) -> None:
    with pytest.raises(InputError) as caught:
        read(*words)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_an_earlier_name_is_accepted_with_a_remark(capsys: pytest.CaptureFixture[str]) -> None:
    assert read("-o", "x", "--limit", "5").keypoints == 5
    assert capsys.readouterr().err == "sdgmnet: --limit is now called --keypoints.\n"
    assert read("-o", "x", "--keypoints", "5", "--no-mutual").keypoints == 5
    assert capsys.readouterr().err == ""


def test_single_positional_arguments() -> None:
    @dataclass(frozen=True)
    class One:
        folder: Positional[Path]

    assert parse(One, ["a"], "program").folder == Path("a")
    with pytest.raises(InputError, match="FOLDER is missing"):
        parse(One, [], "program")
    with pytest.raises(InputError, match="'b' is one argument too many: program FOLDER"):
        parse(One, ["a", "b"], "program")


def test_help_at_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = help_text(Example, "program")
    assert text.startswith("usage: program IMAGE ... -o PATH [OPTIONS]\n\nDo a thing with images.\n")
    assert "\n    program a.jpg    -o out\n" in text
    assert max(map(len, text.splitlines())) <= 80
    for line in (
        "  IMAGE ...\n      Image files.",
        "  -o PATH, --out PATH\n      Folder to write. More about it. (required)",
        "  --keypoints N\n      Maximum number; default: no limit.\n",
        "  --cameras auto|each\n      Which photos share a camera. (default: auto)",
        "  --mutual, --no-mutual\n      Keep mutual ones. (default: yes)",
        "  --json\n      Print JSON.\n",
        "  --data DATA ...\n      Names of sets.\n",
        "  --learning-rate X\n      Step size. (default: 0.5)",
    ):
        assert line in text


def test_help_wins_over_errors(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        read("--zzz", "-h")
    assert ended.value.code == 0 and capsys.readouterr().out.startswith("usage: program")


def test_a_dataclass_may_fill_itself() -> None:
    @dataclass(frozen=True)
    class Filled:
        recipe: str = "paper"
        size: int = 1

        @staticmethod
        def made_from(given: dict[str, Any]) -> "Filled":
            return Filled(**{"size": 7 if given.get("recipe") == "large" else 1, **given})

    assert parse(Filled, ["--recipe", "large"], "program").size == 7
    assert parse(Filled, ["--recipe", "large", "--size", "3"], "program").size == 3


def test_ranges_that_commands_share() -> None:
    class Given:
        keypoints, ratio, seed = 0, 1.5, -1

    with pytest.raises(InputError, match="--keypoints must be at least 1, not 0"):
        require_options(Given, keypoints=1)
    with pytest.raises(InputError, match=r"--ratio must be in \(0, 1\]"):
        require_options(Given)


def test_pick_takes_what_has_the_same_name() -> None:
    @dataclass(frozen=True)
    class Part:
        size: int = 1
        seed: int = 2
        kept: int = 3

    @dataclass(frozen=True)
    class All:
        size: int = 10
        seed: int = 20
        other: int = 30

    assert pick(Part, All()) == Part(10, 20, 3)
    assert pick(Part, All(), seed=5) == Part(10, 5, 3)

"""The pages cite only what exists: names, tests, commands and their options, links, images. Their Python blocks run."""

import importlib
import importlib.util
import json
import re
import shlex
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import cv2
import pytest

from sdgmnet.data.synthetic.demo import read_motorcycle

REPOSITORY = Path(__file__).parent.parent
TOP = [REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES = sorted([*(REPOSITORY / "docs").rglob("*.md"), *TOP])
GENERATED = {"docs/reference/command-line.md"}
page = pytest.mark.parametrize("page", PAGES, ids=[str(one.relative_to(REPOSITORY)) for one in PAGES])


@cache
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_reference", REPOSITORY / "docs/make_reference.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def resolves(name: str) -> bool:
    """Whether a dotted name is a module, or something in one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[length:]:
            if attribute in getattr(found, "__dataclass_fields__", {}):
                return True
            if not hasattr(found, attribute):
                return False
            found = getattr(found, attribute)
        return True
    return False


@page
def test_names_and_tests_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    names = re.findall(r"`((?:sdgmnet|reproduce|bench)(?:\.\w+)+)", text)
    names += re.findall(r"^::: (\S+)", text, re.MULTILINE)
    missing = [name for name in names if not resolves(name) and not (REPOSITORY / "sdgmnet/weights" / name).exists()]
    missing += [name for name in re.findall(r"\btests/[\w/]+\.py", text) if not (REPOSITORY / name).exists()]
    assert not missing


def test_imports_of_the_tutorial_exist() -> None:
    """`make tutorial` runs it whole, which takes minutes."""
    cells = json.loads((REPOSITORY / "docs/tutorial.ipynb").read_text(encoding="utf-8"))["cells"]
    lines = [line for cell in cells if cell["cell_type"] == "code" for line in cell["source"]]
    found = [re.match(r"from (sdgmnet[\w.]*) import (.+)", line) for line in lines]
    names = [f"{one[1]}.{name.strip()}" for one in found if one for name in one[2].split(",")]
    assert len(names) > 5 and not [name for name in names if not resolves(name)]


def test_every_equation_has_a_row() -> None:
    text = (REPOSITORY / "docs/paper/equations.md").read_text(encoding="utf-8")
    assert all(f"({number})" in text for number in range(1, 16))


@cache
def options(command: str) -> set[str]:
    return {name for option in reference().options_of(command) for name in option.names.split(", ")}


def command_lines(text: str) -> list[str]:
    """What a page tells to type: lines of sh blocks, and inline code."""
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL))
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    lines = [line.split(" #")[0].replace("-m sdgmnet", "sdgmnet") for line in [*blocks.splitlines(), *inline]]
    return [line[line.index(program) :] for line in lines for program in reference().PROGRAMS if f"{program} " in line]


@page
def test_commands_and_their_options_exist(page: Path) -> None:
    groups = {name.rsplit(" ", 1)[0] for name, _ in reference().commands()}
    commands = [name for name, _ in reference().commands()]
    for line in command_lines(page.read_text(encoding="utf-8")):
        words = shlex.split(line.replace("…", "..."))
        command = max((one for one in commands if f"{line} ".startswith(f"{one} ")), key=len, default=None)
        if command is None:
            assert line in groups or words[-1] in ("--help", "NAME", "<name>", "sdgmnet") or "COMMAND" in line, line
            continue
        typed = {word.split("=")[0] for word in words if re.fullmatch(r"-o|--[a-z].*", word)} - {"--help"}
        assert typed <= options(command), f"{line}: {typed - options(command)}"


@page
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        path = (page.parent / target).resolve()
        known = target.startswith("http") or path.exists() or str(path.relative_to(REPOSITORY)) in GENERATED
        assert known, target


def test_every_image_is_shown() -> None:
    shown = {
        (page.parent / target).resolve()
        for page in PAGES
        for target in re.findall(r"!\[[^]]*\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    }
    there = {path.resolve() for kind in ("png", "jpg") for path in (REPOSITORY / "docs").rglob(f"*.{kind}")}
    assert there == shown


def test_every_decision_is_listed() -> None:
    index = (REPOSITORY / "docs/decisions/index.md").read_text(encoding="utf-8")
    for one in reference().decisions():
        assert f"- [{reference().title_of(one)}]({one.name})" in index


CITED = re.compile(r"docs/[\w/]+\.md(?: \d(?:\.\d)?(?:,? (?:and )?\d(?:\.\d)?)*)?")


def test_pages_cited_in_sources_exist() -> None:
    """`docs/protocols.md 1.8, 2.5` in a docstring: the page, and sections of these numbers."""
    folders = ("sdgmnet", "reproduce", "bench", "tests")
    for source in [path for name in folders for path in (REPOSITORY / name).rglob("*.py")]:
        for citation in CITED.findall(source.read_text(encoding="utf-8")):
            name, *sections = citation.replace(",", "").replace(" and", "").split()
            text = (REPOSITORY / name).read_text(encoding="utf-8") if name not in GENERATED else ""
            found = [re.search(rf"^##+ {re.escape(one)} ", text, re.MULTILINE) for one in sections]
            assert name in GENERATED or all(found), f"{source}: {citation}"


def test_the_reference_has_every_command() -> None:
    text = reference().command_line()
    assert all(f"\n### {command}\n" in text for command, _ in reference().commands())
    assert "| `-o`, `--out` `PATH` |" in text and "| `--mutual`, `--no-mutual` |" in text and "--loss-options" in text


@pytest.mark.parametrize(
    "document",
    ["README.md", "docs/index.md", "docs/guides/match.md", "docs/guides/train.md", "docs/guides/evaluate.md"],
)
def test_python_blocks_run(document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = read_motorcycle()
    for name, image in (("a.jpg", pair.left), ("b.jpg", pair.right)):
        cv2.imwrite(str(tmp_path / name), image)
    monkeypatch.chdir(tmp_path)
    if document.endswith("evaluate.md"):
        run_blocks("docs/guides/train.md")  # makes the set that the page opens
    names = run_blocks(document)
    if "pairs" in names:
        assert len(names["pairs"]) > 50
    if "verified" in names:
        assert names["verified"].inlier.sum() > 30
    if "descriptors" in names:
        assert names["descriptors"].shape == (10, 128)
    if "row" in names:
        assert names["fpr"] == 0 and 0 <= names["row"].fpr95 <= 1


def run_blocks(document: str) -> dict[str, Any]:
    """The names that a page's Python blocks leave; training shortened."""
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", (REPOSITORY / document).read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        for long, short in (("in range(100)", "in range(2)"), ("(2, 64, 1", "(2, 4, 1"), ("limit=2000", "limit=300")):
            block = block.replace(long, short)
        exec(block, names)
    return names

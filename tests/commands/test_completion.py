"""The shells themselves complete, with the script that the command prints."""

import shutil
import subprocess
from pathlib import Path

import pytest

from sdgmnet.cli import COMMANDS, main

CASES = {
    ("ma",): {"match"},
    ("export", "im"): {"imc"},
    ("match", "--rati"): {"--ratio"},
    ("match", "a.png", "--no-mut"): {"--no-mutual"},
    ("match", "a.png", "b.png", "--verify", "ho"): {"homography"},
    ("match", "--matcher", ""): {"nearest", "fginn", "adalam"},
    ("train", "--quie"): {"--quiet"},
    ("completion", ""): {"bash", "zsh", "fish"},
}
BASH = """
source {script}
COMP_WORDS=(sdgmnet {words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
function=$(complete -p sdgmnet | sed 's/.*-F \\([^ ]*\\).*/\\1/')
$function sdgmnet "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD - 1]}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def needs(shell: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"needs {shell}")


def script(shell: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["completion", shell]) == 0
    path = folder / f"sdgmnet.{shell}"
    path.write_text(capsys.readouterr().out, encoding="utf-8")
    return path


def run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@needs("bash")
def test_bash(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = script("bash", tmp_path, capsys)
    for words, expected in CASES.items():
        quoted = " ".join(f"'{word}'" for word in words)
        found = run("bash", "--norc", "-c", BASH.format(script=path, words=quoted)).split()
        assert set(found) == expected, words
    top = run("bash", "--norc", "-c", BASH.format(script=path, words="''")).split()
    assert set(top) == {name.split()[0] for name in COMMANDS}


@needs("fish")
def test_fish(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = script("fish", tmp_path, capsys)
    for words, expected in CASES.items():
        found = run("fish", "--no-config", "-c", f"source {path}; complete -C 'sdgmnet {' '.join(words)}'")
        shown = {line.split("\t")[0] for line in found.splitlines()}
        assert shown >= expected, words
        assert {one for one in shown if one in COMMANDS} <= expected, words


@needs("zsh")
def test_zsh_loads_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a function in fpath: compinit finds it, and it has every command and option."""
    path = script("zsh", tmp_path, capsys)
    run("zsh", "-n", str(path))
    path.rename(tmp_path / "_sdgmnet")
    code = f"fpath=({tmp_path} $fpath); autoload -U compinit; compinit -u -d {tmp_path}/dump; print $_comps[sdgmnet]"
    assert run("zsh", "-f", "-c", code).strip() == "_sdgmnet"
    text = (tmp_path / "_sdgmnet").read_text(encoding="utf-8")
    assert all(f"    {name.split()[-1]}:'" in text for name in COMMANDS) and "--no-mutual" in text


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert "bash, zsh, fish" in capsys.readouterr().err

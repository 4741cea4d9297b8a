"""Tables and files, progress, and HTML pages."""

import base64
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path

import cv2
import numpy as np
import pytest

from sdgmnet.errors import InputError
from sdgmnet.report import (
    Section,
    deliver,
    print_aside,
    print_table,
    progress_bars,
    progress_line,
    track,
    write_page,
)

PURPLE = (255, 0, 160)  # blue, green, red


class Reader(HTMLParser):
    """What a page shows, whether its tags are closed, and what it would fetch."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.addresses: list[str] = []
        self.text = ""
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "link", "img"):
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1].append(data)


@pytest.fixture
def page(tmp_path: Path) -> Path:
    cv2.imwrite(str(tmp_path / "purple.png"), np.full((80, 120, 3), PURPLE, dtype=np.uint8))
    sections = [
        Section("Scores <of> & all", 'Higher is "better".', ["name", "score"], [["<b>SIFT</b>", "0.5"], ["ours", "θ"]]),
        Section("An image", image=tmp_path / "purple.png"),
    ]
    write_page(tmp_path / "index.html", "Results & more", sections)
    return tmp_path / "index.html"


def test_page_holds_everything_and_fetches_nothing(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    read = Reader(text)
    assert read.rows == [["name", "score"], ["<b>SIFT</b>", "0.5"], ["ours", "θ"]]
    assert "Scores <of> & all" in read.text and 'Higher is "better".' in read.text
    assert read.addresses[0] == "data:," and len(read.addresses) == 2
    kind, content = read.addresses[1].split(";base64,")
    assert kind == "data:image/png" and base64.b64decode(content) == (page.parent / "purple.png").read_bytes()
    assert "<script" not in text and not re.search(r"https?://|url\(|@import", text)


def test_other_image_formats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a\.gif"):
        write_page(tmp_path / "index.html", "t", [Section("a", image=tmp_path / "a.gif")])
    assert not (tmp_path / "index.html").exists()


def test_deliver_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sections = [
        Section("First [x]", "A text.", ["name", "score"], [["[b]SIFT", "0.5"]]),
        Section("Second", "", ["a"], [["1"]]),
    ]
    deliver({"score": 0.5}, sections, tmp_path, as_json=False)
    printed = capsys.readouterr().out
    assert "First [x]" in printed and "[b]SIFT" in printed and "A text." in printed
    assert json.loads((tmp_path / "results.json").read_text()) == {"score": 0.5}
    first = "## First [x]\n\nA text.\n\n| name | score |\n| --- | --- |\n| [b]SIFT | 0.5 |\n"
    assert (tmp_path / "table.md").read_text() == f"{first}\n## Second\n\n| a |\n| --- |\n| 1 |\n"
    deliver({"score": 0.5}, sections, None, as_json=True)
    assert json.loads(capsys.readouterr().out) == {"score": 0.5}


def test_progress_is_reported_and_stays_off_stdout(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[tuple[str, int, int]] = []
    assert list(track(iter("abc"), "reading", lambda *step: reported.append(step), 3)) == ["a", "b", "c"]
    assert reported[0] == ("reading", 0, 3) and reported[-1] == ("reading", 3, 3)
    for seconds, shown in ((5.0, False), (0.0, True)):  # quick work prints nothing
        monkeypatch.setattr("sdgmnet.report.FIRST_LINE", seconds)
        with progress_bars() as on_progress:
            for stage in range(20):
                for _ in track(range(5), f"stage {stage}", on_progress):
                    pass
            print_aside("A remark [/x].")
        printed = capsys.readouterr()
        assert printed.out == "" and "A remark [/x]." in printed.err
        assert ("stage 0: 0 of 5" in printed.err) == shown
    with progress_bars(quiet=True) as on_progress:
        on_progress("stage", 1, 2)
    assert capsys.readouterr().err == ""


def test_lines_say_how_long_it_takes() -> None:
    assert progress_line("describing", 120, 1000, 20.4) == "describing: 120 of 1000, 0:20 so far, about 2:30 left"
    assert progress_line("describing", 1000, 1000, 3723) == "describing: 1000 of 1000, 1:02:03 so far"
    assert progress_line("reading", 0, 7, 5, "3 MB") == "reading: 0 of 7, 3 MB, 0:05 so far"
    assert progress_line("working", 0, 0, 5) == "working: 0:05 so far"


CHILD = """
import sys, time
from sdgmnet import report
report.FIRST_LINE, report.NEXT_LINES = 0.3, 0.6
with report.progress_bars() as on_progress:
    time.sleep(0.8)
    for _ in report.track(range(4), "describing with a name that is much too long for a terminal of 80", on_progress):
        time.sleep(0.5)
    on_progress("long", 123456, 200000)
    time.sleep(0.3)
print("done")
"""


def test_piped_commands_print_lines_while_they_work() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True)
    assert done.stdout == "done\n"
    lines = done.stderr.splitlines()
    assert lines[0].startswith("working: 0:00 so far")  # before the first stage is known
    assert 3 <= len(lines) <= 8 and "\x1b" not in done.stderr
    assert any(re.search(r": 2 of 4, 0:0\d so far, about 0:0\d left", line) for line in lines)
    assert any("4 of 4" in line for line in lines)


def test_bars_are_whole_at_80_columns() -> None:
    shown = on_terminal([sys.executable, "-c", CHILD], columns=80)
    assert "working" in shown and shown.rstrip().endswith("done")
    bars = [line.rstrip() for line in shown.split("\n") if "describing" in line or "long " in line]
    assert bars and max(map(len, bars)) <= 80
    whole = re.compile(r"^\S.* ━.* +\d+/\d+ +\d:\d\d:\d\d +[-\d]:[-\d]{2}:[-\d]{2}$")
    assert all(whole.match(bar) for bar in bars), bars
    assert any("2/4" in bar and re.search(r" 0:00:0\d$", bar) for bar in bars)  # with the remaining time
    assert any("123456/200000" in bar for bar in bars)


def test_the_bar_of_training_is_whole_at_80_columns() -> None:
    code = (
        "from sdgmnet.report import counting_bar\n"
        "with counting_bar() as bar:\n"
        "    bar.add_task('training', total=200000, completed=123456, news='1234 pairs/s, loss +0.123')"
    )
    shown = on_terminal([sys.executable, "-c", code], columns=80)
    bar = next(line.rstrip() for line in shown.split("\n") if "training" in line)
    assert len(bar) <= 80 and re.search(r"123456/200000 1234 pairs/s, loss \+0\.123 0:00:00 -:--:--$", bar), bar


def on_terminal(command: list[str], columns: int) -> str:
    """What a command shows on a pseudo-terminal, without colours; every repainting is a new line."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    child = subprocess.Popen(
        command, stdin=follower, stdout=follower, stderr=follower, env={**environment, "TERM": "xterm"}
    )
    os.close(follower)
    output = b""
    with suppress(OSError):  # the end of a terminal is an error
        while part := os.read(leader, 65536):
            output += part
    os.close(leader)
    assert child.wait() == 0
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", output.decode())
    return text.replace("\r", "\n")


def test_a_title_is_not_folded_to_the_width_of_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["a", "b"], [["1", "2"]], "A title that is wider than the table [below] it")
    assert capsys.readouterr().out.startswith("A title that is wider than the table [below] it\n")

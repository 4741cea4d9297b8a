"""Tables and files, progress, and HTML pages."""

import base64
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import cv2
import numpy as np
import pytest

from sdgmnet.errors import InputError
from sdgmnet.report import Section, deliver, print_aside, progress_bars, track, write_page

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


def test_progress_is_reported_and_stays_off_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    reported: list[tuple[str, int, int]] = []
    assert list(track(iter("abc"), "reading", lambda *step: reported.append(step), 3)) == ["a", "b", "c"]
    assert reported[0] == ("reading", 0, 3) and reported[-1] == ("reading", 3, 3)
    with progress_bars() as on_progress:
        for stage in range(20):
            for _ in track(range(5), f"stage {stage}", on_progress):
                pass
        on_progress("stage 0", 5, 5)  # its bar is gone by now
        print_aside("A remark [/x].")
    printed = capsys.readouterr()
    assert printed.out == "" and "A remark [/x]." in printed.err and "stage 19" in printed.err

"""The page is whole by itself; where there is a browser, it is looked at."""

import base64
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import cv2
import numpy as np
import pytest

from sdgmnet.errors import InputError
from sdgmnet.report import Section, write_page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
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


def test_other_pictures_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="end in .png"):
        write_page(tmp_path / "index.html", "t", [Section("a", image=tmp_path / "a.gif")])
    assert not (tmp_path / "index.html").exists()


def look_at(page: Path) -> tuple[str, np.ndarray]:
    """What the browser says on its console, and what it shows."""
    shot, profile = page.with_suffix(".shot.png"), page.parent / "profile"
    words = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    words += [
        "--enable-logging=stderr",
        "--log-level=0",
        "--force-color-profile=srgb",
        f"--user-data-dir={profile}",
        "--window-size=1200,900",
        f"--screenshot={shot}",
    ]
    done = subprocess.run([*words, page.as_uri()], capture_output=True, text=True, check=False, timeout=120)
    assert shot.exists(), done.stderr
    picture = cv2.imread(str(shot))
    assert picture is not None
    return "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line), picture


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium to look at pages with")
def test_a_browser_shows_it_without_complaint(page: Path) -> None:
    console, picture = look_at(page)
    assert console == ""
    assert (np.abs(picture.astype(int) - PURPLE).sum(2) < 12).sum() == pytest.approx(80 * 120, rel=0.05)
    # What is looked for would be seen.
    broken = page.with_name("broken.html")
    broken.write_text("<script>console.error('complaint')</script><img src='data:image/png;base64,AAAA'>")
    console, picture = look_at(broken)
    assert "complaint" in console and (picture == 255).all(axis=2).mean() > 0.9

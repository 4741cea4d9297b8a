"""Downloads that resume without gluing two files together, and archives that stay inside their folder."""

import io
import stat
import threading
import urllib.request
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from sdgmnet.data import download, phototour
from sdgmnet.data.download import SafeRedirects, fetch, fetch_phototour, require_safe_address, unpack_zip
from sdgmnet.data.patchset import PatchSet
from sdgmnet.data.phototour import write_phototour
from sdgmnet.errors import InputError
from tests.data.samples import names, noise_set

CONTENT = np.random.default_rng(0).bytes(300_000)
CHANGED = np.random.default_rng(1).bytes(300_000)


@dataclass
class Site:
    """What the server does; tests change it while it runs."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=lambda: {"/file.zip": CONTENT})
    version: dict[str, str] = field(default_factory=lambda: {"ETag": '"one"'})
    drops: list[int] = field(default_factory=list)  # bytes of the answer after which each request is cut, in order
    knows_range: bool = True
    knows_if_range: bool = True
    declares_length: bool = True
    status: int | None = None
    redirects: dict[str, str] = field(default_factory=dict)
    sent: int = 0
    requests: list[tuple[str, str | None]] = field(default_factory=list)

    def fetch(self, folder: Path, name: str = "file.zip") -> bytes:
        """The content of a file that is downloaded to folder/file.zip."""
        return fetch(f"{self.address}/{name}", folder / "file.zip").read_bytes()

    def break_off(self, folder: Path, after: int, resumes: bool = True) -> None:
        """Leave a part of `after` bytes behind, as a failed download does."""
        self.drops = [after] + [0 if resumes else after] * (download.RETRIES + 1)
        with pytest.raises(InputError, match=f"file.zip .* {after} bytes"):
            self.fetch(folder)
        assert not (folder / "file.zip").exists()
        assert (folder / "file.zip.part").read_bytes() == self.files["/file.zip"][:after]
        self.sent, self.requests = 0, []


class Handler(BaseHTTPRequestHandler):
    site: Site

    def do_GET(self) -> None:
        site = self.site
        wanted = self.headers.get("Range")
        site.requests.append((self.path, wanted))
        if self.path in site.redirects:
            return self.answer(302, {"Location": site.redirects[self.path]}, b"")
        if site.status or self.path not in site.files:
            return self.answer(site.status or 404, {}, b"")
        content = site.files[self.path]
        current = self.headers.get("If-Range") in (None, *site.version.values()) or not site.knows_if_range
        if not (wanted and site.knows_range and current):
            return self.answer(200, site.version, content)
        start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        if start >= len(content):
            return self.answer(416, {"Content-Range": f"bytes */{len(content)}"}, b"")
        span = f"bytes {start}-{len(content) - 1}/{len(content)}"
        return self.answer(206, {"Content-Range": span, **site.version}, content[start:])

    def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if self.site.declares_length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.site.drops:
            body = body[: self.site.drops.pop(0)]
        self.site.sent += len(body)  # before the other side can have it all
        self.wfile.write(body)
        self.close_connection = True

    def log_message(self, format: str, *values: object) -> None:
        pass


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(download, "RETRY_PAUSE", 0.0)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    site = Site(address=f"http://127.0.0.1:{server.server_port}")
    server.RequestHandlerClass = type("SiteHandler", (Handler,), {"site": site})
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield site
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("declares_length", [True, False])
def test_a_file_is_fetched_once(site: Site, tmp_path: Path, declares_length: bool) -> None:
    site.declares_length = declares_length
    heard: list[tuple[str, int, int]] = []
    for _ in range(2):
        fetch(f"{site.address}/file.zip", tmp_path / "deep" / "b.zip", lambda *what: heard.append(what))
        assert names(tmp_path) == ["deep", "deep/b.zip"] and (tmp_path / "deep/b.zip").read_bytes() == CONTENT
        assert site.requests == [("/file.zip", None)]
    assert "b.zip" in heard[-1][0] and heard[-1][1] == heard[-1][2]


def test_goes_on_after_dropped_connections(site: Site, tmp_path: Path) -> None:
    site.drops = [100_000, 50_000, 0, 0, 70_000]
    assert site.fetch(tmp_path) == CONTENT
    assert site.sent == len(CONTENT)  # no byte came twice
    ranges = ["bytes=100000-", "bytes=150000-", "bytes=150000-", "bytes=150000-", "bytes=220000-"]
    assert [wanted for _, wanted in site.requests] == [None, *ranges]
    assert names(tmp_path) == ["file.zip"]


@pytest.mark.parametrize("version", [{"ETag": '"one"'}, {"ETag": 'W/"weak"', "Last-Modified": "Tue, 01 Jul 2025"}])
def test_goes_on_in_a_later_call(site: Site, tmp_path: Path, version: dict[str, str]) -> None:
    site.version = version
    site.break_off(tmp_path, 123_456)
    assert site.fetch(tmp_path) == CONTENT and site.sent == len(CONTENT) - 123_456
    assert names(tmp_path) == ["file.zip"]


@pytest.mark.parametrize("knows_if_range", [True, False])
def test_a_changed_file_is_not_joined_to_the_old_part(site: Site, tmp_path: Path, knows_if_range: bool) -> None:
    site.break_off(tmp_path, 100_000)
    site.files["/file.zip"], site.version, site.knows_if_range = CHANGED, {"ETag": '"two"'}, knows_if_range
    if knows_if_range:
        site.break_off(tmp_path, 20_000)  # shorter than the old part: none of it may remain
    assert site.fetch(tmp_path) == CHANGED


@pytest.mark.parametrize("version", [{}, {"ETag": 'W/"weak"'}])
def test_without_a_version_it_starts_over(site: Site, tmp_path: Path, version: dict[str, str]) -> None:
    site.version = version
    site.break_off(tmp_path, 100_000, resumes=False)
    site.files["/file.zip"] = CHANGED
    assert site.fetch(tmp_path) == CHANGED and site.requests == [("/file.zip", None)]


@pytest.mark.parametrize("note", [None, b"", b"[1]", b'{"url": 5', b'{"url": "https://other", "version": "\\"one\\""}'])
def test_a_part_of_another_address_or_without_a_usable_note_is_not_used(
    site: Site, tmp_path: Path, note: bytes | None
) -> None:
    (tmp_path / "file.zip.part").write_bytes(CHANGED[:5000])
    if note is not None:
        (tmp_path / "file.zip.part.json").write_bytes(note)
    assert site.fetch(tmp_path) == CONTENT and site.requests == [("/file.zip", None)]


@pytest.mark.parametrize(("part", "sent"), [(CONTENT, 0), (CONTENT + b"more", len(CONTENT))])
def test_a_part_as_long_as_the_file_or_longer(site: Site, tmp_path: Path, part: bytes, sent: int) -> None:
    site.break_off(tmp_path, 100_000)
    (tmp_path / "file.zip.part").write_bytes(part)
    assert site.fetch(tmp_path) == CONTENT and site.sent == sent


def test_a_server_that_ignores_range(site: Site, tmp_path: Path) -> None:
    site.knows_range = False
    site.break_off(tmp_path, 100_000, resumes=False)
    assert site.fetch(tmp_path) == CONTENT and site.sent == len(CONTENT)
    site.drops, site.requests = [100_000] * 50, []
    with pytest.raises(InputError, match="file.zip"):
        site.fetch(tmp_path / "other")
    assert len(site.requests) == download.RETRIES + 2


@pytest.mark.parametrize(("status", "requests"), [(404, 1), (204, 1), (503, download.RETRIES + 1)])
def test_answers_without_a_file(site: Site, tmp_path: Path, status: int, requests: int) -> None:
    site.status = status
    with pytest.raises(InputError, match=rf"file\.zip answers {status}"):
        site.fetch(tmp_path)
    assert len(site.requests) == requests and names(tmp_path) == []


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/file.zip", "https://host.invalid/file.zip"])
def test_unreachable_servers_are_named(site: Site, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with pytest.raises(InputError, match=url):
        fetch(url, tmp_path / "file.zip")


def test_a_silent_server_times_out(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "TIMEOUT", 0.1)
    monkeypatch.setattr(download, "RETRIES", 1)
    monkeypatch.setattr(Handler, "do_GET", lambda handler: threading.Event().wait(0.3))
    with pytest.raises(InputError, match="file.zip .* 0 bytes"):
        site.fetch(tmp_path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_and_a_folder_that_cannot_be_made(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file.zip.part").symlink_to("/dev/full")
    with pytest.raises(InputError, match="disk is full"):
        site.fetch(tmp_path)
    assert len(site.requests) == 1 and not (tmp_path / "file.zip").exists()
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match=r"file/file\.zip"):
        site.fetch(tmp_path / "file")


ELSEWHERE = ["http://example.org/file.zip", "ftp://127.0.0.1/file.zip", "file:///etc/hostname"]
UNSAFE_URLS = [
    "http://127.0.0.1@example.org/file.zip", "http://localhost.example.org/file.zip", "HTTP://example.org/file.zip",
    "https:///file.zip", "https://host/ü", "https://[::1/file", "https://host:port/file", "liberty.zip",
]  # fmt: skip


@pytest.mark.parametrize("url", [*ELSEWHERE, *UNSAFE_URLS, "https://host/a b", "https://host/\nfile", ""])
def test_only_https_and_this_machine_are_allowed(url: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="address"):
        fetch(url, tmp_path / "file.zip")
    assert names(tmp_path) == []
    for allowed in ("https://example.org/a.zip", "http://127.0.0.1:80/a", "http://localhost/a", "http://[::1]:8080/a"):
        require_safe_address(allowed)


def test_a_redirect_is_followed_but_not_for_ever(site: Site, tmp_path: Path) -> None:
    site.redirects = {"/old.zip": "/file.zip", "/loop.zip": "/loop.zip"}
    assert site.fetch(tmp_path, "old.zip") == CONTENT
    with pytest.raises(InputError, match="loop.zip answers 302"):
        site.fetch(tmp_path / "new", "loop.zip")


@pytest.mark.parametrize("place", ELSEWHERE)
def test_a_redirect_to_an_unsafe_address_is_refused(site: Site, tmp_path: Path, place: str) -> None:
    site.redirects = {"/file.zip": place}
    with pytest.raises(InputError, match="zip|hostname"):
        site.fetch(tmp_path)
    assert names(tmp_path) == []


def test_a_redirect_from_https_to_http_is_refused() -> None:
    request = urllib.request.Request("https://example.org/file.zip")
    with pytest.raises(InputError, match="http://localhost/file.zip"):
        SafeRedirects().redirect_request(request, io.BytesIO(), 302, "", Message(), "http://localhost/file.zip")
    followed = SafeRedirects().redirect_request(request, io.BytesIO(), 302, "", Message(), "https://b.org/file.zip")
    assert followed is not None and followed.full_url == "https://b.org/file.zip"


def make_zip(path: Path, *entries: tuple[str | zipfile.ZipInfo, bytes]) -> Path:
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        warnings.simplefilter("ignore")  # zipfile itself warns of the same name twice
        for name, content in entries:
            archive.writestr(name, content)
    return path


def assert_not_unpacked(archive: Path, message: str = "", limit: int = 10**9) -> None:
    before = names(archive.parent)
    with pytest.raises(InputError) as caught:
        unpack_zip(archive, archive.parent / "out", limit)
    assert str(archive) in str(caught.value) and message in str(caught.value)
    assert names(archive.parent) == before


def test_unpacks_folders_and_files(tmp_path: Path) -> None:
    content = [("a/", b""), ("a/one.txt", b"1"), ("b/c/two.txt", b"2" * 3_000_000), ("three..txt", b"3")]
    unpack_zip(make_zip(tmp_path / "x.zip", *content), tmp_path / "out")
    assert names(tmp_path / "out") == ["a", "a/one.txt", "b", "b/c", "b/c/two.txt", "three..txt"]
    assert (tmp_path / "out" / "b" / "c" / "two.txt").read_bytes() == b"2" * 3_000_000


UNSAFE_NAMES = [
    "../evil.txt", "a/../../evil.txt", "a/..", "/tmp/evil.txt", "//host/evil.txt", "C:/evil.txt", "C:evil.txt",
    "..\\..\\evil.txt", "\\\\host\\evil.txt", "a.txt:evil", ".", "good.txt", "./good.txt",
]  # fmt: skip
UNSAFE = [*((name, 0) for name in UNSAFE_NAMES), ("link", stat.S_IFLNK | 0o777), ("null", stat.S_IFCHR | 0o666)]


@pytest.mark.parametrize(("name", "mode"), UNSAFE)
def test_unsafe_entries_are_refused(tmp_path: Path, name: str, mode: int) -> None:
    entry = zipfile.ZipInfo("x")
    entry.filename = entry.orig_filename = name  # zipfile's own constructor would clean it up
    entry.external_attr = mode << 16
    (tmp_path / "inner").mkdir()
    assert_not_unpacked(make_zip(tmp_path / "inner/x.zip", ("good.txt", b"good"), (entry, b"/etc")), repr(name))
    assert names(tmp_path) == ["inner", "inner/x.zip"]


def test_entries_that_lie_or_are_too_large_are_refused(tmp_path: Path) -> None:
    """A zero byte in a name, a file that is also a folder, a false size, encryption, another compression, too much in all."""
    archive = make_zip(tmp_path / "x.zip", ("a.txt_evil", b"1"))
    archive.write_bytes(archive.read_bytes().replace(b"a.txt_evil", b"a.txt\0evil"))
    assert_not_unpacked(archive)
    assert_not_unpacked(make_zip(archive, ("a", b"1"), ("a/b", b"2")))
    make_zip(archive, ("a", bytes(100_000)))
    sizes = (number.to_bytes(4, "little") for number in (100_000, 10))
    archive.write_bytes(archive.read_bytes().replace(*sizes))
    assert_not_unpacked(archive, limit=1000)
    content = bytearray(make_zip(archive, ("a", b"1")).read_bytes())
    for header, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        content[content.index(header) + flags] |= 1
    archive.write_bytes(content)
    assert_not_unpacked(archive, "encrypted")
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_BZIP2) as packed:
        packed.writestr("a", b"1")
    assert_not_unpacked(archive, "deflate")
    make_zip(archive, ("a", bytes(600)), ("b", bytes(401)))
    assert_not_unpacked(archive, "1001 bytes", limit=1000)
    unpack_zip(archive, tmp_path / "out", limit=1001)


def flip(content: bytes) -> bytes:
    """One bit of the stored data."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize(
    "damage", [flip, lambda _: b"", lambda _: b"<html>", lambda whole: whole[:-1], lambda whole: whole[:150_000]]
)
def test_damaged_archives_are_refused(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    archive = make_zip(tmp_path / "x.zip", ("a", CONTENT[:5000]), ("b", CONTENT))
    archive.write_bytes(damage(archive.read_bytes()))
    assert_not_unpacked(archive)


def test_a_missing_archive_and_a_used_folder_are_refused(tmp_path: Path) -> None:
    assert_not_unpacked(tmp_path / "x.zip", "does not exist")
    make_zip(tmp_path / "x.zip", ("a", b"new"))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a").write_text("mine")
    with pytest.raises(InputError, match="out already exists"):
        unpack_zip(tmp_path / "x.zip", tmp_path / "out")
    assert (tmp_path / "out" / "a").read_text() == "mine"


def subset() -> PatchSet:
    same = noise_set(135, 2)
    labels = same.point_id[[0, 2]] == same.point_id[[1, 9]]
    return same.with_test_pairs(np.column_stack([[0, 2], [1, 9], labels]))


def archive_of(folder: Path, top: str) -> bytes:
    """The subset as a zip, its files below the folder `top` inside."""
    write_phototour(subset(), folder)
    files = [(f"{top}{path.name}", path.read_bytes()) for path in sorted(folder.iterdir())]
    return make_zip(folder.with_suffix(".zip"), ("__MACOSX/._info.txt", b"noise"), *files).read_bytes()


@pytest.fixture
def small_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The published size of notredame, for a subset that tests can afford."""
    monkeypatch.setitem(phototour.PATCH_COUNTS, "notredame", 270)


@pytest.mark.parametrize("top", ["", "notredame/", "data/Notre-Dame/"])
def test_fetches_a_subset_as_a_patchset(site: Site, tmp_path: Path, small_counts: None, top: str) -> None:
    site.files["/mirror/notredame/notredame.zip"] = archive_of(tmp_path / "source", top)
    root = tmp_path / "root"
    for mirror in (f"{site.address}/mirror/", "https://host.invalid"):  # once it is there, nothing is asked for
        got = fetch_phototour("notredame", root, mirror)
        assert got.name == "notredame"
        for name in ("patches", "point_id", "test_pairs"):
            assert np.array_equal(getattr(got, name), getattr(subset(), name))
        # The archive stays, the bitmaps do not.
        assert sorted(path.name for path in root.iterdir()) == ["archives", "notredame"]
        assert names(root / "archives") == ["notredame.zip"]


def test_addresses_of_the_archives(site: Site, tmp_path: Path) -> None:
    for name in phototour.PATCH_COUNTS:
        with pytest.raises(InputError, match="404"):
            fetch_phototour(name, tmp_path, site.address)
    places = ["liberty", "notredame/notredame", "yosemite", "liberty_harris", "notredame_harris", "yosemite_harris"]
    assert sorted(path for path, _ in site.requests) == sorted(f"/{name}.zip" for name in places)


def test_a_subset_of_another_size_is_refused_unless_allowed(site: Site, tmp_path: Path) -> None:
    site.files["/liberty.zip"] = archive_of(tmp_path / "source", "liberty/")
    root = tmp_path / "root"
    with pytest.raises(InputError, match=r"liberty\.zip.*info\.txt.* 270 .*450092"):
        fetch_phototour("liberty", root, site.address)
    assert names(root) == ["archives", "archives/liberty.zip"]
    with pytest.warns(UserWarning, match="450092"):
        assert len(fetch_phototour("liberty", root, site.address, strict=False)) == 270
    with pytest.raises(InputError, match="450092"):
        fetch_phototour("liberty", root, site.address)
    site.files["/yosemite.zip"] = make_zip(tmp_path / "x.zip", ("a", b"1")).read_bytes()  # an archive of something else
    with pytest.raises(InputError, match=r"archives/yosemite\.zip"):
        fetch_phototour("yosemite", root, site.address)
    assert names(root / "archives") == ["liberty.zip", "yosemite.zip"]


def test_an_unknown_subset_and_a_folder_in_use_are_refused_before_any_download(site: Site, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'paris'.* liberty, notredame, yosemite"):
        fetch_phototour("paris", tmp_path, site.address)
    write_phototour(subset(), tmp_path / "liberty")
    with pytest.raises(InputError, match="liberty.*data phototour"):
        fetch_phototour("liberty", tmp_path, site.address)
    assert site.requests == []

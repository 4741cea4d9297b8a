"""Downloads that resume without gluing two files together, and archives that stay inside their folder."""

import io
import stat
import threading
import urllib.request
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from sdgmnet.data import download, phototour
from sdgmnet.data.download import SafeRedirects, fetch, fetch_phototour, require_safe_address, unpack_zip
from sdgmnet.data.patchset import PatchSet, is_patchset
from sdgmnet.data.phototour import write_phototour
from sdgmnet.errors import InputError

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


def break_off(site: Site, target: Path, after: int, resumes: bool = True) -> None:
    """Leave a part of `after` bytes behind, as a failed download does."""
    site.drops = [after] + [0 if resumes else after] * (download.RETRIES + 1)
    with pytest.raises(InputError, match=f"file.zip .* {after} bytes"):
        fetch(f"{site.address}/file.zip", target)
    assert not target.exists()
    assert (target.parent / f"{target.name}.part").read_bytes() == site.files["/file.zip"][:after]
    site.sent, site.requests = 0, []


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_fetches_a_file_whole(site: Site, tmp_path: Path) -> None:
    assert fetch(f"{site.address}/file.zip", tmp_path / "deep" / "file.zip").read_bytes() == CONTENT
    assert names(tmp_path) == ["deep", "deep/file.zip"]
    assert site.requests == [("/file.zip", None)]


def test_a_file_that_is_there_is_not_fetched_again(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file.zip").write_bytes(b"whole")
    fetch(f"{site.address}/file.zip", tmp_path / "file.zip")
    assert site.requests == [] and (tmp_path / "file.zip").read_bytes() == b"whole"


def test_goes_on_after_dropped_connections(site: Site, tmp_path: Path) -> None:
    site.drops = [100_000, 50_000, 0, 0, 70_000]
    fetch(f"{site.address}/file.zip", tmp_path / "file.zip")
    assert (tmp_path / "file.zip").read_bytes() == CONTENT
    assert site.sent == len(CONTENT)  # no byte came twice
    ranges = ["bytes=100000-", "bytes=150000-", "bytes=150000-", "bytes=150000-", "bytes=220000-"]
    assert [wanted for _, wanted in site.requests] == [None, *ranges]
    assert names(tmp_path) == ["file.zip"]


def test_goes_on_in_a_later_call(site: Site, tmp_path: Path) -> None:
    break_off(site, tmp_path / "file.zip", 123_456)
    fetch(f"{site.address}/file.zip", tmp_path / "file.zip")
    assert (tmp_path / "file.zip").read_bytes() == CONTENT
    assert site.sent == len(CONTENT) - 123_456
    assert names(tmp_path) == ["file.zip"]


def test_a_date_serves_as_version_too(site: Site, tmp_path: Path) -> None:
    site.version = {"ETag": 'W/"weak"', "Last-Modified": "Tue, 01 Jul 2025 10:00:00 GMT"}
    break_off(site, tmp_path / "file.zip", 1000)
    fetch(f"{site.address}/file.zip", tmp_path / "file.zip")
    assert (tmp_path / "file.zip").read_bytes() == CONTENT and site.sent == len(CONTENT) - 1000


@pytest.mark.parametrize("knows_if_range", [True, False])
def test_a_changed_file_is_not_joined_to_the_old_part(site: Site, tmp_path: Path, knows_if_range: bool) -> None:
    break_off(site, tmp_path / "file.zip", 100_000)
    site.files["/file.zip"], site.version, site.knows_if_range = CHANGED, {"ETag": '"two"'}, knows_if_range
    if knows_if_range:
        break_off(site, tmp_path / "file.zip", 20_000)  # shorter than the old part: none of it may remain
    fetch(f"{site.address}/file.zip", tmp_path / "file.zip")
    assert (tmp_path / "file.zip").read_bytes() == CHANGED


@pytest.mark.parametrize("version", [{}, {"ETag": 'W/"weak"'}])
def test_without_a_version_it_starts_over(site: Site, tmp_path: Path, version: dict[str, str]) -> None:
    site.version = version
    break_off(site, tmp_path / "file.zip", 100_000, resumes=False)
    site.files["/file.zip"] = CHANGED
    fetch(f"{site.address}/file.zip", tmp_path / "file.zip")
    assert (tmp_path / "file.zip").read_bytes() == CHANGED and site.requests == [("/file.zip", None)]


def test_a_part_of_another_address_is_not_used(site: Site, tmp_path: Path) -> None:
    break_off(site, tmp_path / "file.zip", 100_000)
    site.files["/other.zip"] = CHANGED
    fetch(f"{site.address}/other.zip", tmp_path / "file.zip")
    assert (tmp_path / "file.zip").read_bytes() == CHANGED


@pytest.mark.parametrize("note", [None, b"", b"[1]", b'{"url": 5'])
def test_a_part_without_a_usable_note_is_not_used(site: Site, tmp_path: Path, note: bytes | None) -> None:
    (tmp_path / "file.zip.part").write_bytes(CHANGED[:5000])
    if note is not None:
        (tmp_path / "file.zip.part.json").write_bytes(note)
    fetch(f"{site.address}/file.zip", tmp_path / "file.zip")
    assert (tmp_path / "file.zip").read_bytes() == CONTENT


@pytest.mark.parametrize(("part", "sent"), [(CONTENT, 0), (CONTENT + b"more", len(CONTENT))])
def test_a_part_as_long_as_the_file_or_longer(site: Site, tmp_path: Path, part: bytes, sent: int) -> None:
    break_off(site, tmp_path / "file.zip", 100_000)
    (tmp_path / "file.zip.part").write_bytes(part)
    fetch(f"{site.address}/file.zip", tmp_path / "file.zip")
    assert (tmp_path / "file.zip").read_bytes() == CONTENT and site.sent == sent


def test_a_server_that_ignores_range(site: Site, tmp_path: Path) -> None:
    site.knows_range = False
    break_off(site, tmp_path / "file.zip", 100_000, resumes=False)
    fetch(f"{site.address}/file.zip", tmp_path / "file.zip")
    assert (tmp_path / "file.zip").read_bytes() == CONTENT and site.sent == len(CONTENT)
    site.drops, site.requests = [100_000] * 50, []
    with pytest.raises(InputError, match="file.zip"):
        fetch(f"{site.address}/file.zip", tmp_path / "other.zip")
    assert len(site.requests) == download.RETRIES + 2


def test_a_file_of_unknown_length_is_fetched(site: Site, tmp_path: Path) -> None:
    site.declares_length = False
    assert fetch(f"{site.address}/file.zip", tmp_path / "file.zip").read_bytes() == CONTENT


@pytest.mark.parametrize(("status", "requests"), [(404, 1), (204, 1), (503, download.RETRIES + 1)])
def test_answers_without_a_file(site: Site, tmp_path: Path, status: int, requests: int) -> None:
    site.status = status
    with pytest.raises(InputError, match=rf"file\.zip answers {status}"):
        fetch(f"{site.address}/file.zip", tmp_path / "file.zip")
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
        fetch(f"{site.address}/file.zip", tmp_path / "file.zip")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_said_to_be_full(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file.zip.part").symlink_to("/dev/full")
    with pytest.raises(InputError, match="disk is full"):
        fetch(f"{site.address}/file.zip", tmp_path / "file.zip")
    assert len(site.requests) == 1 and not (tmp_path / "file.zip").exists()


def test_a_folder_that_cannot_be_made_is_named(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match=r"file/a\.zip"):
        fetch(f"{site.address}/file.zip", tmp_path / "file" / "a.zip")


def test_progress_of_a_download(site: Site, tmp_path: Path) -> None:
    heard: list[tuple[str, int, int]] = []
    fetch(f"{site.address}/file.zip", tmp_path / "b.zip", lambda *what: heard.append(what))
    assert "b.zip" in heard[-1][0] and heard[-1][1] == heard[-1][2]


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/file.zip",
        "http://127.0.0.1@example.org/file.zip",
        "http://localhost.example.org/file.zip",
        "ftp://127.0.0.1/file.zip",
        "file:///etc/hostname",
        "HTTP://example.org/file.zip",
        "https:///file.zip",
        "https://host/a b",
        "https://host/\nfile",
        "https://host/ü",
        "https://[::1/file",
        "https://host:port/file",
        "liberty.zip",
        "",
    ],
)
def test_only_https_and_this_machine_are_allowed(url: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="address"):
        fetch(url, tmp_path / "file.zip")
    assert names(tmp_path) == []


def test_allowed_addresses() -> None:
    for url in ("https://example.org/a.zip", "http://127.0.0.1:80/a", "http://localhost/a", "http://[::1]:8080/a"):
        require_safe_address(url)


def test_a_redirect_is_followed_but_not_for_ever(site: Site, tmp_path: Path) -> None:
    site.redirects = {"/old.zip": "/file.zip", "/loop.zip": "/loop.zip"}
    assert fetch(f"{site.address}/old.zip", tmp_path / "file.zip").read_bytes() == CONTENT
    with pytest.raises(InputError, match="loop.zip answers 302"):
        fetch(f"{site.address}/loop.zip", tmp_path / "loop.zip")


@pytest.mark.parametrize("place", ["http://example.org/file.zip", "ftp://127.0.0.1/file.zip", "file:///etc/hostname"])
def test_a_redirect_to_an_unsafe_address_is_refused(site: Site, tmp_path: Path, place: str) -> None:
    site.redirects = {"/file.zip": place}
    with pytest.raises(InputError, match="zip|hostname"):
        fetch(f"{site.address}/file.zip", tmp_path / "file.zip")
    assert names(tmp_path) == []


def test_a_redirect_from_https_to_http_is_refused() -> None:
    request = urllib.request.Request("https://example.org/file.zip")
    with pytest.raises(InputError, match="http://localhost/file.zip"):
        SafeRedirects().redirect_request(request, io.BytesIO(), 302, "", Message(), "http://localhost/file.zip")
    followed = SafeRedirects().redirect_request(request, io.BytesIO(), 302, "", Message(), "https://b.org/file.zip")
    assert followed is not None and followed.full_url == "https://b.org/file.zip"


def make_zip(path: Path, entries: Sequence[tuple[str | zipfile.ZipInfo, bytes]]) -> Path:
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        warnings.simplefilter("ignore")  # zipfile itself warns of the same name twice
        for name, content in entries:
            archive.writestr(name, content)
    return path


def entry(name: str, mode: int = 0) -> zipfile.ZipInfo:
    """An entry with this very name: zipfile's own constructor would clean it up."""
    made = zipfile.ZipInfo("x")
    made.filename = made.orig_filename = name
    made.external_attr = mode << 16
    return made


def test_unpacks_folders_and_files(tmp_path: Path) -> None:
    content = [("a/", b""), ("a/one.txt", b"1"), ("b/c/two.txt", b"2" * 3_000_000), ("three..txt", b"3")]
    unpack_zip(make_zip(tmp_path / "x.zip", content), tmp_path / "out")
    assert names(tmp_path / "out") == ["a", "a/one.txt", "b", "b/c", "b/c/two.txt", "three..txt"]
    assert (tmp_path / "out" / "b" / "c" / "two.txt").read_bytes() == b"2" * 3_000_000


UNSAFE = {
    "parent": entry("../evil.txt"),
    "parent inside": entry("a/../../evil.txt"),
    "parent at the end": entry("a/.."),
    "absolute": entry("/tmp/evil.txt"),
    "two slashes": entry("//host/evil.txt"),
    "drive": entry("C:/evil.txt"),
    "drive without slash": entry("C:evil.txt"),
    "backslashes": entry("..\\..\\evil.txt"),
    "backslash drive": entry("\\\\host\\evil.txt"),
    "stream": entry("a.txt:evil"),
    "no name": entry("."),
    "symbolic link": entry("link", stat.S_IFLNK | 0o777),
    "device": entry("null", stat.S_IFCHR | 0o666),
    "the same twice": entry("good.txt"),
    "the same in other words": entry("./good.txt"),
}


@pytest.mark.parametrize("case", UNSAFE)
def test_unsafe_entries_are_refused(tmp_path: Path, case: str) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    archive = make_zip(inner / "x.zip", [("good.txt", b"good"), (UNSAFE[case], b"/etc")])
    with pytest.raises(InputError) as caught:
        unpack_zip(archive, inner / "out")
    assert str(archive) in str(caught.value)
    assert repr(UNSAFE[case].filename) in str(caught.value)
    assert names(tmp_path) == ["inner", "inner/x.zip"]


def test_a_zero_byte_in_a_name_is_refused(tmp_path: Path) -> None:
    archive = make_zip(tmp_path / "x.zip", [("a.txt_evil", b"1")])
    archive.write_bytes(archive.read_bytes().replace(b"a.txt_evil", b"a.txt\0evil"))
    with pytest.raises(InputError, match="x.zip"):
        unpack_zip(archive, tmp_path / "out")
    assert names(tmp_path) == ["x.zip"]


def test_a_file_that_is_also_a_folder_is_refused(tmp_path: Path) -> None:
    archive = make_zip(tmp_path / "x.zip", [("a", b"1"), ("a/b", b"2")])
    with pytest.raises(InputError, match="x.zip"):
        unpack_zip(archive, tmp_path / "out")
    assert names(tmp_path) == ["x.zip"]


def test_sizes_past_the_limit_are_refused(tmp_path: Path) -> None:
    archive = make_zip(tmp_path / "x.zip", [("a", bytes(600)), ("b", bytes(401))])
    with pytest.raises(InputError, match="x.zip .* 1001 bytes"):
        unpack_zip(archive, tmp_path / "out", limit=1000)
    assert names(tmp_path) == ["x.zip"]
    unpack_zip(archive, tmp_path / "out", limit=1001)
    assert names(tmp_path / "out") == ["a", "b"]


def test_an_entry_cannot_unpack_to_more_than_it_declares(tmp_path: Path) -> None:
    archive = make_zip(tmp_path / "x.zip", [("a", bytes(100_000))])
    size = (100_000).to_bytes(4, "little")
    archive.write_bytes(archive.read_bytes().replace(size, (10).to_bytes(4, "little")))
    with pytest.raises(InputError, match="x.zip"):
        unpack_zip(archive, tmp_path / "out", limit=1000)
    assert names(tmp_path) == ["x.zip"]


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flip(content: bytes) -> bytes:
    """One bit of the stored data."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize("damage", [cut, flip, lambda _: b"", lambda _: b"<html>", lambda content: content[:-1]])
def test_damaged_archives_are_refused(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    archive = make_zip(tmp_path / "x.zip", [("a", CONTENT[:5000]), ("b", CONTENT)])
    archive.write_bytes(damage(archive.read_bytes()))
    with pytest.raises(InputError, match="x.zip"):
        unpack_zip(archive, tmp_path / "out")
    assert names(tmp_path) == ["x.zip"]


def test_random_damage_never_escapes_as_another_error(tmp_path: Path) -> None:
    whole = make_zip(tmp_path / "x.zip", [("a/b.txt", b"text" * 20), ("c.txt", b"more")]).read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for index in range(300):
        content = bytearray(whole)
        for place in rng.integers(len(content), size=rng.integers(1, 4)):
            content[place] = rng.integers(256)
        (tmp_path / "y.zip").write_bytes(content)
        try:
            unpack_zip(tmp_path / "y.zip", tmp_path / "out" / str(index))
        except InputError as error:
            assert "y.zip" in str(error)
            refused += 1
    assert refused > 100
    assert {path.name for path in tmp_path.iterdir()} == {"x.zip", "y.zip", "out"}


def test_a_missing_archive_and_a_used_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="x.zip does not exist"):
        unpack_zip(tmp_path / "x.zip", tmp_path / "out")
    make_zip(tmp_path / "x.zip", [("a", b"new")])
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a").write_text("mine")
    with pytest.raises(InputError, match="out already exists"):
        unpack_zip(tmp_path / "x.zip", tmp_path / "out")
    assert (tmp_path / "out" / "a").read_text() == "mine"


def subset(count: int = 270) -> PatchSet:
    rng = np.random.default_rng(3)
    point_id = np.arange(count) // 2 * 5
    pairs = np.array([[0, 1, 1], [2, 9, 0]])
    return PatchSet("x", rng.integers(256, size=(count, 64, 64), dtype=np.uint8), point_id, pairs)


def archive_of(folder: Path, top: str) -> bytes:
    """The subset as a zip, its files below the folder `top` inside."""
    write_phototour(subset(), folder)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("__MACOSX/._info.txt", b"noise")
        for path in sorted(folder.iterdir()):
            archive.write(path, f"{top}{path.name}")
    return content.getvalue()


@pytest.fixture
def small_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The published size of notredame, for a subset that tests can afford."""
    monkeypatch.setitem(phototour.PATCH_COUNTS, "notredame", 270)


@pytest.mark.parametrize("top", ["", "notredame/", "data/Notre-Dame/"])
def test_fetches_a_subset_as_a_patchset(site: Site, tmp_path: Path, small_counts: None, top: str) -> None:
    site.files["/mirror/notredame/notredame.zip"] = archive_of(tmp_path / "source", top)
    root = tmp_path / "root"
    got = fetch_phototour("notredame", root, f"{site.address}/mirror/")
    assert got.name == "notredame"
    assert np.array_equal(got.patches, subset().patches) and np.array_equal(got.point_id, subset().point_id)
    assert np.array_equal(got.test_pairs, subset().test_pairs)  # type: ignore[arg-type]
    assert is_patchset(root / "notredame")
    # The archive stays, the bitmaps do not.
    assert sorted(path.name for path in root.iterdir()) == ["archives", "notredame"]
    assert names(root / "archives") == ["notredame.zip"]
    site.requests = []
    again = fetch_phototour("notredame", root, "https://host.invalid")
    assert np.array_equal(again.patches, got.patches) and site.requests == []


def test_addresses_of_the_archives(site: Site, tmp_path: Path) -> None:
    for name in phototour.PATCH_COUNTS:
        with pytest.raises(InputError, match="404"):
            fetch_phototour(name, tmp_path, site.address)
    places = [f"/{name}.zip" for name in ("liberty", "notredame/notredame", "yosemite")]
    places += [f"/{name}_harris.zip" for name in ("liberty", "notredame", "yosemite")]
    assert sorted(path for path, _ in site.requests) == sorted(places)


def test_a_subset_of_another_size_is_refused_unless_allowed(site: Site, tmp_path: Path) -> None:
    site.files["/liberty.zip"] = archive_of(tmp_path / "source", "liberty/")
    root = tmp_path / "root"
    with pytest.raises(InputError, match=r"archives/liberty\.zip: liberty/info\.txt has 270 patches .*450092"):
        fetch_phototour("liberty", root, site.address)
    assert names(root) == ["archives", "archives/liberty.zip"]
    with pytest.warns(UserWarning, match="450092"):
        assert len(fetch_phototour("liberty", root, site.address, strict=False)) == 270
    with pytest.raises(InputError, match="450092"):
        fetch_phototour("liberty", root, site.address)


def test_an_archive_of_something_else_is_refused(site: Site, tmp_path: Path, small_counts: None) -> None:
    site.files["/notredame/notredame.zip"] = make_zip(tmp_path / "x.zip", [("a", b"1")]).read_bytes()
    with pytest.raises(InputError, match=r"archives/notredame\.zip"):
        fetch_phototour("notredame", tmp_path / "root", site.address)
    assert names(tmp_path / "root") == ["archives", "archives/notredame.zip"]


def test_an_unknown_subset_and_a_folder_in_use_are_refused_before_any_download(site: Site, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'paris'.* liberty, notredame, yosemite"):
        fetch_phototour("paris", tmp_path, site.address)
    write_phototour(subset(), tmp_path / "liberty")
    with pytest.raises(InputError, match="liberty.* sdgmnet data phototour"):
        fetch_phototour("liberty", tmp_path, site.address)
    assert site.requests == []
